"""The way to one upstream MCP server, of any era and over any transport, spoken to in raw dicts."""

from __future__ import annotations

from gateway.mcp_client.client import Link, Listening
from gateway.mcp_client.connect import open_link
from gateway.mcp_client.endpoints import ClientFace, Confinement, Endpoint, HttpEndpoint, StdioEndpoint
from gateway.mcp_client.errors import BadAnswer, LinkLost, McpFault, Unauthorized, Unreachable
from gateway.mcp_client.pending_request import Asker, Log

__all__ = [
    "Asker",
    "BadAnswer",
    "ClientFace",
    "Confinement",
    "Endpoint",
    "HttpEndpoint",
    "Link",
    "LinkLost",
    "Listening",
    "Log",
    "McpFault",
    "StdioEndpoint",
    "Unauthorized",
    "Unreachable",
    "open_link",
]
