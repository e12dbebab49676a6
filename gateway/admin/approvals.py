"""Approvals: calls that wait for a person, and decisions remembered for longer than one call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.admin.workspaces import find_folder
from gateway.db.approvals import ApprovalRecord, RememberedApproval, Scope
from gateway.errors import Invalid
from gateway.tools import Tool

if TYPE_CHECKING:
    from gateway.gateway import Gateway


async def list_approvals(
    gateway: Gateway,
    *,
    waiting: bool,
    limit: int,
    principal: str | None = None,
    before: str | None = None,
    call: str | None = None,
) -> list[ApprovalRecord]:
    """List questions, newest first: those that wait in the queue, or all; of one principal, or of all; about one call,
    or about all."""
    await gateway.approvals.records.sweep()
    return await gateway.approvals.records.entries(
        waiting=waiting, principal=principal, before=before, limit=limit, call=call
    )


async def show_approval(gateway: Gateway, approval_id: str, principal: str | None = None) -> ApprovalRecord:
    """Return one question, of `principal` if one is named; a unique beginning of the id is enough."""
    await gateway.approvals.records.sweep()
    return await gateway.approvals.records.get(approval_id, principal)


def describe_approval(gateway: Gateway, record: ApprovalRecord) -> dict[str, Any]:
    """Return a question as data, with the attached folder of its chat."""
    return {**record.to_dict(), "folder": find_folder(gateway, record.chat_id)}


async def allow(
    gateway: Gateway, approval_id: str, by: str, scope: Scope = "once", changes: Mapping[str, Any] | None = None
) -> ApprovalRecord:
    """Let a waiting call run, once or from now on, or once with changed arguments. Changes that the tool's schema does
    not take are refused here; they are checked again when the call runs."""
    record = await gateway.approvals.records.get(approval_id)
    tool = gateway.find_tool(record.tool_id)
    if changes and tool is not None:
        _check_changes(tool, json.loads(record.args or "{}"), changes)
    return await gateway.approvals.allow(approval_id, by, scope, changes)


def _check_changes(tool: Tool, stored: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    try:
        tool.check_arguments({**stored, **changes})
    except Invalid as refusal:
        try:
            tool.check_arguments(stored)
        except Invalid:  # without their secrets they are refused by themselves, so this says nothing of the changes
            return
        raise refusal


async def deny(gateway: Gateway, approval_id: str, by: str, note: str | None = None) -> ApprovalRecord:
    """Refuse a waiting call; `note` is the reason that the model gets."""
    return await gateway.approvals.deny(approval_id, by, note)


async def list_remembered(gateway: Gateway) -> list[RememberedApproval]:
    """List decisions that still hold unless the tool has changed since."""
    return list(await gateway.approvals.records.list_remembered())


async def revoke(gateway: Gateway, remembered_id: str, by: str) -> RememberedApproval:
    """Forget a remembered decision: from the next call on a person is asked again."""
    return await gateway.approvals.records.revoke(remembered_id, by)
