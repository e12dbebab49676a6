"""Concurrency: limits of how many calls run at once and for how long, and the shutdown of those that run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

from gateway.calls import ANSWER_SECONDS, Call, Outcome, Proceed, Progress, no_progress
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


_End = Literal["silent", "total", "unanswered", "files"]


class Concurrency(Extension):
    """Gives each call a slot and a deadline. Slots are counted per owner of tools, so that a slow upstream uses up only
    its own. Each progress report of the tool puts the deadline off, until the call has run for `total` seconds, and
    while an upstream's question waits for its answer, `ANSWER_SECONDS` at most, the deadline stands still. It measures
    what the tool does: waiting for a slot, or for the files of the chat while other calls have them, is limited to
    `total` seconds alone.

    A tool of steps takes no slot, since its steps take their own, and has `total` seconds unless it declares a timeout:
    a step may wait for a person."""

    passes_errors = True

    def __init__(self, concurrency: int, timeout: float, total: float = TOTAL_SECONDS) -> None:
        self._concurrency = concurrency
        self._timeout = timeout
        self._total = total
        self._slots: dict[str | None, _Slots] = {}
        self._timers: dict[float, SharedTimer] = {}
        self._answers = SharedTimer(ANSWER_SECONDS)
        self._runs: dict[str, _Run] = {}  # by the id of their call
        self.stopping = False
        self._stopped = asyncio.Event()
        self._empty: asyncio.Event | None = None

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        if self.stopping:
            raise _stopping_error()
        tool = call.target
        if tool.kind == "steps":
            limit, slots = tool.timeout or self._total, None
        else:
            limit, slots = tool.timeout or self._timeout, self._slots.get(tool.owner) or self._make_slots(tool.owner)
            if slots.free:
                slots.free -= 1
            else:
                await self._wait_for_slot(call, slots)
        timer, total = self._timers.get(limit) or self._make_timer(limit), None
        run = _Run()
        run.loop = timer.loop
        # A toolset reports also where the caller did not ask for it.
        reports = call.progress is not no_progress or tool.home is not None
        asks = call.client is not None and call.client.ask is not None and tool.home is None and tool.owner is not None
        if (reports or asks) and limit < self._total:
            total = self._timers.get(self._total) or self._make_timer(self._total)
            if reports:
                call = call.replace(progress=_extend(call.progress, timer, run))
            if asks:
                call = self._wait_for_answers(call, timer, run)
        try:
            with run:
                timer.add(run, run.time_out)
                if total is not None:
                    total.add(run, run.exceed_total)
                self._runs[call.id] = run
                if call.parent is None:
                    run.tool = tool.id
                return await proceed(call)
        finally:
            if slots is not None:
                slots.release()
            timer.remove(run)
            if total is not None:
                total.remove(run)
                self._answers.remove(run)
            self._runs.pop(call.id, None)
            if self._empty is not None and not self._runs:
                self._empty.set()
        if run.ended == "total":
            raise _timeout_error(tool, self._total, "limits.total_timeout")
        if run.ended == "unanswered":
            raise Timeout(f"{tool.id}: a question was not answered within {ANSWER_SECONDS:g} s", limit=ANSWER_SECONDS)
        if run.ended == "silent":
            raise _timeout_error(tool, limit)
        if run.ended == "files":
            raise _wait_error(tool, self._total, f"the files of chat {call.chat!r}, which other calls were using")
        raise _cancelled_error(tool, run)

    @contextmanager
    def wait_for_files(self, call: Call) -> Iterator[None]:
        """Enclose the time in which a call waits for the files of its chat. Its deadlines stand still meanwhile, and
        those of the calls that it is a step of."""
        runs = [(each.id, run) for each in _with_parents(call) if (run := self._runs.get(each.id)) is not None]
        for _, run in runs:
            if not run.waits:
                run.suspended = [again for timer in self._timers.values() if (again := timer.suspend(run))]
            run.waits += 1
        bound, own = self._timers.get(self._total) or self._make_timer(self._total), self._runs.get(call.id)
        if own is not None:
            bound.add(own, own.time_out, "files")
        try:
            yield
        finally:
            bound.remove(own)
            for call_id, run in runs:
                run.waits -= 1
                if not run.waits and self._runs.get(call_id) is run:  # it may have ended meanwhile
                    for again in run.suspended:
                        again()

    async def _wait_for_slot(self, call: Call, slots: _Slots) -> None:
        run, bound = _Run(), self._timers.get(self._total) or self._make_timer(self._total)
        bound.add(run, run.exceed_total)
        try:
            await self._wait(call, run, slots.wait())
        finally:
            bound.remove(run)
        if self.stopping:  # since it waits
            slots.release()
            raise _stopping_error()

    async def pause(self, call: Call, seconds: float) -> bool:
        """Wait between two attempts of a call, without a slot; False as soon as the gateway is stopping."""
        with suppress(TimeoutError):
            await self._wait(call, _Run(), asyncio.wait_for(self._stopped.wait(), seconds))
        return not self.stopping

    async def _wait(self, call: Call, run: _Run, waiting: Awaitable[object]) -> None:
        """Wait for something on behalf of a call that can be cancelled meanwhile like one that runs."""
        self._runs[call.id] = run
        if call.parent is None:
            run.tool = call.target.id
        try:
            with run:
                await waiting
        finally:
            self._runs.pop(call.id, None)
            if self._empty is not None and not self._runs:
                self._empty.set()
        if run.cancelled_caught and run.ended == "total":
            raise _wait_error(call.target, self._total, f"one of the {self._concurrency} slots of limits.concurrency")
        if run.cancelled_caught:
            raise _cancelled_error(call.target, run)

    def cancel(self, call_id: str, by: str) -> bool:
        """Cancel a call that runs, or waits for a slot or its next attempt; False if this process has no such call."""
        run = self._runs.get(call_id)
        if run is None:
            return False
        if not run.cancel_called:
            run.cancelled_by = by
        run.cancel()
        return True

    @property
    def running(self) -> list[str]:
        """The ids of the tools whose calls run or wait, without those of steps."""
        return [run.tool for run in self._runs.values() if run.tool is not None]

    @property
    def queued(self) -> int:
        """The number of calls that wait for a slot."""
        return sum(slots.queued for slots in self._slots.values())

    async def drain(self, grace: float) -> None:
        """Refuse new calls; cancel those that still run after `grace` seconds."""
        self.stopping = True
        self._stopped.set()
        await self._wait_until_empty(grace)
        for run in list(self._runs.values()):
            run.cancel()
        await self._wait_until_empty(CANCEL_SECONDS)

    def _make_slots(self, owner: str | None) -> _Slots:
        slots = self._slots[owner] = _Slots(self._concurrency)
        return slots

    def _make_timer(self, limit: float) -> SharedTimer:
        timer = self._timers[limit] = SharedTimer(limit)
        return timer

    def _wait_for_answers(self, call: Call, timer: SharedTimer, run: _Run) -> Call:
        """Return the call with an `ask` that stops the deadline of the call until the last open question is
        answered."""
        client, questions = call.client, 0
        assert client is not None and client.ask is not None  # noqa: S101 - checked by the caller
        ask = client.ask

        async def ask_and_wait(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
            nonlocal questions
            questions += 1
            timer.remove(run)
            self._answers.remove(run)
            self._answers.add(run, run.leave_unanswered)
            try:
                return await ask(method, params)
            finally:
                questions -= 1
                if not questions and self._runs.get(call.id) is run:  # it may have ended meanwhile
                    self._answers.remove(run)
                    timer.add(run, run.time_out)

        return call.replace(client=client.replace(ask=ask_and_wait))

    async def _wait_until_empty(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while self._runs:
                    self._empty = asyncio.Event()
                    await self._empty.wait()
        except TimeoutError:
            return


class _Run(CallScope):
    """A running call that can be cancelled."""

    tool: str | None = None  # its id, unless the call is a step
    ended: _End | None = None
    cancelled_by: str | None = None
    waits = 0  # of it and its steps, for files
    suspended: Sequence[Callable[[], None]] = ()  # set its deadlines again

    def time_out(self, reason: _End = "silent") -> None:
        if not self.cancel_called:
            self.ended = reason
        self.cancel()

    def exceed_total(self) -> None:
        self.time_out("total")

    def leave_unanswered(self) -> None:
        self.time_out("unanswered")


def _extend(progress: Progress, timer: SharedTimer, run: _Run) -> Progress:
    """Return `progress`, putting the deadline of the call off."""

    async def report(done: float, total: float | None = None, message: str | None = None) -> None:
        timer.restart(run)
        await progress(done, total, message)

    return report


def _with_parents(call: Call | None) -> Iterator[Call]:
    """Yield a call, the one that it is a step of, and so on."""
    while call is not None:
        yield call
        call = call.parent


def _stopping_error() -> Unavailable:
    return Unavailable("the gateway is stopping; call again when it is back", code="SHUTTING_DOWN")


def _cancelled_error(tool: Tool, run: _Run) -> Cancelled:
    if run.cancelled_by is not None:
        return Cancelled(f"{tool.id}: {run.cancelled_by} cancelled the call")
    return Cancelled(f"{tool.id}: the gateway stopped before the call ended", code="SHUTTING_DOWN")


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


def _wait_error(tool: Tool, limit: float, what: str) -> Timeout:
    return Timeout(f"{tool.id} waited {limit:g} s for {what}; call again later", limit=limit)


class _Slots:
    """A first-in first-out semaphore with a limited queue. A slot that is `free` is taken at once. A released one is
    handed to the first in the queue, so that a call that arrives at that moment cannot overtake it."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.free = number
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def queued(self) -> int:
        return len(self._waiting)

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
        self.free += 1
