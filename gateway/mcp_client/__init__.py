"""An MCP client for one upstream server, of any protocol version and over any transport; messages are plain dicts."""

from __future__ import annotations

from gateway.mcp_client.client import McpClient, Subscription
from gateway.mcp_client.connect import open_client
from gateway.mcp_client.endpoints import ClientIdentity, Confinement, Endpoint, HttpEndpoint, StdioEndpoint
from gateway.mcp_client.messages import ConnectionLost, ConnectTimeout, InvalidResponse, Unauthorized, Unreachable

__all__ = [
    "ClientIdentity",
    "Confinement",
    "ConnectTimeout",
    "ConnectionLost",
    "Endpoint",
    "HttpEndpoint",
    "InvalidResponse",
    "McpClient",
    "StdioEndpoint",
    "Subscription",
    "Unauthorized",
    "Unreachable",
    "open_client",
]
