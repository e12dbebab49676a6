"""The ways a link says no: the server's own errors, and what can befall the way to it.

McpFault             the server answered with a JSON-RPC error
Unavailable
├── Unreachable      nothing of the request has reached the server: it may be sent again
├── LinkLost         it was sent, or the link is gone: nobody knows what became of it
├── BadAnswer        the server answered something that is no MCP
└── Unauthorized     the server wants credentials, or others
"""

from __future__ import annotations

from typing import Any

from gateway.errors import Unavailable
from gateway.protocol.jsonrpc import RpcError as McpFault

__all__ = ["BadAnswer", "LinkLost", "McpFault", "Unauthorized", "Unreachable"]


class Unreachable(Unavailable):
    default_code = "UPSTREAM_UNREACHABLE"


class LinkLost(Unavailable):
    """`exit_code` and `stderr`, its last lines, tell of a child that ended. What a program writes to stderr
    may be private, so it is in neither the message nor the details."""

    default_code = "UPSTREAM_LOST"

    def __init__(self, message: str, *, exit_code: int | None = None, stderr: str = "") -> None:
        super().__init__(message)
        if exit_code is not None:
            self.details["exit_code"] = exit_code
        self.exit_code = exit_code
        self.stderr = stderr

    def again(self) -> LinkLost:
        """The same for one more to raise: an exception gathers the traceback of whoever raises it."""
        return LinkLost(self.message, exit_code=self.exit_code, stderr=self.stderr)


class BadAnswer(Unavailable):
    default_code = "UPSTREAM_BAD_ANSWER"


class Unauthorized(Unavailable):
    """`challenge` is the server's `WWW-Authenticate`, for those who can act on it. Where a login would help, the
    details name the server as `login`."""

    default_code = "UPSTREAM_UNAUTHORIZED"

    def __init__(self, message: str, challenge: str = "", **details: Any) -> None:
        super().__init__(message, **details)
        self.challenge = challenge
