"""A reason to look at a definition, and how its text is quoted so that nothing in it stays invisible."""

from __future__ import annotations

import enum
import re
import unicodedata
from dataclasses import dataclass
from typing import NamedTuple

_AROUND = 50
_QUOTED = 200

# Characters that show nothing, or turn around or overwrite what stands beside them.
UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

_UNSEEN_CATEGORIES = frozenset(["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"])


class Severity(str, enum.Enum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    def reaches(self, other: Severity) -> bool:
        return _RANKS[self] >= _RANKS[other]

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS = {severity: rank for rank, severity in enumerate(Severity)}
LOW, MEDIUM, HIGH = Severity


@dataclass(frozen=True)
class Finding:
    """Where (a JSON pointer), what, an excerpt in which everything can be seen, and how grave it is."""

    where: str
    what: str
    excerpt: str
    severity: Severity


class Remark(NamedTuple):
    """A finding about one text, before it is known where that stands."""

    what: str
    excerpt: str
    severity: Severity


def visible(text: str) -> str:
    """The text with every character spelled out that cannot be seen or moves others: `<U+200B>`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"<U+{ord(each):04X}>" if _is_unseen(each) else each for each in text)


def excerpt(text: str, start: int, end: int) -> str:
    """What stands at a place and a little around it, on one line."""
    begin, stop = max(0, start - _AROUND), min(len(text), end + _AROUND)
    quoted = " ".join(visible(text[begin:stop]).split())
    shown = f"{'…' if begin else ''}{quoted}{'…' if stop < len(text) else ''}"
    return shown if len(shown) <= _QUOTED else f"{shown[:_QUOTED]}…"


def _is_unseen(character: str) -> bool:
    if character in "\n\t":
        return False
    return unicodedata.category(character) in _UNSEEN_CATEGORIES or UNSEEN.match(character) is not None
