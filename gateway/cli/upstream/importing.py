"""Servers taken over from the settings of Claude, Cursor, VS Code and others."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gateway.cli import clients
from gateway.cli.options import as_json, print_json, print_table, run, settings_options
from gateway.cli.upstream.desk import Desk, desk
from gateway.config import Settings
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.names import did_you_mean
from gateway.secrets import VariableNames
from gateway.sources.upstreams.client_configs import Around, Candidate, Skipped, read
from gateway.sources.upstreams.secret_store import SecretStore
from gateway.sources.upstreams.spec import ADDED
from gateway.text import visible

# Claude Code keeps more than settings in its file.
FILE_LIMIT = 64 * 1024 * 1024
_VARIABLES_LIMIT = 1024 * 1024
_PROJECT_FOLDERS = (".cursor", ".vscode", ".idea")


@dataclass(frozen=True)
class Row:
    """What becomes of one server of a file."""

    name: str
    file: str
    outcome: str
    reason: str = ""
    candidate: Candidate | None = None
    missing: tuple[str, ...] = ()


@click.command("import")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--name", "names", multiple=True, help="Only the server of this name; may be said several times.")
@click.option("--replace", is_flag=True, help="Replace servers of the same names that were added by hand.")
@click.option(
    "--keep/--no-keep",
    default=None,
    help="Keep the secrets of the file for these servers, or none; asked on a terminal, else none is kept.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@as_json
@settings_options
def import_file(
    settings: Settings,
    file: Path | None,
    names: tuple[str, ...],
    replace: bool,
    keep: bool | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take over the servers of another client's settings FILE, or of every client found on this machine.

    Secrets written out there are not stored with the servers: each becomes a ${VARIABLE} to set in the environment.
    With --keep its value goes to a file only you can read, for that server alone.
    """
    found = list(_only(names, list(_found(file, settings.workspace))))
    keeps = _keeps(found, settings) if keep is None and not dry_run else bool(keep)

    async def task() -> list[Row]:
        async with desk(settings) as at:
            taking = _Taking(at, replace, keep=keeps, dry_run=dry_run)
            return [await taking.take(where, each) for where, each in found]

    rows = run(task)
    if as_json:
        print_json([_shape(row) for row in rows])
        return
    print_table(
        ("NAME", "OUTCOME", "FROM", "WHY"),
        [(visible(row.name), row.outcome, row.file, visible(row.reason)) for row in rows],
    )
    for line in _hints(rows, settings, keep=keeps, dry_run=dry_run):
        click.echo(line)


def _keeps(found: Sequence[tuple[str, Candidate | Skipped]], settings: Settings) -> bool:
    """Whether the person wants secrets kept, where there are any and there is a person to ask."""
    names = sorted({name for _, each in found if isinstance(each, Candidate) for name in each.values})
    if not names or not sys.stdin.isatty():
        return False
    question = (
        f"Keep the values of {', '.join(names)} in {SecretStore(settings.data_dir).path}, which only you can read?"
    )
    return click.confirm(question, err=True)


class _Taking:
    """Takes servers in one by one; what one cannot be spoils no other."""

    def __init__(self, at: Desk, replace: bool, keep: bool, dry_run: bool) -> None:
        self._at = at
        self._replace = replace
        self._keep = keep
        self._dry_run = dry_run
        self._taken: dict[str, tuple[str, Candidate]] = {}

    async def take(self, where: str, found: Candidate | Skipped) -> Row:
        place = f"{where} ({found.place})" if found.place else where
        if isinstance(found, Skipped):
            return Row(found.name, place, "skipped", found.reason)
        try:
            replaced = self._require_room(found)
            self._taken[found.name] = (place, found)
            if not self._dry_run:
                await self._store(found, replaced)
        except GatewayError as refusal:
            return Row(found.name, place, "skipped", refusal.message)
        outcome = ("would be " if self._dry_run else "") + ("replaced" if replaced else "imported")
        kept = found.values if self._keep else {}
        missing = found.missing(os.environ) if kept else Candidate(found.name, found.settings).missing(os.environ)
        return Row(found.name, place, outcome, _told(found), found, tuple(missing))

    def _require_room(self, found: Candidate) -> bool:
        """Whether one is replaced; refused when there is one that must stay."""
        if found.name in self._taken:
            place, other = self._taken[found.name]
            same = (dict(other.settings), dict(other.values)) == (dict(found.settings), dict(found.values))
            raise Invalid(f"{'the same' if same else 'another of that name'} came from {place}")
        known = self._at.specs.get(found.name)
        if known is not None and known.origin == ADDED:
            if not self._replace:
                raise Invalid("there is one of that name; --replace takes this one in its place")
            return True
        self._at.require_free(found.name)
        return False

    async def _store(self, found: Candidate, replaced: bool) -> None:
        memory, pins, vault = self._at.board.store, self._at.board.pins, self._at.vault
        settings = {key: value for key, value in found.settings.items() if key != "enabled"}
        enabled = bool(found.settings.get("enabled", True))
        vault.forget(found.name)
        if self._keep:
            vault.keep(found.name, found.values)
        await memory.forget(found.name)
        await pins.forget(found.name)  # whoever had that name before says nothing about this one
        if replaced:
            await memory.change(found.name, settings)
            await memory.enable(found.name, enabled)
        else:
            await memory.add(found.name, settings, enabled)


def _found(file: Path | None, workspace: Path | None) -> Iterator[tuple[str, Candidate | Skipped]]:
    """Every server of a file, or of the files of all clients there are."""
    files = [file] if file is not None else list(_client_files())
    if not files:
        raise NotFound("no settings of Claude, Cursor or VS Code were found; name the file to import")
    names = VariableNames()
    for path in files:
        around = Around(Path.home(), workspace or _project(path), os.environ, _variables)
        try:
            servers = read(_text(path), around, names)
        except Invalid as refusal:
            if file is None and refusal.code == "NO_SERVERS":
                continue
            raise Invalid(f"{path}: {refusal.message}", code=refusal.code) from None
        yield from ((str(path), each) for each in servers)


def _client_files() -> Iterator[Path]:
    machine = clients.Machine(Path.home(), sys.platform, os.environ)
    for name in clients.CLIENTS:
        path = clients.locate(name, machine)[0]
        yield from (each for each in (path, path.with_name("settings.json")) if each.is_file() and _is_a_clients(each))


def _is_a_clients(path: Path) -> bool:
    """Of all clients only VS Code has servers in its `settings.json`."""
    return path.name != "settings.json" or path.parent.name == "User"


def _project(path: Path) -> Path | None:
    """The folder of the project a file belongs to, if it does."""
    folder = path.absolute().parent
    if folder.name in _PROJECT_FOLDERS:
        folder = folder.parent
    elif path.name != ".mcp.json":
        return None
    return None if folder == Path.home() else folder


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_LIMIT:
            raise Invalid(f"it is larger than {FILE_LIMIT // 1024**2} MiB", code="TOO_LARGE")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NotFound(f"there is no file {str(path)!r}", code="FILE_NOT_FOUND") from None
    except OSError as error:
        raise Invalid(f"{error.strerror}") from None
    except UnicodeDecodeError:
        raise Invalid("it is not UTF-8") from None


def _variables(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8-sig") if path.stat().st_size <= _VARIABLES_LIMIT else None
    except (OSError, UnicodeDecodeError):
        return None


def _only(
    names: Sequence[str], found: list[tuple[str, Candidate | Skipped]]
) -> Iterator[tuple[str, Candidate | Skipped]]:
    there = [each.name for _, each in found]
    for name in names:
        if name not in there:
            raise NotFound(f"there is no server {name!r} in it{did_you_mean(name, there)}", code="UNKNOWN_UPSTREAM")
    yield from ((where, each) for where, each in found if not names or each.name in names)


def _told(found: Candidate) -> str:
    return "" if found.settings.get("enabled", True) else "it is off there, and here"


def _hints(rows: Sequence[Row], settings: Settings, keep: bool, dry_run: bool) -> Iterator[str]:
    """What became of the secrets, and what is still to be done; names of variables, never values."""
    taken = [row for row in rows if row.candidate is not None]
    kept = [f"{row.name}: {', '.join(sorted(row.candidate.values))}" for row in taken if row.candidate.values]  # type: ignore[union-attr]
    if keep and kept:
        where = SecretStore(settings.data_dir).path
        yield f"\n{'would keep' if dry_run else 'kept'} in {where}, which only you can read:"
        yield from (f"  {line}" for line in kept)
    lacking = [(row, variable) for row in taken for variable in row.missing]
    if lacking:
        yield "\nnot set yet; set them in the gateway's environment, import with --keep, or keep one for its server:"
        yield from (
            f"  toolgate upstream secret {row.name} {variable}{_asked(row, variable)}" for row, variable in lacking
        )
    if taken and not dry_run:
        yield "\ntry them with: toolgate upstream test; then take them out of the client, which would see them twice"


def _asked(row: Row, variable: str) -> str:
    asked = row.candidate.asks.get(variable) if row.candidate else None
    return f"   # {visible(' '.join(asked.split()))}" if asked else ""


def _shape(row: Row) -> dict[str, Any]:
    found = row.candidate
    return {
        "name": row.name,
        "file": row.file,
        "outcome": row.outcome,
        "reason": row.reason or None,
        "settings": dict(found.settings) if found else None,
        "variables": sorted(found.values) if found else [],
        "missing": list(row.missing),
    }
