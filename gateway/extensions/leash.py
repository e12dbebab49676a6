"""A leash: work that can be called off from outside, and tells so from every other end."""

from __future__ import annotations

import asyncio
from typing import Any, Self, cast


class Leash:
    """What runs inside, in this task, ends quietly when it is `pulled`: then `ended` is true. Cancelled by others too,
    such as a server that stops, it goes on being cancelled."""

    def __init__(self) -> None:
        self.ended = False
        self.pulls = 0

    def __enter__(self) -> Self:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._others = self._task.cancelling()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if self.pulls:
            for _pull in range(self.pulls):
                left = self._task.uncancel()
            self.ended = kind is asyncio.CancelledError and left <= self._others
        return self.ended

    def pull(self) -> None:
        self.pulls += 1
        self._task.cancel()
