"""The worker's end of the channel: length-prefixed JSON on a file descriptor that nobody meets by accident."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from typing import Any, NoReturn

# The channel's descriptor is at least this: above what a tool opens, below the limit of open files.
_HIGH = 200

_CHUNK = 64 * 1024
_HEADER = 4


class FrameTooLarge(Exception):
    """The message does not fit into a frame."""


class GatewayChannel:
    """`receive` is called by one thread at a time, `send` by any. No process started from here has the
    descriptor; in a fork that comes back to our code it is closed, and no longer `ours`."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        os.close(descriptor)
        self._limit = limit
        self._received = bytearray()
        self._sending = threading.Lock()
        self._process = os.getpid()
        os.register_at_fork(after_in_child=self._let_go)

    def receive(self) -> dict[str, Any]:
        """The next message; the process ends when there is none any more."""
        size = _HEADER + int.from_bytes(self._take(_HEADER, keep=True), "big")
        message: dict[str, Any] = json.loads(self._take(size)[_HEADER:])
        return message

    def send(self, message: dict[str, Any]) -> None:
        """Refuses with `FrameTooLarge`, `ValueError` or `RecursionError` what cannot be sent; nothing is sent then."""
        text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        frame = text.encode("utf-8", "replace")
        if len(frame) > self._limit:
            raise FrameTooLarge(f"{len(frame):,} bytes as JSON, and the limit is {self._limit:,}")
        with self._sending:
            self._write(len(frame).to_bytes(_HEADER, "big") + frame)

    @property
    def ours(self) -> bool:
        """Whether this is still the worker. In a fork of it nothing may wait for a lock: whoever held one is gone."""
        return os.getpid() == self._process

    def _take(self, size: int, keep: bool = False) -> bytes:
        while len(self._received) < size:
            try:
                chunk = os.read(self._descriptor, max(_CHUNK, size - len(self._received)))
            except OSError:
                chunk = b""
            if not chunk:
                end()
            self._received += chunk
        taken = bytes(self._received[:size])
        if not keep:
            del self._received[:size]
        return taken

    def _write(self, frame: bytes) -> None:
        rest = memoryview(frame)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            end()

    def _let_go(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1


def end() -> NoReturn:
    """Without a channel there is nobody to work for; a tool's threads and handlers are not asked."""
    os._exit(0)
