"""Tools that change files: write, edit, move and delete them. Losing content asks first."""

from __future__ import annotations

import base64
import binascii
import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gateway.errors import Conflict, Forbidden, Invalid, NotFound
from gateway.sources.builtin.decorator import FileContext, Shape, builtin
from gateway.sources.builtin.preview import preview_delete, preview_edit, preview_move, preview_write
from gateway.sources.builtin.read_files import TEXT_LIMIT, TextFile, read_text, shorten
from gateway.text import count_bytes
from gateway.tools import Access, Permission, hide_nothing
from gateway.workspace import Parts, parse, show_path
from gateway.workspace.diff import split_lines, unified_diff

CONTENT_LIMIT = 32 * 1024 * 1024
_DELETED_LIMIT = 1000


class WriteResult(Shape):
    path: str
    size: int
    created: bool


def _overwrites(context: FileContext, path: str, **_: object) -> str | None:
    entry = context.workspace.find(parse(path))
    if entry is None or entry.kind != "file":
        return None
    return f"write_file overwrites {entry.path!r} ({count_bytes(entry.stat.st_size)})"


@builtin(
    title="Write file",
    category="editing",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    requires_confirmation=_overwrites,
    destructive=True,
    idempotent=True,
    path_arguments=("path",),
    preview=preview_write,
)
def write_file(
    context: FileContext,
    path: Annotated[str, Field(description="File, relative to the workspace root")],
    content: Annotated[str, Field(description="The whole content")],
    encoding: Annotated[Literal["utf-8", "base64"], Field(description="Encoding of content")] = "utf-8",
    create_dirs: Annotated[bool, Field(description="Create missing parent directories")] = False,
) -> tuple[WriteResult, str]:
    """Create a file in the workspace, or overwrite a whole file, atomically. Overwriting asks the user first.

    To change part of a file use edit_file. At most 32 MiB; links are refused."""
    parts, data = parse(path), _decode(content, encoding)
    existing = context.workspace.find(parts)
    if create_dirs and parts:
        context.workspace.make_directories(parts[:-1])
    with _explain_missing_directory(context, parts):
        if context.confirmed and existing is not None:
            context.workspace.replace(parts, data)
        else:  # nobody agreed to overwrite: a file created since the question is kept
            context.workspace.create(parts, data)
    created = existing is None
    result = WriteResult(path=show_path(parts), size=len(data), created=created)
    return result, f"{'Created' if created else 'Overwrote'} {result.path} ({count_bytes(result.size)})."


@contextmanager
def _explain_missing_directory(context: FileContext, parts: Parts) -> Iterator[None]:
    """Say of a file that cannot be made because its directory is missing how to have that made too."""
    try:
        yield
    except NotFound as error:
        directory = parts[:-1]
        if not directory or context.workspace.find(directory) is not None:
            raise
        message = f"the directory {show_path(directory)!r} does not exist; set createDirs to true to have it made"
        raise NotFound(message, code=error.code) from error


class MoveResult(Shape):
    from_: str
    to: str


def _replaces(context: FileContext, from_: str, to: str, overwrite: bool, **_: object) -> str | None:
    _refuse_hidden_inside(context, parse(from_), parse(to))
    existing = context.workspace.find(parse(to)) if overwrite else None
    if existing is None or parse(from_) == parse(to):
        return None
    return f"move_file replaces {existing.path!r} with {show_path(parse(from_))!r}"


@builtin(
    title="Move file",
    category="editing",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    requires_confirmation=_replaces,
    destructive=True,
    path_arguments=("from", "to"),
    preview=preview_move,
)
def move_file(
    context: FileContext,
    from_: Annotated[str, Field(description="File or directory, relative to the workspace root")],
    to: Annotated[str, Field(description="New path of the file itself, not of the directory to move it into")],
    overwrite: Annotated[bool, Field(description="Replace an existing file at the new path")] = False,
    create_dirs: Annotated[bool, Field(description="Create missing parent directories of the new path")] = False,
) -> tuple[MoveResult, str]:
    """Move or rename a file or directory within the workspace. Replacing a file asks the user first.

    Refused: an existing new path (unless overwrite), a directory into itself, and replacing a directory that is not
    empty. A link itself is moved, not its target."""
    source, target = parse(from_), parse(to)
    context.workspace.stat(source)
    _refuse_hidden(context, source, "/".join(source), "/".join(target))
    _refuse_hidden_inside(context, source, target)
    if create_dirs and target:
        context.workspace.make_directories(target[:-1])
    with _explain_missing_directory(context, target):
        context.workspace.rename(source, target, over=overwrite and context.confirmed)
    result = MoveResult(from_=show_path(source), to=show_path(target))
    return result, f"Moved {result.from_} to {result.to}."


def _deletes(context: FileContext, path: str, recursive: bool) -> str:
    """Refuse what cannot be deleted before anybody is asked about it."""
    parts = parse(path)
    context.workspace.stat(parts)
    _refuse_hidden_inside(context, parts)
    if not recursive and _is_directory(context, parts):
        with context.workspace.walk(parts, 1) as entries:
            if next(iter(entries), None) is not None:
                raise _not_empty(parts)
    return "delete_file deletes files"


class DeleteResult(Shape):
    deleted: list[str] = Field(description="The given path, then its contents; at most 1000 paths")
    count: int


@builtin(
    title="Delete file",
    category="editing",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    requires_confirmation=_deletes,
    destructive=True,
    path_arguments=("path",),
    preview=preview_delete,
)
def delete_file(
    context: FileContext,
    path: Annotated[str, Field(description="File or directory, relative to the workspace root")],
    recursive: Annotated[bool, Field(description="Delete a directory with all its contents")] = False,
) -> tuple[DeleteResult, str]:
    """Delete a file or a directory of the workspace. Always asks the user first.

    Refused: the workspace root, and a directory that is not empty unless recursive. Links are not
    followed."""
    parts = parse(path)
    _refuse_hidden_inside(context, parts)
    result = _delete_tree(context, parts) if recursive and _is_directory(context, parts) else _delete(context, parts)
    return result, f"Deleted {result.deleted[0]}" + (f" and {result.count - 1} in it." if result.count > 1 else ".")


def _delete(context: FileContext, parts: Parts) -> DeleteResult:
    try:
        context.workspace.remove(parts)
    except Conflict as conflict:
        if conflict.code != "DIRECTORY_NOT_EMPTY":
            raise
        raise _not_empty(parts) from conflict
    return DeleteResult(deleted=[show_path(parts)], count=1)


def _delete_tree(context: FileContext, parts: Parts) -> DeleteResult:
    contents: list[str] = []
    count = 0
    for removed in context.workspace.remove_tree(parts):
        context.check_cancelled()
        count += 1
        if len(contents) < _DELETED_LIMIT and removed != parts:
            contents.append(show_path(removed))
    return DeleteResult(deleted=[show_path(parts), *sorted(contents)][:_DELETED_LIMIT], count=count)


def _refuse_hidden_inside(context: FileContext, directory: Parts, target: Parts | None = None) -> None:
    """Refuse a directory with paths that a rule hides, where they are or where they would be moved to."""
    if context.hides is hide_nothing or not _is_directory(context, directory):
        return
    with context.workspace.walk(directory) as entries:
        for entry in entries:
            context.check_cancelled()
            paths = [entry.parts] if target is None else [entry.parts, (*target, *entry.parts[len(directory) :])]
            _refuse_hidden(context, directory, *map("/".join, paths))
        if entries.truncated:
            message = f"{show_path(directory)!r} has too many files to check them against the approval rules"
            raise Forbidden(message, code="DENIED_BY_RULE")


def _refuse_hidden(context: FileContext, chosen: Parts, *paths: str) -> None:
    for path in paths:
        if (rule := context.hides(path)) is not None:
            message = f"{rule} keeps {path!r} from this tool, so {show_path(chosen)!r} stays as it is"
            raise Forbidden(f"{message}; move or delete other files by name", code="DENIED_BY_RULE")


def _not_empty(parts: Parts) -> Conflict:
    message = f"{show_path(parts)!r} is a directory that is not empty; set recursive to delete all of it"
    return Conflict(message, code="DIRECTORY_NOT_EMPTY")


def _is_directory(context: FileContext, parts: Parts) -> bool:
    entry = context.workspace.find(parts)
    return entry is not None and entry.kind == "directory"


def _decode(content: str, encoding: str) -> bytes:
    try:
        data = base64.b64decode(content, validate=True) if encoding == "base64" else content.encode("utf-8")
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"write_file: 'content' is not {encoding}: {error}", code="INVALID_CONTENT") from error
    if len(data) > CONTENT_LIMIT:
        limit = f"{CONTENT_LIMIT // 2**20} MiB"
        raise Invalid(f"write_file: 'content' has {len(data)} bytes, more than {limit}", code="FILE_TOO_LARGE")
    return data


_LINES_NAMED = 10
_LINES_COMPARED = 3000
_LINE_LENGTH = 200


class Edit(Shape):
    model_config = ConfigDict(extra="forbid")

    old_text: Annotated[str, Field(min_length=1, description="Text in the file, exactly, with its indentation")]
    new_text: Annotated[str, Field(description="Replacement text; empty to delete")]
    replace_all: Annotated[bool, Field(description="Replace every occurrence")] = False


class EditResult(Shape):
    path: str
    replacements: int
    diff: str


@builtin(
    title="Edit file",
    category="editing",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    destructive=True,
    path_arguments=("path",),
    preview=preview_edit,
)
def edit_file(
    context: FileContext,
    path: Annotated[str, Field(description="File, relative to the workspace root")],
    edits: Annotated[list[Edit], Field(min_length=1, max_length=200, description="Applied in order, all or none")],
    dry_run: Annotated[bool, Field(description="Only show the diff, change nothing")] = False,
) -> tuple[EditResult, str]:
    """Replace exact text in a file of the workspace. Each oldText must occur exactly once, unless replaceAll; include
    enough surrounding lines. Line endings, byte order mark and permissions are kept.

    Nothing is changed if one edit does not match, if the file is not UTF-8 text, or if others are changing it."""
    text = read_text(context.workspace, parse(path))
    body, replacements = text.body, 0
    for number, edit in enumerate(edits, 1):
        context.check_cancelled()
        body, count = _apply(context, text, body, edit, number)
        replacements += count
    diff = unified_diff(show_path(text.parts), text.body, body)
    if not dry_run and body != text.body:
        context.workspace.replace(text.parts, text.encode(body), seen=text.stat)
    result = EditResult(path=show_path(text.parts), replacements=replacements, diff=shorten(diff))
    return result, result.diff or "The edits change nothing."


def _apply(context: FileContext, text: TextFile, body: str, edit: Edit, number: int) -> tuple[str, int]:
    old, new = (part.replace("\r\n", "\n") if text.crlf else part for part in (edit.old_text, edit.new_text))
    count = body.count(old)
    label = f"edit {number} of {show_path(text.parts)!r}"
    if count == 0:
        hint = _closest(context, body, old)
        raise Conflict(f"{label}: oldText is not in the file{hint}", code="NO_MATCH", edit=number)
    if count > 1 and not edit.replace_all:
        lines = ", ".join(map(str, _line_numbers(body, old)))
        message = f"{label}: oldText occurs {count} times (lines {lines}); include surrounding lines, or set replaceAll"
        raise Conflict(message, code="AMBIGUOUS_MATCH", edit=number, count=count)
    if len(body) + count * (len(new) - len(old)) > TEXT_LIMIT:
        raise Invalid(f"{label}: the file would grow beyond {TEXT_LIMIT // 2**20} MiB", code="FILE_TOO_LARGE")
    return body.replace(old, new), count


def _line_numbers(body: str, old: str) -> Iterator[int]:
    index = -1
    for _ in range(_LINES_NAMED):
        index = body.find(old, index + 1)
        if index < 0:
            return
        yield body.count("\n", 0, index) + 1


def _closest(context: FileContext, body: str, old: str) -> str:
    """Return a hint where the text may be: a line similar to its first one."""
    first = next((line.strip() for line in split_lines(old) if line.strip()), "")[:_LINE_LENGTH]
    lines = [line.strip()[:_LINE_LENGTH] for line in split_lines(body)]
    if not first:
        return "; read the file and copy the text from it"
    if first in lines:
        number = lines.index(first) + 1
        return (
            f"; line {number} equals its first line, but the lines around it differ (indentation?): read the file again"
        )
    best = _most_similar(context, first, lines)
    if best is None:
        return "; no line is similar to its first one: read the file again"
    return f"; the closest line is {best + 1}: {lines[best]!r}"


def _most_similar(context: FileContext, wanted: str, lines: list[str]) -> int | None:
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(wanted)
    best, best_ratio = None, 0.6
    for index, line in enumerate(lines[:_LINES_COMPARED]):
        context.check_cancelled()
        matcher.set_seq1(line)
        if matcher.real_quick_ratio() > best_ratio and matcher.quick_ratio() > best_ratio:
            ratio = matcher.ratio()
            if ratio > best_ratio:
                best, best_ratio = index, ratio
    return best
