"""`toolgate approval`: calls that wait for a person, and decisions for longer than one call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from gateway.admin import approvals, policy
from gateway.approval.question import escape_text
from gateway.cli.options import (
    as_json,
    confirm,
    name_chat,
    print_json,
    print_table,
    run_admin,
    run_stored,
    settings_options,
    short_id,
    short_time,
)
from gateway.cli.prompt import can_ask, person
from gateway.cli.tool import parse_arguments
from gateway.config import Settings
from gateway.errors import InputRequired, Invalid, NotFound
from gateway.gateway import Gateway
from gateway.names import SUFFIX_LENGTH

if TYPE_CHECKING:
    from gateway.db.approvals import ApprovalRecord, Scope


# Number of checks whether the caller has used an allowance, and seconds between them.
_LOOKS, _LOOK_SECONDS = 4, 0.1

_approval_id = click.argument("approval_id", metavar="[ID]", required=False)


async def _find(gateway: Gateway, approval_id: str | None) -> ApprovalRecord:
    """Find a question by its id or, without one, the only one that waits."""
    if approval_id is not None:
        return await approvals.show_approval(gateway, approval_id)
    waiting = await approvals.list_approvals(gateway, waiting=True, limit=10)
    if len(waiting) == 1:
        return waiting[0]
    if not waiting:
        raise NotFound("no call waits for a person; see: toolgate approval list --all", code="UNKNOWN_APPROVAL")
    ids = ", ".join(f"{record.id[-SUFFIX_LENGTH:]} ({escape_text(record.tool_id)})" for record in waiting)
    raise Invalid(f"several calls wait; name one by its ID: {ids}", code="AMBIGUOUS_ID")


@click.group()
def approval() -> None:
    """Decide on calls that wait for a person, and revoke earlier decisions."""


@approval.command("list")
@click.option("--all", "everything", is_flag=True, help="Also decided questions, and questions asked in clients.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@as_json
@settings_options
def list_approvals(settings: Settings, everything: bool, limit: int, as_json: bool) -> None:
    """The calls that wait in the queue, newest first."""

    async def find(gateway: Gateway) -> list[tuple[ApprovalRecord, dict[str, Any]]]:
        records = await approvals.list_approvals(gateway, waiting=not everything, limit=limit)
        return [(record, approvals.describe_approval(gateway, record)) for record in records]

    found = run_stored(settings, find)
    if as_json:
        print_json([described for _, described in found])
        return
    rows = [
        (
            short_id(record.id),
            short_time(record.created_at),
            escape_text(record.tool_id),
            "allowed, not used in time" if record.unused else record.status,
            name_chat(escape_text(record.chat_id), described["folder"]),
            escape_text(record.reason)[:120],
        )
        for record, described in found
    ]
    print_table(("ID", "ASKED (UTC)", "TOOL", "STATUS", "CHAT", "WHY"), rows)


@approval.command()
@_approval_id
@as_json
@settings_options
def show(settings: Settings, approval_id: str | None, as_json: bool) -> None:
    """One question and its outcome. A unique beginning or end of the ID is enough; without ID, the one that waits."""

    async def find(gateway: Gateway) -> tuple[ApprovalRecord, dict[str, Any]]:
        record = await _find(gateway, approval_id)
        return record, approvals.describe_approval(gateway, record)

    record, described = run_stored(settings, find)
    if as_json:
        print_json(described)
        return
    click.echo(f"{record.message}\n")
    decider = escape_text(record.decided_by or "")
    fields = {
        "id": record.id,
        "call": record.call_id,
        "chat": escape_text(record.chat_id),
        "folder": described["folder"] and escape_text(described["folder"]),
        "principal": escape_text(record.principal),
        "asked": f"{record.created_at}, by {record.via}",
        "until": record.expires_at,
        "status": "allowed, not used in time" if record.unused else record.status,
        "decided": record.decided_at and f"{record.decided_at} by {decider} ({record.scope})",
        "changed to": record.edited_args and escape_text(record.edited_args),
    }
    for key, value in fields.items():
        if value is not None:
            click.echo(f"{key:12} {value}")


@approval.command()
@_approval_id
@click.option("--for-chat", is_flag=True, help="Also later calls of this tool for the same reason in this chat.")
@click.option("--always", is_flag=True, help="Also later calls in every chat, until the tool changes.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Change an argument; may be given again.")
@click.option("--json-args", help="Arguments to change, as one JSON object; --set adds to it.")
@click.option("--yes", is_flag=True, help="Without ID: allow the one that waits without asking.")
@as_json
@settings_options
def allow(
    settings: Settings,
    approval_id: str | None,
    for_chat: bool,
    always: bool,
    pairs: tuple[str, ...],
    json_args: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Allow a waiting call once. Its caller continues by itself, or calls again with the same arguments. Without
    ID, it is the only one that waits: it is shown, and you are asked.

    With changed arguments it runs with those, and its caller is told. What they lead to may be asked about again.
    """
    edits = bool(pairs or json_args)
    if for_chat + always + edits > 1:
        raise click.UsageError("use one of --for-chat, --always and changed arguments, which are allowed once")
    scope: Scope = "always" if always else "chat" if for_chat else "once"
    allowed = approval_id or _choose_waiting(settings, yes)

    async def decide(gateway: Gateway) -> ApprovalRecord:
        record = await _find(gateway, allowed)
        tool = gateway.find_tool(record.tool_id)
        changes = parse_arguments(tool.input_schema if tool is not None else {}, pairs, json_args)
        await approvals.allow(gateway, record.id, person(), scope, changes)
        for _ in range(_LOOKS):  # a caller that waits takes the answer at once
            record = await approvals.show_approval(gateway, record.id)
            if record.status == "used" or as_json:
                break
            await anyio.sleep(_LOOK_SECONDS)
        return record

    record = run_stored(settings, decide)
    _print_decision(record, "allowed", as_json)
    if as_json:
        return
    if record.status == "used":
        click.echo("its caller waited, and continues")
    else:
        until = record.expires_at[:16].replace("T", " ")
        click.echo(
            f"not used yet: a caller that no longer waits has to call again, with these arguments, by {until} UTC"
        )


def _choose_waiting(settings: Settings, yes: bool) -> str:
    """Show the only call that waits, ask whether to allow it, and return its id. Without a terminal only --yes does."""
    record = run_stored(settings, lambda gateway: _find(gateway, None))
    click.echo(f"{record.message}\n", err=True)
    if not yes and not can_ask():
        words = f"toolgate approval allow {short_id(record.id)}"
        raise InputRequired(f"there is no terminal to ask on; allow this call with --yes, or: {words}")
    if not yes and not confirm("Allow this call?"):
        raise InputRequired("nothing was decided; the call waits on", code="NOT_DECIDED")
    return record.id


@approval.command()
@_approval_id
@click.option("--reason", help="What the model is told about it.")
@as_json
@settings_options
def deny(settings: Settings, approval_id: str | None, reason: str | None, as_json: bool) -> None:
    """Refuse a waiting call; without ID, the only one that waits."""

    async def decide(gateway: Gateway) -> ApprovalRecord:
        return await approvals.deny(gateway, (await _find(gateway, approval_id)).id, person(), reason)

    _print_decision(run_stored(settings, decide), "denied", as_json)


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
            short_id(decision.id),
            short_time(decision.created_at),
            escape_text(decision.tool_id),
            "every chat" if decision.chat_id is None else escape_text(decision.chat_id)[:40],
            escape_text(decision.created_by),
        )
        for decision in decisions
    ]
    print_table(("ID", "SINCE (UTC)", "TOOL", "CHAT", "BY"), rows)


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
@click.option("-n", "--limit", type=click.IntRange(1, 1_000_000), default=policy.CALL_LIMIT, show_default=True)
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
