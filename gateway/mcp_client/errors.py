"""Errors of the MCP client. A JSON-RPC error that the server answers is a `RpcError`.

Unavailable
├── Unreachable        nothing of the request has reached the server: it may be sent again
├── ConnectionLost     the request was sent, or the connection is gone: its outcome is unknown
├── InvalidResponse    the response is no MCP
└── Unauthorized       the server requires credentials, or other ones
"""

from __future__ import annotations

from typing import Any

from gateway.errors import Unavailable


class Unreachable(Unavailable):
    default_code = "UPSTREAM_UNREACHABLE"


class ConnectionLost(Unavailable):
    """The end of a connection. `exit_code` and `stderr`, its last lines, are those of a server process. What it writes
    to stderr may be private, so it is in neither the message nor the details."""

    default_code = "UPSTREAM_LOST"

    def __init__(self, message: str, *, exit_code: int | None = None, stderr: str = "") -> None:
        super().__init__(message)
        if exit_code is not None:
            self.details["exit_code"] = exit_code
        self.exit_code = exit_code
        self.stderr = stderr

    def copy(self) -> ConnectionLost:
        """Return the same error for one more caller: an exception collects the traceback of everyone who raises it."""
        return ConnectionLost(self.message, exit_code=self.exit_code, stderr=self.stderr)


class InvalidResponse(Unavailable):
    default_code = "UPSTREAM_BAD_ANSWER"


class Unauthorized(Unavailable):
    """A refusal for lack of credentials. `challenge` is the server's `WWW-Authenticate` header. Where a login would
    help, the details name the server as `login`."""

    default_code = "UPSTREAM_UNAUTHORIZED"

    def __init__(self, message: str, challenge: str = "", **details: Any) -> None:
        super().__init__(message, **details)
        self.challenge = challenge
