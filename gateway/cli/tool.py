"""`toolgate tool` and `toolgate category`: the catalog, its switches, and calls through the same executor as every
surface."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Any

import click

from gateway.admin import switches
from gateway.admin.token_costs import count_tool_tokens, list_costs
from gateway.approval.question import Answer, ConsentNeeded, Question
from gateway.calls import Caller, Outcome
from gateway.catalog import Catalog, CatalogEntry, mcp_tool
from gateway.cli.options import as_json, print_json, print_table, run, run_admin, settings_options
from gateway.cli.progress import show_progress
from gateway.cli.prompt import ask_on_terminal
from gateway.config import Settings
from gateway.errors import Forbidden, InputRequired, Invalid
from gateway.gateway import DISCOVERY_SECONDS, Gateway
from gateway.tools import Permission, Tool

_ALTERNATIVES = 100


@click.group()
def tool() -> None:
    """List, show, call and switch tools."""


@tool.command("list")
@click.option("--category", help="Only tools of this category.")
@click.option("--tokens", is_flag=True, help="What each tool, and the list of each profile, costs a model, about.")
@as_json
@settings_options
def list_tools(settings: Settings, category: str | None, tokens: bool, as_json: bool) -> None:
    """Every tool that is on."""

    async def task() -> None:
        async with _open(settings) as gateway:
            catalog = gateway.catalog.filter(category=category)
            if tokens:
                _print_costs(gateway, catalog, as_json)
                return
            if as_json:
                print_json(catalog.to_mcp_tools())
                return
            _print_tools(catalog)

    run(task)


@tool.command()
@click.argument("query", nargs=-1, required=True)
@click.option("--limit", default=10, show_default=True, type=click.IntRange(1, 100), help="How many tools at most.")
@as_json
@settings_options
def search(settings: Settings, query: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Find tools by a few words or a sentence, best first."""

    async def task() -> None:
        async with _open(settings) as gateway:
            found = await gateway.search(" ".join(query), limit)
            if as_json:
                print_json([mcp_tool(entry.name, entry.tool) for entry in found])
            elif found:
                _print_tools(found)
            else:
                click.echo(f"No tool fits; 'toolgate tool list' lists all {len(gateway.catalog)}.")

    run(task)


def _print_costs(gateway: Gateway, catalog: Catalog, as_json: bool) -> None:
    costs = {entry.name: count_tool_tokens(entry, gateway.catalog) for entry in catalog}
    lists = list_costs(gateway)
    if as_json:
        print_json({"tools": costs, "lists": [asdict(each) for each in lists]})
        return
    rows = [(name, str(costs[name])) for name in sorted(costs, key=lambda name: -costs[name])]
    print_table(("NAME", "TOKENS"), rows)
    click.echo()
    header = ("PROFILE", "MODE", "TOOLS", "TOKENS", "OUTPUT SCHEMAS", "SHORT LIST")
    numbers = [(each.tools, each.tokens, each.output_schemas, each.short_tokens) for each in lists]
    shown = [tuple("-" if number is None else str(number) for number in row) for row in numbers]
    print_table(header, [(each.name, each.mode, *row) for each, row in zip(lists, shown, strict=True)])


def _print_tools(entries: Iterable[CatalogEntry]) -> None:
    rows = [
        (entry.name, entry.tool.category, entry.tool.permission.value, entry.tool.description.split("\n")[0])
        for entry in entries
    ]
    print_table(("NAME", "CATEGORY", "LEVEL", "DESCRIPTION"), rows)


@tool.command()
@click.argument("name")
@click.option("--pipeline", is_flag=True, help="Show what a call of it passes, outermost first.")
@as_json
@settings_options
def show(settings: Settings, name: str, pipeline: bool, as_json: bool) -> None:
    """One tool: its description and arguments."""

    async def task() -> None:
        async with _open(settings) as gateway:
            entry = gateway.catalog.find(name)
            if pipeline:
                _show_pipeline(gateway, entry, as_json)
                return
            if as_json:
                print_json(mcp_tool(entry.name, entry.tool))
                return
            click.echo(f"{entry.name}  ({entry.tool.category}, {entry.tool.permission.value})\n")
            click.echo(f"{entry.tool.description}\n\nArguments:")
            print_table(("  NAME", "TYPE", "DESCRIPTION"), argument_rows(entry.tool))

    run(task)


def _show_pipeline(gateway: Gateway, entry: CatalogEntry, as_json: bool) -> None:
    rows = [(step.name, "gate" if step.gate else "observer", step.part) for step in gateway.executor.plan(entry.tool)]
    rows.append((entry.source.name, "source", "call_tool"))
    if as_json:
        print_json([dict(zip(("name", "kind", "part"), row, strict=True)) for row in rows])
    else:
        print_table(("NAME", "KIND", "PART"), rows)


@tool.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json-args", help="The arguments as one JSON object; KEY=VALUE adds to it.")
@click.option("--yes", is_flag=True, help="Agree to everything the call would ask.")
@as_json
@settings_options
def call(
    settings: Settings, name: str, arguments: tuple[str, ...], json_args: str | None, yes: bool, as_json: bool
) -> None:
    """Call a tool. If it needs consent, you are asked here, unless --yes."""

    async def task() -> Outcome:
        async with show_progress(f"calling {name}") as line, Gateway.open(settings, connect="none") as gateway:
            line.watch_files(gateway.versions.files_read)
            if gateway.catalog.get(name) is None and gateway.passthrough() is not None:
                await gateway.upstreams.discover(DISCOVERY_SECONDS)  # it may be of a server that was never connected
                await gateway.refresh()
            entry = gateway.catalog.get(name)
            values = parse_arguments(entry.tool.input_schema if entry is not None else {}, arguments, json_args)

            async def ask(question: Question) -> Answer:
                with line.paused():
                    return await ask_on_terminal(question)

            approver = ask if sys.stdin.isatty() and not yes else None
            return await gateway.call(
                name, values, caller=Caller(surface="cli"), confirmed=yes, approver=approver, progress=line
            )

    outcome = run(task)
    if isinstance(outcome.error, ConsentNeeded):
        reason = outcome.error.question.reason
        outcome = Outcome(
            error=InputRequired(f"{reason}; there is no terminal to ask on; use --yes to agree", reason=reason)
        )
    if outcome.error is not None and outcome.error.code == "DECLINED":
        outcome = Outcome(error=Forbidden(f"you declined {name}; it did not run", code="DECLINED"))
    if as_json:
        print_json(outcome.to_dict())
    elif outcome.error is None:
        click.echo(_format(outcome))
    if outcome.error is not None:
        raise outcome.error


@tool.command()
@click.argument("name")
@settings_options
def enable(settings: Settings, name: str) -> None:
    """Turn a tool on again. Gateways that run follow within a second."""
    _switch(settings, name, True)


@tool.command()
@click.argument("name")
@settings_options
def disable(settings: Settings, name: str) -> None:
    """Turn one tool off, builtin or of a toolset. Gateways that run follow within a second."""
    _switch(settings, name, False)


def _switch(settings: Settings, name: str, enabled: bool) -> None:
    tool_id = run_admin(settings, lambda gateway: switches.enable_tool(gateway, name, enabled))
    click.echo(f"{tool_id} is {'on' if enabled else 'off'}")


@click.group()
def category() -> None:
    """Turn categories of tools on and off, and change their level and limit. What you change here wins over settings
    and flags; gateways that run follow within a second."""


@category.command("list")
@as_json
@settings_options
def list_categories(settings: Settings, as_json: bool) -> None:
    """Every category, with the number of its tools that are on."""

    async def describe(gateway: Gateway) -> list[dict[str, Any]]:
        return [switches.describe_category(each, gateway.catalog) for each in switches.list_categories(gateway)]

    rows = run_admin(settings, describe)
    if as_json:
        print_json(rows)
        return
    header = ("ID", "STATE", "LEVEL", "CALLS/MIN", "TOOLS", "NAME", "DESCRIPTION")
    print_table(header, [_category_row(row) for row in rows])


@category.command("enable")
@click.argument("category_id", metavar="ID")
@settings_options
def enable_category(settings: Settings, category_id: str) -> None:
    """Offer the tools of a category."""
    _change_category(settings, category_id, {"enabled": True})


@category.command("disable")
@click.argument("category_id", metavar="ID")
@settings_options
def disable_category(settings: Settings, category_id: str) -> None:
    """Offer no tool of a category."""
    _change_category(settings, category_id, {"enabled": False})


@category.command("set")
@click.argument("category_id", metavar="ID")
@click.option("--level", "permission", type=click.Choice([level.value for level in Permission]), help="Its level.")
@click.option("--calls-per-minute", type=click.IntRange(0), help="Calls of its tools a minute; 0 for no limit.")
@click.option("--name", help="Its name, for people.")
@click.option("--description", help="What it is about, for people.")
@click.option("--reset", is_flag=True, help="Undo all changes, the switch included.")
@settings_options
def set_category(settings: Settings, category_id: str, reset: bool, **options: Any) -> None:
    """Change a category."""
    changes = {key: value for key, value in options.items() if value is not None}
    if reset == bool(changes):
        raise click.UsageError("use either --reset or at least one other option")
    _change_category(settings, category_id, changes)


def _change_category(settings: Settings, category_id: str, changes: Mapping[str, Any]) -> None:
    async def change(gateway: Gateway) -> dict[str, Any]:
        changed = await switches.change_category(gateway, category_id, changes)
        return switches.describe_category(changed, gateway.catalog)

    _, state, level, limit, tools, *_ = _category_row(run_admin(settings, change))
    calls = "" if limit == "-" else f", {limit} calls a minute"
    click.echo(f"{category_id} is {state} ({level}{calls}; {tools} tools)")


def _category_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    state, limit = "on" if row["enabled"] else "off", str(row["calls_per_minute"] or "-")
    return row["id"], state, row["permission"], limit, str(row["tools"]), row["name"], row["description"]


@asynccontextmanager
async def _open(settings: Settings) -> AsyncIterator[Gateway]:
    """Open the gateway with its own servers connected, and print one line if there are problems with its tools."""
    async with AsyncExitStack() as stack:
        async with show_progress("connecting to servers"):
            gateway = await stack.enter_async_context(Gateway.open(settings, connect="own"))
        silent = (
            [name for name, each in gateway.upstreams.by_name.items() if each.error] if gateway.passthrough() else []
        )
        if count := len(gateway.catalog.problems) + len(silent):
            problems = "1 problem" if count == 1 else f"{count} problems"
            servers = f" (no answer from {', '.join(silent)})" if silent else ""
            click.echo(f"toolgate: {problems} with tools{servers}; 'toolgate doctor' lists them", err=True)
        yield gateway


def _format(outcome: Outcome) -> str:
    if outcome.content is None:
        return json.dumps(outcome.value, indent=2, ensure_ascii=False)
    return "\n".join(block.get("text", f"[{block['type']}]") for block in outcome.content)


def argument_rows(tool: Tool) -> list[tuple[str, str, str]]:
    """Each argument with its type and description."""
    required = tool.input_schema.get("required", ())
    return [
        (f"  {name}{'' if name in required else '?'}", _type(tool.input_schema, name), _description(schema))
        for name, schema in tool.input_schema.get("properties", {}).items()
    ]


def _type(schema: Mapping[str, Any], name: str) -> str:
    kinds = dict.fromkeys(kind for inner in _alternatives(schema, name) for kind in _kinds(inner))
    if len(kinds) > 1 and "null" in kinds:
        return f"{'|'.join(kind for kind in kinds if kind != 'null')}, optional"
    return "|".join(kinds)


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    if "enum" in schema or "const" in schema:
        return ["null" if value is None else str(value) for value in schema.get("enum", [schema.get("const")])]
    kind = schema.get("type", "any")
    return list(map(str, kind)) if isinstance(kind, list) else [str(kind)]


def _alternatives(schema: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    """Every schema of an argument, with `anyOf`, `oneOf` and `$ref` resolved; an empty one allows any value."""
    pending = [schema.get("properties", {}).get(name)]
    for _ in range(_ALTERNATIVES):  # definitions may refer to themselves
        if not pending:
            return
        current = pending.pop(0)
        several = isinstance(current, Mapping) and (current.get("anyOf") or current.get("oneOf"))
        if several:
            pending += several
        elif isinstance(current, Mapping) and "$ref" in current:
            pending.append(schema.get("$defs", {}).get(str(current["$ref"]).removeprefix("#/$defs/")))
        else:
            yield current if isinstance(current, Mapping) else {}
    yield {}


def _description(schema: Any) -> str:
    return str(schema.get("description", "")) if isinstance(schema, Mapping) else ""


def parse_arguments(schema: Mapping[str, Any], pairs: tuple[str, ...], json_args: str | None) -> dict[str, Any]:
    """Parse the arguments of the command line: a value is JSON unless the tool's schema has a string there."""
    try:
        values = json.loads(json_args or "{}")
    except ValueError as error:
        raise Invalid(f"--json-args is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise Invalid('--json-args must be one JSON object, such as \'{"path": "a.txt"}\'')
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise Invalid(f"{pair!r}: expected KEY=VALUE")
        kinds = {str(inner.get("type")) for inner in _alternatives(schema, key)}
        values[key] = text if kinds - {"null"} == {"string"} else _value(text)
    return values


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
