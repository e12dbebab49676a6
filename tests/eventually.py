"""Wait until a condition holds, so that no test depends on how fast the machine is."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain, repeat
from typing import Any, TypeVar, overload

import anyio

T = TypeVar("T")

# Seconds until a condition counts as broken. Far above what a busy machine needs, below the suite's own timeout.
TIMEOUT = 60.0

# Seconds between two checks: short at first, and longer the longer it takes, since checks cost the CPU time that others
# wait for.
INTERVALS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.25)

# Time limits to try in turn, for a program that a limit must end but that needs some time to begin.
TIME_LIMITS = (0.5, 5.0, 50.0)


def _intervals() -> Iterator[float]:
    return chain(INTERVALS, repeat(INTERVALS[-1]))


def eventually(check: Callable[[], T], timeout: float = TIMEOUT) -> T:
    """Poll `check` until it returns a true value, and return that value.

    An AssertionError of `check` counts as "not yet". On timeout, the last one is raised again, or one that names the
    last value.
    """
    deadline, intervals = time.monotonic() + timeout, _intervals()
    while True:
        expired = time.monotonic() >= deadline  # read before the check: the last check is never older than the deadline
        try:
            if value := check():
                return value
            failure = AssertionError(f"the condition is still {value!r} after {timeout} s")
        except AssertionError as error:
            failure = error
        if expired:
            raise failure
        time.sleep(next(intervals))


@overload
async def async_eventually(check: Callable[[], Awaitable[T]], timeout: float = ...) -> T: ...
@overload
async def async_eventually(check: Callable[[], T], timeout: float = ...) -> T: ...
async def async_eventually(check: Callable[[], Any], timeout: float = TIMEOUT) -> Any:
    """The same without blocking the event loop; `check` may be a coroutine function."""
    deadline, intervals = time.monotonic() + timeout, _intervals()
    while True:
        expired = time.monotonic() >= deadline
        try:
            value = check()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
            failure = AssertionError(f"the condition is still {value!r} after {timeout} s")
        except AssertionError as error:
            failure = error
        if expired:
            raise failure
        await anyio.sleep(next(intervals))
