"""The gateway's end of a worker's channel: length-prefixed JSON, and nothing in it is trusted."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, cast

import orjson

_HEADER = 4
_LONG_INTEGER = re.compile(rb"[0-9]{19}")


class Channel(asyncio.Protocol):
    """Hands each message to `receive`; `lost` is told once, with what was wrong, or None for a plain end."""

    def __init__(
        self, receive: Callable[[dict[str, Any]], None], lost: Callable[[str | None], None], limit: int
    ) -> None:
        self._receive = receive
        self._lost = lost
        self._limit = limit
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def send(self, message: bytes) -> None:
        if self._transport is not None:
            self._transport.write(len(message).to_bytes(_HEADER, "big") + message)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost(None)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while self._transport is not None and len(received) >= _HEADER:
            end = _HEADER + int.from_bytes(received[:_HEADER], "big")
            if end > _HEADER + self._limit:
                self._refuse(f"announced a message of {end - _HEADER:,} bytes")
            if len(received) < end or self._transport is None:
                return
            frame = bytes(received[_HEADER:end])
            del received[:end]
            self._dispatch(frame)

    def _dispatch(self, frame: bytes) -> None:
        try:
            message = _read(frame)
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict):
            self._receive(message)
        else:
            self._refuse("sent what is no message")

    def _refuse(self, reason: str) -> None:
        """Nothing after this is read: a stream that is wrong in one place is wrong from there on."""
        self.close()
        self._transport = None
        self._received.clear()
        self._lost(reason)


def _read(frame: bytes) -> Any:
    """orjson is fast, and rounds integers of more than 64 bits."""
    if _LONG_INTEGER.search(frame):
        return json.loads(frame, parse_constant=_refuse_constant)
    return orjson.loads(frame)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")
