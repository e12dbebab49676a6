"""Text to show to a person: what others wrote, made safe, and amounts."""

from __future__ import annotations

import re
import unicodedata

# Characters that are invisible, or that reorder or overwrite their neighbours.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

_INVISIBLE_CATEGORIES = frozenset(["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"])


def visible(text: str) -> str:
    """Return the text with invisible and reordering characters spelled out: `<U+200B>`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"<U+{ord(character):04X}>" if _is_invisible(character) else character for character in text)


def visible_line(text: str) -> str:
    """Return the text as one line, with invisible characters spelled out: what others wrote cannot look like ours."""
    return visible(" ".join(text.split()))


def count_bytes(size: int) -> str:
    """`1 byte`, `2 bytes`."""
    return f"{size} byte{'' if size == 1 else 's'}"


def _is_invisible(character: str) -> bool:
    if character in "\n\t":
        return False
    return unicodedata.category(character) in _INVISIBLE_CATEGORIES or INVISIBLE.match(character) is not None
