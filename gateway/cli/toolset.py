"""`toolgate toolset`: bundles of tools installed, looked at, changed, handed on and removed."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gateway.app import Gateway
from gateway.bundles.installed import InstalledToolset
from gateway.bundles.library import ToolsetLibrary
from gateway.bundles.scaffold import create
from gateway.cli.consent import agree, can_ask, print_servers, server_shapes, settle_servers
from gateway.cli.options import as_json, print_json, print_table, run, settings_options
from gateway.config import Settings
from gateway.errors import InputRequired, Invalid
from gateway.sources.toolsets.assembly import FetchedBundle, fetch_bundle
from gateway.sources.toolsets.listing import build_tools
from gateway.tools import Tool


@click.group()
def toolset() -> None:
    """Install toolsets and look at them."""


@toolset.command()
@click.argument("source", metavar="PATH|ZIP|URL")
@click.option("--copy", is_flag=True, help="Take a folder in as it is now, and do not follow its edits.")
@agree
@as_json
@settings_options
def install(settings: Settings, source: str, copy: bool, yes: bool, as_json: bool) -> None:
    """Install a bundle, or a new version of one. `serve` follows the edits of a folder.

    MCP servers it brings are started only after you agreed to each, here or with `toolset allow`.
    """

    async def task() -> tuple[InstalledToolset, list[Tool]]:
        async with _gateway(settings) as gateway, fetch_bundle(source, settings.http, _progress) as found:
            installed = await _take_in(gateway.toolsets.library, found, live=found.is_folder and not copy)
            return installed, await _offered(gateway, installed)

    installed, tools = run(task)
    if as_json:
        settled = settle_servers(settings, installed, yes, as_json)
        print_json({"changed": installed.changed, "masked": installed.masked, **_shape(settled, tools)})
        return
    done = "installed" if installed.changed else "already installed, and the same"
    click.echo(f"{installed.id} {installed.spec.version} is {done}")
    _print_tools(tools)
    for hint in _hints(installed):
        click.echo(hint)
    settle_servers(settings, installed, yes, as_json)


@toolset.command("list")
@as_json
@settings_options
def list_toolsets(settings: Settings, as_json: bool) -> None:
    """Every installed toolset."""

    async def task() -> tuple[InstalledToolset, ...]:
        async with _gateway(settings) as gateway:
            return await gateway.toolsets.library.list()

    found = run(task)
    if as_json:
        print_json([_shape(installed, list(build_tools(installed))) for installed in found])
        return
    rows = [
        (item.id, item.spec.version, _state(item), str(len(item.tools)), item.source_ref or "", item.spec.name)
        for item in found
    ]
    print_table(("ID", "VERSION", "STATE", "TOOLS", "SOURCE", "NAME"), rows)


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@as_json
@settings_options
def show(settings: Settings, toolset_id: str, as_json: bool) -> None:
    """One toolset: its tools, what they may do, and what it needs."""
    installed = run(lambda: _get(settings, toolset_id))
    tools = list(build_tools(installed))
    if as_json:
        print_json(_shape(installed, tools))
        return
    click.echo(f"{installed.spec.name} ({installed.id} {installed.spec.version}, {_state(installed)})")
    click.echo(installed.spec.description or "no description")
    click.echo(f"from {installed.source_ref or 'an upload'}{', followed' if installed.live else ''}\n")
    _print_tools(tools)
    for hint in _hints(installed):
        click.echo(hint)
    print_servers(installed)


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@click.option("-o", "--output", metavar="FILE", help="The ZIP file to write; '-' for the standard output.")
@settings_options
def export(settings: Settings, toolset_id: str, output: str | None) -> None:
    """Pack a toolset as a ZIP to hand on. No secret value goes with it."""

    async def task() -> str:
        async with _gateway(settings) as gateway:
            library = gateway.toolsets.library
            installed = await library.get(toolset_id)
            if output == "-":
                await library.export(toolset_id, sys.stdout.buffer)
                return ""
            target = Path(output or f"{installed.id}-{installed.spec.version}.zip")
            with _replacing(target) as temporary, temporary.open("wb") as file:
                await library.export(toolset_id, file)
            return str(target)

    if written := run(task):
        click.echo(written)


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@settings_options
def enable(settings: Settings, toolset_id: str) -> None:
    """Offer a toolset's tools again."""
    _switch(settings, toolset_id, True)


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@settings_options
def disable(settings: Settings, toolset_id: str) -> None:
    """Keep a toolset, but offer none of its tools."""
    _switch(settings, toolset_id, False)


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@agree
@as_json
@settings_options
def allow(settings: Settings, toolset_id: str, yes: bool, as_json: bool) -> None:
    """Look at the MCP servers a toolset brings, and let those you agree to be started."""
    installed = run(lambda: _get(settings, toolset_id))
    waiting = bool(installed.pending_servers)
    settled = settle_servers(settings, installed, yes, as_json)
    if waiting and not yes and not can_ask():
        raise InputRequired("nobody can be asked here; say --yes to agree to these servers", reason="new servers")
    if as_json:
        print_json(server_shapes(settled))
    elif not waiting:
        click.echo(f"no MCP server of {toolset_id} waits for you")


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@settings_options
def disallow(settings: Settings, toolset_id: str) -> None:
    """Withdraw your consent to the MCP servers a toolset brings: they end, and none is started again."""

    async def task() -> InstalledToolset:
        async with _gateway(settings) as gateway:
            return await gateway.toolsets.library.disallow_servers(toolset_id)

    names = ", ".join(server.id for server in run(task).servers)
    click.echo(f"held back from now on: {names}" if names else f"{toolset_id} brings no MCP servers")


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@settings_options
def uninstall(settings: Settings, toolset_id: str) -> None:
    """Remove a toolset, its files and all that was changed about it."""

    async def task() -> None:
        async with _gateway(settings) as gateway:
            await gateway.toolsets.library.uninstall(toolset_id)

    run(task)
    click.echo(f"{toolset_id} is uninstalled")


@toolset.command()
@click.argument("tool_id", metavar="TOOLSET:TOOL")
@click.option("--name", "name_override", help="Another display name.")
@click.option("--description", "description_override", help="Another description, which the model reads.")
@click.option("--ask/--no-ask", "requires_confirmation", default=None, help="Whether a person must agree first.")
@click.option("--enable/--disable", "enabled", default=None, help="Whether it is offered.")
@click.option("--reset", is_flag=True, help="Let it be as the toolset has it.")
@settings_options
def override(settings: Settings, tool_id: str, reset: bool, **changes: Any) -> None:
    """Change one tool for this gateway; new versions of the toolset leave the change alone."""
    said = {key: value for key, value in changes.items() if value is not None}
    if reset == bool(said):
        raise click.UsageError("say what to change, or --reset")

    async def task() -> None:
        async with _gateway(settings) as gateway:
            toolset_id, library = tool_id.partition(":")[0], gateway.toolsets.library
            if reset:
                await library.clear_override(toolset_id, tool_id)
            else:
                await library.override(toolset_id, tool_id, said)

    run(task)
    click.echo(f"{tool_id} is {'as the toolset has it' if reset else 'changed'}")


@toolset.command()
@click.argument("source", metavar="PATH|ZIP|URL")
@as_json
@settings_options
def check(settings: Settings, source: str, as_json: bool) -> None:
    """Try a bundle as `install` would, in a sandbox and a library that is thrown away."""

    async def task() -> tuple[InstalledToolset, list[Tool]]:
        with tempfile.TemporaryDirectory(prefix="toolgate-check-") as scratch:
            apart = settings.model_copy(update={"data_dir": Path(scratch), "toolsets": []})
            async with _gateway(apart) as gateway, fetch_bundle(source, settings.http, _progress) as found:
                installed = await _take_in(gateway.toolsets.library, found, live=False)
                return installed, await _offered(gateway, installed)

    installed, tools = run(task)
    if as_json:
        print_json(_shape(installed, tools))
        return
    click.echo(f"{installed.id} {installed.spec.version} can be installed")
    _print_tools(tools)
    for hint in _hints(installed):
        click.echo(hint)
    print_servers(installed)


@toolset.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--id", "toolset_id", help="The toolset's id; by default made of the folder's name.")
def new(directory: Path, toolset_id: str | None) -> None:
    """Begin a toolset in a new folder: two tools, a page that shows a result, and tests."""
    for path in create(directory, toolset_id):
        click.echo(str(path))
    click.echo(f"\nNext: toolgate toolset check {directory}, then toolgate toolset install {directory}")


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A file beside the target, which takes its name once it is whole."""
    if target.is_dir():
        raise Invalid(f"{str(target)!r} is a folder; name a file to write")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@asynccontextmanager
async def _gateway(settings: Settings) -> AsyncIterator[Gateway]:
    async with Gateway.open(settings, connect="none") as gateway:
        yield gateway


async def _get(settings: Settings, toolset_id: str) -> InstalledToolset:
    async with _gateway(settings) as gateway:
        return await gateway.toolsets.library.get(toolset_id)


async def _take_in(library: ToolsetLibrary, found: FetchedBundle, live: bool) -> InstalledToolset:
    return await library.install(
        found.path, source_type=found.type, source_ref=found.ref, live=live, progress=_progress
    )


async def _offered(gateway: Gateway, installed: InstalledToolset) -> list[Tool]:
    """The toolset's tools; each that the gateway's categories or profile keep back says so, and how to have it."""
    catalog = await gateway.refresh()
    return [
        tool if tool.withheld or catalog.get(tool.id) else replace(tool, withheld=catalog.refusal(tool.id).message)
        for tool in build_tools(installed)
    ]


async def _progress(_: float, __: float | None = None, message: str | None = None) -> None:
    if message and sys.stderr.isatty():
        click.echo(f"… {message}", err=True)


def _switch(settings: Settings, toolset_id: str, on: bool) -> None:
    async def task() -> None:
        async with _gateway(settings) as gateway:
            await gateway.toolsets.library.enable(toolset_id, on)

    run(task)
    click.echo(f"{toolset_id} is {'on' if on else 'off'}")


def _state(installed: InstalledToolset) -> str:
    if installed.enabled and installed.pending_servers:
        return f"on; servers held back: {len(installed.pending_servers)}"
    return "on" if installed.enabled else "off"


def _print_tools(tools: list[Tool]) -> None:
    rows = [
        (
            tool.id,
            tool.category,
            tool.permission.value,
            "yes" if tool.requires_confirmation else "no",
            tool.renderer.kind if tool.renderer else "-",
            f"withheld: {tool.withheld}" if tool.withheld else tool.description.split("\n")[0],
        )
        for tool in tools
    ]
    print_table(("TOOL", "CATEGORY", "LEVEL", "ASKS", "SHOWN AS", "DESCRIPTION"), rows)


def _hints(installed: InstalledToolset) -> Iterator[str]:
    """What the person must still do for the toolset to work."""
    if installed.masked:
        yield f"values written in toolset.yaml were not kept; set in the environment: {', '.join(installed.masked)}"
    missing = sorted(name for name in installed.spec.variables() - {*installed.masked} if name not in os.environ)
    if missing:
        yield f"not set in the environment: {', '.join(missing)}"


def _shape(installed: InstalledToolset, tools: list[Tool]) -> dict[str, Any]:
    return {
        "id": installed.id,
        "name": installed.spec.name,
        "version": installed.spec.version,
        "description": installed.spec.description,
        "enabled": installed.enabled,
        "live": installed.live,
        "source_type": installed.source_type,
        "source_ref": installed.source_ref,
        "installed_at": installed.installed_at,
        "digest": installed.digest,
        "dependencies": installed.spec.dependencies,
        "variables": sorted(installed.spec.variables()),
        "tools": [
            {
                "id": tool.id,
                "title": tool.title,
                "description": tool.description,
                "category": tool.category,
                "permission": tool.permission.value,
                "requires_confirmation": bool(tool.requires_confirmation),
                "renderer": tool.renderer.kind if tool.renderer else None,
                "withheld": tool.withheld,
            }
            for tool in tools
        ],
        "mcp_servers": [server.id for server in installed.servers],
        "servers": server_shapes(installed),
    }
