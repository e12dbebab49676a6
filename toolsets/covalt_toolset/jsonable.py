"""Converts returned values to JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pydantic_core import to_jsonable_python

from .errors import BadReturn


def to_jsonable(value: Any) -> Any:
    """Convert models, dataclasses, paths, dates, sets, enums and the like to plain JSON values.

    Refused, since JSON cannot represent them: objects of unknown classes, cycles, bytes that are not UTF-8,
    lone surrogates, NaN and infinities. A `null` in their place would change the result.
    """
    return dump_json(lambda: to_jsonable_python(value, by_alias=True))


def dump_json(dump: Callable[[], Any]) -> Any:
    """Return the result of `dump`, or raise `BadReturn` when JSON cannot represent it."""
    try:
        plain = dump()
    except UnicodeDecodeError as error:
        raise BadReturn("returned bytes that are no UTF-8; write them to a file, or encode them as base64") from error
    except UnicodeEncodeError as error:
        raise BadReturn(f"returned {error.object!a}, which is no Unicode text") from error
    except ValueError as error:
        raise BadReturn(f"returned what JSON cannot represent: {_lowercase_first(str(error))}") from error
    _check(plain, ())
    return plain


def _check(value: Any, path: tuple[str, ...]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _check(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, (*path, str(index)))
    elif isinstance(value, float) and not math.isfinite(value):
        raise BadReturn(f"returned {value}{_at(path)}, and JSON has no such number; return None or a text instead")
    elif isinstance(value, str) and not _is_unicode(value):
        raise BadReturn(f"returned {value!a}{_at(path)}, which is no Unicode text")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _at(path: tuple[str, ...]) -> str:
    return f" at '{'.'.join(path)}'" if path else ""


def _lowercase_first(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"
