"""A lock for one writer per chat, across tasks and processes."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

MIN_WAIT, MAX_WAIT = 0.002, 0.03


class ChatLock:
    """Use `async with lock.held():`. The kernel releases the lock of a killed holder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tasks = anyio.Lock(fast_acquire=True)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        async with self._tasks:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                await _acquire(descriptor)
                yield
            finally:
                os.close(descriptor)


async def _acquire(descriptor: int) -> None:
    """Acquire by polling: a blocking flock would hold a thread for as long as a tool runs."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await anyio.sleep(random.uniform(MIN_WAIT, MAX_WAIT))  # noqa: S311 - no secret
        else:
            return
