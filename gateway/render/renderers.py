"""The four renderers, and what their configs may say before a call fills them in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import Invalid
from gateway.names import did_you_mean
from gateway.render.interpolate import roots
from gateway.render.references import artifact_path, check_url_template, named, port_number, workspace_path
from gateway.tools import Renderer

LANGUAGE_LIMIT = 64
_DEPTH_LIMIT = 32


@dataclass(frozen=True)
class _Shape:
    """The keys a renderer takes, each with what it refuses, and those of which exactly one is said."""

    keys: Mapping[str, Callable[[Any], None]]
    one_of: tuple[str, ...]


def declare(kind: str, config: Mapping[str, Any]) -> Renderer:
    """The renderer a toolset declares; refused by name and key when it could never be shown.

    A key with no value counts as unsaid, but for `data`, where null is data.
    """
    shape = _SHAPES.get(kind)
    if shape is None:
        near = did_you_mean(str(kind), RENDERERS) or f"; there are {', '.join(RENDERERS)}"
        raise Invalid(f"there is no renderer {kind!r}{near}", code="INVALID_RENDERER", renderer=kind)
    said = {key: value for key, value in config.items() if value is not None or key == "data"}
    for key, value in said.items():
        _check(kind, shape, key, value)
    _check_combination(kind, shape, said)
    return Renderer(kind, said)


def _check(kind: str, shape: _Shape, key: str, value: Any) -> None:
    if key not in shape.keys:
        near = did_you_mean(str(key), shape.keys) or f"; it takes {', '.join(shape.keys)}"
        raise _refusal(kind, key, f"unknown key {key!r}{near}")
    try:
        shape.keys[key](value)
    except Invalid as error:
        raise _refusal(kind, key, f"'{key}': {error.message}") from None


def _check_combination(kind: str, shape: _Shape, said: Mapping[str, Any]) -> None:
    found = [key for key in shape.one_of if key in said]
    choice = " or ".join(repr(key) for key in shape.one_of)
    if not found:
        raise _refusal(kind, shape.one_of[0], f"{choice} is required")
    if len(found) > 1:
        raise _refusal(kind, found[1], f"it takes {choice}, not both")


def _refusal(kind: str, key: str, reason: str) -> Invalid:
    return Invalid(f"renderer {kind!r}: {reason}", code="INVALID_RENDERER", renderer=kind, key=key)


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise Invalid(f'{named(value)} is no text; write text or an expression such as "$return.text"')


def _file(value: Any) -> None:
    if not (isinstance(value, str) and roots(value)):
        workspace_path(value.replace("$$", "$") if isinstance(value, str) else value)


def _language(value: Any) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= LANGUAGE_LIMIT:
        raise Invalid(f"{named(value)} is no language; write one such as 'python', or 'auto'")


def _flag(value: Any) -> None:
    if not isinstance(value, bool) and not (isinstance(value, str) and roots(value)):
        raise Invalid(f"{named(value)} is neither true nor false nor an expression")


def _artifact(value: Any) -> None:
    artifact_path(value)


def _port(value: Any) -> None:
    if not (isinstance(value, str) and roots(value)):
        port_number(value)


def _data(value: Any, depth: int = 0) -> None:
    if depth > _DEPTH_LIMIT:
        raise Invalid(f"it is nested deeper than {_DEPTH_LIMIT} levels")
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        _data(item, depth + 1)


_SHAPES = {
    "code": _Shape({"file": _file, "content": _text, "language": _language, "editable": _flag}, ("file", "content")),
    "document": _Shape({"file": _file, "content": _text, "editable": _flag}, ("file", "content")),
    "html": _Shape({"artifact": _artifact, "data": _data}, ("artifact",)),
    "frame": _Shape({"url": check_url_template, "port": _port}, ("url", "port")),
}

RENDERERS = tuple(_SHAPES)
