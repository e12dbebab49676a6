"""What a worker prints: read so that it never blocks, counted, and forgotten but for the end of stderr."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from gateway.sandbox import Process

TAIL_BYTES = 8 * 1024
LIMIT_BYTES = 16 * 1024 * 1024
_CHUNK = 64 * 1024
_END_SECONDS = 0.5


class Output:
    """`printed` counts the bytes of both streams; `check` is called whenever it grew."""

    def __init__(self, process: Process, check: Callable[[], None], limit: int = LIMIT_BYTES) -> None:
        self.printed = 0
        self.limit = limit
        self._idle_from = 0
        self._check = check
        self._tail = b""
        loop = asyncio.get_running_loop()
        self._reading = [
            loop.create_task(self._drain(process.stdout, keep=False)),
            loop.create_task(self._drain(process.stderr, keep=True)),
        ]

    def tail(self) -> str:
        """The end of what it printed on stderr."""
        return self._tail.decode("utf-8", "replace")

    def since_idle(self) -> int:
        return self.printed - self._idle_from

    def note_idle(self) -> None:
        """From here on what is printed belongs to no call."""
        self._idle_from = self.printed

    async def end(self) -> None:
        """Read what is left of a process that has ended."""
        await asyncio.wait(self._reading, timeout=_END_SECONDS)
        for task in self._reading:
            task.cancel()

    async def _drain(self, stream: asyncio.StreamReader, keep: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await stream.read(_CHUNK):
                self.printed += len(chunk)
                if keep:
                    self._tail = (self._tail + chunk)[-TAIL_BYTES:]
                self._check()
