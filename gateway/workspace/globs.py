"""Glob patterns and selections of paths, matched in time linear in the path."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence

from gateway.errors import Invalid, NotFound
from gateway.tools import Hides, hide_nothing
from gateway.workspace.openat import Parts
from gateway.workspace.paths import parse
from gateway.workspace.tree import Tree, directories, encode

PATTERN_LIMIT = 1000
_ALTERNATIVES = 64
_ANY_DEPTH = "**"
_INNERMOST_BRACES = re.compile(r"\{([^{}]*)\}")


class Glob:
    """`*`, `?`, `[a-z]` within a name, `**` across directories, `{a,b}` for either.

    A pattern without `/` matches the name at any depth; one with `/` matches the path from where the search starts.
    """

    def __init__(self, pattern: str) -> None:
        if not pattern.strip("/") or len(pattern) > PATTERN_LIMIT:
            raise _invalid(pattern, f"is empty or longer than {PATTERN_LIMIT} characters")
        self.pattern = pattern
        self._patterns = [_segments(plain) for plain in _plain(pattern)]

    def matches(self, parts: Parts) -> bool:
        return any(_matches(segments, parts) for segments in self._patterns)

    def names_explicitly(self, name: str) -> bool:
        """Return whether the pattern names this path component explicitly, as needed for hidden names."""
        return any(segment.names_explicitly(name) for segments in self._patterns for segment in segments)


class _Segment:
    """One component of a pattern, or `**`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._expression = re.compile(fnmatch.translate(text))
        self.any_depth = text == _ANY_DEPTH

    def matches(self, name: str) -> bool:
        return self._expression.match(name) is not None

    def names_explicitly(self, name: str) -> bool:
        return self._text == name or (self._text.startswith(".") and self.matches(name))


def _segments(pattern: str) -> list[_Segment]:
    texts = [text for text in pattern.split("/") if text not in ("", ".")]
    if texts[-1:] == [_ANY_DEPTH]:
        texts.append("*")  # `src/**` is what is in src, not src itself
    anchored = "/" in pattern.rstrip("/")
    return [_Segment(text) for text in (texts if anchored else [_ANY_DEPTH, *texts])]


def _matches(segments: list[_Segment], parts: Parts) -> bool:
    """Match in one pass without backtracking: `reached` has the numbers of segments that may be consumed so far."""
    end = len(segments)
    reached = _over_any_depth(segments, {0})
    for part in parts:
        stay = {at for at in reached if at < end and segments[at].any_depth}
        step = {at + 1 for at in reached - stay if at < end and segments[at].matches(part)}
        reached = _over_any_depth(segments, stay | step)
    return end in reached


def _over_any_depth(segments: list[_Segment], reached: set[int]) -> set[int]:
    """Add the positions after a `**`, which may also match no directory."""
    further = set(reached)
    for at in sorted(reached):
        while at < len(segments) and segments[at].any_depth:
            at += 1
            further.add(at)
    return further


def _plain(pattern: str) -> list[str]:
    """Expand braces into plain patterns."""
    expanded = [pattern]
    while any(_INNERMOST_BRACES.search(one) for one in expanded):
        expanded = [plain for one in expanded for plain in _expand_once(one)]
        if len(expanded) > _ALTERNATIVES:
            raise _invalid(pattern, f"expands to more than {_ALTERNATIVES} alternatives; use fewer braces")
    return expanded


def _expand_once(pattern: str) -> Iterator[str]:
    braces = _INNERMOST_BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    for alternative in braces[1].split(","):
        yield pattern[: braces.start()] + alternative + pattern[braces.end() :]


def _invalid(pattern: str, fault: str) -> Invalid:
    return Invalid(f"the glob {pattern[:200]!r} {fault}", code="INVALID_PATTERN")


class Selection:
    """Selected paths: files, whole directories, and whatever globs match. Without patterns, everything is selected.
    Hidden files are not selected; they are collected in `left_out`."""

    def __init__(self, patterns: Sequence[str] = (), hides: Hides = hide_nothing) -> None:
        self.left_out: set[str] = set()
        self._hides = hides
        self._all = not patterns
        self._paths = {tuple(map(encode, parse(pattern))) for pattern in patterns}
        self._globs = [Glob(pattern) for pattern in patterns if any(sign in pattern for sign in "*?[{")]

    def __contains__(self, path: object) -> bool:
        """Return whether a path of a tree is selected; one that ends in `/` is a directory."""
        text = str(path)
        if not (self._all or self._includes(tuple(text.rstrip("/").split("/")))):
            return False
        if self._hides(text):
            self.left_out.add(text)
            return False
        return True

    def _includes(self, parts: tuple[str, ...]) -> bool:
        return any(self._matches_path(parts[:depth]) for depth in range(len(parts) + 1))

    def _matches_path(self, parts: tuple[str, ...]) -> bool:
        return parts in self._paths or any(glob.matches(parts) for glob in self._globs)


def restore_selection(current: Tree, earlier: Tree, selection: Selection) -> Tree:
    """Return `current` with the selected paths as they were in `earlier`, deleted where they did not exist then.
    Refused if neither tree has a selected path."""
    if not any(path in selection for tree in (current, earlier) for path in (*tree.files, *tree.meta)):
        raise NotFound("neither that version nor the current files have anything at these paths", code="FILE_NOT_FOUND")
    taken = Tree(
        {path: digest for path, digest in earlier.files.items() if path in selection},
        {path: kind for path, kind in earlier.meta.items() if path in selection},
    )
    above = directories(taken)  # a file in the place of one of these directories is removed
    files = {path: digest for path, digest in current.files.items() if path not in selection and path not in above}
    meta = {path: kind for path, kind in current.meta.items() if path not in selection and path not in above}
    return Tree({**files, **taken.files}, {**meta, **taken.meta})
