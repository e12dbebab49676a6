"""`toolgate tool`: the catalog, and calls through the same road as everyone's."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import click

from gateway.approval.question import ConsentNeeded
from gateway.calls import Caller, Outcome
from gateway.cli.options import as_json, print_json, print_table, run, settings_options
from gateway.cli.prompt import on_terminal
from gateway.config import Settings
from gateway.errors import InputRequired, Invalid
from gateway.exports import mcp_tool
from gateway.gateway import Gateway
from gateway.tools import Tool

_ALTERNATIVES = 100


@click.group()
def tool() -> None:
    """List, show and call tools."""


@tool.command("list")
@click.option("--category", help="Only tools of this category.")
@as_json
@settings_options
def list_tools(settings: Settings, category: str | None, as_json: bool) -> None:
    """Every tool that is on."""

    async def task() -> None:
        async with _opened(settings, connect="own") as gateway:
            catalog = gateway.catalog.filter(category=category)
            if as_json:
                print_json(catalog.to_mcp_tools())
                return
            rows = [
                (entry.name, entry.tool.category, entry.tool.permission.value, entry.tool.description.split("\n")[0])
                for entry in catalog
            ]
            print_table(("NAME", "CATEGORY", "LEVEL", "DESCRIPTION"), rows)

    run(task)


@tool.command()
@click.argument("name")
@as_json
@settings_options
def show(settings: Settings, name: str, as_json: bool) -> None:
    """One tool: what it does, takes and returns."""

    async def task() -> None:
        async with _opened(settings, connect="own") as gateway:
            entry = gateway.catalog.find(name)
            if as_json:
                print_json(mcp_tool(entry.name, entry.tool))
                return
            click.echo(f"{entry.name}  ({entry.tool.category}, {entry.tool.permission.value})\n")
            click.echo(f"{entry.tool.description}\n\nArguments:")
            print_table(("  NAME", "TYPE", "DESCRIPTION"), argument_rows(entry.tool))

    run(task)


@tool.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json-args", help="The arguments as one JSON object; KEY=VALUE adds to it.")
@click.option("--yes", is_flag=True, help="Agree to whatever the call would ask first.")
@as_json
@settings_options
def call(
    settings: Settings, name: str, arguments: tuple[str, ...], json_args: str | None, yes: bool, as_json: bool
) -> None:
    """Call a tool. Where it needs consent, you are asked here, unless --yes."""

    async def task() -> Outcome:
        async with _opened(settings) as gateway:
            entry = gateway.catalog.get(name)
            given = _given(entry.tool.input_schema if entry is not None else {}, arguments, json_args)
            approver = on_terminal if sys.stdin.isatty() and not yes else None
            return await gateway.call(name, given, caller=Caller(surface="cli"), confirmed=yes, approver=approver)

    outcome = run(task)
    if isinstance(outcome.error, ConsentNeeded):
        reason = outcome.error.question.reason
        outcome = Outcome(error=InputRequired(f"{reason}; nobody can be asked here, say --yes to agree", reason=reason))
    if as_json:
        print_json(outcome.to_dict())
    elif outcome.error is None:
        click.echo(_readable(outcome))
    if outcome.error is not None:
        raise outcome.error


@asynccontextmanager
async def _opened(settings: Settings, connect: Literal["all", "own"] = "all") -> AsyncIterator[Gateway]:
    """The gateway, after one line about problems with its tools."""
    async with Gateway.open(settings, connect=connect) as gateway:
        if count := len(gateway.catalog.problems):
            found = "1 problem" if count == 1 else f"{count} problems"
            click.echo(f"toolgate: {found} with tools; 'toolgate doctor' lists them", err=True)
        yield gateway


def _readable(outcome: Outcome) -> str:
    if outcome.content is None:
        return json.dumps(outcome.value, indent=2, ensure_ascii=False)
    return "\n".join(block.get("text", f"[{block['type']}]") for block in outcome.content)


def argument_rows(tool: Tool) -> list[tuple[str, str, str]]:
    """Each argument with what it takes and what it is for."""
    required = tool.input_schema.get("required", ())
    return [
        (f"  {name}{'' if name in required else '?'}", _type(tool.input_schema, name), _description(schema))
        for name, schema in tool.input_schema.get("properties", {}).items()
    ]


def _type(schema: Mapping[str, Any], name: str) -> str:
    kinds = dict.fromkeys(kind for each in _alternatives(schema, name) for kind in _kinds(each))
    if len(kinds) > 1 and "null" in kinds:
        return f"{'|'.join(kind for kind in kinds if kind != 'null')}, optional"
    return "|".join(kinds)


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    if "enum" in schema or "const" in schema:
        return ["null" if each is None else str(each) for each in schema.get("enum", [schema.get("const")])]
    kind = schema.get("type", "any")
    return list(map(str, kind)) if isinstance(kind, list) else [str(kind)]


def _alternatives(schema: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    """Every schema an argument may follow, where it has several or is defined elsewhere; an empty one for any value."""
    pending = [schema.get("properties", {}).get(name)]
    for _ in range(_ALTERNATIVES):  # definitions may lead back to themselves
        if not pending:
            return
        each = pending.pop(0)
        several = isinstance(each, Mapping) and (each.get("anyOf") or each.get("oneOf"))
        if several:
            pending += several
        elif isinstance(each, Mapping) and "$ref" in each:
            pending.append(schema.get("$defs", {}).get(str(each["$ref"]).removeprefix("#/$defs/")))
        else:
            yield each if isinstance(each, Mapping) else {}
    yield {}


def _description(schema: Any) -> str:
    return str(schema.get("description", "")) if isinstance(schema, Mapping) else ""


def _given(schema: Mapping[str, Any], pairs: tuple[str, ...], json_args: str | None) -> dict[str, Any]:
    """The arguments as typed: a value is JSON unless the tool wants text there."""
    try:
        given = json.loads(json_args or "{}")
    except ValueError as error:
        raise Invalid(f"--json-args is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise Invalid('--json-args must be one JSON object, such as \'{"path": "a.txt"}\'')
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise Invalid(f"{pair!r} is no KEY=VALUE")
        kinds = {str(each.get("type")) for each in _alternatives(schema, key)}
        given[key] = text if kinds - {"null"} == {"string"} else _value(text)
    return given


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
