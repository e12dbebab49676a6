"""`toolgate client`: the entry that makes another program start or reach this gateway, printed or written."""

from __future__ import annotations

import json
import re
import shlex
import socket
import sys
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from gateway.admin.clients import CLIENTS, Snippet, make_snippets, serve_command
from gateway.cli.help import COMMON_OPTIONS
from gateway.errors import GatewayError, NotFound
from gateway.names import did_you_mean

# Imported inside functions: parsers, settings and `serve`, of which most commands here need none.


# Options that belong to `serve`, and stand after `--`.
_SERVE_OPTIONS = COMMON_OPTIONS | {"--transport", "--host", "--port", "--allow-remote", "--log-level", "--log-file"}
_CONNECT_SECONDS = 2.0


class _TrailingArguments(click.Command):
    """A command that keeps everything after `--` for `serve`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        try:
            rest = super().parse_args(ctx, args[:cut])
        except click.NoSuchOption as error:
            if error.option_name not in _SERVE_OPTIONS:
                raise
            example = f"toolgate client install {args[0]} -- {error.option_name} …"
            raise click.UsageError(
                f"{error.option_name} is an option of serve; these stand after `--`, as in: {example}", ctx
            ) from None
        ctx.params["serve"] = tuple(args[cut + 1 :])
        if ctx.params["serve"] and ctx.params["url"]:
            raise click.UsageError("--url is for a gateway that already runs: nothing may follow `--`", ctx)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- SERVE_ARGUMENTS...]"]


def _name_settings_file(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Add the settings file that is used here to the arguments of `serve`: a client starts it in another folder."""
    from gateway import config

    is_named = any(argument == "--config" or argument.startswith("--config=") for argument in arguments)
    found = None if is_named else config.find()
    if found is None or found.parent == config.user_directory():
        return arguments
    return ("--config", str(found.absolute()), *arguments)


def _refuse_unusable(arguments: tuple[str, ...]) -> None:
    """Refuse arguments or settings that `serve` would refuse: the client would only see that the gateway ended."""
    from gateway import config
    from gateway.cli.serve import refuse_http_options, serve

    context = serve.make_context("toolgate serve", list(arguments))
    given = context.params
    if "stdio" not in given["transports"]:
        url = f"http://{given['host']}:{given['port']}/mcp"
        raise click.UsageError(
            "the client speaks stdio to the program that it starts; for a gateway over HTTP that you start yourself, "
            f"give its address instead: --url {url}"
        )
    refuse_http_options(context)
    config.read(given["config_file"], {"workspace": given["workspace"]} if given["workspace"] else {})


def _check_address(url: str) -> None:
    """Refuse the address of a gateway instead of its endpoint; warn if nothing listens there."""
    parts = urlsplit(url)
    if parts.path in ("", "/"):
        raise click.UsageError(f"a gateway speaks MCP below its address; did you mean {url.rstrip('/')}/mcp?")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), _CONNECT_SECONDS).close()
    except (OSError, ValueError):
        click.echo(f"note: nothing answers at {url} now; start the gateway there, or correct the address", err=True)


def _require_match(pattern: str, hint: str) -> Any:
    def check(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and re.fullmatch(pattern, value) is None:
            raise click.BadParameter(f"{value!r}: expected {hint}")
        return value

    return check


_NAME = _require_match(r"[A-Za-z0-9_-]{1,64}", "1 to 64 letters, digits, '-' and '_'")
_URL = _require_match(r"https?://[^\s/?#]+\S*", "an address such as http://127.0.0.1:8420/mcp")
_name_option = click.option("--name", "entry_name", default="toolgate", callback=_NAME, help="Name of the entry.")
_url_option = click.option(
    "--url", callback=_URL, help="Connect to the gateway at this address instead of starting one."
)


class _ClientName(click.Choice[str]):
    """The name of a client; another one is answered with the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in CLIENTS:
            family = [repr(name) for name in CLIENTS if str(name).startswith(f"{value}-")]
            hint = f"; did you mean {' or '.join(family)}?" if family else did_you_mean(value, CLIENTS)
            hint = hint or f"; there are {', '.join(CLIENTS)}"
            raise click.UsageError(f"there is no client {value!r}{hint}", ctx)
        return value


_client_name = _ClientName(list(CLIENTS))


@click.group()
def client() -> None:
    """Connect Claude, Cursor, VS Code, Codex, Zed and other clients."""


@client.command(cls=_TrailingArguments)
@click.argument("name", type=_client_name, metavar="[CLIENT]", required=False)
@_name_option
@_url_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def config(name: str | None, entry_name: str, url: str | None, as_json: bool, serve: tuple[str, ...]) -> None:
    """Print the entry to paste and where it belongs, for one client or for all."""
    arguments = serve if url else _name_settings_file(serve)
    every = make_snippets(serve_command(sys.executable, arguments), url, name=entry_name)
    shown = [snippet for snippet in every if name in (None, snippet.client)]
    if as_json:
        data = [{"client": s.client, "file": str(s.file), "config": s.config, "note": s.note} for s in shown]
        click.echo(json.dumps(data[0] if name else data, indent=2, ensure_ascii=False))
    else:
        texts = [_lines(f"{CLIENTS[s.client].title}: {s.file}", s.note, s.text) for s in shown]
        click.echo("\n\n".join(texts))


_file_option = click.option(
    "--file", "path", type=click.Path(path_type=Path, dir_okay=False), help="Use this file instead of the client's."
)
_dry_run = click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")


@client.command("list")
@_name_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def list_clients(entry_name: str, as_json: bool) -> None:
    """Every client: whether it is on this machine, and whether the gateway is in its settings."""
    from gateway.admin.client_files import find_entry

    rows: list[dict[str, Any]] = []
    for snippet in make_snippets(serve_command(sys.executable), None, name=entry_name):
        entry, problem = None, ""
        try:
            entry = find_entry(snippet.file, snippet)
        except GatewayError as refusal:
            problem = refusal.message
        here = snippet.folder.is_dir()
        state = "unreadable" if problem else "added" if entry else "not added" if here else "not installed"
        rows.append({"client": snippet.client, "state": state, "file": str(snippet.file), "problem": problem or None})
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for row in [{"client": "CLIENT", "state": "STATE", "file": "FILE", "problem": None}, *rows]:
        click.echo(f"{row['client']:16}{row['state']:15}{row['problem'] or row['file']}")
    if missing := [row["client"] for row in rows if row["state"] == "not added"]:
        click.echo(f"\nadd it with: toolgate client install {missing[0]}")


@client.command(cls=_TrailingArguments)
@click.argument("name", type=_client_name, metavar="CLIENT")
@_file_option
@_name_option
@_url_option
@_dry_run
def install(
    name: str, path: Path | None, entry_name: str, url: str | None, dry_run: bool, serve: tuple[str, ...]
) -> None:
    """Write the entry into the client's own file, keeping a backup and everything else in it.

    `toolgate client list` names the clients. The settings file that is used here is named in the entry. `toolgate
    client restore` brings the file back.
    """
    from gateway.admin.client_files import merge, read, write

    if url is not None:
        _check_address(url)
    else:
        _refuse_unusable(serve)
        serve = _name_settings_file(serve)
    snippet = _snippet(name, entry_name, url, serve)
    file = path or snippet.file
    before = read(file)
    if before is None and path is None:
        _require_installed(snippet)
    after, replaced = merge(file, before, snippet)
    if after == before:
        click.echo(f"{entry_name} is already there: {file}")
        return
    backup = None if dry_run else write(file, before, after, datetime.now())
    done = ("would replace" if replaced else "would add") if dry_run else ("replaced" if replaced else "added")
    click.echo(f"{done} {entry_name} {'in' if replaced else 'to'} {file}")
    # The entry before is not shown: its environment may hold secrets.
    click.echo(_lines(snippet.text, _describe_backup(backup, name, path), snippet.note))
    if not dry_run:
        click.echo(CLIENTS[name].restart)


@client.command()
@click.argument("name", type=_client_name, metavar="CLIENT")
@_file_option
@_name_option
@_dry_run
def uninstall(name: str, path: Path | None, entry_name: str, dry_run: bool) -> None:
    """Remove the entry from the client's own file, keeping a backup and everything else in it."""
    from gateway.admin.client_files import read, remove, write

    snippet = _snippet(name, entry_name)
    file = path or snippet.file
    before = read(file)
    after = None if before is None else remove(file, before, snippet)
    if before is None or after is None or after == before:
        raise NotFound(f"there is no entry {entry_name!r} in {file}; `toolgate client list` shows where it is")
    backup = None if dry_run else write(file, before, after, datetime.now())
    click.echo(f"{'would remove' if dry_run else 'removed'} {entry_name} from {file}")
    if not dry_run:
        click.echo(_lines(_describe_backup(backup, name, path), f"Restart {CLIENTS[name].title} if it runs."))


@client.command()
@click.argument("name", type=_client_name, metavar="CLIENT")
@_file_option
def restore(name: str, path: Path | None) -> None:
    """Bring a client's file back to what it was before the last change by `install`, `uninstall` or `restore`."""
    from gateway.admin.client_files import find_backups, find_entry, read, write

    file = path or _snippet(name, "toolgate").file
    backups = find_backups(file)
    if not backups:
        if file.is_file() and find_entry(file, _snippet(name, "toolgate")) is not None:
            command = f"toolgate client uninstall {name}{_repeat_file(path)}"
            raise NotFound(f"there was no {file} before; take the entry out with: {command}")
        raise NotFound(f"there is no backup of {file}; only changes by `toolgate client` make one")
    content = read(backups[0]) or b""
    write(file, read(file), content, datetime.now())
    backups[0].unlink()
    click.echo(f"{file} is as it was before the last change; the same command takes this back")
    click.echo(f"Restart {CLIENTS[name].title} if it runs.")


def _snippet(name: str, entry_name: str, url: str | None = None, serve: tuple[str, ...] = ()) -> Snippet:
    every = make_snippets(serve_command(sys.executable, serve), url, name=entry_name)
    return next(snippet for snippet in every if snippet.client == name)


def _describe_backup(backup: Path | None, name: str, file: Path | None) -> str:
    if backup is None:
        return ""
    return f"the previous file is saved as {backup}; to go back: toolgate client restore {name}{_repeat_file(file)}"


def _repeat_file(file: Path | None) -> str:
    return f" --file {shlex.quote(str(file))}" if file else ""


def _require_installed(snippet: Snippet) -> None:
    if not snippet.folder.is_dir():
        raise NotFound(
            f"{CLIENTS[snippet.client].title} does not seem to be installed: there is no {snippet.folder}. "
            f"To write its file anyway, name it: --file '{snippet.file}'"
        )


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
