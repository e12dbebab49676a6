"""A server added by hand: checked, tried once, and stored without its secrets."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from pydantic import ValidationError

from gateway.cli.options import as_json, print_json, run, settings_options
from gateway.cli.upstream.desk import Desk, desk
from gateway.cli.upstream.probing import Answer, probe
from gateway.cli.upstream.servers import print_answer, typed
from gateway.config import Settings, UpstreamSettings, anchored
from gateway.db.upstreams import checked_settings
from gateway.errors import Conflict, GatewayError, Invalid, Unavailable
from gateway.secrets import VARIABLE
from gateway.sources.upstreams.client_configs import is_toolgate
from gateway.sources.upstreams.secret_references import missing
from gateway.sources.upstreams.spec import ADDED, Spec

_PAIR = re.compile(r"(?P<name>[^=:\s]+)\s*(?:=|:)\s*(?P<value>.*)", re.DOTALL)


class _ThenCommand(click.Command):
    """A command that keeps everything after `--` as the program to start, and its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:cut])
        ctx.params["command"] = tuple(args[cut + 1 :])
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ARGUMENTS...]"]


@click.command(cls=_ThenCommand)
@click.argument("name")
@click.option("--url", help="Where the server is, if it need not be started.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every request to it.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable of the program's environment.")
@click.option("--cwd", help="The folder the program starts in.")
@click.option("--transport", type=click.Choice(["stdio", "http", "sse"]), help="Only needed for 'sse'.")
@click.option("--prefix", help="What its tools' names begin with, instead of the server's name; '' for nothing.")
@click.option("--category", help="The category its tools belong to; by default 'upstream'.")
@click.option("--trusted", is_flag=True, help="Believe what it says of its tools, such as that they only read.")
@click.option("--lazy/--eager", default=None, help="Connect when a tool is called, or when the gateway starts.")
@click.option(
    "--sharing", type=click.Choice(["principal", "chat", "all"]), help="Who shares one connection to the server."
)
@click.option(
    "--pinning", type=click.Choice(["trust", "hold", "off"]), help="Whether what it says first waits for you."
)
@click.option("--sandbox", is_flag=True, help="Start the program in the sandbox, without files and network of yours.")
@click.option(
    "--sandbox-path", "paths", multiple=True, metavar="PATH[:rw]", help="A folder or file it may read there, or write."
)
@click.option("--sandbox-host", "hosts", multiple=True, metavar="HOST", help="A host it may reach from there by HTTP.")
@click.option("--no-test", is_flag=True, help="Do not connect to it now.")
@as_json
@settings_options
def add(settings: Settings, name: str, no_test: bool, as_json: bool, **said: Any) -> None:
    """Add a server: a program to start, after `--`, or a URL to reach."""
    wanted = _wanted(said)

    async def task() -> Answer | GatewayError | None:
        async with desk(settings) as at:
            at.require_free(name)
            spec = Spec.of(name, _valid(name, wanted), ADDED)
            _ask_for_missing(at, spec)
            await _as_a_stranger(at, name)
            try:
                answer = None if no_test else await _tried(at, spec)
                await at.board.store.add(name, wanted)
            except GatewayError as refusal:
                await _as_a_stranger(at, name)
                at.vault.forget(name)
                raise _refusal(refusal) from None
            return answer

    answer = run(task)
    if as_json:
        print_json({"name": name, "settings": wanted, "answer": answer and answer.to_dict()})
        return
    if isinstance(answer, GatewayError):
        click.echo(f"{name} is added; it wants a login, so now: toolgate upstream login {name}")
        return
    click.echo(f"{name} is added" + ("" if answer else f"; try it with: toolgate upstream test {name}"))
    if answer:
        print_answer(answer)


async def _tried(at: Desk, spec: Spec) -> Answer | GatewayError:
    """What it answers; that it wants a login first is an answer, too."""
    try:
        return await probe(at, spec)
    except GatewayError as refusal:
        if "login" not in refusal.details:
            raise
        return refusal


def _wanted(said: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed, as `mcpServers` would say it."""
    command, url = said["command"], said["url"]
    if bool(command) == bool(url):
        raise click.UsageError("name either --url URL or, after `--`, the command that starts the server")
    for key, option, fits in (("headers", "--header", url), ("env", "--env", command), ("cwd", "--cwd", command)):
        if said[key] and not fits:
            raise click.UsageError(f"{option} is for a server with {'--url' if command else 'a command'}")
    if (sandbox := _sandbox(said)) and not command:
        raise click.UsageError("--sandbox is for a server with a command")
    if said["transport"] and (said["transport"] == "stdio") != bool(command):
        raise click.UsageError(f"--transport {said['transport']} does not fit {'a command' if command else '--url'}")
    target = {"url": url} if url else {"command": command[0], "args": list(command[1:])}
    pairs = {key: dict(_pair(each, key) for each in said[key]) for key in ("headers", "env")}
    kept = ("cwd", "prefix", "category", "lazy", "sharing", "pinning")
    chosen = {key: said[key] for key in kept if said[key] is not None}
    if said["transport"] == "sse":
        chosen["type"] = "sse"
    if said["trusted"]:
        chosen["trusted"] = True
    if sandbox:
        chosen["sandbox"] = sandbox
    return {key: value for key, value in {**target, **pairs, **chosen}.items() if value not in ({}, [])}


def _sandbox(said: Mapping[str, Any]) -> Any:
    """What `mcpServers` would say of the sandbox, with paths that mean the same from every folder."""
    paths, hosts = [anchored(path, Path.cwd()) for path in said["paths"]], list(said["hosts"])
    given = {key: value for key, value in {"paths": paths, "network": hosts}.items() if value}
    return given or said["sandbox"]


def _pair(text: str, key: str) -> tuple[str, str]:
    match = _PAIR.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--{key.removesuffix('s')} {text.partition('=')[0]!r}: expected NAME=VALUE")
    return match["name"], match["value"]


def _valid(name: str, wanted: Mapping[str, Any]) -> UpstreamSettings:
    """The settings; refused when they cannot be used, or hold a secret."""
    if is_toolgate(wanted):
        raise Invalid("that is this gateway, which would call itself", code="CALLS_ITSELF")
    try:
        url = urlsplit(wanted.get("url", "http:"))
        if url.scheme not in ("http", "https") and not VARIABLE.match(wanted.get("url", "")):
            raise ValueError
    except ValueError:
        raise Invalid("--url is no address such as https://host/mcp", code="INVALID_URL") from None
    try:
        settings = UpstreamSettings.model_validate(wanted)
    except ValidationError as error:
        fault = error.errors()[0]
        raise Invalid(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}", code="INVALID_CONFIG") from None
    try:
        checked_settings(wanted)
    except Invalid as refusal:
        if refusal.code != "LITERAL_SECRET":
            raise
        raise Invalid(
            f"{refusal.message}, in single quotes so that the shell leaves it alone; you are then asked for the value, "
            f"or keep it later with: toolgate upstream secret {name} VARIABLE",
            code=refusal.code,
            **refusal.details,
        ) from None
    return settings


def _ask_for_missing(at: Desk, spec: Spec) -> None:
    """At a terminal, ask for what is not set, and keep it."""
    if sys.stdin.isatty():
        names = missing(spec.settings.model_dump(), at.environment(spec))
        at.vault.keep(spec.name, {name: value for name in names if (value := typed(name))})


async def _as_a_stranger(at: Desk, name: str) -> None:
    """Whoever had that name before says nothing about this one."""
    await at.board.store.forget(name)
    await at.board.pins.forget(name)


def _refusal(refusal: GatewayError) -> GatewayError:
    """The same, with what can be done about it; nothing was stored."""
    if isinstance(refusal, Conflict):
        return refusal
    lacking = refusal.code == "MISSING_VARIABLE"
    fix = "nothing was added" + ("; for that, say --no-test first" if lacking else " (--no-test adds it anyway)")
    kind = Unavailable if isinstance(refusal, Unavailable) else Invalid
    return kind(f"{refusal.message}; {fix}", code=refusal.code)
