"""Audit: every call is recorded before its response is sent, refusals and unknown names included."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Protocol

import anyio

from gateway.calls import Call, Outcome, Proceed
from gateway.errors import Cancelled
from gateway.extensions import Extension
from gateway.tasks import SharedTimer, TaskSet

log = logging.getLogger(__name__)

# Seconds after which a call gets a `running` row; a shorter one costs a single write.
RUNNING_AFTER = 0.25


class Recorder(Protocol):
    """Stores records of calls."""

    async def record_running(self, call: Call) -> None: ...

    async def record_finished(self, call: Call, outcome: Outcome) -> None: ...


class Audit(Extension):
    """Records each call when it ends, and a long one also while it runs. A call that cannot be recorded continues."""

    mode = "observer"
    contained = True

    def __init__(self, recorder: Recorder, running_after: float = RUNNING_AFTER) -> None:
        self._recorder = recorder
        self._timer = SharedTimer(running_after)
        self._running_records = TaskSet()

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        self._timer.add(call.id, partial(self._note_running, call))
        try:
            outcome = await proceed(call)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._record(call, Outcome(error=Cancelled("the caller cancelled the call")))
            raise
        finally:
            self._timer.remove(call.id)
        await self._record(call, outcome)
        return outcome

    async def _record(self, call: Call, outcome: Outcome) -> None:
        try:
            await self._recorder.record_finished(call, outcome)
        except Exception:
            log.exception("call %s: could not be recorded; the call continues", call.id)

    def _note_running(self, call: Call) -> None:
        self._running_records.start(self._record_running(call))

    async def _record_running(self, call: Call) -> None:
        try:
            await self._recorder.record_running(call)
        except Exception:
            log.exception("call %s: could not be recorded as running", call.id)
