"""Concurrency: limits of how many calls run at once and for how long, and the shutdown of those that run."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Literal

from gateway.calls import Call, Outcome, Proceed, Progress, no_progress
from gateway.errors import Cancelled, Timeout, Unavailable
from gateway.extensions import Extension
from gateway.tasks import CallScope, SharedTimer
from gateway.tools import Tool

# The longest time that progress reports can extend a call to.
TOTAL_SECONDS = 3600.0

# Calls that may wait for a slot, per slot; one more is refused.
QUEUE_FACTOR = 16

# Seconds a cancelled call may take to end before shutdown continues without it.
CANCEL_SECONDS = 2.0


class Concurrency(Extension):
    """Gives each call a slot and a deadline. Slots are counted per owner of tools, so that a slow upstream uses up only
    its own. Each progress report of the tool puts the deadline off, until the call has run for `total` seconds.

    A tool of steps takes no slot, since its steps take their own, and has `total` seconds unless it declares a timeout:
    a step may wait for a person."""

    passes_errors = True

    def __init__(self, concurrency: int, timeout: float, total: float = TOTAL_SECONDS) -> None:
        self._concurrency = concurrency
        self._timeout = timeout
        self._total = total
        self._slots: dict[str | None, _Slots] = {}
        self._timers: dict[float, SharedTimer] = {}
        self._runs: dict[str, _Run] = {}  # by the id of their call
        self.stopping = False
        self._empty: asyncio.Event | None = None

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        self._refuse_when_stopping()
        tool = call.target
        if tool.kind == "steps":
            limit, slots = tool.timeout or self._total, None
        else:
            limit, slots = tool.timeout or self._timeout, self._slots_of(tool.owner)
            if not slots.take():
                await slots.wait()
        run = _Run()
        timer, total = self._timer(limit), None
        # A toolset reports also where the caller did not ask for it.
        if (call.progress is not no_progress or tool.home is not None) and limit < self._total:
            total = self._timer(self._total)
            call = call.replace(progress=_extend(call.progress, timer, run))
        try:
            self._refuse_when_stopping()  # the shutdown may have begun while it waited
            with run.scope:
                timer.add(run, run.time_out)
                if total is not None:
                    total.add(run, run.exceed_total)
                self._runs[call.id] = run
                return await proceed(call)
        finally:
            if slots is not None:
                slots.release()
            timer.remove(run)
            if total is not None:
                total.remove(run)
            self._remove(call.id)
        if run.cancelled_by is not None:
            raise Cancelled(f"{tool.id}: {run.cancelled_by} cancelled the call")
        if run.ended == "total":
            raise _timeout_error(tool, self._total, "limits.total_timeout")
        if run.ended == "silent":
            raise _timeout_error(tool, limit)
        raise Cancelled(f"{tool.id}: the gateway stopped before the call ended", code="SHUTTING_DOWN")

    def cancel(self, call_id: str, by: str) -> bool:
        """Cancel a running call; False if this process runs no such call."""
        run = self._runs.get(call_id)
        if run is None:
            return False
        if not run.scope.cancel_called:
            run.cancelled_by = by
        run.scope.cancel()
        return True

    @property
    def queued(self) -> int:
        """The number of calls that wait for a slot."""
        return sum(slots.queued for slots in self._slots.values())

    async def drain(self, grace: float) -> None:
        """Refuse new calls; cancel those that still run after `grace` seconds."""
        self.stopping = True
        await self._wait_until_empty(grace)
        for run in list(self._runs.values()):
            run.scope.cancel()
        await self._wait_until_empty(CANCEL_SECONDS)

    def _refuse_when_stopping(self) -> None:
        if self.stopping:
            raise Unavailable("the gateway is stopping; call again when it is back", code="SHUTTING_DOWN")

    def _slots_of(self, owner: str | None) -> _Slots:
        slots = self._slots.get(owner)
        if slots is None:
            slots = self._slots[owner] = _Slots(self._concurrency)
        return slots

    def _timer(self, limit: float) -> SharedTimer:
        timer = self._timers.get(limit)
        if timer is None:
            timer = self._timers[limit] = SharedTimer(limit)
        return timer

    def _remove(self, call_id: str) -> None:
        self._runs.pop(call_id, None)
        if not self._runs and self._empty:
            self._empty.set()

    async def _wait_until_empty(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while self._runs:
                    self._empty = asyncio.Event()
                    await self._empty.wait()
        except TimeoutError:
            return


class _Run:
    """A running call that can be cancelled."""

    __slots__ = ("cancelled_by", "ended", "scope")

    def __init__(self) -> None:
        self.scope = CallScope()
        self.ended: Literal["silent", "total"] | None = None
        self.cancelled_by: str | None = None

    def time_out(self, reason: Literal["silent", "total"] = "silent") -> None:
        if not self.scope.cancel_called:
            self.ended = reason
        self.scope.cancel()

    def exceed_total(self) -> None:
        self.time_out("total")


def _extend(progress: Progress, timer: SharedTimer, run: _Run) -> Progress:
    """Return `progress`, putting the deadline of the call off."""

    async def report(done: float, total: float | None = None, message: str | None = None) -> None:
        timer.restart(run)
        await progress(done, total, message)

    return report


def _timeout_error(tool: Tool, limit: float, setting: str | None = None) -> Timeout:
    """Return the error of a call that reached a deadline, with the setting to change."""
    message = f"{tool.id} took longer than {limit:g} s"
    if not tool.is_tool:
        return Timeout(message, limit=limit)
    if setting is None:
        setting = "limits.timeout" if tool.timeout is None else "the tool's own timeout"
        if tool.timeout is not None and tool.home is None and tool.owner is not None:
            setting = f"mcpServers.{tool.owner}.timeout"
        message += " without a progress report"
    return Timeout(f"{message}; raise {setting}", limit=limit, setting=setting)


class _Slots:
    """A first-in first-out semaphore with a limited queue. A released slot is handed to the first in the queue, so
    that a call that arrives at that moment cannot overtake it."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._free = number
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def take(self) -> bool:
        """Take a slot if one is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Take a slot as soon as one is free; refused if too many wait."""
        if len(self._waiting) >= self._number * QUEUE_FACTOR:
            raise Unavailable(
                f"{self._number} calls are running and too many wait (limits.concurrency); call again later",
                code="OVERLOADED",
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():  # it got a slot at the moment it was cancelled
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
