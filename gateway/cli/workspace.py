"""`toolgate workspace`: a chat's files, their versions, and going back to an earlier one."""

from __future__ import annotations

import io
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.admin.workspaces import (
    ChatWorkspace,
    CheckoutResult,
    describe_changes,
    open_workspace,
    short_id,
)
from gateway.calls import DEFAULT_CHAT
from gateway.cli.browser import open_file
from gateway.cli.options import (
    Result,
    as_json,
    confirm,
    print_json,
    print_table,
    repeat_options,
    run_admin,
    settings_options,
    short_time,
)
from gateway.cli.options import short_id as short_call
from gateway.cli.progress import clear_progress
from gateway.config import Settings
from gateway.errors import InputRequired, NotFound
from gateway.gateway import Gateway

if TYPE_CHECKING:
    from gateway.workspace.history import Version

_manifest = click.option("--manifest", metavar="ID", help="Use this version instead of the current files.")
_agree = click.option("--yes", is_flag=True, help="Do not ask before files change.")


@click.group()
def workspace() -> None:
    """Show a chat's files and versions, and restore any version."""


@workspace.command()
@click.argument("path", default=".")
@_manifest
@click.option("-r", "--recursive", is_flag=True, help="Also list the contents of directories.")
@as_json
@settings_options
def ls(settings: Settings, path: str, manifest: str | None, recursive: bool, as_json: bool) -> None:
    """The files, as they are now or in a version."""
    listed = _run(settings, lambda files: files.list_files(path, manifest=manifest, recursive=recursive))
    if as_json:
        print_json([asdict(file) for file in listed])
        return
    rows = [(file.kind, "" if file.size is None else str(file.size), file.path) for file in listed]
    print_table(("KIND", "SIZE", "PATH"), rows)


@workspace.command()
@click.argument("path")
@_manifest
@click.option("--open", "opens", is_flag=True, help="Show it in your browser instead; markdown and code are rendered.")
@settings_options
def cat(settings: Settings, path: str, manifest: str | None, opens: bool) -> None:
    """A file's bytes, as they are now or in a version."""
    content = io.BytesIO()
    try:
        doing = "reading the workspace" if opens else None
        _run(
            settings,
            lambda files: files.copy_file(path, content if opens else sys.stdout.buffer, manifest=manifest),
            doing=doing,
        )
    except NotFound as missing:
        if missing.code != "FILE_NOT_FOUND":
            raise
        raise NotFound(
            f"{path} does not exist in the workspace; see: toolgate workspace ls", code=missing.code
        ) from None
    if opens:
        open_file(path, content.getvalue())


@workspace.command()
@click.argument("sources", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path, exists=True))
@click.option("--to", "directory", default=".", show_default=True, help="The directory of the workspace to copy into.")
@as_json
@settings_options
def upload(settings: Settings, sources: tuple[Path, ...], directory: str, as_json: bool) -> None:
    """Copy files or folders into the workspace, as a version of its own; `undo` removes them again."""
    result = _run(settings, lambda files: files.upload(sources, directory), create=True)
    if as_json:
        print_json(result.to_dict())
    else:
        click.echo(f"The files are at {_describe(result.manifest)} now: {result.summary}.")


@workspace.command("log")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--before", metavar="ID", help="Only versions before this one, for the next page.")
@as_json
@settings_options
def log_command(settings: Settings, limit: int, before: str | None, as_json: bool) -> None:
    """The versions, newest first, with their changes; * marks the one the files are at."""
    versions = _run(settings, lambda files: files.list_versions(before=before, limit=limit))
    if as_json:
        print_json([version.to_dict() for version in versions])
        return
    _print_place(settings)
    if not versions:
        click.echo("no versions yet" if before is None else "no versions before this one")
    for version in versions:
        _print_version(version)


@workspace.command("diff")
@click.argument("from_", metavar="[A]", required=False)
@click.argument("to", metavar="[B]", required=False)
@click.option("--path", "paths", multiple=True, help="Only this file, directory or glob; may be given again.")
@as_json
@settings_options
def diff_command(settings: Settings, from_: str | None, to: str | None, paths: tuple[str, ...], as_json: bool) -> None:
    """The difference from version A to B.

    B may be 'now', the files as they are; the default is the latest version. The default of A is the one before B.
    `diff now` shows what was edited since the latest version.
    """
    difference = _run(settings, lambda files: files.compare(from_, to, paths))
    if as_json:
        print_json(difference.to_dict())
        return
    _print_diff(difference.text)
    if difference.truncated:
        click.echo("… truncated; use --path to see the rest", err=True)


@workspace.command()
@click.argument("manifest")
@_agree
@as_json
@settings_options
def checkout(settings: Settings, manifest: str, yes: bool, as_json: bool) -> None:
    """Restore a version's files; later changes continue from there. Nothing is lost: see `log`."""
    _print_checkout(
        _run(settings, lambda files: files.checkout(manifest, None if yes else _confirm), doing="restoring files"),
        as_json,
    )


@workspace.command()
@click.option("--yes", is_flag=True, hidden=True, expose_value=False, help="Ignored; earlier versions asked first.")
@as_json
@settings_options
def undo(settings: Settings, as_json: bool) -> None:
    """Restore the previous version; repeat to go back further. Edits by hand are undone first.

    It does not ask: the version you leave is kept, and the command that goes back to it is printed.
    """
    result = _run(settings, ChatWorkspace.undo, doing="restoring files")
    if not as_json:
        _print_place(settings)
    _print_checkout(result, as_json)


@workspace.command()
@as_json
@settings_options
def sweep(settings: Settings, as_json: bool) -> None:
    """Remove contents that no version has used for a day, which also happens by itself once a day."""
    swept = _run(settings, ChatWorkspace.sweep)
    if as_json:
        print_json(swept)
    else:
        counts = f"{swept['blobs']} contents and {swept['temporary']} temporary files"
        click.echo(f"{counts} removed, {swept['bytes']} bytes")


def _run(
    settings: Settings,
    action: Callable[[ChatWorkspace], Awaitable[Result]],
    create: bool = False,
    doing: str | None = "reading the workspace",
) -> Result:
    async def act(gateway: Gateway) -> Result:
        return await action(await open_workspace(gateway, create))

    return run_admin(settings, act, doing)


def _print_place(settings: Settings) -> None:
    """Say which files are meant: without --workspace they are not those of the current folder."""
    place = f"the chat {settings.chat or DEFAULT_CHAT}" if settings.workspace is None else str(settings.workspace)
    click.echo(f"in {place}", err=True)


def _confirm(summary: str) -> None:
    if not sys.stdin.isatty():
        reason = f"this would change files: {summary}"
        raise InputRequired(f"{reason}; use --yes to agree", reason=reason)
    clear_progress()
    confirm(f"This changes files: {summary}. Continue?", abort=True)


def _print_checkout(result: CheckoutResult, as_json: bool) -> None:
    if as_json:
        print_json(result.to_dict())
        return
    if result.undone is not None:
        click.echo(f"undone: {result.undone}")
    if result.restored is not None:
        click.echo(f"restored, though no version has it: {', '.join(result.restored.paths)}")
        if result.restored.replaced is not None:
            command = f"toolgate workspace cat PATH --manifest {short_id(result.restored.replaced)}{repeat_options()}"
            click.echo(f"what it contained until now: {command}")
    if result.restored is None or result.changes:
        click.echo(f"The files are at {_describe(result.manifest)} now: {result.summary}.")
    for call in result.missed:
        click.echo(f"not undone: {call}, which came later and changed only files that no version has", err=True)
    if result.previous is not None and result.previous != result.manifest:
        command = f"toolgate workspace checkout {short_id(result.previous)}{repeat_options()}"
        click.echo(f"They were at {_describe(result.previous)}; to go back: {command}")


def _describe(manifest: str | None) -> str:
    return f"version {short_id(manifest)}" if manifest else "the initial state (no files)"


# The sources of versions, in words.
_SOURCES = {
    "edit": "by hand",
    "user_upload": "upload",
    "tool_run": "a call",
    "interrupted": "an interrupted call",
    "undone": "undone",
}


def _print_version(version: Version) -> None:
    mark = click.style("*" if version.head else " ", fg="green", bold=True)
    short = click.style(short_id(version.id), fg="yellow")
    notes = [_SOURCES.get(version.source, version.source)]
    if version.tool is not None and version.source_ref is not None:
        by_tool = f"{_escape(version.tool)} (call {short_call(version.source_ref)})"
        notes = [by_tool] if version.source == "tool_run" else [*notes, by_tool]
    if version.message:
        notes.append(f"message {_escape(version.message)}")
    about = ", ".join(notes)
    click.echo(f"{mark} {short}  {short_time(version.created)} UTC  {about}")
    click.echo(f"    {describe_changes(version)}")


def _print_diff(text: str) -> None:
    """Print with colours and control characters escaped on a terminal, else unchanged."""
    if sys.stdout.isatty():
        click.echo("\n".join(_colour(_escape(line)) for line in text.split("\n")), nl=False)
    else:
        click.echo(text, nl=False, color=True)


_COLOURS: Sequence[tuple[str, dict[str, Any]]] = (
    ("diff --git ", {"bold": True}),
    ("--- ", {"bold": True}),
    ("+++ ", {"bold": True}),
    ("@@ ", {"fg": "cyan"}),
    ("+", {"fg": "green"}),
    ("-", {"fg": "red"}),
)


def _colour(line: str) -> str:
    style = next((style for start, style in _COLOURS if line.startswith(start)), None)
    return click.style(line, **style) if style else line


def _escape(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else f"\\x{ord(char):02x}" for char in text)
