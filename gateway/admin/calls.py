"""The record of tool calls: list, show and cancel. Secrets are masked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from gateway.admin.workspaces import ChatWorkspace, find_folder
from gateway.db.approvals import Ending
from gateway.errors import Conflict, NotFound
from gateway.secrets import KNOWN

if TYPE_CHECKING:
    from gateway.access import AccessPolicy
    from gateway.db.call_records import CallRecord
    from gateway.gateway import Gateway

Kind = Literal["tools", "requests"]

# Latest calls of a tool that its usage is computed from.
_USAGE_CALLS = 1000
_USAGE_CALLERS = 10

# How often a cancellation looks again at a call whose status changed meanwhile.
CANCEL_TRIES = 3


async def measure_tool(gateway: Gateway, tool: str, principal: str | None = None) -> dict[str, Any]:
    """Return durations, failures and callers of a tool, of its latest calls; those of `principal` if one is named."""
    calls = await list_calls(gateway, tool=tool, principal=principal, limit=_USAGE_CALLS)
    durations = sorted(call["duration_ms"] for call in calls if call["duration_ms"] is not None)
    callers: dict[tuple[str, str | None], dict[str, Any]] = {}
    for call in calls:  # newest first
        known = {"principal": call["principal"], "client": call["client"], "last_at": call["started_at"], "calls": 0}
        callers.setdefault((call["principal"], call["client"]), known)["calls"] += 1
    return {
        "calls": len(calls),
        "errors": sum(call["status"] == "error" for call in calls),
        "median_ms": median(durations) if durations else None,
        "p95_ms": durations[min(len(durations) * 95 // 100, len(durations) - 1)] if durations else None,
        "callers": list(callers.values())[:_USAGE_CALLERS],
    }


async def list_calls(
    gateway: Gateway,
    *,
    chat: str | None = None,
    tool: str | None = None,
    status: str | None = None,
    principal: str | None = None,
    client: str | None = None,
    text: str | None = None,
    kind: Kind | None = None,
    parent: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: str | None = None,
    limit: int = 50,
    documents: bool = True,
    access: AccessPolicy | None = None,
) -> list[dict[str, Any]]:
    """List calls, newest first. `tool` is an id, or a name that `access` allows, `text` part of a name, principal,
    client or error code, `kind` keeps calls of tools or other requests, `before` is the id of the last call already
    seen. Without `documents` there are no arguments, results and plans."""
    entry = gateway.catalog.for_principal(access).get(tool) if tool else None
    records = await gateway.records.list_calls(
        chat=chat,
        tool=entry.tool.id if entry else tool,
        status=status,
        principal=principal,
        client=client,
        text=text,
        kind=kind,
        parent=parent,
        since=None if since is None else since.timestamp(),
        until=None if until is None else until.timestamp(),
        before=before,
        limit=limit,
        documents=documents,
    )
    return [_describe_call(gateway, record) for record in records]


async def show_call(gateway: Gateway, call_id: str, principal: str | None = None) -> dict[str, Any]:
    """Return one call, of `principal` if one is named; a unique beginning of the id is enough."""
    await gateway.record_call(call_id)  # a client that streams a call has its id before the record is due
    return _describe_call(gateway, await gateway.records.get(call_id, principal))


def _describe_call(gateway: Gateway, record: CallRecord) -> dict[str, Any]:
    masked: dict[str, Any] = KNOWN.mask_value(record.to_dict())
    return {**masked, "folder": find_folder(gateway, record.chat_id)}


async def show_changes(gateway: Gateway, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the difference that a call made to its chat's files; None if it made none, or its versions are gone."""
    before, after = record["pre_manifest_id"], record["post_manifest_id"]
    if after in (None, before):
        return None
    try:
        found = await ChatWorkspace(gateway.versions, record["chat_id"]).compare(before, after)
    except NotFound:
        return None
    return {"from": found.from_version, "to": found.to_version, "diff": found.text, "truncated": found.truncated}


async def list_steps(
    gateway: Gateway, call_id: str, principal: str | None = None, access: AccessPolicy | None = None
) -> dict[str, Any]:
    """Return the steps of a call: the extensions that its tool passes now, if `access` allows it, and the tool. Their
    times are `measured` only of calls that this process ran while somebody followed calls."""
    record = await show_call(gateway, call_id, principal)
    entry = gateway.catalog.for_principal(access).get(record["tool_id"])
    plan = [] if entry is None else gateway.executor.plan(entry.tool)
    steps = [(step.name, "gate" if step.gate else "observer") for step in plan] + [(record["tool_name"], "tool")]
    times = gateway.executor.step_times.get(record["id"]) or {}
    first = min((step.began for step in times.values()), default=0.0)
    result = []
    for place, (name, kind) in enumerate(steps):
        step = times.get(place)
        result.append(
            {
                "name": name,
                "kind": kind,
                "failed": step is not None and step.failed,
                "start_ms": None if step is None else round((step.began - first) * 1000, 3),
                "duration_ms": None if step is None else round(step.seconds * 1000, 3),
            }
        )
    return {"measured": bool(times), "steps": result}


async def cancel_call(gateway: Gateway, call_id: str, by: str, principal: str | None = None) -> dict[str, Any]:
    """Cancel a call that runs, in this process or in another one, or that waits for a person. Return its record, which
    may still be running: the end of a call takes a moment, and up to a second in another process."""
    for _ in range(CANCEL_TRIES):
        record = await show_call(gateway, call_id, principal)
        if record["status"] not in ("pending", "running"):
            raise Conflict(f"call {record['id']} has ended: {record['status']}", code="NOT_RUNNING")
        if await _request_cancel(gateway, record["id"], record["status"], by):
            return await show_call(gateway, record["id"])
    raise Conflict(f"call {record['id']} is just changing its status; try again", code="NOT_RUNNING")


async def _request_cancel(gateway: Gateway, call_id: str, status: str, by: str) -> bool:
    """Return False if the call has another status by now: it began to wait, was answered, or ended."""
    if status == "pending":
        approvals = gateway.approvals.records
        question = await approvals.find_waiting(call_id)
        ending = Ending("CANCELLED", f"{by} cancelled the call while it waited for a person")
        return question is not None and await approvals.decide(question, "cancelled", by, ending=ending)
    if gateway.cancel_call(call_id, by):
        return True
    try:
        await gateway.records.request_cancel(call_id, by)
    except Conflict:
        return False
    return True
