"""`toolgate toolset`: bundles of tools installed, shown, changed, exported and removed."""

from __future__ import annotations

import shlex
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.admin import switches, toolsets
from gateway.admin.openapi import describe_import, install_openapi, write_openapi
from gateway.admin.toolsets import ServerInfo, ToolsetInfo
from gateway.bundles.installed import quote
from gateway.bundles.openapi import ImportOptions
from gateway.cli.help import choose_color
from gateway.cli.options import (
    as_json,
    confirm,
    print_json,
    print_table,
    repeat_options,
    run,
    run_admin,
    run_shown,
    settings_options,
    summarize,
)
from gateway.cli.progress import ProgressLine, show_progress
from gateway.cli.prompt import can_ask, person, read_secret
from gateway.config import Settings
from gateway.errors import InputRequired, ToolFailed
from gateway.gateway import Gateway
from gateway.names import SEPARATOR, wire_name
from gateway.secrets import KNOWN
from gateway.text import visible
from gateway.tools import Tool

if TYPE_CHECKING:
    from gateway.sandbox.run import FinishedProgram

agree = click.option("--yes", is_flag=True, help="Agree to its MCP servers without being asked.")


@click.group()
def toolset() -> None:
    """Install toolsets and look at them."""


@toolset.command()
@click.argument("source", metavar="PATH|ZIP|URL|NAME")
@click.option("--copy", is_flag=True, help="Install a folder as it is now, and do not follow its edits.")
@click.option("--dry-run", is_flag=True, help="Only print what would change.")
@agree
@as_json
@settings_options
def install(settings: Settings, source: str, copy: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Install a bundle, or a new version of one. `serve` follows the edits of a folder. The NAME of a toolset that
    comes with toolgate (app-builder, customer-support, data-lab) is enough.

    MCP servers it brings are started only after you agreed to each, here or with `toolset allow`.
    """
    if dry_run:
        difference = run_shown(
            settings,
            lambda gateway, line: toolsets.compare_toolset(gateway, source, line),
            f"reading {source}",
        )
        _print_difference(difference.to_dict(), as_json)
        return
    info = run_shown(
        settings,
        lambda gateway, line: toolsets.install_toolset(gateway, source, copy=copy, progress=line),
        f"installing {source}",
    )
    installed = info.installed
    if as_json:
        servers = [server.to_dict() for server in _ask_about_servers(settings, info, yes, as_json).servers]
        outcome = {"changed": installed.changed, "masked": installed.masked}
        print_json({**outcome, **info.to_dict(), "servers": servers})
        return
    done = "installed" if installed.changed else "already installed and unchanged"
    click.echo(f"{installed.id} {installed.spec.version} is {done}")
    _print_tools(info)
    if offered := [tool for tool in info.tools if not tool.withheld]:
        # The names are the author's: one could hold a command for the shell that this line is pasted into.
        arguments = "".join(f" {quote(f'{key}={key.upper()}')}" for key in offered[0].input_schema.get("required", ()))
        name = wire_name(offered[0].id, installed.spec.prefix)
        click.echo(f"\nNext: toolgate tool call {name}{arguments}{repeat_options()}")
    _ask_about_servers(settings, info, yes, as_json)


def _print_difference(difference: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(difference)
        return
    before = difference["installed_version"] or "not installed"
    click.echo(f"{difference['id']}: {before} -> {difference['version']}")
    for subject in ("files", "tools", "servers"):
        for change, names in difference[subject].items():
            for name in names:
                click.echo(f"  {change} {subject.removesuffix('s')} {visible(name)}")
    if not difference["changed"]:
        click.echo("  nothing would change")


@toolset.command("list")
@as_json
@settings_options
def list_toolsets(settings: Settings, as_json: bool) -> None:
    """Every installed toolset."""
    infos = run_admin(settings, toolsets.list_toolsets)
    if as_json:
        print_json([info.to_dict() for info in infos])
        return
    rows = [
        (item.id, item.spec.version, _state(info), str(len(item.tools)), item.source_ref or "", item.spec.name)
        for info in infos
        for item in [info.installed]
    ]
    print_table(("ID", "VERSION", "STATE", "TOOLS", "SOURCE", "NAME"), rows)


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@as_json
@settings_options
def show(settings: Settings, toolset_id: str, as_json: bool) -> None:
    """One toolset: its tools, what they may do, and what it needs."""
    info = _get(settings, toolset_id)
    if as_json:
        print_json(info.to_dict())
        return
    installed = info.installed
    click.echo(f"{installed.spec.name} ({installed.id} {installed.spec.version}, {_state(info)})")
    click.echo(installed.spec.description or "no description")
    click.echo(f"from {installed.source_ref or 'an upload'}{', followed' if installed.live else ''}\n")
    _print_tools(info)
    _print_servers(info.servers)


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@click.option("-o", "--output", metavar="FILE", help="The ZIP file to write; '-' for the standard output.")
@settings_options
def export(settings: Settings, toolset_id: str, output: str | None) -> None:
    """Export a toolset as a ZIP file, without secret values."""
    target = sys.stdout.buffer if output == "-" else Path(output) if output else None
    if written := run_admin(
        settings,
        lambda gateway: toolsets.export_toolset(gateway, toolset_id, target),
        None if output == "-" else f"exporting {toolset_id}",
    ):
        click.echo(str(written))


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
    """Turn a toolset off. It stays installed, but none of its tools are offered."""
    _switch(settings, toolset_id, False)


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@agree
@as_json
@settings_options
def allow(settings: Settings, toolset_id: str, yes: bool, as_json: bool) -> None:
    """Show the MCP servers a toolset brings, and allow those you agree to."""
    info = _get(settings, toolset_id)
    waiting = bool(info.pending_servers)
    info = _ask_about_servers(settings, info, yes, as_json)
    if waiting and not yes and not can_ask():
        raise InputRequired("there is no terminal to ask on; use --yes to agree to these servers", reason="new servers")
    if as_json:
        print_json([server.to_dict() for server in info.servers])
    elif not waiting:
        click.echo(f"no MCP server of {toolset_id} needs your consent")


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@settings_options
def disallow(settings: Settings, toolset_id: str) -> None:
    """Withdraw your consent to the MCP servers a toolset brings: they end, and none is started again."""
    names = ", ".join(run_admin(settings, lambda gateway: toolsets.disallow_servers(gateway, toolset_id)))
    click.echo(f"held back from now on: {names}" if names else f"{toolset_id} brings no MCP servers")


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@click.argument("variable", metavar="NAME")
@click.option("--forget", is_flag=True, help="Delete the stored value instead.")
@settings_options
def secret(settings: Settings, toolset_id: str, variable: str, forget: bool) -> None:
    """Store the value of a secret that a toolset declares. The value is asked for here, or read from the standard
    input. It is kept in the data directory for this toolset only, and wins over the environment."""
    ask = partial(read_secret, owner=toolset_id)
    if forget:
        run_admin(settings, lambda gateway: toolsets.forget_secret(gateway, toolset_id, variable))
    else:
        run_admin(settings, lambda gateway: toolsets.keep_secret(gateway, toolset_id, variable, ask))
    click.echo(f"{variable} is {'deleted' if forget else 'stored'} for {toolset_id}")


@toolset.command()
@click.argument("toolset_id", metavar="ID")
@settings_options
def uninstall(settings: Settings, toolset_id: str) -> None:
    """Remove a toolset, its files, its secrets and the changes to its tools."""
    run_admin(settings, lambda gateway: toolsets.uninstall_toolset(gateway, toolset_id))
    click.echo(f"{toolset_id} is uninstalled")


@toolset.command()
@click.argument("tool_id", metavar="TOOLSET:TOOL")
@click.option("--name", "name_override", help="Another display name.")
@click.option("--description", "description_override", help="Another description, which the model reads.")
@click.option("--ask/--no-ask", "requires_confirmation", default=None, help="Ask a person before each call, or not.")
@click.option("--enable/--disable", "enabled", default=None, help="Turn the tool on or off.")
@click.option("--reset", is_flag=True, help="Undo all changes.")
@settings_options
def override(settings: Settings, tool_id: str, reset: bool, **options: Any) -> None:
    """Change one tool for this gateway; new versions of the toolset keep the change."""
    changes = {key: value for key, value in options.items() if value is not None}
    if reset == bool(changes):
        raise click.UsageError("use either --reset or at least one other option")

    async def change(gateway: Gateway) -> None:
        by_name = SEPARATOR in tool_id and ":" not in tool_id
        found = await switches.find_tool_id(gateway, tool_id) if by_name else tool_id
        await toolsets.override_tool(gateway, found, changes)

    run_admin(settings, change)
    click.echo(f"{tool_id} is {'reset' if reset else 'changed'}")


@toolset.command()
@click.argument("source", metavar="PATH|ZIP|URL|NAME")
@as_json
@settings_options
def check(settings: Settings, source: str, as_json: bool) -> None:
    """Try a toolset as `install` would, in a sandbox and a temporary library, and warn about likely mistakes."""

    async def task() -> ToolsetInfo:
        async with show_progress(f"checking {source}") as line:
            return await toolsets.check_toolset(
                settings, source, lambda temporary: Gateway.open(temporary, connect="none"), line
            )

    info = run(task)
    if as_json:
        print_json({**info.to_dict(), "warnings": info.warnings})
        return
    click.echo(f"{info.id} {info.installed.spec.version} can be installed")
    _print_tools(info)
    _print_servers(info.servers)
    for warning in info.warnings:
        click.echo(f"{click.style('warning:', fg='yellow')} {warning}")


@toolset.command(context_settings={"ignore_unknown_options": True})
@click.argument("source", metavar="ID|PATH")
@click.argument("arguments", nargs=-1, metavar="[PYTEST_ARGUMENTS]...")
@settings_options
def test(settings: Settings, source: str, arguments: tuple[str, ...]) -> int:
    """Run a toolset's tests with pytest, in the sandbox: without network, secrets or other files of the machine.

    What follows is passed to pytest. Exit 1 when a test fails."""
    color = ("--color=yes",) if sys.stdout.isatty() and choose_color() is None else ()

    async def run_tests(gateway: Gateway, line: ProgressLine) -> FinishedProgram:
        def show(stream: str, output: bytes) -> None:
            line.stop()
            click.echo(output, nl=False, err=stream == "stderr")

        return await toolsets.test_toolset(gateway, source, (*color, *arguments), on_output=show, progress=line)

    finished = run_shown(settings, run_tests, f"preparing the tests of {source}")
    if finished.exit.killed is not None:
        raise ToolFailed(f"the tests were ended: they exceeded their limit of {finished.exit.killed} (docs/sandbox.md)")
    return min(finished.exit.code, 1)


@toolset.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--id", "toolset_id", help="The toolset's id; by default made of the folder's name.")
def new(directory: Path, toolset_id: str | None) -> None:
    """Create a toolset in a new folder: two tools, a page that shows a result, and tests."""
    for path in toolsets.create_toolset(directory, toolset_id):
        click.echo(str(path))
    folder = shlex.quote(str(directory))
    click.echo(f"\nNext: toolgate toolset check {folder}, then toolgate toolset install {folder}")


@toolset.command("from-openapi")
@click.argument("source", metavar="FILE|URL")
@click.option("--id", "toolset_id", help="The toolset's id; by default made of the document's title.")
@click.option("--tag", "tags", multiple=True, help="Import only operations with this tag; can be repeated.")
@click.option("--server", metavar="URL", help="The API's base URL, instead of the document's servers.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Send a header with every request.")
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="The folder to write.")
@click.option("--install", "installs", is_flag=True, help="Install it at once, without a folder unless -o names one.")
@click.option("--dry-run", is_flag=True, help="Show what would be imported or changed, and write nothing.")
@as_json
@settings_options
def from_openapi(
    settings: Settings,
    source: str,
    toolset_id: str | None,
    tags: tuple[str, ...],
    server: str | None,
    headers: tuple[str, ...],
    output: Path | None,
    installs: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a toolset of HTTP tools from an OpenAPI document, 3.0 or 3.1, in a folder you can edit.

    A document imported again into its folder shows what changed, and keeps what you changed. Secrets stay out of the
    folder: the tools refer to variables of the environment, also in --header 'Authorization: Bearer ${API_TOKEN}'.
    """
    pairs = [text.partition(":") for text in headers]
    if wrong := next((text for text, (_, colon, _) in zip(headers, pairs, strict=True) if not colon), None):
        raise click.BadParameter(f"{wrong!r} has no colon; write 'NAME: VALUE'", param_hint="--header")
    given = {name.strip(): value.strip() for name, _, value in pairs}
    options = ImportOptions(toolset_id, tags, server, given)
    if installs and output is None:
        report = run_admin(settings, lambda gateway: install_openapi(gateway, source, options, dry_run))
    else:
        report = run(lambda: write_openapi(source, options, settings.http, output, dry_run))
        if installs and not dry_run:
            folder = str(report.directory)
            info = run_admin(settings, lambda gateway: toolsets.install_toolset(gateway, folder))
            report = replace(report, installed=info)
    if as_json:
        print_json(report.to_dict())
        return
    for line in describe_import(report, dry_run):
        click.echo(visible(line))


def _get(settings: Settings, toolset_id: str) -> ToolsetInfo:
    return run_admin(settings, lambda gateway: toolsets.show_toolset(gateway, toolset_id))


def _switch(settings: Settings, toolset_id: str, enabled: bool) -> None:
    run_admin(settings, lambda gateway: toolsets.enable_toolset(gateway, toolset_id, enabled))
    click.echo(f"{toolset_id} is {'on' if enabled else 'off'}")


def _state(info: ToolsetInfo) -> str:
    if info.installed.enabled and info.pending_servers:
        return f"on; servers held back: {len(info.pending_servers)}"
    return "on" if info.installed.enabled else "off"


def _print_tools(info: ToolsetInfo) -> None:
    header = ("TOOL", "CATEGORY", "LEVEL", "ASKS", "SHOWN AS", "DESCRIPTION")
    print_table(header, [_tool_row(tool, info.installed.spec.prefix) for tool in info.tools], fit=True)
    for reason, names in _group_withheld(info).items():
        alike = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        click.echo(f"withheld: {reason.replace(_NAME, names[0])}{alike}")
    for hint in info.hints:
        click.echo(hint)


# Stands for the name of a tool in a reason that several tools share.
_NAME = "\0"


def _group_withheld(info: ToolsetInfo) -> dict[str, list[str]]:
    """Return each reason to withhold tools, with the names of these tools."""
    groups: dict[str, list[str]] = {}
    for tool in info.tools:
        if tool.withheld is not None:
            reason = tool.withheld.replace(tool.id, _NAME)
            groups.setdefault(reason, []).append(wire_name(tool.id, info.installed.spec.prefix))
    return groups


def _tool_row(tool: Tool, prefix: str | None) -> tuple[str, ...]:
    return (
        wire_name(tool.id, prefix),
        tool.category,
        tool.permission.value,
        "yes" if tool.requires_confirmation else "no",
        tool.renderer.kind if tool.renderer else "-",
        f"{'(off) ' if tool.withheld else ''}{summarize(tool.description)}",
    )


def _print_servers(servers: Sequence[ServerInfo], err: bool = False) -> None:
    for server in servers:
        click.echo(f"\nMCP server {server.id}, {server.state}", err=err)
        for name, text in server.description:
            click.echo(f"  {name:12} {text}", err=err)
        if server.agreed_by is not None:
            click.echo(f"  {'agreed':12} by {server.agreed_by}, {server.agreed_at}", err=err)


def _ask_about_servers(settings: Settings, info: ToolsetInfo, yes: bool, as_json: bool) -> ToolsetInfo:
    """Show the servers that wait for consent, ask about each, and connect to those agreed to. Without a terminal and
    without `yes` none is agreed to."""
    asks = not yes and can_ask()
    agreed = {}
    for server in info.pending_servers:
        _print_servers([server], err=asks or as_json)
        if yes or (asks and _ask_about_server(server)):
            agreed[server.id] = server.digest
    if agreed:
        info = _allow(settings, info.id, agreed, f"{person()}, --yes" if yes else person(), as_json)
    if info.pending_servers:
        names = ", ".join(server.id for server in info.pending_servers)
        hint = f"held back, not started or connected: {names}; to allow them, run: toolgate toolset allow {info.id}"
        click.echo(hint, err=as_json)
    return info


def _ask_about_server(server: ServerInfo) -> bool:
    with suppress(termios.error):  # input typed before the question is no answer to it
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    action = "start this program" if server.server.command is not None else "connect to this server"
    try:
        return confirm(f"May Toolgate {action} ({server.id})?")
    except click.Abort:
        click.echo("", err=True)
        return False


def _allow(settings: Settings, toolset_id: str, digests: dict[str, str], by: str, as_json: bool) -> ToolsetInfo:
    info, results = run_admin(
        settings, lambda gateway: toolsets.allow_servers(gateway, toolset_id, digests, by), "connecting to its servers"
    )
    for name, result in results.items():
        click.echo(KNOWN.mask(visible(f"{name} is allowed; {result}")), err=as_json)
    return info
