"""Protocol versions, reserved `_meta` keys and header names of MCP, shared by the server and the client side.

The MCP SDK defines the same values. They are repeated here because importing the SDK takes longer than everything else
a stdio client waits for at start; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Versions that begin with an `initialize` request, oldest first.
HANDSHAKE_PROTOCOL_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")

# Stateless versions: each request says its own version and capabilities.
MODERN_PROTOCOL_VERSIONS = ("2026-07-28",)

LATEST_HANDSHAKE_VERSION = HANDSHAKE_PROTOCOL_VERSIONS[-1]
LATEST_MODERN_VERSION = MODERN_PROTOCOL_VERSIONS[-1]

PROTOCOL_VERSION_META_KEY = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_META_KEY = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_META_KEY = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_META_KEY = "io.modelcontextprotocol/logLevel"
SERVER_INFO_META_KEY = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID_META_KEY = "io.modelcontextprotocol/subscriptionId"

MCP_PROTOCOL_VERSION_HEADER = "mcp-protocol-version"
MCP_METHOD_HEADER = "mcp-method"
MCP_NAME_HEADER = "mcp-name"
# Marks a property of an input schema whose value is sent as an HTTP header too.
X_MCP_HEADER_KEY = "x-mcp-header"

# Methods with the parameter that is repeated in the `Mcp-Name` header.
NAME_BEARING_METHODS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

# The path of streamable HTTP; profiles are below it.
HTTP_PATH = "/mcp"

# The extension of MCP Apps, the media type of its views, and the scheme of their URIs.
UI_EXTENSION = "io.modelcontextprotocol/ui"
UI_MIME_TYPE = "text/html;profile=mcp-app"
UI_SCHEME = "ui://"
# The `_meta` key of a tool's view in older MCP Apps, beside `ui.resourceUri`.
UI_FLAT_KEY = "ui/resourceUri"

LOG_LEVELS = frozenset({"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"})

_ORDER = (*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS)


def is_version_at_least(version: str, minimum: str) -> bool:
    """Return whether a known version is as new as `minimum`; an unknown one is not."""
    return version in _ORDER and _ORDER.index(version) >= _ORDER.index(minimum)


def supports_apps(capabilities: Mapping[str, Any]) -> bool:
    """Return whether a client declares that it shows views of MCP Apps. One that names media types needs ours."""
    extensions = capabilities.get("extensions")
    declared = extensions.get(UI_EXTENSION) if isinstance(extensions, Mapping) else None
    if not isinstance(declared, Mapping):
        return False
    types = declared.get("mimeTypes")
    return not isinstance(types, list) or not types or UI_MIME_TYPE in types
