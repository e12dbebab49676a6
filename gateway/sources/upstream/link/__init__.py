"""The way to one upstream MCP server, of any era and over any transport, spoken to in raw dicts."""

from __future__ import annotations

from .endpoints import ClientFace, Confinement, Endpoint, HttpEndpoint, StdioEndpoint
from .exchange import Asker, Log
from .faults import BadAnswer, LinkLost, McpFault, Unauthorized, Unreachable
from .link import Link
from .listening import Listening
from .opening import open_link

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
