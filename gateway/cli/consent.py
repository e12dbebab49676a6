"""The question on the terminal before MCP servers of a toolset are started or connected to."""

from __future__ import annotations

import sys
import termios
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from gateway.app import Gateway
from gateway.bundles.installed import InstalledToolset, describe_server
from gateway.bundles.spec import Server
from gateway.cli.options import run
from gateway.cli.prompt import person
from gateway.config import Settings
from gateway.secrets import KNOWN
from gateway.sources.upstreams.upstream import Upstream
from gateway.text import visible

agree = click.option("--yes", is_flag=True, help="Agree to the MCP servers it brings, unseen.")


def print_servers(installed: InstalledToolset) -> None:
    """Print every server of a toolset, with what it is and whether a person agreed to it."""
    for server in installed.servers:
        _print_server(installed, server)


def settle_servers(settings: Settings, installed: InstalledToolset, yes: bool, as_json: bool) -> InstalledToolset:
    """Show the servers that wait for consent, ask about each, and connect to those agreed to. Without a terminal and
    without `yes` none is agreed to."""
    asks = not yes and can_ask()
    agreed = {}
    for server in installed.pending_servers:
        _print_server(installed, server, err=asks or as_json)
        if yes or (asks and _ask(server)):
            agreed[server.id] = installed.server_digest(server)
    if agreed:
        by = f"{person()}, --yes" if yes else person()
        installed = run(lambda: _allow(settings, installed, agreed, by, as_json))
    if installed.pending_servers:
        names = ", ".join(server.id for server in installed.pending_servers)
        hint = f"held back, and neither started nor connected to: {names}; allow with: toolgate toolset allow "
        click.echo(hint + installed.id, err=as_json)
    return installed


def can_ask() -> bool:
    """Return whether a person sits here: the question goes to stderr."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def server_shapes(installed: InstalledToolset) -> list[dict[str, Any]]:
    """Every server of a toolset for programs: all that is declared, its digest, and the consent to it."""
    consents = {name: {"by": row.agreed_by, "at": row.agreed_at} for name, row in installed.consents.items()}
    return [
        {
            **server.model_dump(mode="json", exclude_defaults=True),
            "digest": installed.server_digest(server),
            "state": _state(installed, server),
            "agreed": consents.get(server.id),
        }
        for server in installed.servers
    ]


def _print_server(installed: InstalledToolset, server: Server, err: bool = False) -> None:
    click.echo(f"\nMCP server {server.id}, {_state(installed, server)}", err=err)
    for name, text in describe_server(server):
        click.echo(f"  {name:12} {text}", err=err)
    if consent := installed.consents.get(server.id):
        click.echo(f"  {'agreed':12} by {consent.agreed_by}, {consent.agreed_at}", err=err)


def _state(installed: InstalledToolset, server: Server) -> str:
    return "off" if not server.enabled else "allowed" if server.id in installed.consents else "held back"


def _ask(server: Server) -> bool:
    with suppress(termios.error):  # what was typed before the question is no answer to it
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    kind = "start this program" if server.command is not None else "connect to this server"
    try:
        return click.confirm(f"May Toolgate {kind} ({server.id})?", default=False, err=True)
    except click.Abort:
        click.echo("", err=True)
        return False


async def _allow(
    settings: Settings, installed: InstalledToolset, digests: Mapping[str, str], by: str, as_json: bool
) -> InstalledToolset:
    async with Gateway.open(settings, connect="none") as gateway:
        upstreams = await gateway.allow_servers(installed.id, digests, by)
        for name in digests:
            click.echo(KNOWN.mask(visible(f"{name} is allowed; {_answer(upstreams.get(name))}")), err=as_json)
        return await gateway.toolsets.library.get(installed.id)


def _answer(upstream: Upstream | None) -> str:
    if upstream is None:
        return "it is off"
    return f"{len(upstream.tools)} tools" if upstream.known else f"it does not answer: {upstream.error or 'not yet'}"
