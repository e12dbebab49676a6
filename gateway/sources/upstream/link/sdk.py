"""Everything of the SDK that a link touches, in one place; its contract is held by a test per item."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    X_MCP_HEADER_KEY,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from ....calls import to_json

__all__ = [
    "CLIENT_CAPABILITIES_META_KEY",
    "CLIENT_INFO_META_KEY",
    "HANDSHAKE_PROTOCOL_VERSIONS",
    "INTERNAL_ERROR",
    "INVALID_REQUEST",
    "LATEST_HANDSHAKE_VERSION",
    "LATEST_MODERN_VERSION",
    "LOG_LEVEL_META_KEY",
    "MCP_PROTOCOL_VERSION_HEADER",
    "METHOD_NOT_FOUND",
    "MODERN_PROTOCOL_VERSIONS",
    "PROTOCOL_VERSION_META_KEY",
    "SERVER_INFO_META_KEY",
    "SUBSCRIPTION_ID_META_KEY",
    "UNSUPPORTED_PROTOCOL_VERSION",
    "HeaderMap",
    "header_maps",
    "routing_headers",
]

HeaderMap = Mapping[tuple[str, ...], str]
"""Which arguments of a tool travel as headers too: the path of each, and its header's name."""


def routing_headers(
    version: str, method: str, params: Mapping[str, Any], header_maps: Mapping[str, HeaderMap]
) -> list[tuple[str, str]]:
    """The headers by which an intermediary may route a modern request; they must say what the body says."""
    headers = [(MCP_PROTOCOL_VERSION_HEADER, version), (MCP_METHOD_HEADER, method)]
    key = NAME_BEARING_METHODS.get(method)
    if key is None or not isinstance(name := params.get(key), str):
        return headers
    headers.append((MCP_NAME_HEADER, encode_header_value(name)))
    if method == "tools/call" and (header_map := header_maps.get(name)):
        headers += mcp_param_headers(header_map, params.get("arguments") or {}).items()
    return headers


def header_maps(tools: Iterable[Any]) -> dict[str, HeaderMap]:
    """Of tools as listed: those with arguments that travel as headers. A tool whose annotations are
    invalid sends none."""
    found: dict[str, HeaderMap] = {}
    for tool in tools:
        match tool:
            case {"name": str(name), "inputSchema": dict(schema)} if _mentions_headers(schema):
                if find_invalid_x_mcp_header(schema) is None:
                    found[name] = x_mcp_header_map(schema)
    return found


def _mentions_headers(schema: dict[str, Any]) -> bool:
    return X_MCP_HEADER_KEY.encode() in to_json(schema)
