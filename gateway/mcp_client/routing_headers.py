"""Routing headers of modern requests, by the SDK's own rules.

The SDK is imported by the first tool that has such headers: importing it takes longer than the rest of a start.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from gateway.calls import to_json
from gateway.protocol import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    X_MCP_HEADER_KEY,
)

# Which arguments of a tool travel as headers too: the path of each, and its header's name.
HeaderMap = Mapping[tuple[str, ...], str]


def routing_headers(
    version: str, method: str, params: Mapping[str, Any], header_maps: Mapping[str, HeaderMap]
) -> list[tuple[str, str]]:
    """The headers by which an intermediary may route a modern request; they must say what the body says."""
    headers = [(MCP_PROTOCOL_VERSION_HEADER, version), (MCP_METHOD_HEADER, method)]
    key = NAME_BEARING_METHODS.get(method)
    if key is None or not isinstance(name := params.get(key), str):
        return headers
    headers.append((MCP_NAME_HEADER, _inbound().encode_header_value(name)))
    if method == "tools/call" and (header_map := header_maps.get(name)):
        headers += _inbound().mcp_param_headers(header_map, params.get("arguments") or {}).items()
    return headers


def header_maps(tools: Iterable[Any]) -> dict[str, HeaderMap]:
    """Of tools as listed: those with arguments that travel as headers. A tool whose annotations are
    invalid sends none."""
    found: dict[str, HeaderMap] = {}
    for tool in tools:
        match tool:
            case {"name": str(name), "inputSchema": dict(schema)} if _mentions_headers(schema):
                if find_invalid_header(schema) is None:
                    found[name] = _inbound().x_mcp_header_map(schema)
    return found


def find_invalid_header(schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the headers that an input schema declares."""
    if not _mentions_headers(schema):
        return None
    fault: str | None = _inbound().find_invalid_x_mcp_header(schema)
    return fault


def _mentions_headers(schema: Mapping[str, Any]) -> bool:
    return X_MCP_HEADER_KEY.encode() in to_json(schema)


@cache
def _inbound() -> Any:
    return importlib.import_module("mcp.shared.inbound")
