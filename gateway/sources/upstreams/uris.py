"""Map upstreams' URIs to public URIs and back, without a table: the server's prefix is part of the public URI."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.protocol import UI_FLAT_KEY, UI_SCHEME

if TYPE_CHECKING:
    from gateway.sources.upstreams.spec import Spec

_BLOCKS_WITH_URI = ("resource_link", "resource")
_SCHEME = "mcp+"
_PLAIN = re.compile(r"[a-z0-9][a-z0-9-]*")
_ENCODED = re.compile(r"x\.([a-z2-7]+)")


def public_uri(prefix: str, uri: str) -> str:
    """The public URI, or URI template, of an upstream's. An empty prefix changes nothing. `ui://` URIs keep their
    scheme, by which hosts recognise pages."""
    if not prefix:
        return uri
    if uri.startswith(UI_SCHEME):
        return f"{UI_SCHEME}{_encode(prefix)}/{uri.removeprefix(UI_SCHEME)}"
    return f"{_SCHEME}{_encode(prefix)}:{uri}"


def split_uri(uri: str) -> tuple[str, str] | None:
    """The prefix and the upstream's own URI of a public URI; None if it names no upstream."""
    if uri.startswith(UI_SCHEME):
        encoded, slash, rest = uri.removeprefix(UI_SCHEME).partition("/")
        return (_decode(encoded), f"{UI_SCHEME}{rest}") if slash else None
    if not uri.startswith(_SCHEME):
        return None
    encoded, colon, rest = uri.removeprefix(_SCHEME).partition(":")
    return (_decode(encoded), rest) if colon else None


def prefix_of(spec: Spec) -> str:
    """The prefix of a server's public URIs: its prefix for tools, else its name."""
    return spec.name if spec.settings.prefix is None else spec.settings.prefix


def public_meta(prefix: str, wire: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's definition or result with the public URI of its page; the same object if it names none."""
    meta = wire.get("_meta")
    if not prefix or not has_page(wire) or not isinstance(meta, Mapping):
        return wire
    changed = dict(meta)
    if isinstance(changed.get(UI_FLAT_KEY), str):
        changed[UI_FLAT_KEY] = public_uri(prefix, changed[UI_FLAT_KEY])
    page = changed.get("ui")
    if isinstance(page, Mapping) and isinstance(page.get("resourceUri"), str):
        changed["ui"] = {**page, "resourceUri": public_uri(prefix, page["resourceUri"])}
    return {**wire, "_meta": changed}


def has_page(tool: Any) -> bool:
    """Return whether a listed tool has a page."""
    match tool:
        case {"_meta": {"ui": {"resourceUri": str()}}} | {"_meta": {"ui/resourceUri": str()}}:
            return True
    return False


def public_blocks(prefix: str, blocks: list[Any]) -> list[Any]:
    """Content blocks with public URIs; the same list if there are none."""
    if not prefix:
        return blocks
    changed = blocks
    for index, block in enumerate(blocks):
        if isinstance(block, dict) and block.get("type") in _BLOCKS_WITH_URI:
            public = _public_block(prefix, block)
            if public is not block:
                changed = list(blocks) if changed is blocks else changed
                changed[index] = public
    return changed


def _public_block(prefix: str, block: dict[str, Any]) -> dict[str, Any]:
    match block:
        case {"type": "resource_link", "uri": str(uri)}:
            return {**block, "uri": public_uri(prefix, uri)}
        case {"type": "resource", "resource": {"uri": str(uri)} as resource}:
            return {**block, "resource": {**resource, "uri": public_uri(prefix, uri)}}
    return block


def _encode(prefix: str) -> str:
    """The prefix in characters that a case-insensitive scheme or host allows."""
    if _PLAIN.fullmatch(prefix):
        return prefix
    return "x." + base64.b32encode(prefix.encode()).decode().lower().rstrip("=")


def _decode(encoded: str) -> str:
    match = _ENCODED.fullmatch(encoded)
    if match is None:
        return encoded
    padding = "=" * (-len(match[1]) % 8)
    try:
        return base64.b32decode(match[1].upper() + padding).decode()
    except ValueError:
        return encoded
