"""`toolgate tool` and `toolgate category`: the catalog, its switches, and calls through the same executor as every
surface."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from itertools import takewhile
from typing import Any

import click

from gateway.admin import switches
from gateway.admin.search import find_tools
from gateway.admin.token_costs import count_tool_tokens, list_costs
from gateway.approval.question import Answer, ConsentNeeded, Question
from gateway.calls import Caller, Outcome
from gateway.catalog import Catalog, CatalogEntry, mcp_tool
from gateway.cli.options import (
    as_json,
    print_json,
    print_table,
    repeat_options,
    run,
    run_admin,
    settings_options,
    short_id,
    summarize,
)
from gateway.cli.progress import ProgressLine, show_progress
from gateway.cli.prompt import TerminalApprover
from gateway.config import Settings
from gateway.errors import Forbidden, GatewayError, InputRequired, Invalid, ToolFailed
from gateway.gateway import DISCOVERY_SECONDS, Gateway
from gateway.names import SEPARATOR, wire_name
from gateway.render.renderers import TEXT_RENDERERS
from gateway.tools import Permission, Tool

_ALTERNATIVES = 100
# How long a list waits for servers that did not answer the last time.
_RETRY_SECONDS = 3.0


@click.group()
def tool() -> None:
    """List, show, call and switch tools."""


@tool.command("list")
@click.option("--category", help="Only tools of this category.")
@click.option("--all", "include_disabled", is_flag=True, help="Also tools that are off, with the reason.")
@click.option("--tokens", is_flag=True, help="What each tool, and the list of each profile, costs a model, about.")
@as_json
@settings_options
def list_tools(settings: Settings, category: str | None, include_disabled: bool, tokens: bool, as_json: bool) -> None:
    """Every tool that is on."""

    async def task() -> None:
        async with _open(settings) as gateway:
            catalog = gateway.catalog.filter(category=category)
            if tokens:
                _print_costs(gateway, catalog, as_json)
                return
            withheld = await switches.list_withheld(gateway) if include_disabled else []
            off = {
                wire_name(tool.id, tool.prefix): replace(tool, description=f"off: {reason}")
                for tool, reason in withheld
                if category in (None, tool.category)
            }
            if as_json:
                print_json([*catalog.to_mcp_tools(), *(mcp_tool(name, tool) for name, tool in off.items())])
                return
            _print_tools([*((entry.name, entry.tool) for entry in catalog), *sorted(off.items())])

    run(task)


@tool.command()
@click.argument("query", nargs=-1, required=True)
@click.option(
    "-n", "--limit", default=10, show_default=True, type=click.IntRange(1, 100), help="How many tools at most."
)
@click.option("--all", "include_disabled", is_flag=True, help="Also tools that are off.")
@as_json
@settings_options
def search(settings: Settings, query: tuple[str, ...], limit: int, include_disabled: bool, as_json: bool) -> None:
    """Find tools by a few words or a sentence, best first."""

    async def task() -> None:
        async with _open(settings) as gateway:
            everything = await find_tools(gateway, " ".join(query), limit, include_disabled=True)
            found = everything if include_disabled else await find_tools(gateway, " ".join(query), limit)
            better = [match.name for match in takewhile(lambda match: not match.enabled, everything)]
            if as_json:
                print_json([mcp_tool(match.name, match.tool) for match in found])
                return
            if found:
                _print_tools([(match.name if match.enabled else f"{match.name} (off)", match.tool) for match in found])
            elif not better:
                click.echo(f"No tool fits; 'toolgate tool list' lists all {len(gateway.catalog)}.")
            if better and not include_disabled:
                click.echo(f"These fit best, and are off: {', '.join(better)}; --all shows what they do.", err=True)

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


def _print_tools(tools: Iterable[tuple[str, Tool]]) -> None:
    rows = [(name, tool.category, tool.permission.value, summarize(tool.description)) for name, tool in tools]
    print_table(("NAME", "CATEGORY", "LEVEL", "DESCRIPTION"), rows, fit=True)


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
    """Call a tool. If it needs consent, you are asked here, unless --yes.

    `toolgate tool show NAME` lists the arguments of a tool. Text is written as it is; numbers, true, false, lists and
    objects as JSON, in single quotes: edits='[{"oldText": "a", "newText": "b"}]'.
    """

    async def task() -> Outcome:
        async with show_progress(f"calling {name}") as line, Gateway.open(settings, connect="none") as gateway:
            line.watch_files(gateway.versions.files_read)
            entry = await _find_tool(gateway, name, line)
            values = parse_arguments(entry.tool.input_schema if entry is not None else {}, arguments, json_args)

            terminal = TerminalApprover()

            async def ask(question: Question) -> Answer:
                with line.paused():
                    return await terminal.ask(question)

            approver = ask if sys.stdin.isatty() and not yes else None
            outcome = await gateway.call(
                name, values, caller=Caller(surface="cli"), confirmed=yes, approver=approver, progress=line
            )
            if entry is None:
                return outcome
            return _name_logs(gateway, entry.tool, _explain_arguments(entry.tool, values, outcome))

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
        plan = outcome.render_plan
        if plan is not None and plan["renderer"] not in TEXT_RENDERERS and sys.stdout.isatty():
            page = f"toolgate call show {short_id(plan['call']['id'])}{repeat_options()} --open"
            click.echo(f"its page: {page}", err=True)
    if outcome.error is not None:
        raise _name_as_typed(outcome.error, name)


async def _find_tool(gateway: Gateway, name: str, line: ProgressLine) -> CatalogEntry | None:
    """Find a tool. If it is missing, first connect to servers that may have it and were never connected."""
    if gateway.catalog.get(name) is None and gateway.passthrough() is not None:

        def report(names: Collection[str]) -> None:
            line.step(f"calling {name}: connecting to {', '.join(names)}")

        await gateway.upstreams.discover(DISCOVERY_SECONDS, gateway.upstreams.owners_of(name), report)
        await gateway.refresh()
    return gateway.catalog.get(name)


def _name_as_typed(error: GatewayError, name: str) -> GatewayError:
    """Name the tool as it was typed, `little__add`, in the message of an error, which has its id `little:add`."""
    owner, separator, own = name.partition(SEPARATOR)
    if separator:
        error.message = error.message.replace(f"{owner}:{own}", name)
    return error


def _name_logs(gateway: Gateway, tool: Tool, outcome: Outcome) -> Outcome:
    """Name the command that shows what the program of a server wrote to stderr, if its tool failed."""
    error, server = outcome.error, tool.owner
    if isinstance(error, ToolFailed) and tool.kind == "mcp" and server is not None:
        upstream = gateway.upstreams.by_name.get(server)
        if upstream is not None and upstream.spec.settings.command is not None:
            error.message += f"; see: toolgate upstream logs {server}"
    return outcome


def _explain_arguments(tool: Tool, values: dict[str, Any], outcome: Outcome) -> Outcome:
    """Name the wrong arguments of a call that failed. A server checks its arguments itself, and often says less."""
    if isinstance(outcome.error, Invalid):
        hint = _explain_lists(tool.input_schema, values) if outcome.error.code == "INVALID_ARGUMENTS" else ""
        return Outcome(error=Invalid(f"{outcome.error.message}{hint}", **outcome.error.details)) if hint else outcome
    if not isinstance(outcome.error, ToolFailed):
        return outcome
    try:
        tool.check_arguments(values)
    except Invalid as refusal:
        known = list(tool.input_schema.get("properties") or ())
        unknown = [name for name in values if known and name not in known and f"{name!r} is not" not in refusal.message]
        extra = f"; {unknown[0]!r} is not an argument; the arguments are {', '.join(known)}" if unknown else ""
        return Outcome(error=Invalid(f"{refusal.message}{extra}"))
    return outcome


def _explain_lists(schema: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """The shape of a required list of objects that was not given, with an example to type."""
    for name in schema.get("required", ()):
        inner = next((each for each in _alternatives(schema, name) if each.get("type") == "array"), None)
        fields = _fields(schema, inner) if inner is not None else None
        if fields and not isinstance(values.get(name), list):
            example = json.dumps({name: [_example(fields)]}, ensure_ascii=False)
            return f"; {name!r} is a list of {{{', '.join(fields)}}}: --json-args {shlex.quote(example)}"
    return ""


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
    """Turn one tool off: builtin, of a toolset or of a server. Gateways that run follow within a second."""
    _switch(settings, name, False)


def _switch(settings: Settings, name: str, enabled: bool) -> None:
    async def switch(gateway: Gateway) -> str | None:
        tool_id = await switches.enable_tool(gateway, name, enabled)
        await gateway.refresh()
        refusal = gateway.catalog.refusal(tool_id) if enabled and gateway.catalog.get(tool_id) is None else None
        return None if refusal is None or refusal.code == "UNKNOWN_TOOL" else refusal.message

    still_off = run_admin(settings, switch)
    click.echo(f"{name} is {'on' if enabled else 'off'}")
    if still_off is not None:
        click.echo(f"It is not offered yet. {still_off}", err=True)


@click.group()
def category() -> None:
    """Turn categories of tools on and off, and change their level and limit. What you change here wins over settings
    and flags; gateways that run follow within a second."""


@category.command("list")
@as_json
@settings_options
def list_categories(settings: Settings, as_json: bool) -> None:
    """Every category, with the number of its tools that are on."""

    async def describe(gateway: Gateway) -> tuple[list[dict[str, Any]], Counter[str]]:
        categories = [switches.describe_category(each, gateway.catalog) for each in switches.list_categories(gateway)]
        return categories, await switches.count_withheld(gateway)

    rows, off = run_admin(settings, describe)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        if off[row["id"]]:
            row["tools"] = f"{row['tools']} of {row['tools'] + off[row['id']]}"
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
        async with show_progress("opening the gateway") as line:
            gateway = await stack.enter_async_context(Gateway.open(settings, connect="none"))
            silent = await _connect(gateway, line) if gateway.passthrough() is not None else []
        if count := len(gateway.catalog.problems) + len(silent):
            problems = "1 problem" if count == 1 else f"{count} problems"
            servers = f" (no answer from {', '.join(silent)})" if silent else ""
            click.echo(f"toolgate: {problems} with tools{servers}; 'toolgate doctor' lists them", err=True)
        yield gateway


async def _connect(gateway: Gateway, line: ProgressLine) -> list[str]:
    """Connect to the person's own servers, and return those that do not answer. The wait is shorter for a server that
    did not answer the last time."""
    servers = gateway.upstreams.by_name
    failed = {name for name in gateway.upstreams.own if servers[name].last_error is not None}

    def report(names: Collection[str]) -> None:
        line.step(f"connecting to {', '.join(names)}")

    unanswered = await gateway.upstreams.discover(DISCOVERY_SECONDS, gateway.upstreams.own - failed, report)
    for name in unanswered:
        await gateway.upstreams.store.record_failure(name, f"it did not answer within {DISCOVERY_SECONDS:g} seconds")
    unanswered += await gateway.upstreams.discover(_RETRY_SECONDS, failed, report)
    await gateway.refresh()
    return [name for name, each in servers.items() if each.error or name in unanswered]


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
    kinds = dict.fromkeys(kind for inner in _alternatives(schema, name) for kind in _kinds(schema, inner))
    if len(kinds) > 1 and "null" in kinds:
        return f"{'|'.join(kind for kind in kinds if kind != 'null')}, optional"
    return "|".join(kinds)


def _kinds(root: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    if "enum" in schema or "const" in schema:
        return ["null" if value is None else str(value) for value in schema.get("enum", [schema.get("const")])]
    kind = schema.get("type", "any")
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        fields = _fields(root, schema)
        items = next(_resolve(root, schema["items"]))
        inner = f"{{{', '.join(fields)}}}" if fields else str(items.get("type", "any"))
        return [f"array of {inner}"]
    return list(map(str, kind)) if isinstance(kind, list) else [str(kind)]


def _fields(root: Mapping[str, Any], array: Mapping[str, Any]) -> dict[str, str]:
    """The properties of the objects in an array with their types; the name of one that may be absent ends in `?`."""
    items = next(_resolve(root, array.get("items")))
    properties, required = items.get("properties"), items.get("required", ())
    if not isinstance(properties, Mapping):
        return {}
    kinds = {key: next(_resolve(root, inner)).get("type") for key, inner in properties.items()}
    return {f"{key}{'' if key in required else '?'}": str(kind) for key, kind in kinds.items()}


def _alternatives(schema: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    """Every schema of an argument, as by `_resolve`."""
    return _resolve(schema, schema.get("properties", {}).get(name))


def _resolve(schema: Mapping[str, Any], inner: Any) -> Iterator[Mapping[str, Any]]:
    """Every alternative of a part of a schema, with `anyOf`, `oneOf` and `$ref` resolved; an empty one allows any
    value."""
    pending = [inner]
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
            first = next(iter(schema.get("properties", {})), "KEY")
            raise Invalid(f"{pair!r}: write KEY=VALUE, such as {first}=VALUE")
        values[key] = _parse_value(schema, key, text)
    return values


def _parse_value(schema: Mapping[str, Any], key: str, text: str) -> Any:
    """Parse one value; refused where only a list or an object fits and it is not JSON."""
    alternatives = list(_alternatives(schema, key))
    kinds = {str(inner.get("type")) for inner in alternatives} - {"null"}
    if kinds == {"string"}:
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        if not kinds or not kinds <= {"array", "object"}:
            return text
        inner = next(inner for inner in alternatives if inner.get("type") != "null")
        fields = _fields(schema, inner) if inner.get("type") == "array" else None
        example = [_example(fields)] if fields else [1, 2] if kinds == {"array"} else {"key": "value"}
        what = " or ".join({"array": "a list", "object": "an object"}[kind] for kind in sorted(kinds))
        typed = f"{key}={shlex.quote(json.dumps(example, ensure_ascii=False))}"
        raise Invalid(f"{key!r} is {what}, written as JSON in single quotes, such as {typed}; {error}") from None


def _example(fields: Mapping[str, str]) -> dict[str, Any]:
    """An object with the required fields of these, to type."""
    examples = {"string": "…", "boolean": True, "array": [], "object": {}}
    return {key: examples.get(kind, 1) for key, kind in fields.items() if not key.endswith("?")}
