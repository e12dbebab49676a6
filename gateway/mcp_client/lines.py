"""Lines out of chunks: whole ones in order, and of one that is too long only enough to say whose it was."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LEADING_ID = re.compile(rb'\{"jsonrpc":\s?"2\.0",\s?"id":\s?"?(\d{1,15})"?')
_TRAILING_ID = re.compile(rb',\s?"id":\s?"?(\d{1,15})"?\}\s*$')
_KEPT = 512


class Lines:
    """`too_long` is what is left of the line just refused, both its ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._overflow: bytes | None = None

    def feed(self, chunk: bytes) -> Iterator[bytes | TooLong]:
        if b"\n" not in chunk:
            self._keep(chunk)
            return
        first, *complete, rest = chunk.split(b"\n")
        self._keep(first)
        yield self._take()
        for line in complete:
            yield line if len(line) <= self._limit else TooLong(line[:_KEPT] + line[-_KEPT:])
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        if not part:
            return
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._limit:
            head = self._overflow or b"".join(self._parts)[:_KEPT]
            self._overflow = head
            self._parts = [b"".join(self._parts)[-_KEPT:]]

    def _take(self) -> bytes | TooLong:
        parts, self._parts = self._parts, []
        overflow, self._overflow = self._overflow, None
        self._size = 0
        line = parts[0] if len(parts) == 1 else b"".join(parts)
        return line if overflow is None else TooLong(overflow + line)


class TooLong:
    """A line over the limit. The number of the request it answers is found only where it must be the
    message's own: right at the start or the end."""

    def __init__(self, ends: bytes) -> None:
        match = _LEADING_ID.match(ends) or _TRAILING_ID.search(ends[-_KEPT:])
        self.number = int(match[1]) if match else None
