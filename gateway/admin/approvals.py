"""Approvals: calls that wait for a person, and decisions remembered for longer than one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.db.approvals import ApprovalRecord, RememberedApproval, Scope

if TYPE_CHECKING:
    from gateway.gateway import Gateway


async def list_approvals(gateway: Gateway, *, waiting: bool, limit: int) -> list[ApprovalRecord]:
    """List questions, newest first: those that wait in the queue, or all."""
    await gateway.approvals.records.sweep()
    return await gateway.approvals.records.entries(waiting=waiting, limit=limit)


async def show_approval(gateway: Gateway, approval_id: str) -> ApprovalRecord:
    """Return one question; a unique beginning of the id is enough."""
    await gateway.approvals.records.sweep()
    return await gateway.approvals.records.get(approval_id)


async def allow(gateway: Gateway, approval_id: str, by: str, scope: Scope = "once") -> ApprovalRecord:
    """Let a waiting call run, once or from now on."""
    return await gateway.approvals.allow(approval_id, by, scope)


async def deny(gateway: Gateway, approval_id: str, by: str) -> ApprovalRecord:
    """Refuse a waiting call."""
    return await gateway.approvals.deny(approval_id, by)


async def list_remembered(gateway: Gateway) -> list[RememberedApproval]:
    """List decisions that still hold unless the tool has changed since."""
    return list(await gateway.approvals.records.list_remembered())


async def revoke(gateway: Gateway, remembered_id: str, by: str) -> RememberedApproval:
    """Forget a remembered decision: from the next call on a person is asked again."""
    return await gateway.approvals.records.revoke(remembered_id, by)
