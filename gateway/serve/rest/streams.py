"""Calls whose course is followed as server-sent events, which a client can resume after a broken connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, JsonValue
from starlette.responses import StreamingResponse

from gateway.approval.flow import Notify
from gateway.calls import Call, Progress, to_json
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.serve.mcp.event_streams import SESSION_BYTES, EventStream, ReplayStore, SessionStreams
from gateway.serve.rest.endpoint import Endpoint, RequestModel, RestRequest
from gateway.serve.rest.tools import CALL_ERRORS, Chat, MessageId, build_call, describe_outcome
from gateway.tasks import TaskSet

_HEADERS = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
_MEDIA = "text/event-stream"
# Bytes of an event: a larger one would push the others out of the memory for a principal.
_EVENT_BYTES = SESSION_BYTES // 4
# Approvals as they are announced.
_ANNOUNCED = ("reason", "message", "args", "remember", "expires_at")


class StreamBody(RequestModel):
    tool: Annotated[str, Field(min_length=1, max_length=200, description="The id or name of a tool.")]
    args: dict[str, JsonValue] = {}
    message_id: MessageId | None = None
    parent_message_id: MessageId | None = None


class ResumeQuery(RequestModel):
    last_event_id: Annotated[
        str | None, Field(pattern=r"^[0-9]{1,15}-[0-9]{1,15}$", description="In place of the header Last-Event-ID.")
    ] = None


class CallStreams:
    """The streams of one gateway. A call goes on without its client; its events are kept for a while."""

    def __init__(self) -> None:
        self._store = ReplayStore()
        self._tasks = TaskSet()
        self.endpoints = [
            Endpoint("POST", "/api/chats/{chat}/stream", self.stream, media=_MEDIA, errors=CALL_ERRORS),
            Endpoint("GET", "/api/chats/{chat}/stream", self.resume_stream, media=_MEDIA),
        ]

    async def stream(self, request: RestRequest, chat: Chat, body: StreamBody) -> object:
        """Call a tool and follow the call

        The events are `started`, `progress`, `approval_required` (decide at /api/approvals/{id}; the call waits) and
        `result`, which is the answer of /api/tools/{tool_id}/invoke. After a broken connection, get the same address
        with the header Last-Event-ID.
        """
        stream = self._open(request).open(_ignore)
        call = build_call(
            request, body.tool, body.args, chat, body.message_id, body.parent_message_id, progress=_report_to(stream)
        )
        _add(stream, "started", {"call_id": call.id, "tool": call.name, "chat": call.chat})
        self._tasks.start(_run(request, call, stream))
        return StreamingResponse(stream.follow(0), media_type=_MEDIA, headers=_HEADERS)

    async def resume_stream(self, request: RestRequest, chat: Chat, query: ResumeQuery) -> object:
        """Follow a call again, after the event named by the header Last-Event-ID"""
        last_id = request.headers.get("last-event-id") or query.last_event_id
        if last_id is None:
            raise Invalid("name the last event you got in the header Last-Event-ID", code="INVALID_REQUEST")
        found = self._open(request).find(last_id)
        if found is None:
            raise NotFound("no stream with this event is kept; see /api/calls for the call", code="EVENT_NOT_KEPT")
        stream, number = found
        return StreamingResponse(stream.follow(number), media_type=_MEDIA, headers=_HEADERS)

    def _open(self, request: RestRequest) -> SessionStreams:
        """The streams of a principal: nobody else can resume them."""
        principal = request.principal.id
        return self._store.get(principal) or self._store.open(principal)


async def _run(request: RestRequest, call: Call, stream: EventStream) -> None:
    result: Mapping[str, Any]
    try:
        outcome = await request.gateway.approval_flow.call_and_wait(call, _announce_to(stream))
        call_id = outcome.call_id or call.id
        if outcome.error is None:
            result = describe_outcome(call_id, outcome)
        else:
            result = {"ok": False, "error": outcome.error.to_dict(), "call_id": call_id}
    except asyncio.CancelledError:
        stream.end()
        raise
    _add(stream, "result", result, last=True)


def _add(stream: EventStream, event: str, data: Mapping[str, Any], last: bool = False) -> None:
    try:
        document = to_json(data)
        if len(document) > _EVENT_BYTES:
            message = f"the result has {len(document)} bytes, too many for a stream; use /api/tools/{{tool_id}}/invoke"
            raise Invalid(message, code="RESPONSE_TOO_LARGE")
    except GatewayError as refusal:
        document = to_json({"ok": False, "error": refusal.to_dict()})
    stream.add(document, last, event.encode())


def _report_to(stream: EventStream) -> Progress:
    async def report(done: float, total: float | None = None, message: str | None = None) -> None:
        _add(stream, "progress", {"progress": done, "total": total, "message": message})

    return report


def _announce_to(stream: EventStream) -> Notify:
    async def announce(record: Any) -> None:
        question = record.to_dict()
        shown = {name: question[name] for name in _ANNOUNCED}
        _add(stream, "approval_required", {"approval_id": record.id, "call_id": record.call_id, **shown})

    return announce


async def _ignore() -> None:
    """Leave the earlier response of a stream alone: it ends by itself once the stream is resumed."""
