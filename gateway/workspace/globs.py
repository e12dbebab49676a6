"""Which paths a glob means, decided in time linear in the path."""

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

    A pattern without `/` means the name at any depth; with one, the path from where the search
    begins.
    """

    def __init__(self, pattern: str) -> None:
        if not pattern.strip("/") or len(pattern) > PATTERN_LIMIT:
            raise _invalid(pattern, f"is empty or longer than {PATTERN_LIMIT} characters")
        self.pattern = pattern
        self._patterns = [_segments(plain) for plain in _plain(pattern)]

    def matches(self, parts: Parts) -> bool:
        return any(_matches(segments, parts) for segments in self._patterns)

    def spells(self, name: str) -> bool:
        """Whether the pattern names what `*` would not mean: a hidden name, or exactly this one."""
        return any(segment.spells(name) for segments in self._patterns for segment in segments)


class _Segment:
    """One component of a pattern, or `**`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._expression = re.compile(fnmatch.translate(text))
        self.any_depth = text == _ANY_DEPTH

    def matches(self, name: str) -> bool:
        return self._expression.match(name) is not None

    def spells(self, name: str) -> bool:
        return self._text == name or (self._text.startswith(".") and self.matches(name))


def _segments(pattern: str) -> list[_Segment]:
    texts = [text for text in pattern.split("/") if text not in ("", ".")]
    if texts[-1:] == [_ANY_DEPTH]:
        texts.append("*")  # `src/**` is what is in src, not src itself
    anchored = "/" in pattern.rstrip("/")
    return [_Segment(text) for text in (texts if anchored else [_ANY_DEPTH, *texts])]


def _matches(segments: list[_Segment], parts: Parts) -> bool:
    """`reached` holds how many segments may be used up after each part: one pass, no backtracking."""
    end = len(segments)
    reached = _over_any_depth(segments, {0})
    for part in parts:
        stay = {at for at in reached if at < end and segments[at].any_depth}
        step = {at + 1 for at in reached - stay if at < end and segments[at].matches(part)}
        reached = _over_any_depth(segments, stay | step)
    return end in reached


def _over_any_depth(segments: list[_Segment], reached: set[int]) -> set[int]:
    """`**` may also stand for no directory at all."""
    further = set(reached)
    for at in sorted(reached):
        while at < len(segments) and segments[at].any_depth:
            at += 1
            further.add(at)
    return further


def _plain(pattern: str) -> list[str]:
    """The patterns a pattern with braces stands for."""
    expanded = [pattern]
    while any(_INNERMOST_BRACES.search(one) for one in expanded):
        expanded = [plain for one in expanded for plain in _expand_once(one)]
        if len(expanded) > _ALTERNATIVES:
            raise _invalid(pattern, f"stands for more than {_ALTERNATIVES} alternatives; use fewer braces")
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
    """A path means that file, or all that is in that directory; a glob means what it matches, and
    all that is in a directory it matches. No pattern at all means everything. Of what is meant, a file that is hidden
    is `left_out`."""

    def __init__(self, patterns: Sequence[str] = (), hides: Hides = hide_nothing) -> None:
        self.left_out: set[str] = set()
        self._hides = hides
        self._all = not patterns
        self._paths = {tuple(map(encode, parse(pattern))) for pattern in patterns}
        self._globs = [Glob(pattern) for pattern in patterns if any(sign in pattern for sign in "*?[{")]

    def __contains__(self, path: object) -> bool:
        """Whether a path of a tree is meant; one that ends in `/` is a directory."""
        text = str(path)
        if not (self._all or self._includes(tuple(text.rstrip("/").split("/")))):
            return False
        if self._hides(text):
            self.left_out.add(text)
            return False
        return True

    def _includes(self, parts: tuple[str, ...]) -> bool:
        return any(self._means(parts[:depth]) for depth in range(len(parts) + 1))

    def _means(self, parts: tuple[str, ...]) -> bool:
        return parts in self._paths or any(glob.matches(parts) for glob in self._globs)


def brought_back(current: Tree, earlier: Tree, selection: Selection) -> Tree:
    """`current`, but what is selected as it was in `earlier`: there as it was there, gone where it was
    not. Refused when neither has anything that is selected."""
    if not any(path in selection for tree in (current, earlier) for path in (*tree.files, *tree.meta)):
        raise NotFound("neither that version nor the files now have anything at these paths", code="FILE_NOT_FOUND")
    taken = Tree(
        {path: digest for path, digest in earlier.files.items() if path in selection},
        {path: kind for path, kind in earlier.meta.items() if path in selection},
    )
    above = directories(taken)  # a file that stands where one of these must be gives way
    files = {path: digest for path, digest in current.files.items() if path not in selection and path not in above}
    meta = {path: kind for path, kind in current.meta.items() if path not in selection and path not in above}
    return Tree({**files, **taken.files}, {**meta, **taken.meta})
