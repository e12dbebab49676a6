"""Traces from a client through the gateway to an upstream server, and metrics, sent to a real OTLP receiver."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from amounts import NIGHTLY
from eventually import async_eventually
from journeys import wire
from journeys.clients import over_http, value
from journeys.processes import environment, on_http
from journeys.wire import ERAS
from opcodes import record_opcodes
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status, TracesData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from otlp_receiver import OtlpReceiver, read_attributes, receive_in_another_process, receive_spans

from gateway import Gateway, __version__
from gateway.calls import Call, ClientInfo
from gateway.extensions import tracing
from gateway.extensions.telemetry import BUCKETS

pytestmark = [pytest.mark.anyio, pytest.mark.promise("X3")]

LAB = Path(__file__).parents[1] / "journeys" / "servers" / "lab.py"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def settings(receiver: OtlpReceiver, directory: Path, **more: Any) -> dict[str, Any]:
    return {"data_dir": str(directory / "data"), "telemetry": {"otel": {"endpoint": receiver.url}}, **more}


def lab_servers() -> dict[str, Any]:
    return {era: {"command": sys.executable, "args": [str(LAB), "stdio", era]} for era in ("modern", "handshake")}


async def test_trace_goes_from_the_client_through_the_gateway_to_the_upstream_in_both_eras(tmp_path: Path) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    expected: dict[tuple[str, str], SpanContext] = {}
    seen: dict[tuple[str, str], list[str]] = {}
    with receive_spans() as receiver:
        file = tmp_path / "toolgate.yaml"
        file.write_text(yaml.safe_dump({**settings(receiver, tmp_path), "mcpServers": lab_servers()}))

        async def call(url: str, era: str, upstream: str) -> None:
            async with over_http(url, era) as client:
                with tracer.start_as_current_span("agent") as span:  # the SDK's client sends it in `_meta`
                    answer = await value(client, f"{upstream}__echo", {})
                expected[era, upstream] = span.get_span_context()
                seen[era, upstream] = answer["params"]["_meta"]["traceparent"].split("-")

        with on_http(tmp_path, "--config", str(file)) as gateway:
            for era in ERAS:
                for upstream in ("modern", "handshake"):
                    await call(gateway.url, era, upstream)
            # A header counts, on the fast path and for a request that only the SDK takes.
            for number, more in enumerate(({}, {"later": 1})):
                message = wire.request(
                    wire.MODERN, number, "tools/call", {"name": "list_directory", "arguments": {}, **more}
                )
                header = {"traceparent": f"00-{TRACE}-{number + 1:016x}-01"}
                answer = wire.post(gateway.url, message, header)
                assert "result" in answer.message, answer
            os.kill(gateway.pid, signal.SIGTERM)  # at its end it sends what is left
            gateway.wait()
        listed = receiver.named("tools/call list_directory", Span.SPAN_KIND_SERVER)
        assert {(span.trace_id.hex(), span.parent_span_id[-1]) for span in listed} == {(TRACE, 1), (TRACE, 2)}
        assert receiver.resource["service.name"] == "toolgate"
        check_metrics(receiver)
        for key, context in expected.items():
            trace_id = f"{context.trace_id:032x}"
            spans = [span for span in receiver.spans if span.trace_id.hex() == trace_id]
            [server] = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER and "tools/call" in span.name]
            [client] = [span for span in spans if span.kind == Span.SPAN_KIND_CLIENT and "tools/call" in span.name]
            assert server.parent_span_id.hex() == f"{context.span_id:016x}"
            assert client.parent_span_id == server.span_id
            assert seen[key] == ["00", trace_id, client.span_id.hex(), "01"]
            assert server.start_time_unix_nano <= client.start_time_unix_nano <= client.end_time_unix_nano
            assert client.end_time_unix_nano <= server.end_time_unix_nano
            upstream = key[1]
            named = {"mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool"}
            assert (named | {"gen_ai.tool.name": f"{upstream}__echo"}).items() <= read_attributes(server).items()
            assert read_attributes(client) == named | {"gen_ai.tool.name": "echo", "toolgate.server": upstream}


def check_metrics(receiver: OtlpReceiver) -> None:
    """Check the metrics that a gateway sent at its end, after two calls of list_directory and four of echo."""
    calls = receiver.metrics["toolgate_calls"].sum
    assert (calls.is_monotonic, calls.aggregation_temporality) == (
        True,
        AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE,
    )
    counted = {tuple(read_attributes(point).values()): point.as_double for point in calls.data_points}
    assert counted["list_directory", "builtin", "OK"] == 2
    assert counted["modern:echo", "modern", "OK"] == counted["handshake:echo", "handshake", "OK"] == 2
    durations = receiver.metrics["toolgate_call_duration_seconds"].histogram.data_points
    [builtin] = [point for point in durations if read_attributes(point) == {"server": "builtin"}]
    assert (builtin.count, sum(builtin.bucket_counts), tuple(builtin.explicit_bounds)) == (2, 2, BUCKETS)
    assert 0 < builtin.sum < 600
    assert builtin.start_time_unix_nano < builtin.time_unix_nano
    assert receiver.metrics["toolgate_tools"].gauge.data_points[0].as_double > 10
    assert "process_cpu_seconds" in receiver.metrics or sys.platform != "linux"


async def test_metrics_that_cannot_be_sent_are_a_problem_and_metrics_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
    with receive_spans() as receiver:
        wrong = settings(OtlpReceiver(f"{receiver.url}/wrong"), tmp_path)
        async with Gateway.open(wrong, follow=True) as gateway:

            async def is_reported() -> bool:
                return any(part.subject == "metrics" and part.state == "note" for part in await gateway.check_parts())

            await async_eventually(is_reported)
        for variables in ({"OTEL_METRICS_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}):
            with monkeypatch.context() as patch:
                for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, **variables}.items():
                    patch.setenv(name, value)
                async with Gateway.open({"data_dir": str(tmp_path / "data")}, follow=True) as gateway:
                    assert gateway._metric_sender is None
        left_out = {"telemetry": {"otel": {"endpoint": receiver.url, "metrics": False}}}
        async with Gateway.open({"data_dir": str(tmp_path / "data"), **left_out}, follow=True) as gateway:
            assert gateway._metric_sender is None
    assert receiver.metrics == {}


async def test_trace_of_failed_and_unknown_and_unsampled_calls(tmp_path: Path) -> None:
    with receive_spans() as receiver:
        async with Gateway.open(settings(receiver, tmp_path)) as gateway:
            await gateway.call("read_file", {"path": "missing.txt"})
            await gateway.call("invented-4711", {})
            for flags in ("01", "00"):
                client = ClientInfo(meta={"traceparent": f"00-{TRACE}-{PARENT}-{flags}"})
                call = Call(name="list_directory", arguments={}, client=client)
                assert (await gateway.executor.call_tool(call)).ok
            for broken in ("", 5, f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"):
                client = ClientInfo(meta={"traceparent": broken})
                await gateway.executor.call_tool(Call(name="list_directory", arguments={}, client=client))
    [failed] = receiver.named("tools/call read_file", Span.SPAN_KIND_SERVER)
    assert (failed.status.code, failed.parent_span_id) == (Status.STATUS_CODE_ERROR, b"")
    attributes = read_attributes(failed)
    assert (attributes["error.type"], attributes["enduser.id"]) == ("FILE_NOT_FOUND", "local")
    [unknown] = receiver.named("tools/call", Span.SPAN_KIND_SERVER)
    assert "4711" not in str(unknown)
    listed = receiver.named("tools/call list_directory", Span.SPAN_KIND_SERVER)
    continued = [span for span in listed if span.trace_id.hex() == TRACE]
    assert [span.parent_span_id.hex() for span in continued] == [PARENT]
    assert len(listed) == 5


async def test_trace_of_a_cancelled_call_ends_and_of_a_step_is_inside_of_its_call(tmp_path: Path) -> None:
    with receive_spans() as receiver:
        async with Gateway.open(settings(receiver, tmp_path)) as gateway:
            outer = Call(name="list_directory", arguments={})
            spans = next(each for each in gateway.executor._extensions if isinstance(each, tracing.Tracing))
            spans.before_execute(outer)
            inner = Call(name="list_directory", arguments={}, parent=outer)
            assert (await gateway.executor.call_tool(inner)).ok
            spans.on_cancel(outer)
            assert spans.spans == {}
    step, cancelled = receiver.spans
    assert step.parent_span_id == cancelled.span_id
    assert read_attributes(cancelled)["error.type"] == "CANCELLED"


async def test_trace_that_cannot_be_sent_is_a_problem_and_harms_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with receive_spans() as receiver:
        async with Gateway.open(settings(OtlpReceiver(f"{receiver.url}/wrong"), tmp_path)) as gateway:

            async def is_reported() -> bool:
                assert (await gateway.call("list_directory", {})).ok
                parts = await gateway.check_parts()
                return any(part.subject == "traces" and part.state == "note" for part in parts)

            await async_eventually(is_reported)


def test_traces_that_are_off_import_nothing_and_add_no_step(tmp_path: Path) -> None:
    program = f"""if True:
        import anyio, sys
        from gateway import Gateway
        async def main():
            async with Gateway.open({{"data_dir": {str(tmp_path)!r}}}) as gateway:
                await gateway.call("list_directory", {{}})
                tool = gateway.find_tool("list_directory")
                assert not any("Tracing" in step.name for step in gateway.executor.plan(tool))
        anyio.run(main)
        unused = {{"opentelemetry.sdk", "gateway.extensions.tracing", "gateway.admin.otlp_metrics"}}
        assert not unused & sys.modules.keys()
    """
    subprocess.run([sys.executable, "-c", program], check=True, env=environment(tmp_path))


async def test_traces_that_are_off_allocate_nothing_in_a_call(tmp_path: Path) -> None:
    """All that a call does about them is to compare one attribute with None."""
    servers = {"modern": lab_servers()["modern"]}
    executed: set[tuple[str, str]] = set()
    async with Gateway.open({"data_dir": str(tmp_path), "mcpServers": servers}) as gateway:
        for run in (partial(gateway.call, "list_directory", {}), partial(gateway.call, "modern__echo", {})):
            assert (await run()).ok
            executed |= await record_opcodes(run, "gateway")
    about_traces = {opcode for opcode, text in executed if re.search(r"trac(e|ing)\b|traceparent", text)}
    assert about_traces
    assert [each for each in about_traces if not each.startswith(("LOAD_", "IS_OP", "POP_JUMP_", "NOT_TAKEN"))] == []


@pytest.mark.skipif(not NIGHTLY, reason="measures for a while, at night")
async def test_traces_that_are_on_take_at_most_60_microseconds_of_cpu_for_each_call(tmp_path: Path) -> None:
    """Calls with and without traces alternate, so that both meet the same load; the receiver is another process."""
    servers = {"modern": lab_servers()["modern"]}
    plain = {"data_dir": str(tmp_path / "plain"), "mcpServers": servers}
    with receive_in_another_process() as url:
        traced = settings(OtlpReceiver(url), tmp_path / "traced", mcpServers=servers)
        async with Gateway.open(plain) as off, Gateway.open(traced) as on:
            for name in ("list_directory", "modern__echo"):
                seconds: dict[Gateway, list[float]] = {off: [], on: []}
                for _ in range(400):
                    for gateway, found in seconds.items():
                        began = time.process_time()
                        for _ in range(10):
                            assert (await gateway.call(name, {})).ok
                        found.append((time.process_time() - began) / 10)
                # What others do on the machine only ever adds, so the cheapest twentieth is looked at.
                usual, with_traces = (1e6 * statistics.quantiles(found, n=20)[0] for found in seconds.values())
                print(f"{name}: {usual:.0f} us, with traces {with_traces - usual:.0f} us more")
                assert with_traces - usual < 60


def test_spans_are_encoded_as_the_sdk_encodes_them() -> None:
    scope = InstrumentationScope("toolgate", __version__)
    resource = Resource({"service.name": "toolgate", "service.version": "1"})
    spans = [
        ReadableSpan(
            name,
            context=SpanContext(2**127 + number, 2**63 + number, False, TraceFlags(1)),
            parent=parent,
            resource=resource,
            attributes={"mcp.method.name": "tools/call", "long": "é" * length, "empty": ""},
            kind=kind,
            instrumentation_scope=scope,
            status=status,
            start_time=1_800_000_000_000_000_000 + number,
            end_time=1_800_000_000_000_000_001 + number,
        )
        for number, (name, parent, length, kind, status) in enumerate(
            [
                ("a", None, 1, SpanKind.SERVER, tracing._UNSET),
                ("tools/call ü", SpanContext(1, 2, True, TraceFlags(1)), 100, SpanKind.CLIENT, tracing._ERROR),
                ("n" * 300, SpanContext(1, 2, False, TraceFlags(1)), 20_000, SpanKind.SERVER, tracing._UNSET),
            ]
        )
    ]
    encoded = TracesData.FromString(tracing.encode_batch(spans))
    assert encoded == TracesData.FromString(encode_spans(spans).SerializeToString())
