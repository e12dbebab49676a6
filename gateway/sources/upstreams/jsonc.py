"""JSON as people write it into settings: with comments, and with commas after which nothing comes."""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.errors import Invalid

_STRING = r'"(?:[^"\\]|\\.)*+"'
_COMMENT = re.compile(rf"{_STRING}|//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_INK = re.compile(r"[^\r\n]")


def loads(text: str) -> Any:
    """The value of a text. What is no JSON even so is refused with its line and column."""
    text = text.removeprefix("\ufeff")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        plain = _COMMA.sub(_blanked, _COMMENT.sub(_blanked, text))
    try:
        return json.loads(plain, strict=False)
    except json.JSONDecodeError as error:
        raise Invalid(f"line {error.lineno} column {error.colno}: {error.msg}", code="INVALID_JSON") from None
    except (ValueError, RecursionError):
        raise Invalid("it is nested too deeply, or has a number nobody can read", code="INVALID_JSON") from None


def _blanked(match: re.Match[str]) -> str:
    """Spaces in place of what is not JSON's, so that every other character keeps its place."""
    return match[0] if match[0].startswith('"') else _INK.sub(" ", match[0])
