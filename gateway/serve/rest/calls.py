"""Calls and approvals over REST: the record, cancelling, calls that wait for a person, remembered decisions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from gateway.admin import approvals, calls
from gateway.errors import Invalid
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
from gateway.serve.rest.tools import Chat

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
        limit=query.limit + 1,
    )
    return make_page(found, lambda call: str(call["id"]), query.limit, "calls")


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
        limit=query.limit + 1,
        principal=_own(request),
        before=decode_token("approvals", query.page_token),
    )
    page = make_page(found, lambda record: record.id, query.limit, "approvals")
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
