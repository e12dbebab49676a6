"""Small tools around asyncio tasks: sets of background tasks, queues of reports, shared timers, cheap cancel scopes,
back-off."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import cache
from typing import Any

import anyio

# Reports of one call that may wait for their receiver, and the size of their texts together.
REPORTS, REPORT_TEXT = 10_000, 4 * 1024 * 1024

# Reports delivered in one turn of the event loop.
REPORTS_PER_TURN = 100

# The time in which a receiver must take a report, so that those after it are still waited for at the end of a call.
FLUSH_SECONDS = 5.0

_log = logging.getLogger(__name__)


class TaskSet(set[asyncio.Task[Any]]):
    """Tasks in the background, referenced until they end: the event loop itself references them only weakly."""

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    def cancel(self) -> None:
        for task in self:
            task.cancel()


class ReportQueue:
    """Reports of one call, delivered in order by one task, as fast as the receiver takes them. None is left out, unless
    more wait than `REPORTS` or `REPORT_TEXT` allow: then each new report replaces the one before it. `on_empty` is
    called whenever all are delivered."""

    def __init__(self, on_empty: Callable[[], None] | None = None) -> None:
        self._on_empty = on_empty
        self._waiting: deque[tuple[int, Callable[..., Awaitable[None]], tuple[Any, ...]]] = deque()
        self._size = 0
        self._delivered = 0
        self._replaced = False
        self._delivery: asyncio.Task[None] | None = None

    def add(self, receiver: Callable[..., Awaitable[None]], *report: Any, size: int = 0) -> None:
        """Deliver a report by `receiver(*report)`; `size` is that of its text."""
        if self._waiting and (len(self._waiting) >= REPORTS or self._size + size > REPORT_TEXT):
            self._size -= self._waiting.pop()[0]
            if not self._replaced:
                self._replaced = True
                _log.warning("a caller is too slow for the reports of its call, and misses some of them")
        self._size += size
        self._waiting.append((size, receiver, report))
        if self._delivery is None:
            self._delivery = asyncio.get_running_loop().create_task(self._deliver())

    async def flush(self) -> None:
        """Wait until all reports are delivered, or the receiver has taken none for `FLUSH_SECONDS`."""
        while (delivery := self._delivery) is not None:
            before = self._delivered
            await asyncio.wait([delivery], timeout=FLUSH_SECONDS)
            if self._delivered == before:
                return

    def close(self) -> None:
        """Deliver no more."""
        if self._delivery is not None:
            self._delivery.cancel()

    async def _deliver(self) -> None:
        try:
            while self._waiting:
                size, receiver, report = self._waiting.popleft()
                self._size -= size
                try:
                    await receiver(*report)
                except Exception:  # a failing receiver must not break the call
                    _log.debug("a report could not be delivered", exc_info=True)
                self._delivered += 1
                if not self._delivered % REPORTS_PER_TURN:
                    await asyncio.sleep(0)
        finally:
            self._delivery = None
        if self._on_empty is not None:
            self._on_empty()


class SharedTimer:
    """One timer for many deadlines of the same length. Every call sets one and hardly any is reached, so there is a
    single handle of the event loop, set for the oldest of them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadlines: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    def add(self, key: Hashable, callback: Callable[[], None]) -> None:
        """Call back after the timer's seconds, unless the key is removed before."""
        if self._handle is None:
            self._loop = asyncio.get_running_loop()  # a system call each time, in Python 3.11
            self._handle = self._loop.call_later(self._seconds, self._fire)
        self._deadlines[key] = self._loop.time() + self._seconds, callback

    def remove(self, key: Hashable) -> None:
        self._deadlines.pop(key, None)

    def restart(self, key: Hashable) -> None:
        """Give a deadline that is not reached the timer's seconds again."""
        deadline = self._deadlines.pop(key, None)  # taken out first: the oldest stay in front
        if deadline is not None:
            self._deadlines[key] = self._loop.time() + self._seconds, deadline[1]

    def _fire(self) -> None:
        now, self._handle = self._loop.time(), None
        for key, (deadline, callback) in list(self._deadlines.items()):  # oldest first
            if deadline > now:
                self._handle = self._loop.call_at(deadline, self._fire)
                return
            del self._deadlines[key]
            callback()


def cancel_scope() -> anyio.CancelScope:
    """A cancel scope without a deadline. To make one, anyio looks up the event loop's backend each time and prepares
    the scope twice, which takes longer than to enter and leave it."""
    return _scope_type()()


@cache
def _scope_type() -> type[anyio.CancelScope]:
    return type(anyio.CancelScope())


def backoff(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after so many failures in a row: `first` after one, twice as long after each further one."""
    return min(longest, first * 2.0 ** min(failures - 1, 16))
