"""Later: one clock for many who are gone before it strikes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable


class Later:
    """Calls back those who are still there after so many seconds. Every call sets such a clock and hardly one needs
    it, so there is but one, set for whoever came first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._clock: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    def expect(self, who: Hashable, callback: Callable[[], None]) -> None:
        if self._clock is None:
            self._loop = asyncio.get_running_loop()  # a system call each time, in Python 3.11
            self._clock = self._loop.call_later(self._seconds, self._strike)
        self._due[who] = self._loop.time() + self._seconds, callback

    def drop(self, who: Hashable) -> None:
        self._due.pop(who, None)

    def _strike(self) -> None:
        now, self._clock = self._loop.time(), None
        for who, (at, callback) in list(self._due.items()):  # in the order in which they came
            if at > now:
                self._clock = self._loop.call_at(at, self._strike)
                return
            del self._due[who]
            callback()
