"""Running: how many calls run at once, for how long at most, and how they are stopped."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from anyio._backends._asyncio import _task_states

from ..calls import Call, Outcome, Proceed
from ..errors import Cancelled, Timeout, Unavailable
from . import Extension
from .later import Later
from .leash import Leash

QUEUE_FACTOR = 16
"""Calls that may wait for a slot, per slot; one more is told to come back instead."""

CANCEL_SECONDS = 2.0
"""How long a cancelled call may take to let go before it is left behind."""

AGAIN_SECONDS = 1.0
"""After which a call that did not let go is told again."""

SHIELDED_SECONDS = 0.01
"""After which a call that shields itself is looked at again."""


class Running(Extension):
    """Gives each call a slot and a deadline. Slots are counted per owner of tools, so that a slow
    upstream fills its own and nobody else's."""

    def __init__(self, concurrency: int, timeout: float) -> None:
        self._concurrency = concurrency
        self._timeout = timeout
        self._slots: dict[str | None, _Slots] = {}
        self._clocks: dict[float, Later] = {}
        self._runs: set[_Run] = set()
        self.stopping = False
        self._empty: asyncio.Event | None = None

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        self._refuse_when_stopping()
        tool = call.target
        limit = tool.timeout or self._timeout
        slots = self._slots_of(tool.owner)
        await slots.take()
        run = _Run()
        clock = self._clock(limit)
        try:
            if self.stopping:  # which may have begun while it waited
                self._refuse_when_stopping()
            with run:
                clock.expect(run, run.time_out)
                self._runs.add(run)
                return await proceed(call)
        finally:
            slots.give_back()
            clock.drop(run)
            self._over(run)
        if run.timed_out:
            raise Timeout(f"{tool.id} took longer than {limit:g} s", limit=limit)
        raise Cancelled(f"{tool.id}: the gateway stopped before the call was done", code="SHUTTING_DOWN")

    async def drain(self, grace: float) -> None:
        """Let nothing new run; what runs has `grace` seconds to finish, then it is cancelled."""
        self.stopping = True
        await self._until_empty(grace)
        for run in list(self._runs):
            run.stop()
        await self._until_empty(CANCEL_SECONDS)

    def _refuse_when_stopping(self) -> None:
        if self.stopping:
            raise Unavailable("the gateway is stopping; call again when it is back", code="SHUTTING_DOWN")

    def _slots_of(self, owner: str | None) -> _Slots:
        slots = self._slots.get(owner)
        if slots is None:
            slots = self._slots[owner] = _Slots(self._concurrency)
        return slots

    def _clock(self, limit: float) -> Later:
        clock = self._clocks.get(limit)
        if clock is None:
            clock = self._clocks[limit] = Later(limit)
        return clock

    def _over(self, run: _Run) -> None:
        self._runs.discard(run)
        if run.again is not None:
            run.again.cancel()
        if not self._runs and self._empty:
            self._empty.set()

    async def _until_empty(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while self._runs:
                    self._empty = asyncio.Event()
                    await self._empty.wait()
        except TimeoutError:
            return


class _Run(Leash):
    """A call under way. One that is to end is told so where it does not shield itself (a version being saved, a thread
    that writes files), and told again until it lets go."""

    def __init__(self) -> None:
        super().__init__()
        self.timed_out = False
        self.again: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._around = _innermost_scope(self._task)
        return self

    def time_out(self) -> None:
        self.timed_out = self.again is None  # else it is being stopped already
        self.stop()

    def stop(self) -> None:
        if self.again is not None:
            self.again.cancel()
        wait = SHIELDED_SECONDS
        if not self._shielded():
            self.pull()
            wait = AGAIN_SECONDS
        self.again = asyncio.get_running_loop().call_later(wait, self.stop)

    def _shielded(self) -> bool:
        """Whether it is inside a shield of its own; one around it is no business of ours."""
        scope = _innermost_scope(self._task)
        while scope is not None and scope is not self._around:
            if scope.shield:
                return True
            scope = scope._parent_scope
        return False


def _innermost_scope(task: asyncio.Task[Any]) -> Any:
    """The anyio scope a task is in. anyio has no word for it, and to open a scope of our own around every call would
    cost more than all else here; but a task that is cancelled by asyncio's means is not spared by its shields."""
    state = _task_states.get(task)
    return None if state is None else state.cancel_scope


class _Slots:
    """So many at once; the others wait in the order in which they came, as long as they are not too many."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._free = asyncio.Semaphore(number)
        self._waiting = 0

    async def take(self) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        if self._waiting >= self._number * QUEUE_FACTOR:
            raise Unavailable(
                f"{self._number} calls are running and too many wait (limits.concurrency)", code="OVERLOADED"
            )
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    def give_back(self) -> None:
        self._free.release()
