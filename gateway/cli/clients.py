"""`toolgate client`: the entry that makes another program start or reach this gateway, printed or written."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from gateway.admin.clients import CLIENTS, Snippet, make_snippets, serve_command
from gateway.errors import NotFound


class _TrailingArguments(click.Command):
    """A command that keeps everything after `--` for `serve`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:cut])
        ctx.params["serve"] = tuple(args[cut + 1 :])
        if ctx.params["serve"] and ctx.params["url"]:
            raise click.UsageError("--url is for a gateway that already runs: nothing may follow `--`", ctx)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- SERVE_ARGUMENTS...]"]


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


@click.group()
def client() -> None:
    """Connect Claude, Cursor, VS Code, Codex, Zed and other clients."""


@client.command(cls=_TrailingArguments)
@click.argument("name", type=click.Choice(list(CLIENTS)), required=False)
@_name_option
@_url_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def config(name: str | None, entry_name: str, url: str | None, as_json: bool, serve: tuple[str, ...]) -> None:
    """Print the entry to paste and where it belongs, for one client or for all."""
    every = make_snippets(serve_command(sys.executable, serve), url, name=entry_name)
    shown = [snippet for snippet in every if name in (None, snippet.client)]
    if as_json:
        data = [{"client": s.client, "file": str(s.file), "config": s.config, "note": s.note} for s in shown]
        click.echo(json.dumps(data[0] if name else data, indent=2, ensure_ascii=False))
    else:
        texts = [_lines(f"{CLIENTS[s.client].title}: {s.file}", s.note, s.text) for s in shown]
        click.echo("\n\n".join(texts))


@client.command(cls=_TrailingArguments)
@click.argument("name", type=click.Choice(list(CLIENTS)))
@click.option("--file", "path", type=click.Path(path_type=Path, dir_okay=False), help="Write this file instead.")
@_name_option
@_url_option
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
def install(
    name: str, path: Path | None, entry_name: str, url: str | None, dry_run: bool, serve: tuple[str, ...]
) -> None:
    """Write the entry into the client's own file, keeping a backup and everything else in it."""
    # Imported here: `config` needs none of the parsers.
    from gateway.admin.client_files import merge, read, write

    every = make_snippets(serve_command(sys.executable, serve), url, name=entry_name)
    snippet = next(snippet for snippet in every if snippet.client == name)
    file = path or snippet.file
    before = read(file)
    if before is None and path is None:
        _require_installed(snippet)
    after, replaced = merge(file, before, snippet)
    if after == before:
        click.echo(f"{entry_name} is already there: {file}")
        return
    backup = None if dry_run else write(file, before, after, datetime.now())
    click.echo(f"{'would have ' if dry_run else ''}{'replaced' if replaced else 'added'} {entry_name} in {file}")
    # The entry before is not shown: its environment may hold secrets.
    kept = f"the previous file is saved as {backup}" if backup else ""
    click.echo(_lines(snippet.text, kept, snippet.note, "" if dry_run else CLIENTS[name].restart))


def _require_installed(snippet: Snippet) -> None:
    if not snippet.folder.is_dir():
        raise NotFound(
            f"{CLIENTS[snippet.client].title} does not seem to be installed: there is no {snippet.folder}. "
            f"To write its file anyway, name it: --file '{snippet.file}'"
        )


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
