"""What a tool returned, as JSON can carry it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pydantic_core import to_jsonable_python

from .errors import BadReturn


def to_jsonable(value: Any) -> Any:
    """`value` with models, dataclasses, paths, dates, sets, enums and the like as JSON has them.

    Refused, because JSON has no such thing: an object of an unknown class, a cycle, bytes that are
    no UTF-8, text with half a surrogate pair, and NaN and the infinities. A `null` in their place
    would say something else than the tool did.
    """
    return carried(lambda: to_jsonable_python(value, by_alias=True))


def carried(dump: Callable[[], Any]) -> Any:
    """What `dump` makes, if JSON can carry it."""
    try:
        plain = dump()
    except UnicodeDecodeError as error:
        raise BadReturn("returned bytes that are no UTF-8; write them to a file, or encode them as base64") from error
    except UnicodeEncodeError as error:
        raise BadReturn(f"returned {error.object!a}, which is no Unicode text") from error
    except ValueError as error:
        raise BadReturn(f"returned what JSON cannot carry: {_lowered(str(error))}") from error
    _check(plain, ())
    return plain


def _check(value: Any, path: tuple[str, ...]) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            _check(each, (*path, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _check(each, (*path, str(index)))
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


def _lowered(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}"
