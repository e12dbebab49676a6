"""Event streams of sessions of the handshake versions, kept for a while so that a client can resume a broken one."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import takewhile

# Limits of the events that are kept: their age in seconds, and their number and bytes per session and in all.
KEPT_SECONDS = 1800.0
SESSION_EVENTS, SESSION_BYTES = 10_000, 8 * 1024 * 1024
ALL_EVENTS, ALL_BYTES = 100_000, 64 * 1024 * 1024

SWEEP_SECONDS = 60.0

# Seconds of silence after which a comment keeps a stream open.
PING_SECONDS = 15.0
PING = b": ping\r\n\r\n"

# The time after which a client should resume a broken stream, in milliseconds.
RETRY = 1000

# The first version whose clients take an event without data.
PRIMED_SINCE = "2025-11-25"

_EVENT_ID = re.compile(r"([0-9]{1,15})-([0-9]{1,15})")

# Ends a response on which a stream was sent.
Interrupt = Callable[[], Awaitable[None]]


def encode_event(message: bytes, event_id: bytes | None = None, kind: bytes = b"message") -> bytes:
    # A line break would end the data. In JSON it can only be space between two tokens.
    data = message.replace(b"\r", b" ").replace(b"\n", b" ")
    head = b"" if event_id is None else b"id: %b\r\n" % event_id
    return b"%bevent: %b\r\ndata: %b\r\n\r\n" % (head, kind, data)


class EventStream:
    """The events of one stream, in order; `number` and theirs make their ids. Whoever resumes it gets what follows, and
    `interrupt` ends the response on which it was sent so far."""

    def __init__(self, session: SessionStreams, number: int, interrupt: Interrupt) -> None:
        self.number = number
        self.ended = False
        self.events: deque[tuple[int, float, bytes]] = deque()  # number, time, encoded event
        self._session = session
        self._interrupt = interrupt
        self._last = 0
        self._changed = asyncio.Event()
        self._followers = 0

    @property
    def last_id(self) -> str:
        return f"{self.number}-{self._last}"

    def prime(self) -> bytes:
        """Return an event without data, whose id lets the client resume the stream before the first message."""
        self._last += 1
        return b"id: %b\r\nretry: %d\r\ndata: \r\n\r\n" % (self.last_id.encode(), RETRY)

    def add(self, message: bytes, last: bool = False, kind: bytes = b"message") -> bytes:
        """Keep a message and return it as an event. The `last` one is the response."""
        self._last += 1
        event = encode_event(message, self.last_id.encode(), kind)
        self.ended = self.ended or last
        self._session.keep(self, (self._last, time.monotonic(), event))
        self._changed.set()
        return event

    def end(self) -> None:
        self.ended = True
        self._changed.set()

    async def follow(self, after: int) -> AsyncIterator[bytes]:
        """Yield the events after one, and those to come, until the stream ends or is resumed again."""
        self._followers += 1
        follower = self._followers
        self._changed.set()  # for the one before
        await self._interrupt()
        while follower == self._followers:
            self._changed.clear()
            found = self._events_after(after)
            if found:
                after = found[-1][0]
                yield b"".join(event for _, _, event in found)
            elif self.ended:
                return
            else:
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await self._changed.wait()
                except TimeoutError:
                    yield PING

    def _events_after(self, number: int) -> list[tuple[int, float, bytes]]:
        newest_first = takewhile(lambda event: event[0] > number, reversed(self.events))
        return [*newest_first][::-1]


class SessionStreams:
    """The streams of one session."""

    def __init__(self, store: ReplayStore) -> None:
        self.count = 0
        self.size = 0
        self._store = store
        self._numbers = itertools.count()
        self._streams: dict[int, EventStream] = {}
        self._closed = False

    def open(self, interrupt: Interrupt) -> EventStream:
        number = next(self._numbers)
        stream = self._streams[number] = EventStream(self, number, interrupt)
        return stream

    def find(self, event_id: str) -> tuple[EventStream, int] | None:
        """Return the stream of an event and the event's number; None if the stream is not kept."""
        match = _EVENT_ID.fullmatch(event_id)
        stream = None if match is None else self._streams.get(int(match[1]))
        return None if match is None or stream is None else (stream, int(match[2]))

    def keep(self, stream: EventStream, event: tuple[int, float, bytes]) -> None:
        if self._closed:
            return
        stream.events.append(event)
        self.count += 1
        self.size += len(event[2])
        self._store.grow(len(event[2]))
        while self.count > SESSION_EVENTS or self.size > SESSION_BYTES:
            self.shrink()

    def shrink(self) -> None:
        """Drop the oldest stream that has ended or, if there is none, the first event of the longest."""
        stream = next((stream for stream in self._streams.values() if stream.ended), None)
        if stream is not None:
            self._drop(stream, len(stream.events))
        else:
            self._drop(max(self._streams.values(), key=lambda stream: len(stream.events)), 1)

    def expire(self, before: float) -> None:
        """Drop the events from before a time."""
        for stream in list(self._streams.values()):
            self._drop(stream, sum(1 for _ in takewhile(lambda event: event[1] < before, stream.events)))

    def close(self) -> None:
        self._closed = True
        for stream in list(self._streams.values()):
            stream.end()
            self._drop(stream, len(stream.events))

    def _drop(self, stream: EventStream, number: int) -> None:
        size = sum(len(stream.events.popleft()[2]) for _ in range(number))
        self.count -= number
        self.size -= size
        self._store.shrink(number, size)
        if stream.ended and not stream.events:
            self._streams.pop(stream.number, None)


class ReplayStore:
    """The streams of all sessions. At the limit for all, the session that keeps most gives way."""

    def __init__(self) -> None:
        self._sessions: dict[str, SessionStreams] = {}
        self._count = 0
        self._size = 0
        self._sweep_timer: asyncio.TimerHandle | None = None

    def open(self, session_id: str) -> SessionStreams:
        session = self._sessions[session_id] = SessionStreams(self)
        return session

    def get(self, session_id: str) -> SessionStreams | None:
        return self._sessions.get(session_id)

    def close(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def grow(self, size: int) -> None:
        self._count += 1
        self._size += size
        if self._sweep_timer is None:
            self._sweep_timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        while self._count > ALL_EVENTS or self._size > ALL_BYTES:
            max(self._sessions.values(), key=lambda session: session.size).shrink()

    def shrink(self, count: int, size: int) -> None:
        self._count -= count
        self._size -= size

    def _sweep(self) -> None:
        for session in self._sessions.values():
            session.expire(time.monotonic() - KEPT_SECONDS)
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(SWEEP_SECONDS, self._sweep) if self._count else None
