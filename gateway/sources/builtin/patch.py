"""Unified diffs: parsing, and applying them to text. Does not access files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gateway.errors import Conflict, Invalid
from gateway.value import Value
from gateway.workspace.diff import split_lines

Action = Literal["create", "modify", "delete", "rename"]

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_NO_FILE = "/dev/null"
_OCTAL_OR_SIGN = re.compile(r"\\([0-7]{3}|.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_REGULAR = ("100644", "100755", "100664")


class Hunk(Value):
    """Old and new lines with their newlines; `start` is the expected index of the first."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


class FilePatch(Value):
    """The changes of one file. Without an old path it is created, without a new path deleted."""

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...]
    executable: bool | None = None

    @property
    def path(self) -> str:
        return self.new or self.old or ""

    @property
    def action(self) -> Action:
        if self.old is None:
            return "create"
        if self.new is None:
            return "delete"
        return "modify" if self.old == self.new else "rename"


def parse(patch: str) -> list[FilePatch]:
    """Return the files of a patch; raise `Invalid` with the line number if it is not a unified diff."""
    reader = _PatchReader(patch)
    files = []
    while reader.next_file():
        files.append(_file(reader))
    if not files:
        raise Invalid(
            "the patch names no file; begin with '--- a/path', '+++ b/path' and '@@' lines", code="INVALID_PATCH"
        )
    return files


def apply(patch: FilePatch, text: str, check_cancelled: Callable[[], None] = lambda: None) -> str:
    """Return the text with every hunk applied; raise `Conflict` for the first that does not match."""
    lines = split_lines(text)
    result: list[str] = []
    done = shift = 0
    for number, hunk in enumerate(patch.hunks, 1):
        check_cancelled()
        index = _locate(lines, hunk, done, shift)
        if index is None or _joins_lines(hunk, lines, index):
            raise _mismatch(patch, number, hunk)
        result += [*lines[done:index], *hunk.new]
        done, shift = index + len(hunk.old), index - hunk.start
    return "".join([*result, *lines[done:]])


def _locate(lines: list[str], hunk: Hunk, floor: int, shift: int) -> int | None:
    """Return the index of the hunk's old lines: the expected one, else the nearest after the last hunk."""
    expected = hunk.start + shift
    if not hunk.old:
        return expected if floor <= expected <= len(lines) else None
    if expected >= floor and lines[expected : expected + len(hunk.old)] == list(hunk.old):
        return expected
    indexes = [index for index in _occurrences(lines, hunk.old) if index >= floor]
    return min(indexes, key=lambda index: abs(index - expected), default=None)


def _occurrences(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return where `wanted` occurs, by Knuth-Morris-Pratt: linear time also for repetitive lines."""
    borders = _borders(wanted)
    indexes = []
    matched = 0
    for index, line in enumerate(lines):
        while matched and (matched == len(wanted) or wanted[matched] != line):
            matched = borders[matched - 1]
        matched += wanted[matched] == line
        if matched == len(wanted):
            indexes.append(index - matched + 1)
    return indexes


def _borders(wanted: Sequence[str]) -> list[int]:
    borders = [0]
    for index in range(1, len(wanted)):
        length = borders[-1]
        while length and wanted[length] != wanted[index]:
            length = borders[length - 1]
        borders.append(length + (wanted[length] == wanted[index]))
    return borders


def _joins_lines(hunk: Hunk, lines: list[str], index: int) -> bool:
    """Return whether a line without a newline would end up in the middle of the file."""
    after = index + len(hunk.old) < len(lines)
    unended_before = index > 0 and not lines[index - 1].endswith("\n")
    return bool(hunk.new) and ((after and not hunk.new[-1].endswith("\n")) or unended_before)


def _mismatch(patch: FilePatch, number: int, hunk: Hunk) -> Conflict:
    first = next((line.rstrip("\n") for line in hunk.old), "")
    message = (
        f"hunk {number} of {patch.path!r} (line {hunk.start + 1}, beginning {first[:100]!r}) does not match the file; "
        "read the file again and make a new patch"
    )
    return Conflict(message, code="PATCH_DOES_NOT_APPLY", hunk=number, path=patch.path)


class _PatchReader:
    """The lines of a patch, with the index of the next one."""

    def __init__(self, patch: str) -> None:
        lines = patch.split("\n")
        if lines[-1] == "":
            lines.pop()
        if lines and all(line.endswith("\r") for line in lines):
            lines = [line[:-1] for line in lines]
        self.lines = lines
        self.index = 0

    @property
    def line(self) -> str | None:
        return self.lines[self.index] if self.index < len(self.lines) else None

    def take(self) -> str:
        line = self.line
        if line is None:
            raise self.invalid("the patch ends in the middle of a hunk")
        self.index += 1
        return line

    def starts(self, prefix: str) -> bool:
        return self.line is not None and self.line.startswith(prefix)

    def is_at_paths(self) -> bool:
        following = self.lines[self.index + 1 : self.index + 2]
        return self.starts("--- ") and bool(following) and following[0].startswith("+++ ")

    def next_file(self) -> bool:
        """Go to the next file header, past other text; return whether there is one."""
        while self.line is not None and not (self.is_at_paths() or self.starts("diff --git ")):
            if self.starts("@@ "):
                raise self.invalid(
                    "a hunk without '--- ' and '+++ ' lines before it, or longer than its '@@' line says"
                )
            self.index += 1
        return self.line is not None

    def invalid(self, reason: str) -> Invalid:
        return Invalid(f"line {min(self.index + 1, len(self.lines))} of the patch: {reason}", code="INVALID_PATCH")


@dataclass
class _Header:
    """The lines before the hunks: paths, and git's extended headers."""

    old: str | None = None
    new: str | None = None
    extended: dict[str, str] = field(default_factory=dict)


_GIT_HEADERS = ("old mode", "new mode", "deleted file mode", "new file mode", "rename from", "rename to")
_GIT_IGNORED = ("index ", "similarity index ", "dissimilarity index ")


def _file(reader: _PatchReader) -> FilePatch:
    header = _Header()
    if reader.starts("diff --git "):
        _read_git_header(reader, header)
    if reader.is_at_paths():
        header.old, header.new = _paths(reader)
    hunks = []
    while reader.starts("@@ "):
        hunks.append(_hunk(reader))
    if not hunks and not header.extended:
        raise reader.invalid("no '@@' line follows; a hunk begins with '@@ -1,3 +1,4 @@'")
    mode = header.extended.get("new file mode") or header.extended.get("new mode")
    return FilePatch(header.old, header.new, tuple(hunks), None if mode is None else mode == "100755")


def _read_git_header(reader: _PatchReader, header: _Header) -> None:
    header.old = header.new = _git_name(reader.take().removeprefix("diff --git "))
    while reader.line is not None and not reader.is_at_paths() and not reader.starts("@@ "):
        line = reader.line
        name = next((name for name in _GIT_HEADERS if line.startswith(f"{name} ")), None)
        if line.startswith(("GIT binary patch", "Binary files ", "copy from ", "copy to ")):
            raise reader.invalid("binary patches and copies are not supported; write the file instead")
        if name is None and not line.startswith(_GIT_IGNORED):
            break
        if name is not None:
            header.extended[name] = line.removeprefix(f"{name} ")
        reader.index += 1
    _apply_extended(reader, header)


def _apply_extended(reader: _PatchReader, header: _Header) -> None:
    extended = header.extended
    if any(mode not in _REGULAR for name, mode in extended.items() if name.endswith("mode")):
        raise reader.invalid("links and submodules are not supported, only regular files")
    if "rename from" in extended and "rename to" in extended:
        header.old, header.new = _unquote(extended["rename from"]), _unquote(extended["rename to"])
    if "new file mode" in extended:
        header.old = None
    if "deleted file mode" in extended:
        header.new = None
    if header.old is None and header.new is None and extended:
        raise reader.invalid("the file is not clear; add '--- ' and '+++ ' lines")


def _git_name(names: str) -> str | None:
    """Return the name in `a/name b/name` if both are the same; else other lines give it."""
    if names.startswith('"'):
        first, _, _ = names.partition('" "')
        return _unquote(f'{first}"').removeprefix("a/")
    half = len(names) // 2
    old, new = names[:half], names[half + 1 :]
    return old[2:] if old[:2] == "a/" and new[:2] == "b/" and old[2:] == new[2:] else None


def _paths(reader: _PatchReader) -> tuple[str | None, str | None]:
    old = _unquote(reader.take().removeprefix("--- ").partition("\t")[0].rstrip())
    new = _unquote(reader.take().removeprefix("+++ ").partition("\t")[0].rstrip())
    if old == new == _NO_FILE:
        raise reader.invalid("both paths are /dev/null")
    prefixed = old.startswith(("a/", _NO_FILE)) and new.startswith(("b/", _NO_FILE))
    old_path, new_path = (None if path == _NO_FILE else path[2:] if prefixed else path for path in (old, new))
    return old_path, new_path


def _unquote(name: str) -> str:
    """Decode a path that git quotes with C escapes and octal bytes."""
    if not (len(name) > 1 and name[0] == name[-1] == '"'):
        return name

    def unescape(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped, 8) & 0xFF) if len(escaped) == 3 else _ESCAPES.get(escaped, escaped)

    encoded = _OCTAL_OR_SIGN.sub(unescape, name[1:-1].encode("utf-8").decode("latin-1"))
    return encoded.encode("latin-1").decode("utf-8", "surrogateescape")


def _hunk(reader: _PatchReader) -> Hunk:
    match = _HUNK.match(reader.line or "")
    if match is None:
        raise reader.invalid("not a hunk header; expected '@@ -1,3 +1,4 @@'")
    reader.index += 1
    start, old_count, new_count = int(match[1]), int(match[2] or 1), int(match[4] or 1)
    old: list[str] = []
    new: list[str] = []
    while len(old) < old_count or len(new) < new_count or reader.starts("\\"):
        _read_line(reader, old, new)
    if len(old) > old_count or len(new) > new_count:
        raise reader.invalid(f"the hunk has more lines than its header says ({old_count} old, {new_count} new)")
    return Hunk(start - 1 if old_count else start, tuple(old), tuple(new))


def _read_line(reader: _PatchReader, old: list[str], new: list[str]) -> None:
    line = reader.take()
    sign, text = line[:1] or " ", f"{line[1:]}\n"
    if sign == "\\":
        _remove_newline(reader, old, new)
    elif sign in (" ", "-", "+"):
        if any(side and not side[-1].endswith("\n") for side, signs in ((old, " -"), (new, " +")) if sign in signs):
            raise reader.invalid("a line follows the one that has no newline at the end of the file")
        old += [text] if sign != "+" else []
        new += [text] if sign != "-" else []
    else:
        reader.index -= 1
        raise reader.invalid("a line of a hunk begins with ' ', '-' or '+'; does the '@@' line count them right?")


def _remove_newline(reader: _PatchReader, old: list[str], new: list[str]) -> None:
    """Apply `\\ No newline at end of file` to the line before it."""
    before = reader.lines[reader.index - 2][:1] or " "
    for side, signs in ((old, " -"), (new, " +")):
        if before in signs and side:
            side[-1] = side[-1].removesuffix("\n")
