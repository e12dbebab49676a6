"""One writer per chat: a lock that holds between tasks of this process and between processes."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

SHORTEST_WAIT, LONGEST_WAIT = 0.002, 0.03


class ChatLock:
    """`async with lock.held():` is alone with the chat's files. A killed holder lets go by dying."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tasks = anyio.Lock(fast_acquire=True)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        async with self._tasks:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                await _locked(descriptor)
                yield
            finally:
                os.close(descriptor)


async def _locked(descriptor: int) -> None:
    """Tried again and again: a blocking lock would hold a thread for as long as somebody's tool runs."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await anyio.sleep(random.uniform(SHORTEST_WAIT, LONGEST_WAIT))  # noqa: S311 - no secret
        else:
            return
