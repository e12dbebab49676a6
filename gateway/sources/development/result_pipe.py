"""A pipe on which a program tells its results, apart from what it prints."""

from __future__ import annotations

import asyncio
import os

LIMIT = 16 * 1024 * 1024
_CHUNK = 256 * 1024
_PATIENCE = 1.0


class Channel:
    """Its beginning is kept, the rest is read and forgotten, so that no program waits for us. Use it in an
    `async with`, hand `fd` to the program, which finds it at `path`, and ask for the `content` once it has ended."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._read, self.fd = os.pipe()

    @property
    def path(self) -> str:
        return f"/dev/fd/{self.fd}"

    async def __aenter__(self) -> Channel:
        os.fchmod(self.fd, 0o666)  # it is opened by name again, maybe by another user
        os.set_blocking(self._read, False)
        self._loop.add_reader(self._read, self._take)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._close_ours()
        self._loop.remove_reader(self._read)
        os.close(self._read)

    async def content(self) -> bytes | None:
        """All that was told; None when it was more than anyone could mean."""
        self._close_ours()
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._over.wait()
        except TimeoutError:
            pass
        return None if len(self._kept) > self._limit else bytes(self._kept)

    def _take(self) -> None:
        try:
            data = os.read(self._read, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._read)
            self._over.set()
        self._kept += data[: max(self._limit + 1 - len(self._kept), 0)]

    def _close_ours(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
