"""Tools that change files: write, edit, move and delete them. Losing content asks first."""

from __future__ import annotations

import base64
import binascii
import difflib
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gateway.errors import Conflict, Invalid
from gateway.sources.builtin.decorator import FileContext, Shape, builtin
from gateway.sources.builtin.preview import preview_delete, preview_edit, preview_move, preview_write
from gateway.sources.builtin.read_files import TEXT_LIMIT, Text, read_text, shortened
from gateway.tools import Access, Permission
from gateway.workspace import Parts, parse, show_path
from gateway.workspace.diff import split_lines, unified_diff

CONTENT_LIMIT = 32 * 1024 * 1024
_DELETED_LIMIT = 1000


class Written(Shape):
    path: str
    size: int
    created: bool


def _overwrites(context: FileContext, path: str, **_: object) -> str | None:
    found = context.workspace.find(parse(path))
    if found is None or found.kind != "file":
        return None
    return f"write_file overwrites {found.path!r} ({found.stat.st_size} bytes)"


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
    encoding: Annotated[Literal["utf-8", "base64"], Field(description="How content is given")] = "utf-8",
    create_dirs: Annotated[bool, Field(description="Make missing directories above it")] = False,
) -> tuple[Written, str]:
    """Create a file in the workspace, or overwrite one as a whole, in one step. Overwriting asks the user first.

    To change part of a file use edit_file. At most 32 MiB; links are refused."""
    parts, data = parse(path), _data(content, encoding)
    found = context.workspace.find(parts)
    if create_dirs and parts:
        context.workspace.make_directories(parts[:-1])
    if context.confirmed and found is not None:
        context.workspace.replace(parts, data)
    else:  # nobody agreed to lose a file, so one that has appeared since the question stays
        context.workspace.create(parts, data)
    created = found is None
    written = Written(path=show_path(parts), size=len(data), created=created)
    return written, f"{'Created' if created else 'Overwrote'} {written.path} ({written.size} bytes)."


class Moved(Shape):
    from_: str
    to: str


def _moves_over(context: FileContext, from_: str, to: str, overwrite: bool, **_: object) -> str | None:
    found = context.workspace.find(parse(to)) if overwrite else None
    if found is None or parse(from_) == parse(to):
        return None
    return f"move_file replaces {found.path!r} by {show_path(parse(from_))!r}"


@builtin(
    title="Move file",
    category="editing",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    requires_confirmation=_moves_over,
    destructive=True,
    path_arguments=("from", "to"),
    preview=preview_move,
)
def move_file(
    context: FileContext,
    from_: Annotated[str, Field(description="File or directory, relative to the workspace root")],
    to: Annotated[str, Field(description="Its new path; not the directory to put it in")],
    overwrite: Annotated[bool, Field(description="Replace a file that is at the new path")] = False,
    create_dirs: Annotated[bool, Field(description="Make missing directories above the new path")] = False,
) -> tuple[Moved, str]:
    """Move or rename a file or directory within the workspace. Replacing a file asks the user first.

    Refused: a new path that is taken (unless overwrite), a directory into itself, over a directory that is not
    empty. A link is moved as itself."""
    source, target = parse(from_), parse(to)
    context.workspace.stat(source)
    if create_dirs and target:
        context.workspace.make_directories(target[:-1])
    context.workspace.rename(source, target, over=overwrite and context.confirmed)
    moved = Moved(from_=show_path(source), to=show_path(target))
    return moved, f"Moved {moved.from_} to {moved.to}."


class Deleted(Shape):
    deleted: list[str] = Field(description="What was asked for, then what was in it; at most 1000 paths")
    count: int


@builtin(
    title="Delete file",
    category="editing",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    requires_confirmation=True,
    destructive=True,
    path_arguments=("path",),
    preview=preview_delete,
)
def delete_file(
    context: FileContext,
    path: Annotated[str, Field(description="File or directory, relative to the workspace root")],
    recursive: Annotated[bool, Field(description="Also a directory that is not empty, with all in it")] = False,
) -> tuple[Deleted, str]:
    """Delete a file or a directory of the workspace. Always asks the user first.

    Refused: the workspace root, and a directory that is not empty unless recursive. A link is deleted as itself."""
    parts = parse(path)
    deleted = _delete_tree(context, parts) if recursive and _is_directory(context, parts) else _delete(context, parts)
    return deleted, f"Deleted {deleted.deleted[0]}" + (f" and {deleted.count - 1} in it." if deleted.count > 1 else ".")


def _delete(context: FileContext, parts: Parts) -> Deleted:
    try:
        context.workspace.remove(parts)
    except Conflict as conflict:
        if conflict.code != "DIRECTORY_NOT_EMPTY":
            raise
        message = f"{show_path(parts)!r} is a directory with something in it; set recursive to delete all of it"
        raise Conflict(message, code=conflict.code) from conflict
    return Deleted(deleted=[show_path(parts)], count=1)


def _delete_tree(context: FileContext, parts: Parts) -> Deleted:
    inside: list[str] = []
    count = 0
    for removed in context.workspace.remove_tree(parts):
        context.check_cancelled()
        count += 1
        if len(inside) < _DELETED_LIMIT and removed != parts:
            inside.append(show_path(removed))
    return Deleted(deleted=[show_path(parts), *sorted(inside)][:_DELETED_LIMIT], count=count)


def _is_directory(context: FileContext, parts: Parts) -> bool:
    found = context.workspace.find(parts)
    return found is not None and found.kind == "directory"


def _data(content: str, encoding: str) -> bytes:
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
    new_text: Annotated[str, Field(description="What stands there afterwards; empty to delete")]
    replace_all: Annotated[bool, Field(description="Every occurrence, not just the only one")] = False


class Edited(Shape):
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
) -> tuple[Edited, str]:
    """Replace exact text in a file of the workspace. Each oldText must occur exactly once, unless replaceAll; give
    enough of the lines around it. Line ends, byte order mark and permissions stay as they are.

    Refused as a whole when one edit does not fit, when the file is no UTF-8 text or has changed meanwhile."""
    text = read_text(context.workspace, parse(path))
    body, replacements = text.body, 0
    for number, edit in enumerate(edits, 1):
        context.check_cancelled()
        body, count = _apply(context, text, body, edit, number)
        replacements += count
    diff = unified_diff(show_path(text.parts), text.body, body)
    if not dry_run and body != text.body:
        context.workspace.replace(text.parts, text.encoded(body), seen=text.stat)
    edited = Edited(path=show_path(text.parts), replacements=replacements, diff=shortened(diff))
    return edited, edited.diff or "The edits change nothing."


def _apply(context: FileContext, text: Text, body: str, edit: Edit, number: int) -> tuple[str, int]:
    old, new = (each.replace("\r\n", "\n") if text.crlf else each for each in (edit.old_text, edit.new_text))
    count = body.count(old)
    where = f"edit {number} of {show_path(text.parts)!r}"
    if count == 0:
        hint = _closest(context, body, old)
        raise Conflict(f"{where}: oldText is not in the file{hint}", code="NO_MATCH", edit=number)
    if count > 1 and not edit.replace_all:
        lines = ", ".join(map(str, _line_numbers(body, old)))
        message = f"{where}: oldText occurs {count} times (lines {lines}); add lines around it, or set replaceAll"
        raise Conflict(message, code="AMBIGUOUS_MATCH", edit=number, count=count)
    if len(body) + count * (len(new) - len(old)) > TEXT_LIMIT:
        raise Invalid(f"{where}: the file would grow beyond {TEXT_LIMIT // 2**20} MiB", code="FILE_TOO_LARGE")
    return body.replace(old, new), count


def _line_numbers(body: str, old: str) -> Iterator[int]:
    at = -1
    for _ in range(_LINES_NAMED):
        at = body.find(old, at + 1)
        if at < 0:
            return
        yield body.count("\n", 0, at) + 1


def _closest(context: FileContext, body: str, old: str) -> str:
    """Where the text may have been meant: a line that is like its first one."""
    wanted = next((line.strip() for line in split_lines(old) if line.strip()), "")[:_LINE_LENGTH]
    lines = [line.strip()[:_LINE_LENGTH] for line in split_lines(body)]
    if not wanted:
        return "; read it and copy the text from there"
    if wanted in lines:
        number = lines.index(wanted) + 1
        return f"; line {number} is like its first line, but what stands around differs (indentation?): read it again"
    best = _most_alike(context, wanted, lines)
    if best is None:
        return "; no line is like its first one: read the file again"
    return f"; the closest line is {best + 1}: {lines[best]!r}"


def _most_alike(context: FileContext, wanted: str, lines: list[str]) -> int | None:
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
