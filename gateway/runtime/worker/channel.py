"""The worker's end of the channel: length-prefixed JSON on a high file descriptor, out of the way of tools."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from typing import Any, NoReturn

# Lowest descriptor for the channel: above those a tool opens, below the limit of open files.
_MIN_DESCRIPTOR = 200

_CHUNK = 64 * 1024
_HEADER_BYTES = 4


class FrameTooLarge(Exception):
    """The message is larger than the limit of a frame."""


class GatewayChannel:
    """`receive` is called by one thread at a time, `send` by any. Child processes do not inherit the descriptor; in a
    fork of the worker it is closed, and `is_ours` is false."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _MIN_DESCRIPTOR)
        os.close(descriptor)
        self._limit = limit
        self._received = bytearray()
        self._sending = threading.Lock()
        self._process = os.getpid()
        os.register_at_fork(after_in_child=self._close_in_fork)

    def receive(self) -> dict[str, Any]:
        """Return the next message; end the process when the channel is closed."""
        size = _HEADER_BYTES + int.from_bytes(self._read(_HEADER_BYTES, keep=True), "big")
        message: dict[str, Any] = json.loads(self._read(size)[_HEADER_BYTES:])
        return message

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, or raise `FrameTooLarge`, `ValueError` or `RecursionError` and send nothing."""
        text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        frame = text.encode("utf-8", "replace")
        if len(frame) > self._limit:
            raise FrameTooLarge(f"{len(frame):,} bytes as JSON, and the limit is {self._limit:,}")
        with self._sending:
            self._write(len(frame).to_bytes(_HEADER_BYTES, "big") + frame)

    @property
    def is_ours(self) -> bool:
        """True in the worker itself. In a fork of it nothing may wait for a lock, since its holder was not forked."""
        return os.getpid() == self._process

    def _read(self, size: int, keep: bool = False) -> bytes:
        while len(self._received) < size:
            try:
                chunk = os.read(self._descriptor, max(_CHUNK, size - len(self._received)))
            except OSError:
                chunk = b""
            if not chunk:
                end()
            self._received += chunk
        data = bytes(self._received[:size])
        if not keep:
            del self._received[:size]
        return data

    def _write(self, frame: bytes) -> None:
        rest = memoryview(frame)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            end()

    def _close_in_fork(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1


def end() -> NoReturn:
    """End the process at once, without waiting for a tool's threads or exit handlers."""
    os._exit(0)
