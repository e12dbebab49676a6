"""`toolgate init`: a commented settings file, the servers of other clients, and the gateway in those clients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

import click

from gateway import config
from gateway.admin.client_files import merge, read, write
from gateway.admin.clients import CLIENTS, Snippet, make_snippets, serve_command
from gateway.admin.upstream_import import find_servers, import_servers, importable_names, list_secrets, secrets_file
from gateway.cli.options import confirm, run_stored
from gateway.cli.prompt import can_ask
from gateway.errors import Conflict, GatewayError
from gateway.files import create_file

_TEMPLATE = Path(__file__).with_name("settings_template.yaml")


@click.command()
@click.option("--here", is_flag=True, help="Write ./toolgate.yaml instead of your own settings file.")
@click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write this file instead.")
@click.option("--yes", is_flag=True, help="Import all servers and set up all clients without asking.")
def init(here: bool, file: Path | None, yes: bool) -> None:
    """Set up Toolgate: write a commented settings file, import the servers of your MCP clients, and add the gateway to
    these clients. Each step is asked about; nothing that exists is overwritten."""
    path = file or (Path() if here else config.user_directory()) / "toolgate.yaml"
    _write_settings(path, here=here and file is None)
    if not yes and not can_ask():
        click.echo("to import servers and to set up clients too, run it on a terminal or with --yes")
        return
    agree: Callable[[str], bool] = (lambda _: True) if yes else (lambda text: confirm(text, default=True))
    _import_servers(path, not here, agree)
    for snippet in make_snippets(serve_command(sys.executable, ("--config", str(path)) if file or here else ()), None):
        if snippet.folder.is_dir():
            _add_to_client(snippet, agree)
    click.echo("done; `toolgate doctor` checks what works, `toolgate serve --transport http` runs a gateway by hand")


def _write_settings(path: Path, *, here: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        create_file(path, _TEMPLATE.read_bytes())
    except FileExistsError:
        click.echo(f"{path} exists and is kept")
    except OSError as error:
        raise Conflict(f"{path} cannot be written: {error.strerror}; name another file with --config") from None
    else:
        click.echo(f"wrote {path}")
        if here:
            click.echo("after a change, in a Git repository or a workspace, trust it with: toolgate config trust")


def _import_servers(path: Path, is_named: bool, agree: Callable[[str], bool]) -> None:
    settings = config.load(path) if is_named else config.read()
    try:
        found = find_servers(None, settings.workspace)
    except GatewayError as refusal:
        click.echo(f"no servers imported: {refusal.message}", err=True)
        return
    if not importable_names(found):
        click.echo("found no servers in the settings of other clients")
        return
    run_import = partial(import_servers, found=found, replace=False)
    planned = run_stored(settings, partial(run_import, keep=False, dry_run=True))
    names = [result.name for result in planned if result.outcome != "skipped"]
    if not names:
        click.echo("the servers of your clients are here already")
        return
    if not agree(f"Import {len(names)} server{'s' * (len(names) != 1)} of your clients ({', '.join(names[:12])})?"):
        return
    place = secrets_file(settings)
    secrets = ", ".join(list_secrets(planned))
    keep = bool(secrets) and agree(f"Keep their secrets ({secrets}) in {place}, which only you can read?")
    imported = run_stored(settings, partial(run_import, keep=keep, dry_run=False))
    for result in imported:
        needs = f"; needs {', '.join(result.missing)} in the environment" if result.missing else ""
        click.echo(f"  {result.name}: {result.outcome}{f' ({result.reason})' if result.reason else ''}{needs}")
    click.echo("test them with: toolgate upstream test; then remove them from the client, or their tools appear twice")


def _add_to_client(snippet: Snippet, agree: Callable[[str], bool]) -> None:
    client = CLIENTS[snippet.client]
    try:
        before = read(snippet.file)
        after, _ = merge(snippet.file, before, snippet)
        if after == before:
            click.echo(f"{client.title} has it already")
        elif agree(f"Add Toolgate to {client.title} ({snippet.file})?"):
            backup = write(snippet.file, before, after, datetime.now())
            click.echo(f"  added{f'; the previous file is {backup}' if backup else ''}. {client.restart}")
    except GatewayError as refusal:  # one client's broken file must not stop the others
        click.echo(f"  {client.title} is left as it is: {refusal.message}", err=True)
