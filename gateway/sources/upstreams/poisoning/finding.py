"""Findings: reasons to review a definition, with excerpts of its text."""

from __future__ import annotations

import enum
from typing import NamedTuple

from gateway.text import visible
from gateway.value import Value

_AROUND = 50
_QUOTED = 200


class Severity(str, enum.Enum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    def at_least(self, other: Severity) -> bool:
        return _RANKS[self] >= _RANKS[other]

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS = {severity: rank for rank, severity in enumerate(Severity)}
LOW, MEDIUM, HIGH = Severity


class Finding(Value):
    """A reason to review a definition. `where` is a JSON pointer; the excerpt has invisible characters spelled out."""

    where: str
    what: str
    excerpt: str
    severity: Severity


class Remark(NamedTuple):
    """A finding in one text, without its place in the definition."""

    what: str
    excerpt: str
    severity: Severity


def excerpt(text: str, start: int, end: int) -> str:
    """The text from `start` to `end` with some context, on one line."""
    begin, stop = max(0, start - _AROUND), min(len(text), end + _AROUND)
    quoted = " ".join(visible(text[begin:stop]).split())
    shown = f"{'…' if begin else ''}{quoted}{'…' if stop < len(text) else ''}"
    return shown if len(shown) <= _QUOTED else f"{shown[:_QUOTED]}…"
