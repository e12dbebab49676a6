"""Which paths a glob means, decided in time linear in the path."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from gateway.errors import Invalid
from gateway.workspace.openat import Parts

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
