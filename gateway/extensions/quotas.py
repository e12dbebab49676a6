"""Quotas: limits of what one principal may use of the gateway, as its role sets them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from gateway.access import AccessLimits
from gateway.calls import Call, Outcome
from gateway.errors import QuotaExceeded
from gateway.extensions import Extension
from gateway.extensions.rate_limit import ROUNDING, WINDOW, RateTable
from gateway.tools import Tool

# The longest time, in seconds, for which bytes used now can keep a principal from calling.
LONGEST_DELAY = 10 * WINDOW


class Quotas(Extension):
    """Refuses calls above the limits of the caller's role, and says when to call again. Calls and bytes per minute are
    counted for all processes on one data directory, concurrent calls for this one. The bytes of a call are known when
    it ends: they delay the calls after it. The steps of a call are not concurrent to it."""

    def __init__(self, is_used: bool, table: Callable[[], RateTable], clock: Callable[[], float] = time.time) -> None:
        self._is_used = is_used
        self._table = table
        self._clock = clock
        self._running: Counter[str] = Counter()

    def applies_to(self, _: Tool) -> bool:
        return self._is_used

    def before_execute(self, call: Call) -> Awaitable[None] | None:
        limits = _limits(call)
        if limits is None:
            return None
        table = self._table()
        if table.is_shared():
            return _run_locked(table, lambda: self._begin(table, call, limits))
        self._begin(table, call, limits)
        return None

    def after_execute(self, call: Call, outcome: Outcome) -> Awaitable[None] | None:
        limits = _limits(call)
        if limits is None:
            return None
        self._end(call)
        limit = limits.bytes_per_minute
        if limit is None:
            return None
        size, table = len(call.arguments_json) + outcome.size, self._table()
        if table.is_shared():
            return _run_locked(table, lambda: self._charge(table, call, size, limit))
        self._charge(table, call, size, limit)
        return None

    def on_cancel(self, call: Call) -> None:
        if _limits(call) is not None:
            self._end(call)

    def _begin(self, table: RateTable, call: Call, limits: AccessLimits) -> None:
        principal, now = call.caller.principal, self._clock()
        at_once = limits.concurrent_calls
        if at_once is not None and call.parent is None and self._running[principal] >= at_once:
            raise _refuse("calls at once", at_once, 1)
        if limits.bytes_per_minute is not None:
            used = table.full_at(table.find(("bytes", "", principal)), now, LONGEST_DELAY) - now
            if used >= WINDOW:
                raise _refuse("bytes a minute", limits.bytes_per_minute, used - WINDOW)
        if limits.calls_per_minute is not None:
            place, step = table.find(("calls", "", principal)), WINDOW / limits.calls_per_minute
            full_at = table.full_at(place, now) + step
            if full_at - now > WINDOW + ROUNDING * step:
                raise _refuse("calls a minute", limits.calls_per_minute, full_at - now - WINDOW)
            table.set_full_at(place, full_at)
        self._running[principal] += 1

    def _charge(self, table: RateTable, call: Call, size: int, limit: int) -> None:
        now, place = self._clock(), table.find(("bytes", "", call.caller.principal))
        full_at = table.full_at(place, now, LONGEST_DELAY) + size * WINDOW / limit
        table.set_full_at(place, min(full_at, now + LONGEST_DELAY))

    def _end(self, call: Call) -> None:
        principal = call.caller.principal
        self._running[principal] -= 1
        if self._running[principal] <= 0:
            del self._running[principal]


def _limits(call: Call) -> AccessLimits | None:
    access = call.caller.access
    return None if access is None else access.limits


async def _run_locked(table: RateTable, work: Callable[[], None]) -> None:
    await table.lock()
    try:
        work()
    finally:
        table.unlock()


def _refuse(what: str, limit: int, seconds: float) -> QuotaExceeded:
    wait = max(1, math.ceil(seconds))
    return QuotaExceeded(
        f"your role allows {limit} {what}; try again in {wait} s", limit=limit, scope=what, retry_after=wait
    )
