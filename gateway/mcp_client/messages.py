"""JSON-RPC messages as dicts and bytes: requests encoded for a protocol version, and responses decoded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

from gateway import protocol
from gateway.errors import Timeout, Unavailable
from gateway.mcp_client.endpoints import ClientIdentity

# Bytes of one message of a server, over any transport.
MESSAGE_LIMIT = 64 * 1024 * 1024

Message = dict[str, Any]

_MODERN_KEYS = (
    protocol.PROTOCOL_VERSION_META_KEY,
    protocol.CLIENT_INFO_META_KEY,
    protocol.CLIENT_CAPABILITIES_META_KEY,
    protocol.LOG_LEVEL_META_KEY,
)


class RequestEncoder:
    """Builds the requests to one server. In the modern version each one carries version, client and capabilities."""

    def __init__(self, identity: ClientIdentity, version: str) -> None:
        self.version = version
        self.modern = version in protocol.MODERN_PROTOCOL_VERSIONS
        self._info = identity.info
        self._capabilities = dict(identity.capabilities)
        self._no_capabilities = self._envelope({})

    def request(
        self,
        number: int,
        method: str,
        params: Mapping[str, Any] | None,
        meta: Mapping[str, Any] | None,
        capabilities: Mapping[str, Any] | None,
        progress: bool,
    ) -> Message:
        if not meta and not progress and params and "_meta" not in params:  # most requests
            if not self.modern:
                return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            envelope = self._no_capabilities if capabilities == {} else self._envelope(capabilities)
            return {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": envelope}}
        sent = {**(params or {})}
        sent_meta = {**(sent.get("_meta") or {}), **(meta or {})}
        sent_meta.pop("progressToken", None)  # the caller's token belongs to another request
        if self.modern:
            sent_meta |= self._envelope(capabilities)
        else:
            for key in _MODERN_KEYS:
                sent_meta.pop(key, None)
        if progress:
            sent_meta["progressToken"] = number
        if sent_meta:
            sent["_meta"] = sent_meta
        else:
            sent.pop("_meta", None)
        message: Message = {"jsonrpc": "2.0", "id": number, "method": method}
        if sent or params is not None:
            message["params"] = sent
        return message

    def _envelope(self, capabilities: Mapping[str, Any] | None) -> dict[str, Any]:
        """The `_meta` in which a modern request describes the client."""
        return {
            protocol.PROTOCOL_VERSION_META_KEY: self.version,
            protocol.CLIENT_INFO_META_KEY: self._info,
            protocol.CLIENT_CAPABILITIES_META_KEY: self._capabilities if capabilities is None else dict(capabilities),
        }


def notification(method: str, params: Mapping[str, Any] | None = None) -> Message:
    message: Message = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return message


def error_response(request_id: Any, error: Mapping[str, Any]) -> Message:
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def decode(data: bytes | bytearray) -> list[Message]:
    """Return the messages in what a server sent: one, or several in a batch (2025-03-26). Empty for what is no
    JSON-RPC."""
    try:
        value = orjson.loads(data)
    except ValueError:
        value = _decode_leniently(data)
    match value:
        case {"jsonrpc": _}:
            return [value]
        case list():
            return [entry for entry in value if isinstance(entry, dict) and "jsonrpc" in entry]
        case _:
            return []


def request_number(value: Any) -> int | None:
    """Return the number of a request of ours; some servers send it back as text."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    return None


def _decode_leniently(data: bytes | bytearray) -> Any:
    """Decode with the standard library, which accepts NaN (made null) and lone surrogates (made question marks).
    Otherwise the call would wait until its timeout."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        value = json.loads(data.decode(errors="replace"), parse_constant=lambda _: None)
        return orjson.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None


class Unreachable(Unavailable):
    default_code = "UPSTREAM_UNREACHABLE"


class ConnectionLost(Unavailable):
    """The end of a connection. `exit_code` and `stderr`, its last lines, are those of a server process; `unread` if it
    read nothing. What it writes to stderr may be private, so it is in neither the message nor the details."""

    default_code = "UPSTREAM_LOST"

    def __init__(self, message: str, *, exit_code: int | None = None, stderr: str = "") -> None:
        super().__init__(message)
        if exit_code is not None:
            self.details["exit_code"] = exit_code
        self.exit_code = exit_code
        self.stderr = stderr
        self.unread = False

    def copy(self) -> ConnectionLost:
        """Return the same error for one more caller: an exception collects the traceback of everyone who raises it."""
        return ConnectionLost(self.message, exit_code=self.exit_code, stderr=self.stderr)


class ConnectTimeout(Timeout):
    """A server that did not answer in time when it was connected. `stderr` is as in `ConnectionLost`."""

    def __init__(self, message: str, stderr: str = "") -> None:
        super().__init__(message)
        self.stderr = stderr


class InvalidResponse(Unavailable):
    default_code = "UPSTREAM_BAD_ANSWER"


class Unauthorized(Unavailable):
    """A refusal for lack of credentials. `challenge` is the server's `WWW-Authenticate` header. Where a login would
    help, the details name the server as `login`."""

    default_code = "UPSTREAM_UNAUTHORIZED"

    def __init__(self, message: str, challenge: str = "", **details: Any) -> None:
        super().__init__(message, **details)
        self.challenge = challenge
