"""Turns validation errors into readable sentences, one for each place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .errors import did_you_mean


def sentences(error: ValidationError, value: Any, known: Iterable[str] = ()) -> tuple[str, ...]:
    """Return one sentence for each place in `value`; `known` are the names allowed at its top."""
    problems: dict[tuple[str, str], list[str]] = {}
    for problem in error.errors(include_url=False, include_input=False):
        path, form = _place(problem, value)
        text = _describe(problem, path, known)
        texts = problems.setdefault((".".join(path), form), [])
        if text not in texts:
            texts.append(text)
    return tuple(_sentence(path, form, texts) for (path, form), texts in problems.items())


def _sentence(path: str, form: str, texts: list[str]) -> str:
    text = " or ".join(texts)
    if not path:
        return text.removeprefix(": ") + form
    return f"'{path}'{text if text.startswith(':') else f' {text}'}{form}"


def _place(problem: ErrorDetails, value: Any) -> tuple[list[str], str]:
    """Return the path of a problem in `value`, and the member of a union as which the value was read.

    Pydantic mixes the names of union members into the location. A part that is no key of the value is such a
    name, unless it is the missing key itself.
    """
    *parts, last = problem["loc"] or ("",)
    path: list[str] = []
    forms: list[str] = []
    for part in parts:
        if _has(value, part):
            path.append(str(part))
            value = value[part]
        else:
            forms.append(str(part))
    if _has(value, last) or problem["type"].startswith("missing"):
        path.append(str(last))
    elif not forms and not path:
        path.extend([str(last)] if last else [])
    return path, f" (as {forms[-1]})" if forms else ""


def _has(value: Any, part: int | str) -> bool:
    if isinstance(value, Mapping):
        return part in value
    return isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)


def _describe(problem: ErrorDetails, path: list[str], known: Iterable[str]) -> str:
    kind, message = problem["type"], problem["msg"]
    if kind.startswith("missing"):
        return "is required"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"is not an argument{did_you_mean(path[0], known)}" if known and len(path) == 1 else "is not expected"
    if kind == "json_invalid":
        return f"the arguments cannot be read: {message.removeprefix('Invalid JSON: ')}"
    if kind in ("value_error", "assertion_error"):
        return f": {message.partition(', ')[2]}"
    if message.startswith("Input should "):
        return message.removeprefix("Input ")
    return f": {message[:1].lower()}{message[1:]}"
