"""Calls and approvals over REST: the record, cancelling, calls that wait for a person, remembered decisions, and calls
whose course is followed as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue
from starlette.responses import StreamingResponse

from gateway.admin import approvals, calls
from gateway.approval.flow import Notify
from gateway.calls import Call, Progress, check_chat, to_json
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.serve.mcp.event_streams import SESSION_BYTES, EventStream, ReplayStore, SessionStreams
from gateway.serve.rest.endpoint import (
    AnswerModel,
    Endpoint,
    ListPage,
    PageQuery,
    RequestModel,
    RestRequest,
    decode_token,
    make_page,
    slice_page,
)
from gateway.serve.rest.tools import CALL_ERRORS, Chat, MessageId, build_call, describe_outcome
from gateway.tasks import TaskSet

_HEADERS = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
_MEDIA = "text/event-stream"
# Bytes of an event: a larger one would push the others out of the memory for a principal.
_EVENT_BYTES = SESSION_BYTES // 4
# Approvals as they are announced.
_ANNOUNCED = ("reason", "message", "args", "remember", "expires_at")

Id = Annotated[str, Field(min_length=4, max_length=64, description="An id, or a unique prefix of it.")]


class CallInfo(AnswerModel):
    """A recorded call. Large arguments and results are cut off: `{truncated, bytes, sha256, preview}`."""

    id: str
    chat_id: str
    message_id: str | None
    parent_message_id: str | None
    parent_call_id: Annotated[str | None, Field(description="The call that this one is a step of.")]
    tool_id: str
    tool_name: str
    category: str | None
    principal: str
    surface: str
    client: str | None
    status: Literal["pending", "running", "success", "error"]
    error: str | None
    error_code: str | None
    started_at: str
    finished_at: str | None
    duration_ms: float | None
    attempts: Annotated[int | None, Field(description="How often the tool was called.")]
    pre_manifest_id: str | None
    post_manifest_id: str | None


class CallDetails(CallInfo):
    args: Any
    result: Any
    render_plan: Any


class CallQuery(PageQuery):
    chat: Chat | None = None
    tool: Annotated[str | None, Field(min_length=1, max_length=200, description="An id or a name.")] = None
    status: Literal["pending", "running", "success", "error"] | None = None
    principal: Annotated[str | None, Field(min_length=1, max_length=200, description="For administrators.")] = None


class ApprovalInfo(AnswerModel):
    """A question. `via` is where it was asked: only one in the `queue` can be decided here."""

    id: str
    call_id: str
    chat_id: str
    principal: str
    tool_id: str
    via: str
    reason: str
    message: str
    args: Any
    edited_args: Any
    remember: Annotated[bool, Field(description="Whether a decision may be remembered.")]
    status: str
    scope: str | None
    created_at: str
    expires_at: str
    decided_by: str | None
    decided_at: str | None


class ApprovalQuery(PageQuery):
    status: Annotated[Literal["waiting", "all"], Field(description="Only what waits in the queue, or all.")] = "waiting"


class DecisionBody(RequestModel):
    """`arguments` are changes to the call's arguments; `remember` makes a consent last for the chat or for good."""

    decision: Literal["allow", "deny"]
    arguments: Annotated[dict[str, JsonValue] | None, Field(max_length=1000)] = None
    remember: Literal["chat", "always"] | None = None


class RememberedInfo(AnswerModel):
    """A decision that still counts: in one chat, or in all if `chat_id` is null."""

    id: str
    principal: str
    chat_id: str | None
    tool_id: str
    approval_id: str
    created_by: str
    created_at: str


def _own(request: RestRequest) -> str | None:
    """The principal whose records a request may see; None for all."""
    return None if request.principal.admin else request.principal.id


async def list_calls(request: RestRequest, query: CallQuery) -> object:
    """List calls, newest first; all for administrators, your own otherwise"""
    found = await calls.list_calls(
        request.gateway,
        chat=query.chat,
        tool=query.tool,
        status=query.status,
        principal=_own(request) or query.principal,
        before=decode_token("calls", query.page_token),
        limit=query.room + 1,
    )
    return make_page(found, lambda call: str(call["id"]), query.room, "calls")


async def get_call(request: RestRequest, call_id: Id) -> object:
    """Get a call with its arguments, its result and how that is shown"""
    return await calls.show_call(request.gateway, call_id, _own(request))


async def cancel_call(request: RestRequest, call_id: Id) -> object:
    """Cancel a call that runs or waits for a person; get it again to see its end"""
    return await calls.cancel_call(request.gateway, call_id, request.principal.id, _own(request))


async def list_approvals(request: RestRequest, query: ApprovalQuery) -> object:
    """List questions, newest first: those that wait in the queue, or all"""
    found = await approvals.list_approvals(
        request.gateway,
        waiting=query.status == "waiting",
        limit=query.room + 1,
        principal=_own(request),
        before=decode_token("approvals", query.page_token),
    )
    page = make_page(found, lambda record: record.id, query.room, "approvals")
    return {**page, "items": [record.to_dict() for record in page["items"]]}


async def get_approval(request: RestRequest, approval_id: Id) -> object:
    """Get a question"""
    return (await approvals.show_approval(request.gateway, approval_id, _own(request))).to_dict()


async def decide_approval(request: RestRequest, approval_id: Id, body: DecisionBody) -> object:
    """Allow or deny a call that waits in the queue"""
    gateway, by = request.gateway, request.principal.id
    if body.decision == "allow":
        await approvals.allow(gateway, approval_id, by, body.remember or "once", body.arguments)
    elif body.arguments or body.remember:
        raise Invalid("'arguments' and 'remember' belong to the decision 'allow'", code="INVALID_REQUEST")
    else:
        await approvals.deny(gateway, approval_id, by)
    return (await approvals.show_approval(gateway, approval_id)).to_dict()


async def list_remembered_approvals(request: RestRequest, query: PageQuery) -> object:
    """List decisions that still count"""
    found = await approvals.list_remembered(request.gateway)
    return slice_page(found, lambda each: each.id, query, "remembered")


async def revoke_remembered_approval(request: RestRequest, remembered_id: Id) -> object:
    """Revoke a remembered decision: from the next call on a person is asked again"""
    await approvals.revoke(request.gateway, remembered_id, request.principal.id)
    return None


_REMEMBERED = "/api/approvals/remembered"
CALL_ENDPOINTS = [
    Endpoint("GET", "/api/calls", list_calls, ListPage[CallInfo]),
    Endpoint("GET", "/api/calls/{call_id}", get_call, CallDetails),
    Endpoint("POST", "/api/calls/{call_id}/cancel", cancel_call, CallDetails, status=202, errors=(409,)),
]
APPROVAL_ENDPOINTS = [
    Endpoint("GET", "/api/approvals", list_approvals, ListPage[ApprovalInfo]),
    Endpoint("GET", _REMEMBERED, list_remembered_approvals, ListPage[RememberedInfo], admin=True),
    Endpoint("DELETE", f"{_REMEMBERED}/{{remembered_id}}", revoke_remembered_approval, admin=True),
    Endpoint("GET", "/api/approvals/{approval_id}", get_approval, ApprovalInfo),
    Endpoint("POST", "/api/approvals/{approval_id}", decide_approval, ApprovalInfo, admin=True, errors=(409,)),
]


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
        check_chat(chat)  # first: a stream that is opened is kept until it ends
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
