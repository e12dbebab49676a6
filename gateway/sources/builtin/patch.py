"""Unified diffs: read, and applied to text. Knows nothing of files on disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gateway.errors import Conflict, Invalid
from gateway.workspace.diff import split_lines

Action = Literal["create", "modify", "delete", "rename"]

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_NOTHING = "/dev/null"
_OCTAL_OR_SIGN = re.compile(r"\\([0-7]{3}|.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_REGULAR = ("100644", "100755", "100664")


@dataclass(frozen=True)
class Hunk:
    """Lines with their newlines, where they are expected, and what stands there afterwards."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class FilePatch:
    """What becomes of one file. No old path: it is created; no new path: it is deleted."""

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
    """The files a patch speaks of; `Invalid` with the line number for what is no unified diff."""
    reader = _Reader(patch)
    files = []
    while reader.next_file():
        files.append(_file(reader))
    if not files:
        raise Invalid(
            "the patch names no file; begin with '--- a/path', '+++ b/path' and '@@' lines", code="INVALID_PATCH"
        )
    return files


def apply(patch: FilePatch, text: str, check_cancelled: Callable[[], None] = lambda: None) -> str:
    """The text with every hunk in its place; `Conflict` naming the first that has none."""
    lines = split_lines(text)
    result: list[str] = []
    done = shift = 0
    for number, hunk in enumerate(patch.hunks, 1):
        check_cancelled()
        at = _place(lines, hunk, done, shift)
        if at is None or _tears(hunk, lines, at):
            raise _misfit(patch, number, hunk)
        result += [*lines[done:at], *hunk.new]
        done, shift = at + len(hunk.old), at - hunk.start
    return "".join([*result, *lines[done:]])


def _place(lines: list[str], hunk: Hunk, floor: int, shift: int) -> int | None:
    """Where the hunk's old lines stand: where expected, else the nearest place after the last hunk."""
    expected = hunk.start + shift
    if not hunk.old:
        return expected if floor <= expected <= len(lines) else None
    if expected >= floor and lines[expected : expected + len(hunk.old)] == list(hunk.old):
        return expected
    places = [at for at in _occurrences(lines, hunk.old) if at >= floor]
    return min(places, key=lambda at: abs(at - expected), default=None)


def _occurrences(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Knuth, Morris and Pratt: linear, whatever repeats in the file or the hunk."""
    borders = _borders(wanted)
    places = []
    matched = 0
    for index, line in enumerate(lines):
        while matched and (matched == len(wanted) or wanted[matched] != line):
            matched = borders[matched - 1]
        matched += wanted[matched] == line
        if matched == len(wanted):
            places.append(index - matched + 1)
    return places


def _borders(wanted: Sequence[str]) -> list[int]:
    borders = [0]
    for index in range(1, len(wanted)):
        length = borders[-1]
        while length and wanted[length] != wanted[index]:
            length = borders[length - 1]
        borders.append(length + (wanted[length] == wanted[index]))
    return borders


def _tears(hunk: Hunk, lines: list[str], at: int) -> bool:
    """Whether a line would be left without its newline in the middle of the file."""
    after = at + len(hunk.old) < len(lines)
    unended_before = at > 0 and not lines[at - 1].endswith("\n")
    return bool(hunk.new) and ((after and not hunk.new[-1].endswith("\n")) or unended_before)


def _misfit(patch: FilePatch, number: int, hunk: Hunk) -> Conflict:
    first = next((line.rstrip("\n") for line in hunk.old), "")
    message = (
        f"hunk {number} of {patch.path!r} (line {hunk.start + 1}, beginning {first[:100]!r}) does not fit the file; "
        "read the file again and make the patch from what it has now"
    )
    return Conflict(message, code="PATCH_DOES_NOT_APPLY", hunk=number, path=patch.path)


class _Reader:
    """The lines of a patch, and which one is next."""

    def __init__(self, patch: str) -> None:
        lines = patch.split("\n")
        if lines[-1] == "":
            lines.pop()
        if lines and all(line.endswith("\r") for line in lines):
            lines = [line[:-1] for line in lines]
        self.lines = lines
        self.at = 0

    @property
    def line(self) -> str | None:
        return self.lines[self.at] if self.at < len(self.lines) else None

    def take(self) -> str:
        line = self.line
        if line is None:
            raise self.invalid("the patch ends in the middle of a hunk")
        self.at += 1
        return line

    def starts(self, prefix: str) -> bool:
        return self.line is not None and self.line.startswith(prefix)

    def at_names(self) -> bool:
        following = self.lines[self.at + 1 : self.at + 2]
        return self.starts("--- ") and bool(following) and following[0].startswith("+++ ")

    def next_file(self) -> bool:
        """Go to the next header, past whatever prose is around."""
        while self.line is not None and not (self.at_names() or self.starts("diff --git ")):
            if self.starts("@@ "):
                raise self.invalid(
                    "a hunk without '--- ' and '+++ ' lines before it, or longer than its '@@' line says"
                )
            self.at += 1
        return self.line is not None

    def invalid(self, fault: str) -> Invalid:
        return Invalid(f"line {min(self.at + 1, len(self.lines))} of the patch: {fault}", code="INVALID_PATCH")


@dataclass
class _Header:
    """What the lines before the hunks say."""

    old: str | None = None
    new: str | None = None
    words: dict[str, str] = field(default_factory=dict)


_GIT_WORDS = ("old mode", "new mode", "deleted file mode", "new file mode", "rename from", "rename to")
_GIT_NOISE = ("index ", "similarity index ", "dissimilarity index ")


def _file(reader: _Reader) -> FilePatch:
    header = _Header()
    if reader.starts("diff --git "):
        _read_git_header(reader, header)
    if reader.at_names():
        header.old, header.new = _names(reader)
    hunks = []
    while reader.starts("@@ "):
        hunks.append(_hunk(reader))
    if not hunks and not header.words:
        raise reader.invalid("no '@@' line follows; a hunk begins with '@@ -1,3 +1,4 @@'")
    mode = header.words.get("new file mode") or header.words.get("new mode")
    return FilePatch(header.old, header.new, tuple(hunks), None if mode is None else mode == "100755")


def _read_git_header(reader: _Reader, header: _Header) -> None:
    header.old = header.new = _git_name(reader.take().removeprefix("diff --git "))
    while reader.line is not None and not reader.at_names() and not reader.starts("@@ "):
        line = reader.line
        word = next((word for word in _GIT_WORDS if line.startswith(f"{word} ")), None)
        if line.startswith(("GIT binary patch", "Binary files ", "copy from ", "copy to ")):
            raise reader.invalid("binary patches and copies are not taken; write the file instead")
        if word is None and not line.startswith(_GIT_NOISE):
            break
        if word is not None:
            header.words[word] = line.removeprefix(f"{word} ")
        reader.at += 1
    _heed(reader, header)


def _heed(reader: _Reader, header: _Header) -> None:
    words = header.words
    if any(words[word] not in _REGULAR for word in words if word.endswith("mode")):
        raise reader.invalid("links and submodules are not taken, only regular files")
    if "rename from" in words and "rename to" in words:
        header.old, header.new = _unquoted(words["rename from"]), _unquoted(words["rename to"])
    if "new file mode" in words:
        header.old = None
    if "deleted file mode" in words:
        header.new = None
    if header.old is None and header.new is None and words:
        raise reader.invalid("which file is meant is not clear; add '--- ' and '+++ ' lines")


def _git_name(names: str) -> str | None:
    """The name in `a/name b/name`, when both are the same; otherwise other lines say it."""
    if names.startswith('"'):
        first, _, _ = names.partition('" "')
        return _unquoted(f'{first}"').removeprefix("a/")
    half = len(names) // 2
    one, other = names[:half], names[half + 1 :]
    return one[2:] if one[:2] == "a/" and other[:2] == "b/" and one[2:] == other[2:] else None


def _names(reader: _Reader) -> tuple[str | None, str | None]:
    old = _unquoted(reader.take().removeprefix("--- ").partition("\t")[0].rstrip())
    new = _unquoted(reader.take().removeprefix("+++ ").partition("\t")[0].rstrip())
    if old == new == _NOTHING:
        raise reader.invalid("both paths are /dev/null")
    prefixed = old.startswith(("a/", _NOTHING)) and new.startswith(("b/", _NOTHING))
    stripped = [each[2:] if prefixed and each != _NOTHING else each for each in (old, new)]
    one, other = (None if each == _NOTHING else each for each in stripped)
    return one, other


def _unquoted(name: str) -> str:
    """A path as git quotes it: C escapes, bytes in octal."""
    if not (len(name) > 1 and name[0] == name[-1] == '"'):
        return name

    def plain(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped, 8) & 0xFF) if len(escaped) == 3 else _ESCAPES.get(escaped, escaped)

    encoded = _OCTAL_OR_SIGN.sub(plain, name[1:-1].encode("utf-8").decode("latin-1"))
    return encoded.encode("latin-1").decode("utf-8", "surrogateescape")


def _hunk(reader: _Reader) -> Hunk:
    match = _HUNK.match(reader.line or "")
    if match is None:
        raise reader.invalid("not a hunk header; it reads '@@ -1,3 +1,4 @@'")
    reader.at += 1
    start, old_count, new_count = int(match[1]), int(match[2] or 1), int(match[4] or 1)
    old: list[str] = []
    new: list[str] = []
    while len(old) < old_count or len(new) < new_count or reader.starts("\\"):
        _read_line(reader, old, new)
    if len(old) > old_count or len(new) > new_count:
        raise reader.invalid(f"the hunk has more lines than its header says ({old_count} old, {new_count} new)")
    return Hunk(start - 1 if old_count else start, tuple(old), tuple(new))


def _read_line(reader: _Reader, old: list[str], new: list[str]) -> None:
    line = reader.take()
    sign, text = line[:1] or " ", f"{line[1:]}\n"
    if sign == "\\":
        _unend(reader, old, new)
    elif sign in (" ", "-", "+"):
        if any(side and not side[-1].endswith("\n") for side, signs in ((old, " -"), (new, " +")) if sign in signs):
            raise reader.invalid("a line follows the one that has no newline at the end of the file")
        old += [text] if sign != "+" else []
        new += [text] if sign != "-" else []
    else:
        reader.at -= 1
        raise reader.invalid("a line of a hunk begins with ' ', '-' or '+'; does the '@@' line count them right?")


def _unend(reader: _Reader, old: list[str], new: list[str]) -> None:
    """`\\ No newline at end of file` speaks of the line before it."""
    before = reader.lines[reader.at - 2][:1] or " "
    for side, signs in ((old, " -"), (new, " +")):
        if before in signs and side:
            side[-1] = side[-1].removesuffix("\n")
