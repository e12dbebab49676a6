"""The output of a command; only its beginning and end are kept."""

from __future__ import annotations

import threading
from collections import deque
from typing import BinaryIO

HEAD = 24 * 1024
TAIL = 40 * 1024  # more than the head: errors are at the end
_CHUNK = 8 * 1024
_LINE = 200


class Output:
    """Output written by one thread while another reads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._dropped = 0

    def fill(self, pipe: BinaryIO) -> None:
        """Read the pipe to its end, without limit: a full pipe would block the command."""
        with pipe:
            while chunk := pipe.read1(_CHUNK):  # type: ignore[attr-defined]
                with self._lock:
                    self._add(chunk)

    def text(self) -> str:
        with self._lock:
            head, tail = bytes(self._head), b"".join(self._tail)
        if not self._dropped:
            return (head + tail).decode(errors="replace")
        surplus = max(len(tail) - TAIL, 0)
        gap = f"\n[… {self._dropped + surplus:,} bytes left out; write long output to a file and read parts of it …]\n"
        return head.decode(errors="replace") + gap + tail[surplus:].decode(errors="replace")

    def last_line(self) -> str:
        with self._lock:
            end = self._tail[-1] if self._tail else bytes(self._head[-_CHUNK:])
        lines = end.decode(errors="replace").split("\n")
        return next((line.strip()[:_LINE] for line in reversed(lines) if line.strip()), "")

    def _add(self, chunk: bytes) -> None:
        room = HEAD - len(self._head)
        self._head += chunk[:room]
        if rest := chunk[room:]:
            self._tail.append(rest)
            self._tail_size += len(rest)
        while self._tail and self._tail_size - len(self._tail[0]) >= TAIL:
            gone = len(self._tail.popleft())
            self._tail_size -= gone
            self._dropped += gone
