"""What a child writes to its stderr: said on to our log, and the end of it kept."""

from __future__ import annotations

import logging
from collections import deque

KEPT = 8 * 1024
_LINE = 2000


class Stderr:
    def __init__(self, label: str) -> None:
        self._log = logging.getLogger(f"gateway.upstream.{label.replace('.', '_')}")
        self._lines: deque[str] = deque()
        self._size = 0
        self._rest = b""

    @property
    def tail(self) -> str:
        rest = self._rest[:_LINE].decode(errors="replace").rstrip()
        return "\n".join((*self._lines, rest) if rest else self._lines)

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > _LINE:
            lines.append(rest)
            rest = b""
        self._rest = rest
        for line in lines:
            self._note(line[:_LINE].decode(errors="replace").rstrip())

    def _note(self, line: str) -> None:
        if not line:
            return
        self._log.debug("%s", line)
        self._lines.append(line)
        self._size += len(line)
        while self._size > KEPT:
            self._size -= len(self._lines.popleft())
