"""Differences between two versions of a chat's files, as a readable diff."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal, NamedTuple

from gateway.errors import Unavailable
from gateway.workspace.globs import Selection
from gateway.workspace.os_errors import show_path
from gateway.workspace.tree import EXECUTABLE, LINK, PLAIN, Changes, Tree, changes, diff, locate

_PAIRS_LIMIT = 1_000_000  # pairs of lines; difflib takes a second or two for so many similar ones

_Opcode = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


def split_lines(text: str) -> list[str]:
    """Return lines with their newline; only `\\n` ends a line."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def unified_diff(path: str, before: str, after: str) -> str:
    """Return the change as a unified diff that `apply_patch` accepts."""
    changed = hunks(before, after)
    return f"--- a/{path}\n+++ b/{path}\n{changed}" if changed else ""


def hunks(before: str, after: str) -> str:
    """Return the hunks of a unified diff without its file header; empty for equal texts."""
    old, new = split_lines(before), split_lines(after)
    matcher = _BoundedMatcher(old, new)
    lines = []
    for group in matcher.get_grouped_opcodes(3):
        first, last = group[0], group[-1]
        lines.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n")
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                lines += [_line(" ", line) for line in old[old_from:old_to]]
                continue
            lines += [_line("-", line) for line in old[old_from:old_to]]
            lines += [_line("+", line) for line in new[new_from:new_to]]
    return "".join(lines)


class _BoundedMatcher(difflib.SequenceMatcher[str]):
    """Compares only the lines between the first and the last change, and replaces too many as one block."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        super().__init__(None, old, new, autojunk=False)
        self._old, self._new = old, new

    def get_opcodes(self) -> list[_Opcode]:
        old, new = self._old, self._new
        head = _common(old, new)
        tail = _common(old[head:][::-1], new[head:][::-1])
        old_end, new_end = len(old) - tail, len(new) - tail
        codes: list[_Opcode] = [("equal", 0, head, 0, head)] if head else []
        codes += _between(old, new, head, old_end, new_end)
        if tail:
            codes.append(("equal", old_end, len(old), new_end, len(new)))
        return codes


def _between(old: list[str], new: list[str], head: int, old_end: int, new_end: int) -> list[_Opcode]:
    if (old_end - head) * (new_end - head) > _PAIRS_LIMIT:
        return [("replace", head, old_end, head, new_end)]
    found = difflib.SequenceMatcher(None, old[head:old_end], new[head:new_end], autojunk=False).get_opcodes()
    return [(tag, a + head, b + head, c + head, d + head) for tag, a, b, c, d in found]


def _common(one: list[str], other: list[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _range(start: int, end: int) -> str:
    return f"{start + 1},{end - start}" if end > start else f"{start},0"


def _line(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


# Bytes of the largest file whose lines are compared.
TEXT_LIMIT = 1024 * 1024
OUTPUT_LIMIT = 64 * 1024
FILES_LIMIT = 1000

Status = Literal["added", "changed", "deleted", "renamed", "kind"]
OpenBlob = Callable[[str], BinaryIO]

_MODES = {PLAIN: "100644", EXECUTABLE: "100755", LINK: "120000"}
_WORDS = {PLAIN: "file", EXECUTABLE: "executable file", LINK: "link"}
_NOTHING = "/dev/null"
_BINARY = "no text"
_NO_BYTES = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@dataclass(frozen=True)
class Difference:
    """One changed path. Status `kind` is a change of file kind without a change of content; `was` is the old path of a
    renamed file; `note` describes a change of kind."""

    path: str
    status: Status
    was: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Comparison:
    """The differences by path, and a diff in git's format; `truncated` if either is incomplete."""

    files: tuple[Difference, ...] = ()
    text: str = ""
    truncated: bool = False


def compare(
    old: Tree,
    new: Tree,
    open_blob: OpenBlob,
    selection: Selection | None = None,
    *,
    limit: int = OUTPUT_LIMIT,
    check_cancelled: Callable[[], None] = lambda: None,
) -> Comparison:
    """Compare two trees. Reads one file at a time, and no more once the text reaches `limit`; blocks."""
    pairs = _pairs(old, new, _select(changes(old, diff(old, new)), selection or Selection()))
    text, complete = _truncate(_sections(pairs[:FILES_LIMIT], open_blob, check_cancelled), limit)
    return Comparison(tuple(map(_difference, pairs[:FILES_LIMIT])), text, not complete or len(pairs) > FILES_LIMIT)


def readable(path: str) -> str:
    """Return a path of a tree as text on one line; a directory ends in `/`."""
    return show_path(locate(path.rstrip("/"))) + ("/" if path.endswith("/") else "")


def summary(what: Changes, limit: int = 5) -> str:
    """Return for example `2 added (a, b), 7 changed (c, d and 5 more)`."""
    counts = [f"{len(paths)} {verb} ({_enumerate(paths, limit)})" for verb, paths in vars(what).items() if paths]
    return ", ".join(counts) or "nothing changed"


class _Side(NamedTuple):
    """A path in one of the trees; a directory has no digest."""

    path: str
    digest: str | None
    kind: str


class _Opaque(NamedTuple):
    """A content that is not shown, with its size and the reason."""

    size: str
    reason: str


_Pair = tuple[_Side | None, _Side | None]


def _select(what: Changes, selection: Selection) -> Changes:
    return Changes(
        *(tuple(path for path in paths if path in selection) for paths in (what.added, what.changed, what.deleted))
    )


def _pairs(old: Tree, new: Tree, what: Changes) -> list[_Pair]:
    """Return before and after of everything that differs, sorted by path."""
    gone = {path: _side(old, path) for path in what.deleted}
    came = {path: _side(new, path) for path in what.added}
    moved = [(gone.pop(before), came.pop(after)) for before, after in _renames(gone.values(), came.values())]
    pairs: list[_Pair] = [(_side(old, path), _side(new, path)) for path in what.changed]
    pairs += [*moved, *((side, None) for side in gone.values()), *((None, side) for side in came.values())]
    return sorted(pairs, key=_place)


def _renames(gone: Iterable[_Side], came: Iterable[_Side]) -> list[tuple[str, str]]:
    """Pair deleted and added paths of equal content, preferring equal names."""
    sources: dict[tuple[str | None, str], list[str]] = {}
    for side in gone:
        if side.digest not in (None, _NO_BYTES):
            sources.setdefault((side.digest, side.kind), []).append(side.path)
    moved = []
    for side in sorted(came, key=lambda side: side.path):
        candidates = sources.get((side.digest, side.kind))
        if candidates:
            best = min(candidates, key=lambda path: (_name(path) != _name(side.path), path))
            candidates.remove(best)
            moved.append((best, side.path))
    return moved


def _side(tree: Tree, path: str) -> _Side:
    return _Side(path, tree.files.get(path), tree.meta.get(path, PLAIN))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _place(pair: _Pair) -> str:
    old, new = pair
    side = new or old
    return side.path if side else ""


def _difference(pair: _Pair) -> Difference:
    old, new = pair
    path = readable(_place(pair))
    if old is None or new is None:
        return Difference(path, "added" if old is None else "deleted")
    note = None if old.kind == new.kind else f"{_WORDS[old.kind]} → {_WORDS[new.kind]}"
    if old.path != new.path:
        return Difference(path, "renamed", readable(old.path))
    return Difference(path, "kind" if old.digest == new.digest else "changed", note=note)


def _sections(pairs: Sequence[_Pair], open_blob: OpenBlob, check_cancelled: Callable[[], None]) -> Iterator[str]:
    for old, new in pairs:
        check_cancelled()
        place = _place((old, new))
        if place.endswith("/"):
            yield f"empty directory {'added' if old is None else 'deleted'}: {readable(place)}\n"
        else:
            yield _header(old, new) + _body(old, new, open_blob)


def _header(old: _Side | None, new: _Side | None) -> str:
    before, after = (readable(side.path) if side else "" for side in (old, new))
    lines = [f"diff --git a/{before or after} b/{after or before}"]
    if old is None or new is None:
        side, verb = (new, "new") if old is None else (old, "deleted")
        lines.append(f"{verb} file mode {_MODES[side.kind if side else PLAIN]}")
    elif old.kind != new.kind:
        lines += [f"old mode {_MODES[old.kind]}", f"new mode {_MODES[new.kind]}"]
    elif before != after:
        lines += ["similarity index 100%", f"rename from {before}", f"rename to {after}"]
    return "\n".join([*lines, ""])


def _body(old: _Side | None, new: _Side | None, open_blob: OpenBlob) -> str:
    if old and new and old.digest == new.digest:
        return ""
    before, after = (_content(side, open_blob) for side in (old, new))
    names = [f"{letter}/{readable(side.path)}" if side else _NOTHING for letter, side in (("a", old), ("b", new))]
    if isinstance(before, _Opaque) or isinstance(after, _Opaque):
        sizes = [f"{name} ({_size(content)})" for name, content in zip(names, (before, after), strict=True)]
        reasons = {content.reason for content in (before, after) if isinstance(content, _Opaque)}
        word = "Binary files" if reasons == {_BINARY} else "Files"
        return f"{word} {' and '.join(sizes)} differ; not shown: {', '.join(sorted(reasons))}\n"
    changed = hunks(before, after)
    return f"--- {names[0]}\n+++ {names[1]}\n{changed}" if changed else ""


def _content(side: _Side | None, open_blob: OpenBlob) -> str | _Opaque:
    if side is None or side.digest is None:
        return ""
    try:
        with open_blob(side.digest) as blob:
            size = os.fstat(blob.fileno()).st_size
            content = blob.read() if size <= TEXT_LIMIT else None
    except Unavailable as error:  # missing or damaged; other files can still be shown
        return _Opaque("unreadable", error.code)
    size_text = f"{size} bytes"
    if content is None:
        return _Opaque(size_text, f"larger than {TEXT_LIMIT // 2**20} MiB")
    try:
        return _Opaque(size_text, _BINARY) if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return _Opaque(size_text, _BINARY)


def _size(content: str | _Opaque) -> str:
    return content.size if isinstance(content, _Opaque) else f"{len(content.encode())} bytes"


def _truncate(sections: Iterable[str], limit: int) -> tuple[str, bool]:
    """Return as many whole lines as fit, and whether they are all."""
    taken: list[str] = []
    left = limit
    for section in sections:
        if len(section) > left:
            return "".join([*taken, section[: section.rfind("\n", 0, left) + 1]]), False
        taken.append(section)
        left -= len(section)
    return "".join(taken), True


def _enumerate(paths: Sequence[str], limit: int) -> str:
    named = ", ".join(map(readable, paths[:limit]))
    return named if len(paths) <= limit else f"{named} and {len(paths) - limit} more"
