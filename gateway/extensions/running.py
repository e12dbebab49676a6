"""Running: how many calls run at once, for how long at most, and how they are stopped."""

from __future__ import annotations

import anyio

from ..calls import Call, Outcome, Proceed
from ..errors import Cancelled, Timeout, Unavailable
from . import Extension

QUEUE_FACTOR = 16
"""Calls that may wait for a slot, per slot; one more is told to come back instead."""

CANCEL_SECONDS = 2.0
"""How long a cancelled call may take to let go before it is left behind."""


class Running(Extension):
    """Gives each call a slot and a deadline. Slots are counted per owner of tools, so that a slow
    upstream fills its own and nobody else's."""

    def __init__(self, concurrency: int, timeout: float) -> None:
        self._concurrency = concurrency
        self._timeout = timeout
        self._slots: dict[str | None, anyio.Semaphore] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self.stopping = False
        self._empty: anyio.Event | None = None

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        self._refuse_when_stopping()
        tool = call.target
        limit = tool.timeout or self._timeout
        async with self._slot(tool.owner):
            with anyio.CancelScope(deadline=anyio.current_time() + limit) as scope:
                self._scopes[call.id] = scope
                try:
                    return await proceed(call)
                finally:
                    del self._scopes[call.id]
                    if not self._scopes and self._empty:
                        self._empty.set()
        if anyio.current_time() < scope.deadline:
            raise Cancelled(f"{tool.id}: the gateway stopped before the call was done", code="SHUTTING_DOWN")
        raise Timeout(f"{tool.id} took longer than {limit:g} s", limit=limit)

    def _refuse_when_stopping(self) -> None:
        if self.stopping:
            raise Unavailable("the gateway is stopping; call again when it is back", code="SHUTTING_DOWN")

    def _slot(self, owner: str | None) -> anyio.Semaphore:
        slots = self._slots.get(owner)
        if slots is None:
            slots = self._slots[owner] = anyio.Semaphore(self._concurrency, fast_acquire=True)
        if slots.value == 0 and slots.statistics().tasks_waiting >= self._concurrency * QUEUE_FACTOR:
            raise Unavailable(
                f"{self._concurrency} calls are running and too many wait (limits.concurrency)", code="OVERLOADED"
            )
        return slots

    async def drain(self, grace: float) -> None:
        """Let nothing new run; what runs has `grace` seconds to finish, then it is cancelled."""
        self.stopping = True
        with anyio.move_on_after(grace):
            await self._until_empty()
        for scope in list(self._scopes.values()):
            scope.cancel()
        with anyio.move_on_after(CANCEL_SECONDS):
            await self._until_empty()

    async def _until_empty(self) -> None:
        while self._scopes:
            self._empty = anyio.Event()
            await self._empty.wait()
