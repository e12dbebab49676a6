"""Parses cells: a number, a date, a boolean, missing, or text."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Literal

Kind = Literal["integer", "number", "boolean", "date", "datetime", "text", "missing"]
MISSING = frozenset(["", "na", "n/a", "#n/a", "nan", "null", "none", "nil"])
_LONGEST = 40  # no number or date is longer
_CACHE = 10_000
_LARGEST = 1e100  # squares of larger numbers, and sums of these, may overflow

# A leading zero makes a code of digits, such as a postcode, which is no number.
# So do more digits than a float holds.
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,14})")
_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]{0,14})(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
_COMMA = re.compile(r"[-+]?(?:[0-9]{1,3}(?:\.[0-9]{3})+|0|[1-9][0-9]{0,14}),[0-9]+")
_DATE = re.compile(r"([0-9]{4})[-/]([0-9]{2})(?:[-/]([0-9]{2}))?")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}.*")

# The kind, and the value of numbers, dates (seconds since 1970, UTC) and booleans; else 0.
Value = tuple[Kind, float]

_NOTHING: Value = ("missing", 0.0)
_TEXT: Value = ("text", 0.0)


def parse(text: str, decimal_comma: bool = False) -> Value:
    """Return the kind and value of a cell."""
    plain = text.strip()
    if len(plain) > _LONGEST:
        return _TEXT
    if _INTEGER.fullmatch(plain):
        return "integer", float(plain)
    if _NUMBER.fullmatch(plain) and abs(number := float(plain)) <= _LARGEST:
        return "number", number
    if decimal_comma and _COMMA.fullmatch(plain):
        return "number", float(plain.replace(".", "").replace(",", "."))
    lowered = plain.lower()
    if lowered in MISSING:
        return _NOTHING
    if lowered in ("true", "false"):
        return "boolean", float(lowered == "true")
    return _moment(plain) or _TEXT


def reader(decimal_comma: bool = False) -> Callable[[str], Value]:
    """Return `parse` with a cache; long texts are not cached, since they could be of any size."""
    cached = lru_cache(_CACHE)(partial(parse, decimal_comma=decimal_comma))
    return lambda text: cached(text) if len(text) <= _LONGEST else parse(text, decimal_comma)


def format_value(value: float, kind: Kind) -> float | int | str:
    """Return a number, or a date in ISO format."""
    if kind in ("date", "datetime"):
        moment = datetime.fromtimestamp(value, UTC).replace(tzinfo=None)
        return moment.date().isoformat() if kind == "date" else moment.isoformat(timespec="seconds")
    return int(value) if kind == "integer" and value.is_integer() else value


def _moment(plain: str) -> Value | None:
    kind: Kind = "date"
    try:
        if match := _DATE.fullmatch(plain):
            moment = datetime(int(match[1]), int(match[2]), int(match[3] or 1), tzinfo=UTC)
        elif _TIME.fullmatch(plain):
            kind, moment = "datetime", datetime.fromisoformat(plain)
        else:
            return None
        return kind, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
