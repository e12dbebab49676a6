"""Parser for server-sent events that arrive in chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# A message in one line, as most servers send it, and the size up to which looking for one is worth it.
_ONE_LINE = re.compile(rb"(?:id: ?([^\r\n\0]*)\r?\n)?(?:event: ?message\r?\n)?data: ?([^\r\n]*)\r?\n\r?\n")
_ONE_LINE_SIZE = 8 * 1024


class Event(NamedTuple):
    """An event. `id` is where to resume the stream; `retry` the milliseconds to wait before that."""

    data: bytes
    kind: str = "message"
    id: str | None = None
    retry: int | None = None


class EventTooLarge(Exception):
    pass


class EventParser:
    """Lines may end in LF, CR or both. An event over the limit is an error, since the request it answers is unknown."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._after_return = False
        self._data: list[bytes] = []
        self._kind = ""
        self._id: str | None = None
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> Iterator[Event]:
        is_first = not self._size and not self._after_return
        if is_first and len(chunk) <= _ONE_LINE_SIZE and (message := _ONE_LINE.fullmatch(chunk)) is not None:
            event_id, data = message.groups()
            yield Event(data, id=None if event_id is None else event_id.decode(errors="replace"))
            return
        if self._after_return and chunk[:1] == b"\n":
            chunk = chunk[1:]
        self._after_return = False
        if not chunk:
            return
        self._size += len(chunk)
        if self._size > self._limit:
            raise EventTooLarge
        if b"\n" not in chunk and b"\r" not in chunk:
            self._parts.append(chunk)
            return
        if self._parts:
            chunk = b"".join([*self._parts, chunk])
            self._parts = []
        self._after_return = chunk.endswith(b"\r")
        for line in chunk.splitlines(keepends=True):
            if line[-1] not in b"\r\n":
                self._parts = [line]
            elif event := self._parse_line(line.rstrip(b"\r\n")):
                yield event

    def _parse_line(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._kind = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit():
            self._retry = int(value[:9])
        return None

    def _dispatch(self) -> Event | None:
        self._size = sum(map(len, self._parts))
        data, self._data = self._data, []
        kind, self._kind = self._kind, ""
        id_, self._id = self._id, None
        retry, self._retry = self._retry, None
        if not data and id_ is None and retry is None:
            return None
        return Event(b"\n".join(data), kind or "message", id_, retry)
