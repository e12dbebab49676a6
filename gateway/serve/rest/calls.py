"""Calls and approvals over REST: the record, cancelling, calls that wait for a person, remembered decisions, and calls
whose course is followed as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, JsonValue, TypeAdapter
from starlette.responses import Response, StreamingResponse

from gateway.admin import approvals, calls, policy
from gateway.approval.flow import Notify
from gateway.calls import Call, Progress, check_chat, to_json
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.serve.mcp.event_streams import (
    PING,
    PING_SECONDS,
    SESSION_BYTES,
    EventStream,
    ReplayStore,
    SessionStreams,
    encode_event,
)
from gateway.serve.mcp.render_resources import RenderResources, ResourceReader
from gateway.serve.rest.endpoint import (
    AnswerModel,
    Endpoint,
    ListPage,
    PageQuery,
    RequestModel,
    RestRequest,
    StreamSlots,
    decode_token,
    make_page,
    slice_page,
)
from gateway.serve.rest.tools import CALL_ERRORS, Chat, MessageId, ParentMessageId, build_call, describe_outcome
from gateway.tasks import TaskSet

_HEADERS = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
_MEDIA = "text/event-stream"
# Bytes of an event: a larger one would push the others out of the memory for a principal.
_EVENT_BYTES = SESSION_BYTES // 4
# A stream of calls ends after so many seconds, so that its reader is authenticated again.
_WATCH_SECONDS = 600
_WATCH_INTERVAL = 1.0
# The latest calls that are compared with those a second ago, and older ones that have not ended.
_WATCHED = 500
_OLD_OPEN = 20
_OPEN = ("running", "pending")
# A page is untrusted: it has an origin of its own (`sandbox` without allow-same-origin) and can load nothing.
_VIEW_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "media-src data: blob:; base-uri 'none'; frame-ancestors 'self'"
)
# Approvals as they are announced.
_ANNOUNCED = ("reason", "message", "args", "remember", "expires_at")

Folder = Annotated[str | None, Field(description="The path of the folder that the chat works in, if one is attached.")]
Id = Annotated[str, Field(min_length=4, max_length=64, description="An id, or a unique prefix of it.")]


class CallInfo(AnswerModel):
    """A recorded call. Large arguments and results are cut off: `{truncated, bytes, sha256, preview}`."""

    id: str
    chat_id: str
    folder: Folder
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
    args_bytes: int | None
    result_bytes: int | None
    pre_manifest_id: str | None
    post_manifest_id: str | None


_CALL_INFO = TypeAdapter(CallInfo)


class CallDetails(CallInfo):
    args: Any
    result: Any
    render_plan: Any


class CallStep(AnswerModel):
    """A step of a call; the times are null if it was not reached or not measured. `failed` says that it ended the
    call."""

    name: str
    kind: Literal["gate", "observer", "tool"]
    failed: bool
    start_ms: float | None
    duration_ms: float | None


class CallSteps(AnswerModel):
    """Times are measured of calls that ran while somebody followed calls, in the process that answers."""

    measured: bool
    steps: list[CallStep]


class CallQuery(PageQuery):
    chat: Chat | None = None
    tool: Annotated[str | None, Field(min_length=1, max_length=200, description="An id or a name.")] = None
    status: Literal["pending", "running", "success", "error"] | None = None
    principal: Annotated[str | None, Field(min_length=1, max_length=200, description="For administrators.")] = None
    client: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    text: Annotated[
        str | None,
        Field(min_length=1, max_length=200, description="Part of a name, a principal, a client or an error code."),
    ] = None
    kind: Annotated[
        calls.Kind | None, Field(description="Only calls of tools, or only requests besides them, such as for files.")
    ] = None
    parent: Annotated[str | None, Field(max_length=64, description="The call whose steps are wanted.")] = None
    since: Annotated[AwareDatetime | None, Field(description="Begun at this time or later.")] = None
    until: Annotated[AwareDatetime | None, Field(description="Begun before this time.")] = None

    def filters(self, request: RestRequest) -> dict[str, Any]:
        """The filters of `calls.list_calls`, limited to what the principal may see."""
        own, access = _own(request), request.principal.access
        names = ("chat", "tool", "status", "client", "text", "kind", "parent", "since", "until")
        return {name: getattr(self, name) for name in names} | {"principal": own or self.principal, "access": access}


class ApprovalInfo(AnswerModel):
    """A question. `via` is where it was asked: only one in the `queue` can be decided here."""

    id: str
    call_id: str
    chat_id: str
    folder: Folder
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
    changes: Annotated[str | None, Field(description="What would change, as a difference or a sentence.")]
    note: Annotated[str | None, Field(description="The reason of a no.")]
    tool_digest: Annotated[str, Field(description="Of the definition; a remembered decision counts for it alone.")]
    question: Annotated[str, Field(description="A digest of all that was shown; the decision counts for it alone.")]


class ApprovalQuery(PageQuery):
    status: Annotated[Literal["waiting", "all"], Field(description="Only what waits in the queue, or all.")] = "waiting"
    call: Annotated[str | None, Field(min_length=4, max_length=64, description="About this call.")] = None


class DecisionBody(RequestModel):
    """`arguments` are changes to the call's arguments; `remember` makes a consent last for the chat or for good;
    `reason` is what the model is told about a no."""

    decision: Literal["allow", "deny"]
    arguments: Annotated[dict[str, JsonValue] | None, Field(max_length=1000)] = None
    remember: Literal["chat", "always"] | None = None
    reason: Annotated[str | None, Field(max_length=1000)] = None


class SimulationBody(RequestModel):
    """Settings to rehearse on the calls of the last days. What `changes` does not name stays as it is."""

    changes: policy.PolicyChanges
    days: Annotated[float, Field(gt=0, le=3650)] = policy.DAYS
    limit: Annotated[int, Field(ge=1, le=100_000)] = policy.CALL_LIMIT


class DecisionCounts(AnswerModel):
    """Calls by decision."""

    allow: int
    ask: int
    deny: int


class SkippedCalls(AnswerModel):
    """Calls that cannot be decided about: not recorded whole, or of tools that are no longer there."""

    cut_off: int
    gone: int


class ChangedDecision(AnswerModel):
    """Calls of one principal and tool that would be decided differently; `call` is the latest of them."""

    before: policy.Decision
    after: policy.Decision
    tool: str
    principal: str
    call: str
    reason: str
    calls: int


class SimulationInfo(AnswerModel):
    """Decisions on the calls as they are `now`, and would be `then`. Principals of `unknown_roles` have no key that
    names their role; their calls are decided about without one."""

    calls: int
    skipped: SkippedCalls
    now: DecisionCounts
    then: DecisionCounts
    changes: list[ChangedDecision]
    unknown_roles: list[str]


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
        **query.filters(request),
        before=decode_token("calls", query.page_token),
        limit=query.room + 1,
        documents=False,
    )
    return make_page(found, lambda call: str(call["id"]), query.room, "calls")


_watchers = StreamSlots()


async def watch_calls(request: RestRequest, query: CallQuery) -> object:
    """Follow calls as they begin, wait and end

    Each event `call` is a call as /api/calls lists it; `ready` says that later ones are sent, `gap` that some were left
    out, so that the list has to be read again. The stream ends after ten minutes; connect again.
    """
    if request.scope["method"] == "HEAD":
        return Response(media_type=_MEDIA, headers=_HEADERS)
    _watchers.require(request.principal)
    events = _measure_calls(request, _follow_calls(request, query.filters(request)))
    return StreamingResponse(_watchers.hold(request.principal, events), media_type=_MEDIA, headers=_HEADERS)


async def get_call(request: RestRequest, call_id: Id) -> object:
    """Get a call with its arguments, its result and how that is shown"""
    return await calls.show_call(request.gateway, call_id, _own(request))


async def get_call_steps(request: RestRequest, call_id: Id) -> object:
    """Get the steps of a call through the extensions to its tool, with their times"""
    return await calls.list_steps(request.gateway, call_id, _own(request), request.principal.access)


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
        call=query.call,
    )
    page = make_page(found, lambda record: record.id, query.room, "approvals")
    return {**page, "items": [approvals.describe_approval(request.gateway, each) for each in page["items"]]}


async def get_approval(request: RestRequest, approval_id: Id) -> object:
    """Get a question"""
    record = await approvals.show_approval(request.gateway, approval_id, _own(request))
    return approvals.describe_approval(request.gateway, record)


async def decide_approval(request: RestRequest, approval_id: Id, body: DecisionBody) -> object:
    """Allow or deny a call that waits in the queue"""
    gateway, by = request.gateway, request.principal.id
    if body.decision == "allow":
        if body.reason:
            raise Invalid("'reason' belongs to the decision 'deny'", code="INVALID_REQUEST")
        await approvals.allow(gateway, approval_id, by, body.remember or "once", body.arguments)
    elif body.arguments or body.remember:
        raise Invalid("'arguments' and 'remember' belong to the decision 'allow'", code="INVALID_REQUEST")
    else:
        await approvals.deny(gateway, approval_id, by, body.reason or None)
    return approvals.describe_approval(gateway, await approvals.show_approval(gateway, approval_id))


async def simulate_policy(request: RestRequest, body: SimulationBody) -> object:
    """Decide about recorded calls under changed rules, roles or categories; nothing runs"""
    return await policy.simulate(request.gateway, body.changes, body.days, body.limit)


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
    Endpoint("GET", "/api/calls/events", watch_calls, media=_MEDIA),
    Endpoint("GET", "/api/calls/{call_id}", get_call, CallDetails),
    Endpoint("GET", "/api/calls/{call_id}/steps", get_call_steps, CallSteps),
    Endpoint("POST", "/api/calls/{call_id}/cancel", cancel_call, CallDetails, status=202, errors=(409,)),
]
APPROVAL_ENDPOINTS = [
    Endpoint("GET", "/api/approvals", list_approvals, ListPage[ApprovalInfo]),
    Endpoint("GET", _REMEMBERED, list_remembered_approvals, ListPage[RememberedInfo], admin=True),
    Endpoint("DELETE", f"{_REMEMBERED}/{{remembered_id}}", revoke_remembered_approval, admin=True),
    Endpoint("POST", "/api/approvals/simulate", simulate_policy, SimulationInfo, admin=True),
    Endpoint("GET", "/api/approvals/{approval_id}", get_approval, ApprovalInfo),
    Endpoint("POST", "/api/approvals/{approval_id}", decide_approval, ApprovalInfo, admin=True, errors=(409,)),
]


async def _measure_calls(request: RestRequest, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same events; meanwhile the steps of calls are measured."""
    with request.gateway.executor.measure():
        async for event in events:
            yield event


async def _follow_calls(request: RestRequest, filters: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """The changes of calls of every process on this data, found by reading the latest ones again and again."""
    known: dict[str, str] | None = None
    watched_until = time.monotonic() + _WATCH_SECONDS
    quiet = 0
    while time.monotonic() < watched_until:
        latest = await calls.list_calls(request.gateway, **filters, limit=_WATCHED, documents=False)
        current = {call["id"]: call["status"] for call in latest}
        if known is None:
            yield encode_event(b"{}", kind=b"ready")
        else:
            if latest and known and len(latest) == _WATCHED and known.keys().isdisjoint(current):
                yield encode_event(b"{}", kind=b"gap")
            gone = [call_id for call_id, status in known.items() if status in _OPEN and call_id not in current]
            for call_id in gone[:_OLD_OPEN]:
                latest.append(call := await calls.show_call(request.gateway, call_id))
                current[call_id] = call["status"]
            changed = [call for call in reversed(latest) if known.get(call["id"]) != call["status"]]
            for call in changed:
                yield encode_event(_CALL_INFO.dump_json(_CALL_INFO.validate_python(call)), kind=b"call")
            quiet = 0 if changed else quiet + 1
            if quiet * _WATCH_INTERVAL >= PING_SECONDS:
                quiet = 0
                yield PING
        known = current
        await asyncio.sleep(_WATCH_INTERVAL)


class CallViews:
    """Calls as their renderers show them, as pages of an origin of their own."""

    def __init__(self) -> None:
        self._renders: RenderResources | None = None
        self.endpoints = [Endpoint("GET", "/api/calls/{call_id}/view", self.get_call_view, media="text/html")]

    async def get_call_view(self, request: RestRequest, call_id: Id) -> object:
        """Get the page that shows a call whose tool has a renderer, for an iframe"""
        gateway = request.gateway
        record = await calls.show_call(gateway, call_id, _own(request))
        if self._renders is None:
            self._renders = RenderResources(gateway.records, gateway.versions, gateway.executor)
        page = await self._renders.page(ResourceReader(record["chat_id"], request.caller), record["id"])
        is_frame = (record["render_plan"] or {}).get("renderer") == "frame"
        frames = "frame-src http: https:; " if is_frame else ""  # the page itself names the only one
        policy = f"sandbox {page.sandbox}; {frames}{_VIEW_POLICY}"
        return Response(page.html, media_type="text/html", headers={"content-security-policy": policy})


class StreamBody(RequestModel):
    tool: Annotated[str, Field(min_length=1, max_length=200, description="The id or name of a tool.")]
    args: dict[str, JsonValue] = {}
    message_id: MessageId | None = None
    parent_message_id: ParentMessageId | None = None


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
