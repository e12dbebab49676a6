"""`toolgate approval`: calls that wait for a person, and decisions for longer than one call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.admin import approvals, policy
from gateway.approval.question import escape_text
from gateway.cli.options import as_json, print_json, print_table, run_admin, run_stored, settings_options
from gateway.cli.prompt import person
from gateway.cli.tool import parse_arguments
from gateway.config import Settings
from gateway.errors import Invalid
from gateway.gateway import Gateway

if TYPE_CHECKING:
    from gateway.db.approvals import ApprovalRecord, Scope


@click.group()
def approval() -> None:
    """Decide on calls that wait for a person, and revoke earlier decisions."""


@approval.command("list")
@click.option("--all", "everything", is_flag=True, help="Also decided questions, and questions asked in clients.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@as_json
@settings_options
def list_approvals(settings: Settings, everything: bool, limit: int, as_json: bool) -> None:
    """The calls that wait in the queue, newest first."""
    records = run_stored(
        settings, lambda gateway: approvals.list_approvals(gateway, waiting=not everything, limit=limit)
    )
    if as_json:
        print_json([record.to_dict() for record in records])
        return
    rows = [
        (
            record.id,
            record.created_at,
            escape_text(record.tool_id),
            record.status,
            escape_text(record.chat_id)[:40],
            escape_text(record.reason)[:120],
        )
        for record in records
    ]
    print_table(("ID", "ASKED", "TOOL", "STATUS", "CHAT", "WHY"), rows)


@approval.command()
@click.argument("approval_id", metavar="ID")
@as_json
@settings_options
def show(settings: Settings, approval_id: str, as_json: bool) -> None:
    """One question and its outcome. A unique beginning of the ID is enough."""
    record = run_stored(settings, lambda gateway: approvals.show_approval(gateway, approval_id))
    if as_json:
        print_json(record.to_dict())
        return
    click.echo(f"{record.message}\n")
    decider = escape_text(record.decided_by or "")
    fields = {
        "id": record.id,
        "call": record.call_id,
        "chat": escape_text(record.chat_id),
        "principal": escape_text(record.principal),
        "asked": f"{record.created_at}, by {record.via}",
        "until": record.expires_at,
        "status": record.status,
        "decided": record.decided_at and f"{record.decided_at} by {decider} ({record.scope})",
        "changed to": record.edited_args and escape_text(record.edited_args),
    }
    for key, value in fields.items():
        if value is not None:
            click.echo(f"{key:12} {value}")


@approval.command()
@click.argument("approval_id", metavar="ID")
@click.option("--for-chat", is_flag=True, help="Also later calls of this tool for the same reason in this chat.")
@click.option("--always", is_flag=True, help="Also later calls in every chat, until the tool changes.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Change an argument; may be given again.")
@click.option("--json-args", help="Arguments to change, as one JSON object; --set adds to it.")
@as_json
@settings_options
def allow(
    settings: Settings,
    approval_id: str,
    for_chat: bool,
    always: bool,
    pairs: tuple[str, ...],
    json_args: str | None,
    as_json: bool,
) -> None:
    """Allow a waiting call once. Its caller continues by itself, or calls again with the same arguments.

    With changed arguments it runs with those, and its caller is told. What they lead to may be asked about again.
    """
    edits = bool(pairs or json_args)
    if for_chat + always + edits > 1:
        raise click.UsageError("use one of --for-chat, --always and changed arguments, which are allowed once")
    scope: Scope = "always" if always else "chat" if for_chat else "once"

    async def decide(gateway: Gateway) -> ApprovalRecord:
        record = await approvals.show_approval(gateway, approval_id)
        tool = gateway.find_tool(record.tool_id)
        changes = parse_arguments(tool.input_schema if tool is not None else {}, pairs, json_args)
        return await approvals.allow(gateway, record.id, person(), scope, changes)

    _print_decision(run_stored(settings, decide), "allowed", as_json)


@approval.command()
@click.argument("approval_id", metavar="ID")
@click.option("--reason", help="What the model is told about it.")
@as_json
@settings_options
def deny(settings: Settings, approval_id: str, reason: str | None, as_json: bool) -> None:
    """Refuse a waiting call."""
    _print_decision(
        run_stored(settings, lambda gateway: approvals.deny(gateway, approval_id, person(), reason)), "denied", as_json
    )


@approval.command("remembered")
@as_json
@settings_options
def list_remembered(settings: Settings, as_json: bool) -> None:
    """Decisions that apply to later calls too, until the tool changes."""
    decisions = run_stored(settings, approvals.list_remembered)
    if as_json:
        print_json([decision.to_dict() for decision in decisions])
        return
    rows = [
        (
            decision.id,
            decision.created_at,
            escape_text(decision.tool_id),
            "every chat" if decision.chat_id is None else escape_text(decision.chat_id)[:40],
            escape_text(decision.created_by),
        )
        for decision in decisions
    ]
    print_table(("ID", "SINCE", "TOOL", "CHAT", "BY"), rows)


@approval.command()
@click.argument("remembered_id", metavar="ID")
@as_json
@settings_options
def revoke(settings: Settings, remembered_id: str, as_json: bool) -> None:
    """Revoke a remembered decision: from the next call on a person is asked again."""
    if not remembered_id:
        raise Invalid("name the decision to revoke; see: toolgate approval remembered")
    revoked = run_stored(settings, lambda gateway: approvals.revoke(gateway, remembered_id, person()))
    if as_json:
        print_json(revoked.to_dict())
    else:
        click.echo(f"{escape_text(revoked.tool_id)} asks for approval again ({revoked.id})")


def _print_decision(record: ApprovalRecord, status: str, as_json: bool) -> None:
    if as_json:
        print_json({"id": record.id, "call_id": record.call_id, "status": status})
    else:
        click.echo(f"{status} {escape_text(record.tool_id)} ({record.id})")


@approval.command()
@click.argument("rules", metavar="RULES.yaml", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--days", type=click.FloatRange(min=0, min_open=True, max=3650), default=policy.DAYS, show_default=True)
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=policy.CALL_LIMIT, show_default=True)
@as_json
@settings_options
def simulate(settings: Settings, rules: Path, days: float, limit: int, as_json: bool) -> None:
    """Show what changed rules would have decided about the recorded calls of the last days.

    RULES.yaml has any of the keys rules, mode, out_of_band, roles and categories, as in toolgate.yaml. Nothing runs,
    and nobody is asked.
    """
    changes = policy.read_changes(rules)
    found = run_admin(settings, lambda gateway: policy.simulate(gateway, changes, days, limit), "deciding")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            f"{change['before']} -> {change['after']}",
            str(change["calls"]),
            escape_text(change["tool"]),
            escape_text(change["principal"])[:40],
            change["call"],
            escape_text(change["reason"])[:120],
        )
        for change in found["changes"]
    ]
    if rows:
        print_table(("CHANGE", "CALLS", "TOOL", "PRINCIPAL", "LATEST", "WHY"), rows)
    for name in ("now", "then"):
        counts = found[name]
        click.echo(f"{name:4}  {counts['allow']} allowed, {counts['ask']} asked, {counts['deny']} denied")
    cut_off, gone = found["skipped"]["cut_off"], found["skipped"]["gone"]
    click.echo(f"{found['calls']} calls; left out: {cut_off} too large to be recorded whole, {gone} of tools now gone")
    if found["unknown_roles"]:
        names = escape_text(", ".join(found["unknown_roles"]))[:200]
        click.echo(f"decided without a role, since no key names one: {names}")
