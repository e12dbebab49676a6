"""`toolgate workspace`: a chat's files, their versions, and any earlier one back."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import click

from gateway.app import Gateway
from gateway.calls import DEFAULT_CHAT, LOCAL
from gateway.cli.options import as_json, print_json, print_table, run, settings_options
from gateway.config import Settings
from gateway.errors import InputRequired, NotFound
from gateway.workspace import Entry, Parts, parse
from gateway.workspace.blobs import CHUNK
from gateway.workspace.diff import readable, summary
from gateway.workspace.globs import Selection
from gateway.workspace.history import SHORT, Version, endpoints, history
from gateway.workspace.os_errors import is_directory, is_link
from gateway.workspace.tree import EMPTY_DIRECTORY, EXECUTABLE, LINK, Changes, Tree, changes, diff, directories, encode
from gateway.workspace.versions import Versions
from gateway.workspace.walk import ANY_DEPTH

DIFF_LIMIT = 8 * 1024 * 1024
_KINDS = {EXECUTABLE: "executable", LINK: "symlink", EMPTY_DIRECTORY: "directory"}

at_manifest = click.option("--manifest", metavar="ID", help="As it was in this version.")
agree = click.option("--yes", is_flag=True, help="Do not ask before files change.")


@dataclass(frozen=True)
class Chat:
    """The chat a command is about."""

    versions: Versions
    id: str


@dataclass(frozen=True)
class Item:
    """A line of `ls`; the size is known of files as they are now."""

    path: str
    kind: str
    size: int | None = None


@click.group()
def workspace() -> None:
    """Look at a chat's files and their versions, and go back to any of them."""


@workspace.command()
@click.argument("path", default=".")
@at_manifest
@click.option("-r", "--recursive", is_flag=True, help="Also what is in directories.")
@as_json
@settings_options
def ls(settings: Settings, path: str, manifest: str | None, recursive: bool, as_json: bool) -> None:
    """The files, as they are now or in a version."""

    async def task() -> None:
        async with _chat(settings) as chat:
            if manifest is None:
                items = await chat.versions.in_thread(_on_disk, chat, parse(path), recursive)
            else:
                items = _in_tree(await _tree(chat, manifest), parse(path), recursive)
        if as_json:
            print_json([asdict(item) for item in items])
        else:
            rows = [(item.kind, "" if item.size is None else str(item.size), item.path) for item in items]
            print_table(("KIND", "SIZE", "PATH"), rows)

    run(task)


@workspace.command()
@click.argument("path")
@at_manifest
@settings_options
def cat(settings: Settings, path: str, manifest: str | None) -> None:
    """A file's bytes, as they are now or in a version."""

    async def task() -> None:
        async with _chat(settings) as chat:
            if manifest is None:
                await chat.versions.in_thread(_copy_from_disk, chat, parse(path))
                return
            digest = _digest(await _tree(chat, manifest), parse(path))
            with await chat.versions.open_blob(chat.id, digest) as blob:
                await chat.versions.in_thread(shutil.copyfileobj, blob, sys.stdout.buffer, CHUNK)

    run(task)


@workspace.command("log")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--before", metavar="ID", help="Only versions before this one, to page on.")
@as_json
@settings_options
def log_command(settings: Settings, limit: int, before: str | None, as_json: bool) -> None:
    """The versions, newest first, with what each changed; * is where the files are."""

    async def task() -> list[Version]:
        async with _chat(settings) as chat:
            last = (await chat.versions.find(chat.id, before)).id if before else None
            return await history(chat.versions, chat.id, before=last, limit=limit)

    found = run(task)
    if as_json:
        print_json([version.to_dict() for version in found])
        return
    for version in found:
        _print_version(version)


@workspace.command("diff")
@click.argument("from_", metavar="[A]", required=False)
@click.argument("to", metavar="[B]", required=False)
@click.option("--path", "paths", multiple=True, help="Only this file, directory or glob; may be given again.")
@as_json
@settings_options
def diff_command(settings: Settings, from_: str | None, to: str | None, paths: tuple[str, ...], as_json: bool) -> None:
    """How version B differs from A.

    B may be 'now', the files as they are; left out it is the latest version. A left out is what was before B.
    """

    async def task() -> None:
        async with _chat(settings) as chat:
            before, after = await endpoints(chat.versions, chat.id, LOCAL, from_, to)
            old, new = [await chat.versions.tree(chat.id, each) for each in (before, after)]
            found = await chat.versions.compare(chat.id, old, new, Selection(paths), DIFF_LIMIT)
        if as_json:
            print_json({"from": before, "to": after, **asdict(found)})
            return
        _print_diff(found.text)
        if found.truncated:
            click.echo("… cut here; name files with --path to see the rest", err=True)

    run(task)


@workspace.command()
@click.argument("manifest")
@agree
@as_json
@settings_options
def checkout(settings: Settings, manifest: str, yes: bool, as_json: bool) -> None:
    """Bring a version's files back; later changes go on from there. Nothing is lost: see `log`."""

    async def task() -> None:
        async with _chat(settings) as chat:
            target = (await chat.versions.find(chat.id, manifest)).id
            await _go(chat, target, await _saved(chat), yes, as_json)

    run(task)


@workspace.command()
@agree
@as_json
@settings_options
def undo(settings: Settings, yes: bool, as_json: bool) -> None:
    """Go back to the version before; again for the one before that. Edits by hand are undone first."""

    async def task() -> None:
        async with _chat(settings) as chat:
            async with chat.versions.hold(chat.id, LOCAL) as files:
                current = await files.save("edit")
                target = await files.before()
            await _go(chat, target, current, yes, as_json)

    run(task)


@workspace.command()
@as_json
@settings_options
def sweep(settings: Settings, as_json: bool) -> None:
    """Remove contents that no version has for a day, which happens by itself once a day."""

    async def task() -> None:
        async with _chat(settings) as chat:
            swept = await chat.versions.sweep(chat.id)
        if as_json:
            print_json(asdict(swept))
        else:
            click.echo(f"{swept.blobs} contents and {swept.temporary} temporary files removed, {swept.bytes} bytes")

    run(task)


@asynccontextmanager
async def _chat(settings: Settings) -> AsyncIterator[Chat]:
    """The chat that is chosen, refused when there is none of that name; looking at one must not make it."""
    async with Gateway.open(settings, connect="none") as gateway:
        chat = gateway.chat or DEFAULT_CHAT
        if not await gateway.versions.may_read(chat, LOCAL):
            message = f"there is no chat {chat!r} in {settings.data_dir}; choose one with --chat or --workspace"
            raise NotFound(message, code="CHAT_NOT_FOUND")
        yield Chat(gateway.versions, chat)


async def _tree(chat: Chat, manifest: str | None) -> Tree:
    found = await chat.versions.find(chat.id, manifest) if manifest else None
    return await chat.versions.tree(chat.id, found.id if found else None)


async def _saved(chat: Chat) -> str | None:
    async with chat.versions.hold(chat.id, LOCAL) as files:
        return await files.save("edit")


async def _go(chat: Chat, target: str | None, current: str | None, yes: bool, as_json: bool) -> None:
    """Bring the files of `target` back, having asked; the chat is free while a person thinks."""
    old, new = [await chat.versions.tree(chat.id, each) for each in (current, target)]
    what = await chat.versions.in_thread(lambda: changes(old, diff(old, new)))
    if what and not yes:
        _ask(what)
    async with chat.versions.hold(chat.id, LOCAL) as files:
        what = await files.checkout(target)
    if as_json:
        print_json({"manifest": target, "previous": current, "changes": asdict(what)})
        return
    click.echo(f"The files are at {_named(target)} now: {summary(what)}.")
    if current not in (None, target):
        click.echo(f"They were at {_named(current)}; to go back: toolgate workspace checkout {str(current)[:SHORT]}")


def _ask(what: Changes) -> None:
    if not sys.stdin.isatty():
        reason = f"this would change files: {summary(what)}"
        raise InputRequired(f"{reason}; say --yes to agree", reason=reason)
    click.confirm(f"This changes files: {summary(what)}. Go on?", abort=True, err=True)


def _named(manifest: str | None) -> str:
    return f"version {manifest[:SHORT]}" if manifest else "the beginning, with no files"


def _on_disk(chat: Chat, parts: Parts, recursive: bool) -> list[Item]:
    with chat.versions.root(chat.id) as root:
        found = root.find(parts) if parts else None
        if found is not None and found.kind != "directory":
            return [_item(found)]
        with root.walk(parts, ANY_DEPTH if recursive else 1) as entries:
            return [_item(entry) for entry in entries]


def _item(entry: Entry) -> Item:
    runs = entry.kind == "file" and entry.stat.st_mode & 0o100
    size = entry.stat.st_size if entry.kind == "file" else None
    return Item(entry.path, "executable" if runs else entry.kind, size)


def _in_tree(tree: Tree, parts: Parts, recursive: bool) -> list[Item]:
    path = "/".join(map(encode, parts))
    if path in tree.files:
        return [Item(readable(path), _kind(tree, path))]
    inside = list(_inside((*tree.files, *directories(tree)), f"{path}/" if path else "", recursive))
    if not inside and path not in directories(tree) and path:
        raise NotFound(f"{path!r} is not in that version", code="FILE_NOT_FOUND")
    return [Item(readable(each), _kind(tree, each)) for each in sorted(inside)]


def _inside(paths: Iterable[str], base: str, recursive: bool) -> Iterator[str]:
    return (path for path in paths if path.startswith(base) and (recursive or "/" not in path[len(base) :]))


def _kind(tree: Tree, path: str) -> str:
    return _KINDS.get(tree.meta.get(path, ""), "file") if path in tree.files else "directory"


def _digest(tree: Tree, parts: Parts) -> str:
    path = "/".join(map(encode, parts))
    if path in tree.files and tree.meta.get(path) != LINK:
        return tree.files[path]
    if path in tree.files:
        raise is_link(repr(readable(path)))
    if path in directories(tree) or not path:
        raise is_directory(repr(path or "."))
    raise NotFound(f"{path!r} is not in that version", code="FILE_NOT_FOUND")


def _copy_from_disk(chat: Chat, parts: Parts) -> None:
    with chat.versions.root(chat.id) as root, root.open(parts) as file:
        shutil.copyfileobj(file, sys.stdout.buffer, CHUNK)


def _print_version(version: Version) -> None:
    mark = click.style("*" if version.head else " ", fg="green", bold=True)
    short = click.style(version.id[:SHORT], fg="yellow")
    about = f"{version.source}, message {_plain(version.message)}" if version.message else version.source
    click.echo(f"{mark} {short}  {version.created[:19].replace('T', ' ')}  {about}")
    click.echo(f"    {summary(version.changes)}")


def _print_diff(text: str) -> None:
    """On a terminal in colours, and with nothing in it that a terminal would obey; else as it is."""
    if sys.stdout.isatty():
        click.echo("\n".join(_coloured(_plain(line)) for line in text.split("\n")), nl=False)
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


def _coloured(line: str) -> str:
    style = next((style for start, style in _COLOURS if line.startswith(start)), None)
    return click.style(line, **style) if style else line


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() or each == "\t" else f"\\x{ord(each):02x}" for each in text)
