"""`toolgate call`: the record of tool calls."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from gateway.admin import calls, usage
from gateway.calls import Caller
from gateway.cli.browser import open_page
from gateway.cli.options import (
    as_json,
    name_chat,
    print_json,
    print_table,
    run,
    run_admin,
    settings_options,
    short_id,
    short_time,
    to_text,
)
from gateway.cli.prompt import person
from gateway.config import Settings
from gateway.errors import NotFound
from gateway.gateway import Gateway

if TYPE_CHECKING:
    from gateway.db.usage import Dimension, UsageRow


@click.group()
def call() -> None:
    """Look at the record of tool calls."""


@call.command("list")
@click.option("--of-chat", help="Only calls of this chat; --chat does the same here.")
@click.option("--tool", help="Only calls of this tool.")
@click.option(
    "--status", type=click.Choice(["pending", "running", "success", "error"]), help="Only calls of this status."
)
@click.option("--before", metavar="ID", help="Only calls before this one, for the next page.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@as_json
@settings_options
def list_calls(
    settings: Settings,
    of_chat: str | None,
    tool: str | None,
    status: str | None,
    before: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """The latest calls, newest first."""
    of_chat = of_chat or click.get_current_context().params["chat"]  # the default of the settings filters nothing

    async def task() -> None:
        async with Gateway.open(settings, connect="none") as gateway:
            last = None if before is None else (await calls.show_call(gateway, before))["id"]
            records = await calls.list_calls(gateway, chat=of_chat, tool=tool, status=status, before=last, limit=limit)
            if as_json:
                print_json(records)
                return
            rows = [
                (
                    short_id(record["id"]),
                    short_time(record["started_at"]),
                    record["tool_name"][:64],
                    record["status"],
                    record["error_code"] or "",
                    "" if record["duration_ms"] is None else format_time(record["duration_ms"]),
                    name_chat(record["chat_id"], record["folder"]),
                )
                for record in records
            ]
            print_table(("ID", "STARTED (UTC)", "TOOL", "STATUS", "ERROR", "TOOK", "CHAT"), rows)

    run(task)


async def _open_page(gateway: Gateway, call_id: str) -> None:
    """Show the page of a call whose tool has one, else its record."""
    # Imported here: no other command shows pages.
    from gateway.render.pages import make_page
    from gateway.serve.mcp.render_resources import RenderResources, ResourceReader
    from gateway.serve.web.inline import read_view

    record = await calls.show_call(gateway, call_id)
    if record["render_plan"] is not None:
        renders = RenderResources(gateway.records, gateway.versions, gateway.executor)
        page = await renders.page(ResourceReader(record["chat_id"], Caller(surface="cli")), record["id"])
    else:
        config = {
            "call": {name: value for name, value in record.items() if value is not None},
            "changes": await calls.show_changes(gateway, record),
        }
        page = make_page(read_view("call"), {"renderer": "call", "config": config})
    open_page(page, f"{record['tool_name']}, call {record['id']}")


@call.command()
@click.option(
    "--by",
    type=click.Choice(["tool", "server", "principal", "day"]),
    multiple=True,
    default=("tool",),
    show_default=True,
    help="What to count by; may be given several times.",
)
@click.option("--days", type=click.IntRange(1, 3650), default=7, show_default=True, help="So many days up to today.")
@click.option("--tool", help="Only calls of this tool.")
@click.option("--server", help="Only tools of this upstream server or toolset, or 'builtin'.")
@click.option("--principal", help="Only calls of this principal.")
@click.option("-n", "--limit", type=click.IntRange(1, usage.LIMIT), default=100, show_default=True)
@as_json
@settings_options
def stats(
    settings: Settings,
    by: tuple[Dimension, ...],
    days: int,
    tool: str | None,
    server: str | None,
    principal: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Count calls, errors, durations and bytes. Days are those of UTC."""
    since = datetime.now(UTC).date() - timedelta(days=days - 1)
    found = run_admin(
        settings,
        lambda gateway: usage.report_usage(
            gateway, by, since=since, tool=tool, server=server, principal=principal, limit=limit
        ),
    )
    if as_json:
        print_json(asdict(found))
        return
    header = (*(name.upper() for name in by), "CALLS", "ERRORS", "MEAN", "LONGEST", "SENT", "RETURNED")
    rows = [(*(str(getattr(row, name))[:64] for name in by), *_describe_counts(row)) for row in found.items]
    total = ("all", *[""] * (len(by) - 1), *_describe_counts(found.total))
    print_table(header, [*rows, total])
    if found.more:
        click.echo(f"Only the first {limit} are shown; --limit shows more.")


def _describe_counts(row: UsageRow) -> tuple[str, ...]:
    times = (format_time(row.mean_ms), format_time(row.longest_ms))
    return (
        str(row.calls),
        str(row.errors),
        *times,
        *(f"{size} B" if size < 1024 else f"{size / 1024:.1f} KiB" for size in (row.args_bytes, row.result_bytes)),
    )


def format_time(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


# Words for the columns of a record.
_LABELS = {
    "id": "call",
    "chat_id": "chat",
    "message_id": "message",
    "parent_message_id": "message before it",
    "tool_id": "tool",
    "tool_name": "tool's name",
    "started_at": "started",
    "parent_call_id": "step of call",
    "args": "arguments",
    "error_code": "code of the error",
    "render_plan": "page",
    "finished_at": "finished",
    "duration_ms": "took",
    "pre_manifest_id": "version before",
    "post_manifest_id": "version after",
    "args_bytes": "arguments, bytes",
    "result_bytes": "result, bytes",
}


async def _find_newest(gateway: Gateway) -> str:
    """Return the id of the newest call, of the chat that --chat names if it is given."""
    newest = await calls.list_calls(gateway, chat=click.get_current_context().params["chat"], limit=1)
    if not newest:
        raise NotFound("no call is recorded yet; make one with: toolgate tool call NAME", code="UNKNOWN_CALL")
    return str(newest[0]["id"])


@call.command()
@click.argument("call_id", metavar="[ID]", required=False)
@click.option("--open", "opens", is_flag=True, help="Show its page in your browser instead.")
@as_json
@settings_options
def show(settings: Settings, call_id: str | None, opens: bool, as_json: bool) -> None:
    """One call: its arguments, its result, who made it. A unique beginning or end of the ID is enough; without ID, the
    newest call."""

    async def task() -> None:
        async with Gateway.open(settings, connect="none") as gateway:
            found = call_id or await _find_newest(gateway)
            if opens:
                await _open_page(gateway, found)
                return
            record = await calls.show_call(gateway, found)
            if as_json:
                print_json(record)
                return
            if plan := record["render_plan"]:
                record["render_plan"] = f"{plan.get('renderer')}, at render://{record['id']} (--json shows it)"
            if record["status"] == "pending":
                record["error"] = "it waits for a person; see: toolgate approval list"
            if (took := record["duration_ms"]) is not None:
                record["duration_ms"] = format_time(took)
            for key, value in record.items():
                if value is not None:
                    click.echo(f"{_LABELS.get(key, key):18} {to_text(value)}")

    run(task)


@call.command()
@click.argument("call_id", metavar="ID")
@settings_options
def cancel(settings: Settings, call_id: str) -> None:
    """Cancel a call that runs in any gateway of this data directory, or that waits for a person."""
    record = run_admin(settings, lambda gateway: calls.cancel_call(gateway, call_id, person()))
    click.echo(f"{record['id']} of {record['tool_name']} is being cancelled")
