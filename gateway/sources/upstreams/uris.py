"""Upstreams' URIs as ours: told apart by server, and back again without a table."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.sources.upstreams.spec import Spec

APP = "ui://"
# How older MCP Apps name a tool's page in its `_meta`.
PAGE = "ui/resourceUri"

_ADDRESSED = ("resource_link", "resource")
_SCHEME = "mcp+"
_PLAIN = re.compile(r"[a-z0-9][a-z0-9-]*")
_SPELLED = re.compile(r"x\.([a-z2-7]+)")


def outer(prefix: str, uri: str) -> str:
    """The URI, or URI template, under which clients find an upstream's. The empty prefix leaves it as it is;
    pages keep the scheme by which hosts know them."""
    if not prefix:
        return uri
    if uri.startswith(APP):
        return f"{APP}{_spelled(prefix)}/{uri.removeprefix(APP)}"
    return f"{_SCHEME}{_spelled(prefix)}:{uri}"


def inner(uri: str) -> tuple[str, str] | None:
    """The prefix and the upstream's own URI; None for one that names no upstream."""
    if uri.startswith(APP):
        spelled, slash, rest = uri.removeprefix(APP).partition("/")
        return (_read(spelled), f"{APP}{rest}") if slash else None
    if not uri.startswith(_SCHEME):
        return None
    spelled, colon, rest = uri.removeprefix(_SCHEME).partition(":")
    return (_read(spelled), rest) if colon else None


def prefix_of(spec: Spec) -> str:
    """What tells a server's URIs from others': its own prefix for tools, else its name."""
    return spec.name if spec.settings.prefix is None else spec.settings.prefix


def outer_tool(prefix: str, wire: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's definition with the address of its page as clients find it."""
    meta = wire.get("_meta")
    if not prefix or not isinstance(meta, Mapping):
        return wire
    changed = dict(meta)
    if isinstance(changed.get(PAGE), str):
        changed[PAGE] = outer(prefix, changed[PAGE])
    page = changed.get("ui")
    if isinstance(page, Mapping) and isinstance(page.get("resourceUri"), str):
        changed["ui"] = {**page, "resourceUri": outer(prefix, page["resourceUri"])}
    return {**wire, "_meta": changed}


def outer_blocks(prefix: str, blocks: list[Any]) -> list[Any]:
    """Content with the URIs in it as clients find them; the very same where there are none."""
    if not prefix:
        return blocks
    shown = blocks
    for place, block in enumerate(blocks):
        if isinstance(block, dict) and block.get("type") in _ADDRESSED:
            changed = _outer_block(prefix, block)
            if changed is not block:
                shown = list(blocks) if shown is blocks else shown
                shown[place] = changed
    return shown


def _outer_block(prefix: str, block: dict[str, Any]) -> dict[str, Any]:
    match block:
        case {"type": "resource_link", "uri": str(uri)}:
            return {**block, "uri": outer(prefix, uri)}
        case {"type": "resource", "resource": {"uri": str(uri)} as held}:
            return {**block, "resource": {**held, "uri": outer(prefix, uri)}}
    return block


def _spelled(prefix: str) -> str:
    """The prefix as a scheme or host takes it, which ignore case."""
    if _PLAIN.fullmatch(prefix):
        return prefix
    return "x." + base64.b32encode(prefix.encode()).decode().lower().rstrip("=")


def _read(spelled: str) -> str:
    match = _SPELLED.fullmatch(spelled)
    if match is None:
        return spelled
    padding = "=" * (-len(match[1]) % 8)
    try:
        return base64.b32decode(match[1].upper() + padding).decode()
    except ValueError:
        return spelled
