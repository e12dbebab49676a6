"""The record of tool calls: list, show and cancel. Secrets are masked."""

from __future__ import annotations

from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from gateway.db.approvals import Ending
from gateway.errors import Conflict
from gateway.secrets import KNOWN

if TYPE_CHECKING:
    from gateway.gateway import Gateway

Kind = Literal["tools", "requests"]

# Latest calls of a tool that its usage is computed from.
_USAGE_CALLS = 1000
_USAGE_CALLERS = 10


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
) -> list[dict[str, Any]]:
    """List calls, newest first. `tool` is an id or a name, `text` part of a name, principal, client or error code,
    `kind` keeps calls of tools or other requests, `before` is the id of the last call already seen. Without `documents`
    there are no arguments, results and plans."""
    entry = gateway.catalog.get(tool) if tool else None
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
    return [KNOWN.mask_value(record.to_dict()) for record in records]


async def show_call(gateway: Gateway, call_id: str, principal: str | None = None) -> dict[str, Any]:
    """Return one call, of `principal` if one is named; a unique beginning of the id is enough."""
    record: dict[str, Any] = KNOWN.mask_value((await gateway.records.get(call_id, principal)).to_dict())
    return record


async def list_steps(gateway: Gateway, call_id: str, principal: str | None = None) -> dict[str, Any]:
    """Return the steps of a call: the extensions that its tool passes now, and the tool. Their times are `measured`
    only of calls that this process ran while somebody followed calls."""
    record = await show_call(gateway, call_id, principal)
    entry = gateway.catalog.get(record["tool_id"])
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
    record = await show_call(gateway, call_id, principal)
    if record["status"] == "pending":
        approvals = gateway.approvals.records
        question = await approvals.find_waiting(record["id"])
        ending = Ending("CANCELLED", f"{by} cancelled the call while it waited for a person")
        if question is not None and await approvals.decide(question, "cancelled", by, ending=ending):
            return await show_call(gateway, record["id"])
    elif record["status"] == "running" and not gateway.cancel_call(record["id"], by):
        await gateway.records.request_cancel(record["id"], by)
    if record["status"] != "running":
        current = await show_call(gateway, record["id"])
        raise Conflict(f"call {record['id']} has ended: {current['status']}", code="NOT_RUNNING")
    return await show_call(gateway, record["id"])
