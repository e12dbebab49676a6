"""JSON-RPC messages as dicts and bytes: how ours are written in either era, and how theirs are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

from gateway import protocol
from gateway.mcp_client.endpoints import ClientFace

# Bytes of one message of a server, whatever it comes in.
MESSAGE_LIMIT = 64 * 1024 * 1024

Message = dict[str, Any]

_ENVELOPE = (
    protocol.PROTOCOL_VERSION_META_KEY,
    protocol.CLIENT_INFO_META_KEY,
    protocol.CLIENT_CAPABILITIES_META_KEY,
    protocol.LOG_LEVEL_META_KEY,
)


class RequestEncoder:
    """How requests are written to one server: a modern one is told with each who asks and what the client can."""

    def __init__(self, face: ClientFace, version: str) -> None:
        self.version = version
        self.modern = version in protocol.MODERN_PROTOCOL_VERSIONS
        self._info = face.info
        self._capabilities = dict(face.capabilities)

    def request(
        self,
        number: int,
        method: str,
        params: Mapping[str, Any] | None,
        meta: Mapping[str, Any] | None,
        capabilities: Mapping[str, Any] | None,
        progress: bool,
    ) -> Message:
        said = {**(params or {})}
        notes = {**(said.get("_meta") or {}), **(meta or {})}
        notes.pop("progressToken", None)  # the caller's own names another request
        if self.modern:
            notes[protocol.PROTOCOL_VERSION_META_KEY] = self.version
            notes[protocol.CLIENT_INFO_META_KEY] = self._info
            notes[protocol.CLIENT_CAPABILITIES_META_KEY] = (
                self._capabilities if capabilities is None else dict(capabilities)
            )
        else:
            for key in _ENVELOPE:
                notes.pop(key, None)
        if progress:
            notes["progressToken"] = number
        if notes:
            said["_meta"] = notes
        else:
            said.pop("_meta", None)
        message: Message = {"jsonrpc": "2.0", "id": number, "method": method}
        if said or params is not None:
            message["params"] = said
        return message


def notification(method: str, params: Mapping[str, Any] | None = None) -> Message:
    message: Message = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return message


def refusal(request_id: Any, error: Mapping[str, Any]) -> Message:
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def decode(data: bytes | bytearray) -> list[Message]:
    """The messages in what a server sent: one, or several in a batch (2025-03-26); none when it is no
    JSON-RPC at all."""
    try:
        value = orjson.loads(data)
    except ValueError:
        value = _leniently(data)
    match value:
        case {"jsonrpc": _}:
            return [value]
        case list():
            return [entry for entry in value if isinstance(entry, dict) and "jsonrpc" in entry]
        case _:
            return []


def request_number(value: Any) -> int | None:
    """The number of a request of ours; some servers hand it back as text."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    return None


def _leniently(data: bytes | bytearray) -> Any:
    """Python's own JSON knows NaN, which becomes null, and lone surrogates, which become question marks:
    better than a call that waits for ever."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        value = json.loads(data.decode(errors="replace"), parse_constant=lambda _: None)
        return orjson.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None
