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

    def expect(self, who: Hashable, callback: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + self._seconds
        self._due[who] = at, callback
        if self._clock is None:
            self._clock = loop.call_at(at, self._strike, loop)

    def drop(self, who: Hashable) -> None:
        self._due.pop(who, None)

    def _strike(self, loop: asyncio.AbstractEventLoop) -> None:
        now, self._clock = loop.time(), None
        for who, (at, callback) in list(self._due.items()):  # in the order in which they came
            if at > now:
                self._clock = loop.call_at(at, self._strike, loop)
                return
            del self._due[who]
            callback()
