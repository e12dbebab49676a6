"""JSON-RPC 2.0 as MCP uses it: error codes, the exception for an error, and the id of a message that is not parsed."""

from __future__ import annotations

import re
from typing import Any

import orjson

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNSUPPORTED_PROTOCOL_VERSION = -32022
CONNECTION_CLOSED = -32000
# Ours, of the numbers that MCP leaves to implementations: -32000 to -32019.
RATE_LIMITED = -32010
# Only in the handshake versions; 2026-07-28 uses INVALID_PARAMS.
RESOURCE_NOT_FOUND = -32002

# The answer to a cancelled request of a handshake version, as the SDK sends it.
REQUEST_CANCELLED = -32800

RequestId = int | str

_LEADING_ID = re.compile(rb'\{"jsonrpc":\s?"2\.0",\s?"id":\s?(\d{1,18}|"[^"\\]{0,200}")')
_TRAILING_ID = re.compile(rb',\s?"id":\s?(\d{1,18}|"[^"\\]{0,200}")\}\s*$')


class RpcError(Exception):
    """A JSON-RPC error, received from a peer or meant for one.

    Not a `GatewayError`: the sender of the request decides what it means to the caller. `retry_after` are the seconds
    after which a request that we refused for a limit may be sent again.
    """

    retry_after: int | None = None

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


def find_id(line: bytes | bytearray) -> RequestId | None:
    """Return the id of a message that is too long or cannot be parsed. It is looked for only where it must be the
    message's own: right at the start or the end."""
    match = _LEADING_ID.match(line) or _TRAILING_ID.search(line[-300:])
    request_id: RequestId | None = orjson.loads(match[1]) if match else None
    return request_id
