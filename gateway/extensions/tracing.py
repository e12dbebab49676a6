"""Tracing: an OpenTelemetry span for each call, and one within it for each request to an upstream server. Imported only
where an exporter is set; needs the extra `otel`.

Spans are made, queued and encoded without the SDK's tracer, batch processor and encoder, which take 70 µs of CPU for
each span. Its configuration by OTEL_* variables, its samplers and its transport are used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation import set_span_in_context

from gateway import __version__
from gateway.calls import Call, Outcome
from gateway.extensions import Extension
from gateway.protocol import PROTOCOL_VERSION_META_KEY
from gateway.tasks import TaskSet
from gateway.tools import Tool

# Spans sent at once, and batches on their way at once.
BATCH, BATCHES = 512, 4
TRACEPARENT = "traceparent"
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
UNNAMED_RECEIVER = "the receiver that OTEL_* variables name"
SCOPE = InstrumentationScope("toolgate", __version__)
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


def describe_service() -> Resource:
    """Return the gateway as receivers see it; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES add to it."""
    own = Resource({"service.name": "toolgate", "service.version": __version__})
    return own.merge(OTELResourceDetector().detect())


def signal_url(endpoint: str | None, signal: Literal["traces", "metrics"]) -> str | None:
    """Return the URL for a signal at the address of an OTLP receiver; None where variables name it."""
    if endpoint is None:
        return None
    return f"{endpoint.rstrip('/').removesuffix('/v1/traces')}/v1/{signal}"


class OpenSpan(NamedTuple):
    """A span that has begun."""

    context: SpanContext
    parent: SpanContext | None
    started_at: int


class Tracer:
    """Begins and ends spans. `endpoint` is the address of an OTLP receiver; without one, OTEL_* variables name it."""

    def __init__(self, endpoint: str | None = None) -> None:
        provider = TracerProvider(resource=describe_service(), shutdown_on_exit=False)
        self._resource = provider.resource
        # The default, whose decision needs no context: as the caller decided, and otherwise always.
        self._sampler = None if provider.sampler is DEFAULT_ON else provider.sampler
        self._exporter = _SpanExporter(signal_url(endpoint, "traces"))
        self._delay = float(os.environ.get("OTEL_BSP_SCHEDULE_DELAY") or 5000) / 1000
        self._ended: list[ReadableSpan] = []
        self._timer: asyncio.TimerHandle | None = None
        self._exports = TaskSet()

    @property
    def failure(self) -> str | None:
        """The reason why spans could not be sent when that was last tried; None if they were."""
        return self._exporter.failure

    def begin(self, name: str, parent: SpanContext | None) -> OpenSpan | None:
        """Begin a span; None if it is not sampled."""
        trace_id = random.getrandbits(128) if parent is None else parent.trace_id
        if self._sampler is None:
            sampled = parent is None or parent.trace_flags.sampled
        else:
            around = None if parent is None else set_span_in_context(NonRecordingSpan(parent))
            sampled = self._sampler.should_sample(around, trace_id, name).decision is not Decision.DROP
        if not sampled:
            return None
        context = SpanContext(trace_id, random.getrandbits(64) or 1, False, _SAMPLED)
        return OpenSpan(context, parent, time.time_ns())

    def end(self, span: OpenSpan, kind: SpanKind, name: str, attributes: dict[str, str], error: str | None) -> None:
        if error is not None:
            attributes["error.type"] = error
        self._ended.append(
            ReadableSpan(
                name,
                context=span.context,
                parent=span.parent,
                resource=self._resource,
                attributes=attributes,
                kind=kind,
                instrumentation_scope=SCOPE,
                status=_UNSET if error is None else _ERROR,
                start_time=span.started_at,
                end_time=time.time_ns(),
            )
        )
        if len(self._ended) >= BATCH:
            self._send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._send)

    async def close(self) -> None:
        """Send what is left."""
        self._send()
        if self._exports:
            await asyncio.wait(self._exports)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _send(self) -> None:
        """Send the spans that have ended, in a thread; while too many batches are on their way they are lost."""
        if self._timer is not None:
            self._timer.cancel()
        spans, self._ended, self._timer = self._ended, [], None
        if spans and len(self._exports) < BATCHES:
            self._exports.start(self._export(spans))

    async def _export(self, spans: Sequence[ReadableSpan]) -> None:
        await asyncio.to_thread(self._exporter.export, spans)


class Tracing(Extension):
    """A server span for each call. It continues the trace that the client names in `_meta` or a header, and a step that
    of the call it belongs to."""

    mode: ClassVar[Literal["gate", "observer"]] = "observer"

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.spans: dict[str, OpenSpan] = {}  # by the id of the call

    def before_execute(self, call: Call) -> None:
        outer = None if call.parent is None else self.spans.get(call.parent.id)
        parent = outer.context if outer is not None else _read_parent(call)
        span = self._tracer.begin(_describe(call.tool, call.public_name)[0], parent)
        if span is not None:
            self.spans[call.id] = span

    def after_execute(self, call: Call, outcome: Outcome) -> None:
        self._end(call, None if outcome.error is None else outcome.error.code)

    def on_cancel(self, call: Call) -> None:
        self._end(call, "CANCELLED")

    def _end(self, call: Call, error: str | None) -> None:
        span = self.spans.pop(call.id, None)
        if span is None:
            return
        name, attributes = _describe(call.tool, call.public_name)
        more = {"gen_ai.conversation.id": call.chat, "enduser.id": call.caller.principal, "toolgate.call.id": call.id}
        version = call.client.meta.get(PROTOCOL_VERSION_META_KEY) if call.client is not None else None
        if isinstance(version, str):
            more["mcp.protocol.version"] = version
        self._tracer.end(span, SpanKind.SERVER, name, {**attributes, **more}, error)


class UpstreamTracing(Extension):
    """A client span for each request to an upstream server, whose context the server gets in `_meta`."""

    mode: ClassVar[Literal["gate", "observer"]] = "observer"

    def __init__(self, tracer: Tracer, outer: Mapping[str, OpenSpan]) -> None:
        self._tracer = tracer
        self._outer = outer
        self._spans: dict[str, OpenSpan] = {}

    def applies_to(self, tool: Tool) -> bool:
        return tool.kind == "mcp"

    def before_execute(self, call: Call) -> Call | None:
        outer = self._outer.get(call.id)
        span = None if outer is None else self._tracer.begin("", outer.context)
        if span is None:
            return None
        self._spans[call.id] = span
        context = span.context
        return call.replace(trace=f"00-{context.trace_id:032x}-{context.span_id:016x}-01")

    def after_execute(self, call: Call, outcome: Outcome) -> None:
        self._end(call, None if outcome.error is None else outcome.error.code)

    def on_cancel(self, call: Call) -> None:
        self._end(call, "CANCELLED")

    def _end(self, call: Call, error: str | None) -> None:
        span, tool = self._spans.pop(call.id, None), call.tool
        if span is not None and tool is not None:
            name, attributes = _describe(tool, tool.id.partition(":")[2])
            more = {"toolgate.server": tool.owner or ""}
            self._tracer.end(span, SpanKind.CLIENT, name, {**attributes, **more}, error)


def _describe(tool: Tool | None, name: str | None) -> tuple[str, Mapping[str, str]]:
    """Return the name of a span and the attributes that are the same for each call, by OpenTelemetry's conventions for
    MCP. A name that no tool has is not among them: callers could invent any number."""
    if tool is None:
        return _describe_method("tools/call", None)
    if tool.is_tool:
        return _describe_method("tools/call", name or tool.id)
    return _describe_method(tool.id.partition(":")[2], None)


@lru_cache(maxsize=4096)
def _describe_method(method: str, tool: str | None) -> tuple[str, Mapping[str, str]]:
    attributes = {"mcp.method.name": method}
    if method == "tools/call":
        attributes["gen_ai.operation.name"] = "execute_tool"
    if tool is None:
        return method, attributes
    return f"{method} {tool}", {**attributes, "gen_ai.tool.name": tool}


def _read_parent(call: Call) -> SpanContext | None:
    """Return the span of the client, as W3C Trace Context names it."""
    text = call.client.meta.get(TRACEPARENT) if call.client is not None else None
    match = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    context = SpanContext(int(match[1], 16), int(match[2], 16), True, TraceFlags(int(match[3], 16)))
    return context if context.is_valid else None


class _SpanExporter(OTLPSpanExporter):
    """The SDK's exporter with a faster encoder, where its client takes encoded spans as it does today. `failure` says
    why the last attempt failed."""

    def __init__(self, url: str | None) -> None:
        super().__init__(endpoint=url)
        self._receiver = url or UNNAMED_RECEIVER
        self.failure: str | None = None
        # Reported as a problem with a beginning and an end, and not with each batch.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        client: Any = getattr(self, "_client", None)
        if client is None:
            result = super().export(spans)
        else:
            sent = client.export(encode_batch(spans))
            result = SpanExportResult.SUCCESS if sent.success else SpanExportResult.FAILURE
        failed = result is not SpanExportResult.SUCCESS
        self.failure = f"spans could not be sent to {self._receiver}" if failed else None
        return result


def encode_batch(spans: Sequence[ReadableSpan]) -> bytes:
    """Encode spans of one resource and scope as an OTLP `TracesData` message."""
    data = b"".join(_field(2, _encode_span(span)) for span in spans)
    return _field(1, _encode_resource(spans[0].resource) + _field(2, _SCOPE_FIELD + data))


@lru_cache(maxsize=4)
def _encode_resource(resource: Resource) -> bytes:
    [spans] = encode_spans([ReadableSpan("", context=_NO_CONTEXT, resource=resource)]).resource_spans
    return _field(1, spans.resource.SerializeToString())


def _encode_span(span: ReadableSpan) -> bytes:
    context, parent, attributes = span.context, span.parent, span.attributes or {}
    return b"".join(
        (
            b"\x0a\x10" + context.trace_id.to_bytes(16, "big") + b"\x12\x08" + context.span_id.to_bytes(8, "big"),
            b"" if parent is None else b"\x22\x08" + parent.span_id.to_bytes(8, "big"),
            _encode_name(span.name, span.kind),
            b"\x39"
            + (span.start_time or 0).to_bytes(8, "little")
            + b"\x41"
            + (span.end_time or 0).to_bytes(8, "little"),
            *map(_encode_attribute, attributes.items()),
            b"\x7a\x00" if span.status is _UNSET else b"\x7a\x02\x18\x02",
            b"\x85\x01" + (0x100 if parent is None or not parent.is_remote else 0x300).to_bytes(4, "little"),
        )
    )


@lru_cache(maxsize=4096)
def _encode_name(name: str, kind: SpanKind) -> bytes:
    return _field(5, name.encode()) + b"\x30" + bytes([kind.value + 1])


@lru_cache(maxsize=4096)
def _encode_attribute(item: tuple[str, str]) -> bytes:
    name, value = item
    return _field(9, _field(1, name.encode()) + _field(2, _field(1, value.encode("utf-8", "replace"))))


def _field(number: int, data: bytes) -> bytes:
    """Encode a field of a length-delimited type."""
    size, length = len(data), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes([number << 3 | 2]) + bytes(length) + data


_NO_CONTEXT = SpanContext(1, 1, False)
_SCOPE_FIELD = _field(1, _field(1, SCOPE.name.encode()) + _field(2, __version__.encode()))
