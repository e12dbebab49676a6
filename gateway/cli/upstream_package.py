"""`toolgate upstream search`, and the options of `add`, also for `.mcpb` files and servers of the registry."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from gateway.admin.server_registry import SEARCH_LIMIT, search_registry
from gateway.admin.upstream_packages import ServerPlan, Values, plan_file, plan_registered
from gateway.admin.upstreams import AskSecret
from gateway.bundles.mcpb import SUFFIX
from gateway.cli.options import as_json, confirm, print_json, print_table, run, run_stored, settings_options
from gateway.config import Settings, anchor_path
from gateway.errors import InputRequired
from gateway.text import visible_line

_KINDS = ("npm", "pypi", "oci", "mcpb", "remote")
_PAIR = re.compile(r"(?P<name>[^=:\s]+)\s*(?:=|:)\s*(?P<value>.*)", re.DOTALL)
_OF_OTHERS = ("url", "command", "headers", "env", "cwd", "transport")


def package_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options of `upstream add` for packages."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Of a package: print what would run, and add nothing."),
        click.option("--yes", is_flag=True, help="Of a package: do not ask before it is added."),
        click.option("--set", "values", multiple=True, metavar="NAME=VALUE", help="A value that the package asks for."),
        click.option("--package", type=click.Choice(_KINDS), help="Which package of the server, if it has several."),
        click.option("--as", "alias", metavar="NAME", help="The name of a server from a package."),
        click.option("--from", "registered", metavar="REGISTRY_NAME", help="A server of the registry; see `search`."),
    ):
        command = option(command)
    return command


def is_package(name: str | None, options: Mapping[str, Any]) -> bool:
    return bool(options["registered"]) or (name is not None and name.lower().endswith(SUFFIX))


def plan_package(
    settings: Settings, name: str | None, options: Mapping[str, Any], sandbox: Any
) -> tuple[ServerPlan, Mapping[str, str]]:
    """Plan the server of a package and ask whether to add it; also the secrets that were given as options."""
    for option in _OF_OTHERS:
        if options[option]:
            raise click.UsageError(f"--{option.removesuffix('s')} is not for a package, which says how it is started")
    values = _parse_values(options["values"])
    registered = options["registered"]

    async def plan(gateway: Any) -> ServerPlan:
        if registered:
            return await plan_registered(
                gateway, registered, kind=options["package"], name=options["alias"] or name, values=values
            )
        return await plan_file(gateway, Path(name or "").expanduser(), options["alias"], values)

    made = _with_rights(run_stored(settings, plan), sandbox)
    secrets = {each.variable: values[each.name][-1] for each in made.inputs if each.variable and each.name in values}
    if not options["dry_run"] and not options["yes"]:
        _confirm(made)
    return made, secrets


def prefer_given(secrets: Mapping[str, str], ask: AskSecret | None) -> AskSecret | None:
    """Take a secret from those that were given, else ask for it."""
    if not secrets:
        return ask
    return lambda variable: secrets.get(variable) or (ask(variable) if ask is not None else "")


def print_plan(plan: ServerPlan, *, as_json: bool = False, err: bool = False) -> None:
    if as_json:
        print_json(plan.to_dict())
        return
    heading = f"{visible_line(plan.title)} {visible_line(plan.version)}, from {visible_line(plan.source)}"
    click.echo(f"{heading}\n{visible_line(plan.description)}".rstrip(), err=err)
    for each in plan.inputs:
        state = "required" if each.required else "optional"
        kind = f"{state} secret" if each.secret else state
        default = f", default {', '.join(each.default)}" if each.default and not each.secret else ""
        text = f"asks for {each.name} ({kind}{default}): {each.description or each.title}"
        click.echo(visible_line(text), err=err)
    for note in plan.notes:
        click.echo(f"note: {visible_line(note)}", err=err)
    # Last, so that nothing of the package's author stands between this and the question.
    click.echo(f"\nadded as {plan.name}, it runs:", err=err)
    for label, text in plan.lines:
        click.echo(f"  {label:12} {text}", err=err)


def _confirm(plan: ServerPlan) -> None:
    """Show what would run and ask; aborts unless the person agrees."""
    if not sys.stdin.isatty():
        raise InputRequired("nobody has seen what it runs: look at it with --dry-run, then add it with --yes")
    print_plan(plan, err=True)
    confirm("Add it?", abort=True)


def _with_rights(plan: ServerPlan, sandbox: Any) -> ServerPlan:
    """The plan with the rights of the options: outside the sandbox, or with more folders and hosts in it."""
    if sandbox is None or "command" not in plan.settings:
        return plan
    own = plan.settings.get("sandbox")
    if isinstance(sandbox, dict):
        known = own if isinstance(own, dict) else {}
        keys = dict.fromkeys((*known, *sandbox))
        sandbox = {key: [*known.get(key, ()), *sandbox.get(key, ())] for key in keys}
    elif sandbox is True:
        sandbox = own or True
    return ServerPlan(**{**vars(plan), "settings": {**plan.settings, "sandbox": sandbox}})


def _parse_values(texts: tuple[str, ...]) -> Values:
    values: dict[str, list[str]] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise click.UsageError(f"--set {name!r}: expected NAME=VALUE")
        values.setdefault(name, []).append(value)
    return values


@click.command()
@click.argument("word")
@click.option("-n", "--limit", type=click.IntRange(1, SEARCH_LIMIT), default=20, show_default=True)
@as_json
@settings_options
def search(settings: Settings, word: str, limit: int, as_json: bool) -> None:
    """Search the registry for servers whose names contain WORD."""
    entries, _ = run(lambda: search_registry(settings, word, limit))
    if as_json:
        print_json([entry.to_dict() for entry in entries])
        return
    rows = [
        (
            visible_line(entry.server.name),
            visible_line(entry.server.version),
            ",".join(dict.fromkeys(choice.kind for choice in entry.choices if choice.problem is None)) or "-",
            visible_line(entry.server.description),
        )
        for entry in entries
    ]
    print_table(("NAME", "VERSION", "PACKAGES", "DESCRIPTION"), rows)
    if not rows:
        click.echo(f"no server of {settings.registry.url} has {word!r} in its name")
    else:
        click.echo("\nlook at one with: toolgate upstream add --from NAME --dry-run")


def server_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as an entry of `mcpServers`; wrong usage if they do not fit together."""
    command, url, transport = options["command"], options["url"], options["transport"]
    if bool(command) == bool(url):
        raise click.UsageError("name either --url URL or, after `--`, the command that starts the server")
    for key, option, fits in (("headers", "--header", url), ("env", "--env", command), ("cwd", "--cwd", command)):
        if options[key] and not fits:
            raise click.UsageError(f"{option} is for a server with {'--url' if command else 'a command'}")
    if (sandbox := sandbox_settings(options)) and not command:
        raise click.UsageError("--sandbox is for a server with a command")
    if transport and (transport == "stdio") != bool(command):
        raise click.UsageError(f"--transport {transport} does not fit {'a command' if command else '--url'}")
    server: dict[str, Any] = {"url": url} if url else {"command": command[0], "args": list(command[1:])}
    if command and (program := _find_in_virtualenv(command[0])):
        server["command"] = program
    server |= {key: dict(_parse_pair(text, key) for text in options[key]) for key in ("headers", "env")}
    optional = ("cwd", "prefix", "category", "lazy", "sharing", "protocol", "pinning")
    server |= {key: options[key] for key in optional if options[key] is not None}
    if server.get("cwd"):
        server["cwd"] = anchor_path(server["cwd"], Path.cwd())
    elif any(map(_is_relative_file, command if "/" in "".join(command[:1]) else command[1:])):
        server["cwd"] = str(Path.cwd())  # a client starts the gateway elsewhere
    server |= {"type": transport} if transport not in (None, "stdio", "http") else {}
    server |= {"trusted": True} if options["trusted"] else {}
    server |= {"sandbox": sandbox} if sandbox else {}
    return {key: value for key, value in server.items() if value not in ({}, [])}


def _find_in_virtualenv(program: str) -> str | None:
    """The path of a program in the active virtual environment. Where a client starts the gateway, none is active."""
    environment = os.environ.get("VIRTUAL_ENV")
    found = shutil.which(program) if environment and os.sep not in program else None
    return found if found and Path(found).is_relative_to(Path(str(environment)).absolute()) else None


def _is_relative_file(word: str) -> bool:
    return not word.startswith(("-", "/")) and os.access(word, os.F_OK)


def sandbox_settings(options: Mapping[str, Any]) -> Any:
    """The `sandbox` of an entry, with absolute paths."""
    paths, hosts = [anchor_path(path, Path.cwd()) for path in options["paths"]], list(options["hosts"])
    rights = {key: value for key, value in {"paths": paths, "network": hosts}.items() if value}
    return rights or options["sandbox"]


def _parse_pair(text: str, key: str) -> tuple[str, str]:
    match = _PAIR.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--{key.removesuffix('s')} {text.partition('=')[0]!r}: expected NAME=VALUE")
    return match["name"], match["value"]
