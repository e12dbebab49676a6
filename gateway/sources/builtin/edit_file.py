"""Changing part of a file: exact text for exact text, all of it or nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated

from pydantic import ConfigDict, Field

from gateway.errors import Conflict, Invalid
from gateway.sources.builtin.decorator import Context, Shape, builtin
from gateway.sources.builtin.text_files import TEXT_LIMIT, Text, read_text, shortened
from gateway.tools import Access, Permission
from gateway.workspace import parse, shown
from gateway.workspace.diff import split_lines, unified_diff

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
)
def edit_file(
    context: Context,
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
    diff = unified_diff(shown(text.parts), text.body, body)
    if not dry_run and body != text.body:
        context.workspace.replace(text.parts, text.encoded(body), seen=text.stat)
    edited = Edited(path=shown(text.parts), replacements=replacements, diff=shortened(diff))
    return edited, edited.diff or "The edits change nothing."


def _apply(context: Context, text: Text, body: str, edit: Edit, number: int) -> tuple[str, int]:
    old, new = (each.replace("\r\n", "\n") if text.crlf else each for each in (edit.old_text, edit.new_text))
    count = body.count(old)
    where = f"edit {number} of {shown(text.parts)!r}"
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


def _closest(context: Context, body: str, old: str) -> str:
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


def _most_alike(context: Context, wanted: str, lines: list[str]) -> int | None:
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
