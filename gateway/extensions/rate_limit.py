"""Rate limits: calls per minute, by tool and by category, for each caller. They hold for all processes on one data
directory and across restarts."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import mmap
import os
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from gateway.calls import Call
from gateway.errors import RateLimited
from gateway.extensions import Extension
from gateway.files import FileLock, try_lock
from gateway.tools import Category, Tool

log = logging.getLogger(__name__)

WINDOW = 60.0  # seconds that a limit is about
SLOTS = 16_384
PROBES = 32  # slots in which a key may be
_KEY_BYTES = 16
_SLOT = struct.Struct("=16sd")
_FULL_AT = struct.Struct("=d")
_OPENED = struct.Struct("=Q")
TABLE_BYTES = _SLOT.size * (SLOTS + 1)
# Keys of this process whose places in the table are cached.
KEY_CACHE = 10_000
# Seconds after which a process that shares the table looks whether it is alone again.
ALONE_CHECK = 1.0
LOCK_SECONDS = 1.0
# The part of a token that may be missing: at the size of today's time, sums of fractions of a second are not exact.
ROUNDING = 0.01


class RateTable:
    """Token buckets in a file that every process maps into its memory.

    A bucket is one number: the time at which it will be full again. It holds the calls of one minute at most and
    refills evenly, so a bucket whose time has passed is as good as none, and its slot is free. A process that is alone
    with the directory takes no lock; the first number in the file is raised by each process that opens it, which tells
    the others to lock from then on. Without a `directory` the table is the process's own.
    """

    def __init__(self, directory: Path | None = None, processes: Callable[[], int] = lambda: 1) -> None:
        self._processes = processes
        self._lock: FileLock | None = None
        self._memory = mmap.mmap(-1, TABLE_BYTES)
        if directory is not None:
            try:
                self._lock, self._memory = _map_file(directory / "rate_limits")
            except OSError as error:
                log.warning("rate limits hold for this process only: %s cannot be used: %s", directory, error)
        self._opened = self._memory[: _OPENED.size]
        self._is_shared = self._lock is not None and processes() > 1
        self._checked_at = 0.0
        self._places: dict[tuple[str, str, str], tuple[int, bytes]] = {}

    def is_shared(self) -> bool:
        """Return whether another process may use the table now."""
        opened = self._memory[: _OPENED.size]
        if opened != self._opened:
            self._opened, self._is_shared, self._checked_at = opened, True, time.monotonic()
        elif self._is_shared and time.monotonic() - self._checked_at > ALONE_CHECK:
            self._checked_at, self._is_shared = time.monotonic(), self._processes() > 1
        return self._is_shared

    async def lock(self) -> None:
        """Keep other processes out, until `unlock`. A process that was stopped while it had the lock is not waited for
        longer than a second."""
        if self._lock is not None and not try_lock(self._lock.descriptor):
            with suppress(TimeoutError):
                async with asyncio.timeout(LOCK_SECONDS):
                    await self._lock.acquire()

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.__exit__()

    def find(self, key: tuple[str, str, str]) -> int:
        """Return the place of a key's bucket: its own, else a free one, else that which is free the soonest."""
        known = self._places.get(key)
        if known is not None and self._memory[known[0] : known[0] + _KEY_BYTES] == known[1]:
            return known[0]
        if len(self._places) >= KEY_CACHE:
            self._places.clear()
        digest = hashlib.blake2b("\0".join(key).encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()
        first, slots = int.from_bytes(digest[:4], "little"), []
        for number in range(first, first + PROBES):
            place = _SLOT.size * (1 + number % SLOTS)
            owner, full_at = _SLOT.unpack_from(self._memory, place)
            if owner == digest:
                break
            slots.append((full_at, place))
        else:
            _, place = min(slots)
            _SLOT.pack_into(self._memory, place, digest, 0.0)
        self._places[key] = place, digest
        return place

    def full_at(self, place: int, now: float, longest: float = WINDOW) -> float:
        """Return when the bucket will be full; no later than in `longest` seconds, should the clock have been set
        back."""
        full_at: float = _FULL_AT.unpack_from(self._memory, place + _KEY_BYTES)[0]
        return now if full_at <= now else min(full_at, now + longest)

    def set_full_at(self, place: int, full_at: float) -> None:
        _FULL_AT.pack_into(self._memory, place + _KEY_BYTES, full_at)

    def close(self) -> None:
        self._memory.close()
        if self._lock is not None:
            self._lock.close()


def _map_file(path: Path) -> tuple[FileLock, mmap.mmap]:
    lock = FileLock(path)
    with lock:
        there = os.fstat(lock.descriptor).st_size
        if there < TABLE_BYTES:  # written, not only made longer: a page without room on the disk could end the process
            os.pwrite(lock.descriptor, bytes(TABLE_BYTES - there), there)
        memory = mmap.mmap(lock.descriptor, TABLE_BYTES)
        _OPENED.pack_into(memory, 0, _OPENED.unpack_from(memory)[0] + 1)
    return lock, memory


class RateLimit(Extension):
    """Refuses calls above the limit, and says when to call again. A refused call uses up no token."""

    def __init__(
        self,
        categories: Mapping[str, Category],
        per_tool: Mapping[str, int],
        clock: Callable[[], float] = time.time,
        table: Callable[[], RateTable] = RateTable,
    ) -> None:
        self._categories = categories
        self._per_tool = per_tool
        self._clock = clock
        self._make_table = table
        self._table: RateTable | None = None

    def applies_to(self, tool: Tool) -> bool:
        return bool(self._limits(tool))

    def table(self) -> RateTable:
        """Return the table, opened at the first use."""
        if self._table is None:
            self._table = self._make_table()
        return self._table

    def before_execute(self, call: Call) -> Awaitable[None] | None:
        table = self._table or self.table()
        if not table.is_shared():
            self._take_tokens(table, call)
            return None
        return self._take_shared_tokens(table, call)

    async def _take_shared_tokens(self, table: RateTable, call: Call) -> None:
        await table.lock()
        try:
            self._take_tokens(table, call)
        finally:
            table.unlock()

    def close(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None

    def _take_tokens(self, table: RateTable, call: Call) -> None:
        """Take a token from each bucket, or none from any and raise `RateLimited`."""
        principal, now, taken = call.caller.principal, self._clock(), []
        for kind, name, limit in self._limits(call.target):
            place = table.find((kind, name, principal))
            full_at = table.full_at(place, now) + WINDOW / limit
            if full_at - now > WINDOW + ROUNDING * WINDOW / limit:
                raise _refuse(kind, name, limit, full_at - now)
            taken.append((place, full_at))
        for place, full_at in taken:
            table.set_full_at(place, full_at)

    def _limits(self, tool: Tool) -> list[tuple[str, str, int]]:
        """Return what the limits of a tool are about, and how many calls a minute each allows. A toolset's name for a
        builtin has those of the builtin, too."""
        limits = [
            ("tool", tool.id, self._per_tool.get(tool.id, tool.calls_per_minute)),
            ("category", tool.category, self._categories[tool.category].calls_per_minute),
        ]
        if tool.alias_of is not None:
            limits.append(("tool", tool.alias_of, self._per_tool.get(tool.alias_of)))
        return [(kind, name, limit) for kind, name, limit in limits if limit is not None]


def _refuse(kind: str, name: str, limit: int, seconds: float) -> RateLimited:
    """Return the refusal of a call whose bucket would be full only in that many seconds."""
    wait = math.ceil(seconds - WINDOW)
    return RateLimited(
        f"{kind} {name} may be called {limit} times a minute; try again in {wait} s",
        limit=limit,
        scope=f"{kind} {name}",
        retry_after=wait,
    )
