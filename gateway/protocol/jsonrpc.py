"""JSON-RPC 2.0 as MCP uses it: error codes, and the exception that carries an error."""

from __future__ import annotations

from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNSUPPORTED_PROTOCOL_VERSION = -32022
CONNECTION_CLOSED = -32000
# Only in the handshake versions; 2026-07-28 uses INVALID_PARAMS.
RESOURCE_NOT_FOUND = -32002

# The answer to a cancelled request of a handshake version, as the SDK sends it.
REQUEST_CANCELLED = -32800

RequestId = int | str


class RpcError(Exception):
    """A JSON-RPC error, received from a peer or meant for one.

    Not a `GatewayError`: the sender of the request decides what it means to the caller.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"

    def to_dict(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error
