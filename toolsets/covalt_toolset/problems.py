"""What is wrong with a value, in one readable sentence for each place where something is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .errors import did_you_mean


def sentences(error: ValidationError, value: Any, known: Iterable[str] = ()) -> tuple[str, ...]:
    """One sentence for each place in `value`; `known` are the names that may stand at its top."""
    complaints: dict[tuple[str, str], list[str]] = {}
    for each in error.errors(include_url=False, include_input=False):
        path, form = _place(each, value)
        complaint = _complaint(each, path, known)
        found = complaints.setdefault((".".join(path), form), [])
        if complaint not in found:
            found.append(complaint)
    return tuple(_sentence(path, form, found) for (path, form), found in complaints.items())


def _sentence(path: str, form: str, complaints: list[str]) -> str:
    told = " or ".join(complaints)
    if not path:
        return told.removeprefix(": ") + form
    return f"'{path}'{told if told.startswith(':') else f' {told}'}{form}"


def _place(problem: ErrorDetails, value: Any) -> tuple[list[str], str]:
    """Where the problem is in `value`, and as which form of a union it was read there.

    Pydantic mixes the names of a union's forms into the location; what is no key of the value is
    such a name, unless it is the very key that is missing.
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


def _complaint(problem: ErrorDetails, path: list[str], known: Iterable[str]) -> str:
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
