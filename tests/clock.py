"""A clock for deadlines, so that no test waits for them."""

from __future__ import annotations

import asyncio

import pytest


class Clock:
    """The clock of the event loop, moved on by hand."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._moved = 0.0
        loop = asyncio.get_running_loop()
        real = loop.time
        patch.setattr(loop, "time", lambda: real() + self._moved)

    async def move(self, seconds: float) -> None:
        self._moved += seconds
        for _ in range(3):  # timers run, then tasks they cancel
            await asyncio.sleep(0)
