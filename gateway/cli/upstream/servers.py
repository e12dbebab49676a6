"""Servers looked at and tried, wherever they were set up; those added by hand switched and removed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import click

from gateway.bundles.installed import InstalledToolset
from gateway.cli.options import as_json, print_json, print_table, run, settings_options
from gateway.cli.upstream.desk import Desk, desk
from gateway.cli.upstream.probing import Answer, Standing, probe_all, standing_dict, standings
from gateway.config import Settings
from gateway.db.upstreams import Memory
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.oauth.flow import sign_out
from gateway.sandbox.supervisor_main import remove as remove_folder
from gateway.secrets import VARIABLE
from gateway.sources.upstreams.secret_references import missing
from gateway.sources.upstreams.spec import Spec
from gateway.text import visible

_SHOWN_FINDINGS = 10


@click.command("list")
@as_json
@settings_options
def list_upstreams(settings: Settings, as_json: bool) -> None:
    """Every server, and how it was when it was last asked; `test` asks now."""

    async def task() -> list[dict[str, Any]]:
        async with desk(settings) as at:
            shapes = [await _shape(at, spec) for spec in at.specs.values()]
            return shapes + [_held_shape(name, toolset) for name, toolset in at.held.items()]

    shapes = run(task)
    if as_json:
        print_json(shapes)
        return
    rows = [
        (
            shape["name"],
            shape["state"],
            shape["era"] or "-",
            _count(shape["tools"]),
            shape["sandbox"],
            shape["origin"],
            visible(shape["error"] or ""),
        )
        for shape in shapes
    ]
    print_table(("NAME", "STATE", "ERA", "TOOLS", "SANDBOX", "ORIGIN", "ERROR"), rows)


@click.command()
@click.argument("name")
@as_json
@settings_options
def show(settings: Settings, name: str, as_json: bool) -> None:
    """One server: how it is set up, and what it offered when it was last asked."""

    async def task() -> dict[str, Any]:
        async with desk(settings) as at:
            spec = at.spec(name)
            known = spec.settings.model_dump(mode="json", exclude_defaults=True)
            return {**await _shape(at, spec), "settings": known, "secrets": at.vault.names(name)}

    shape = run(task)
    if as_json:
        print_json(shape)
        return
    for key in ("name", "state", "origin", "sandbox", "era", "seen_at", "error"):
        if shape[key]:
            click.echo(f"{key:10} {visible(str(shape[key]))}")
    for key, value in shape["settings"].items():
        if key == "sandbox":
            continue  # shown above as it counts
        click.echo(f"{key:10} {value}")
    for key, told in (("secrets", "kept, and never shown"), ("missing", "not set")):
        if shape[key]:
            click.echo(f"{key:10} {', '.join(shape[key])} ({told})")
    if shape["tools"]:
        click.echo("")
        rows = [(visible(tool["name"]), tool["state"], tool["permission"], _line(tool)) for tool in shape["tools"]]
        print_table(("TOOL", "STATE", "LEVEL", "DESCRIPTION"), rows)


@click.command()
@click.argument("name", required=False)
@as_json
@settings_options
def test(settings: Settings, name: str | None, as_json: bool) -> int:
    """Connect to a server now and list what it has, or to every one that is on. Exit 1 when one does not answer."""

    async def task() -> list[tuple[Spec, Answer | GatewayError]]:
        async with desk(settings) as at:
            wanted = [at.spec(name)] if name else [spec for spec in at.specs.values() if spec.settings.enabled]
            return await probe_all(at, wanted)

    tried = run(task)
    failed = [outcome for _, outcome in tried if isinstance(outcome, GatewayError)]
    if as_json:
        shapes = [_tried_shape(spec.name, outcome) for spec, outcome in tried]
        print_json(shapes[0] if name else shapes)
        return int(bool(failed))
    if name and failed:
        raise failed[0]
    for spec, outcome in tried:
        if isinstance(outcome, Answer):
            click.echo(f"{spec.name} answers")
            print_answer(outcome)
        else:
            click.echo(outcome.message)
    return int(bool(failed))


@click.command()
@click.argument("name")
@settings_options
def enable(settings: Settings, name: str) -> None:
    """Offer a server's tools again."""
    _switch(settings, name, True)


@click.command()
@click.argument("name")
@settings_options
def disable(settings: Settings, name: str) -> None:
    """Keep a server, but do not connect to it."""
    _switch(settings, name, False)


@click.command()
@click.argument("name")
@settings_options
def remove(settings: Settings, name: str) -> None:
    """Remove a server that was added by hand, its secrets, its folder, and all that was accepted of it."""

    async def task() -> None:
        async with desk(settings) as at:
            home = at.require_added(name).home(settings.data_dir)
            await at.board.store.remove(name)
            await asyncio.to_thread(remove_folder, str(home))
            await at.board.pins.forget(name)
            try:
                with suppress(NotFound):
                    await sign_out(at.account(name), name, at.board.logins)
            finally:  # whatever became of its login, its secrets do not stay behind
                at.vault.forget(name)

    run(task)
    click.echo(f"{name} is removed")


@click.command()
@click.argument("name")
@click.argument("variable")
@click.option("--forget", is_flag=True, help="Forget the value instead.")
@settings_options
def secret(settings: Settings, name: str, variable: str, forget: bool) -> None:
    """Keep the value of a ${VARIABLE} for one server that was added by hand; it is asked for here, or read from
    the standard input. It counts from the next time the server is connected to."""
    if not VARIABLE.fullmatch(f"${{{variable}}}"):
        raise Invalid(f"{variable!r} is no name of a variable: letters, digits and _, first no digit")

    async def task() -> None:
        async with desk(settings) as at:
            at.require_added(name)
            if forget:
                at.vault.forget(name, variable)
            else:
                at.vault.keep(name, {variable: typed(variable)})

    run(task)
    click.echo(f"{variable} is {'forgotten' if forget else 'kept'} for {name}")


def print_answer(answer: Answer) -> None:
    """What a server said, for a person."""
    click.echo(
        f"{answer.title or 'a server without a name'}, protocol {answer.era}; connected in {answer.connect_ms:.0f} ms, "
        f"listed in {answer.list_ms:.0f} ms\n"
    )
    rows = [(visible(each.name), each.state, each.tool.permission.value, _told(each)) for each in answer.tools]
    print_table(("TOOL", "STATE", "LEVEL", "DESCRIPTION"), rows)
    for line in _remarks(answer):
        click.echo(line)


def _remarks(answer: Answer) -> Iterator[str]:
    found = [(key, finding) for key, findings in answer.findings.items() for finding in findings]
    for key, finding in found[:_SHOWN_FINDINGS]:
        where = f"{key.kind.value} {visible(key.name)}{finding.where}"
        yield f"suspicious ({finding.severity.value}): {where}: {finding.what}: {finding.excerpt}"
    if len(found) > _SHOWN_FINDINGS:
        yield f"… and {len(found) - _SHOWN_FINDINGS} more that are suspicious (--json shows all)"
    yield from (f"note: {problem}" for problem in answer.problems)
    if answer.waiting:
        yield f"{answer.waiting} waiting for you; look with: toolgate upstream review {answer.name}"


def typed(variable: str) -> str:
    """A value a person types unseen, or a program hands over."""
    if sys.stdin.isatty():
        return str(
            click.prompt(
                f"{variable} (kept for this server alone)", hide_input=True, err=True, default="", show_default=False
            )
        )
    value = sys.stdin.read(64 * 1024).removesuffix("\n").removesuffix("\r")
    if not value:
        raise Invalid(f"nothing came for {variable}; write its value to the standard input")
    return value


def _tried_shape(name: str, outcome: Answer | GatewayError) -> dict[str, Any]:
    if isinstance(outcome, Answer):
        return {"ok": True, **outcome.to_dict()}
    return {"ok": False, "name": name, "error": outcome.to_dict()}


def _switch(settings: Settings, name: str, on: bool) -> None:
    async def task() -> None:
        async with desk(settings) as at:
            at.require_added(name)
            await at.board.store.enable(name, on)

    run(task)
    click.echo(f"{name} is {'on' if on else 'off'}")


async def _shape(at: Desk, spec: Spec) -> dict[str, Any]:
    memory, pins = await at.board.store.recall(spec.name), await at.board.pins.load(spec.name)
    known = at.board.by_name.get(spec.name)
    tools = standings(at.settings, known.tools if known else (), pins)
    lacking = missing(spec.settings.model_dump(), at.environment(spec))
    return {
        "name": spec.name,
        "state": _state(at, spec, memory),
        "era": memory.era,
        "origin": spec.origin,
        "sandbox": _sandbox(spec),
        "seen_at": memory.seen_at,
        "error": memory.error,
        "missing": lacking,
        "tools": [standing_dict(each) for each in tools],
        "waiting": sum(pin.state == "held" for pin in pins),
    }


def _sandbox(spec: Spec) -> str:
    """Where its program runs; `-` for a server without one."""
    given = spec.sandbox
    if spec.settings.command is None:
        return "-"
    if given is None:
        return "no"
    return "; ".join(["yes", *given.paths, *given.network])


def _held_shape(name: str, toolset: InstalledToolset) -> dict[str, Any]:
    unknown: dict[str, Any] = {"era": None, "sandbox": "-", "seen_at": None, "missing": [], "tools": [], "waiting": 0}
    origin, error = f"the toolset {toolset.id!r}", f"allow it with: toolgate toolset allow {toolset.id}"
    return {"name": name, "state": "held back", "origin": origin, "error": error, **unknown}


def _state(at: Desk, spec: Spec, memory: Memory) -> str:
    if not spec.settings.enabled:
        return "off"
    if at.access(spec).lacks_login(memory.error):
        return "not logged in"
    if memory.error is not None:
        return "failed"
    return "ok" if memory.seen_at is not None else "new"


def _count(tools: list[dict[str, Any]]) -> str:
    offered = sum(tool["state"] == "offered" for tool in tools)
    return str(offered) if offered == len(tools) else f"{offered} of {len(tools)}"


def _line(tool: Mapping[str, Any]) -> str:
    return visible(str(tool["reason"] or tool["description"]).split("\n")[0])


def _told(standing: Standing) -> str:
    return _line(standing_dict(standing))
