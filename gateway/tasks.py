"""Small tools around asyncio tasks: sets of background tasks, shared timers, cheap cancel scopes, back-off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import cache
from typing import Any

import anyio


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
