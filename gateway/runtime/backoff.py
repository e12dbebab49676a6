"""Patience with toolsets that die while they start: each time a longer pause before the next try."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.errors import ToolFailed
from gateway.runtime.errors import WORKER_DIED
from gateway.runtime.job import Place

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
_FREE_TRIES = 2


class Backoff:
    """Counts, per version of a toolset, the workers in a row that ended before any of its code was loaded."""

    def __init__(self) -> None:
        self._failures: dict[Path, tuple[int, float]] = {}

    def check(self, place: Place) -> None:
        """Refuse to start one more too early."""
        times, until = self._failures.get(place.directory, (0, 0.0))
        wait = until - asyncio.get_running_loop().time()
        if wait > 0:
            raise ToolFailed(
                f"the process of toolset {place.toolset!r} ended {times} times in a row while it started; "
                f"it is tried again in {wait:.0f} s. Look at the code that runs when its modules are imported",
                code=WORKER_DIED,
                retry_after=wait,
            )

    def note(self, place: Place, good: bool) -> None:
        """A worker has ended: was it a good one, or did it never get as far as to run a tool?"""
        if good:
            self._failures.pop(place.directory, None)
            return
        times = self._failures.get(place.directory, (0, 0.0))[0] + 1
        pause = min(FIRST_SECONDS * 2 ** (times - _FREE_TRIES), LONGEST_SECONDS) if times >= _FREE_TRIES else 0.0
        self._failures[place.directory] = times, asyncio.get_running_loop().time() + pause

    def forget(self, directory: Path) -> None:
        self._failures.pop(directory, None)
