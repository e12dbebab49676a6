"""A subscription to what changes at a modern server."""

from __future__ import annotations

import asyncio
from typing import Any


class Listening:
    """A subscription that runs until the server, the link or we end it."""

    def __init__(self, honored: dict[str, Any], task: asyncio.Task[Exception | None]) -> None:
        self.honored = honored
        self._task = task

    async def ended(self) -> Exception | None:
        """Returns when it has ended: why, or None when the server or we ended it in good order."""
        await asyncio.wait([self._task])
        return None if self._task.cancelled() else self._task.result()

    def close(self) -> None:
        self._task.cancel()
