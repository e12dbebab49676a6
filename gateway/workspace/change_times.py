"""When each of many files last changed: what a snapshot spends its time on, so asked in the cheapest way there is."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat

# Change times as the kernel has them: the seconds of all, and the nanoseconds of all.
Moments = tuple[list[int], list[int]]

# No file's change time.
NEVER = (-1, -1)

_SECOND = 1_000_000_000
_NO_FOLLOW, _CHANGE_TIME = 0x100, 0x80
_SIZE, _SECONDS_AT, _NANOSECONDS_AT = 256, 96, 104  # of struct statx, the same on every machine
_AT_ONCE = 256


def moments(times: Iterable[int | None]) -> Moments:
    """Change times in nanoseconds, as `change_times` tells them; None is told as no file's."""
    pairs = [NEVER if time is None else divmod(time, _SECOND) for time in times]
    return [seconds for seconds, _ in pairs], [nanoseconds for _, nanoseconds in pairs]


def change_times(directory: int, names: Sequence[bytes]) -> Moments | None:
    """When each of the files in a directory last changed, links not followed; None when one cannot be asked."""
    ask = _statx()
    if ask is None:
        return _asked_one_by_one(directory, names)
    if len(names) <= _AT_ONCE:
        return _rooms().asked(ask, directory, names)
    seconds: list[int] = []
    nanoseconds: list[int] = []
    for start in range(0, len(names), _AT_ONCE):
        some = _rooms().asked(ask, directory, names[start : start + _AT_ONCE])
        if some is None:
            return None
        seconds += some[0]
        nanoseconds += some[1]
    return seconds, nanoseconds


def _asked_one_by_one(directory: int, names: Sequence[bytes]) -> Moments | None:
    try:
        return moments(os.stat(name, dir_fd=directory, follow_symlinks=False).st_ctime_ns for name in names)
    except OSError:
        return None


class _Room(threading.local):
    """Where the kernel puts its answers; each thread has its own."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_SIZE * _AT_ONCE)
        start = ctypes.addressof(self._buffer)
        # Made once: to make a pointer for each call would cost as much as the call.
        self.slots = [ctypes.c_void_p(start + _SIZE * index) for index in range(_AT_ONCE)]
        whole = memoryview(self._buffer).cast("B")
        self._longs = whole.cast("q")
        self._words = whole.cast("I")

    def asked(self, ask: Callable[..., int], directory: int, names: Sequence[bytes]) -> Moments | None:
        """The change times of no more files than there are slots."""
        if any(map(ask, repeat(directory), names, repeat(_NO_FOLLOW), repeat(_CHANGE_TIME), self.slots)):
            return None
        end = len(names) * _SIZE
        return (
            self._longs[_SECONDS_AT // 8 : end // 8 : _SIZE // 8].tolist(),
            self._words[_NANOSECONDS_AT // 4 : end // 4 : _SIZE // 4].tolist(),
        )


@functools.cache
def _rooms() -> _Room:
    return _Room()


@functools.cache
def _statx() -> Callable[..., int] | None:
    """The C library's `statx`, where there is one that works here; without declared argument types, which would be
    checked on every call."""
    ask: Callable[..., int] | None = getattr(ctypes.CDLL(None), "statx", None) if sys.platform == "linux" else None
    if ask is None:
        return None
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return ask if ask(here, b".", _NO_FOLLOW, _CHANGE_TIME, _rooms().slots[0]) == 0 else None
    finally:
        os.close(here)
