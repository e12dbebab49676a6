"""One worker process as the gateway sees it: calls go in, answers come out, and it may end at any moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from gateway.calls import Progress, no_progress, to_json
from gateway.errors import GatewayError, Invalid
from gateway.runtime.channel import Channel
from gateway.runtime.errors import how_it_ended, too_much_output, tool_error, worker_died
from gateway.runtime.pending_call import Running
from gateway.runtime.worker_output import Output
from gateway.sandbox import Exit, Limits, Process

# How long a cancelled coroutine has to give up before its worker is retired.
CANCEL_SECONDS = 1.0

# How long a worker that closed its channel has to end by itself, so that we learn how.
LEAVE_SECONDS = 0.5

# After so long without a call a worker is told to the sandbox as idle; at each call it would cost too much.
REST_SECONDS = 1.0

# More reports than this are no accident: the worker itself sends far fewer.
REPORTS_PER_SECOND = 1000

Message = dict[str, Any]
_log = logging.getLogger("gateway.toolset")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Worker:
    """Runs calls until it ends. A *retired* one takes no new calls and is killed after its last.

    `changed` is called when the worker may have become idle, and when it has ended.
    """

    def __init__(self, process: Process, toolset: str, root: str, limits: Limits, frame_bytes: int) -> None:
        self.toolset = toolset
        self.retired = False
        self.loaded = False
        self.ended = False
        self.claims = 0
        self.used_at = 0.0
        self.idle_timer: asyncio.TimerHandle | None = None
        self.ended_by_us = False
        self.changed: Callable[[], None] = lambda: None
        self.channel = Channel(self._receive, self._lost, frame_bytes)
        self._process = process
        self._root = root
        self._limits = limits
        self._frame_bytes = frame_bytes
        self._number = 0
        self._calls: dict[int, Running] = {}
        self._abandoned: dict[int, asyncio.TimerHandle] = {}
        self._given_up: set[int] = set()
        self._reason: str | None = None
        self._told: GatewayError | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._worked_at = 0.0
        self._reports = 0
        self._second = 0
        self._loop = asyncio.get_running_loop()
        self._output = Output(process, self._check_output)
        self._watching = self._loop.create_task(self._watch())

    @property
    def usable(self) -> bool:
        return not (self.retired or self.ended)

    @property
    def idle(self) -> bool:
        return not (self.claims or self._calls or self._abandoned)

    async def request(self, message: Mapping[str, Any], progress: Progress = no_progress) -> Any:
        """The answer to one request; cancelled, it returns at once, and the worker is told."""
        self._number = number = self._number + 1
        frame = to_json({"id": number, **message})
        if len(frame) > self._frame_bytes:
            size = f"{len(frame):,} bytes as JSON, and the limit is {self._frame_bytes:,}"
            raise Invalid(f"the arguments have {size}", code="REQUEST_TOO_LARGE", limit=self._frame_bytes)
        if self.ended:
            raise worker_died(self.toolset, "had just ended", None, "")
        running = Running(self._loop.create_future(), progress, self._output.printed)
        self._calls[number] = running
        self._stir()
        self.channel.send(frame)
        try:
            value = await self._wait_for_answer(number, running)
        except GatewayError:  # the last report of a call comes before its error, too
            await running.reported()
            raise
        await running.reported()
        return value

    async def _wait_for_answer(self, number: int, running: Running) -> Any:
        try:
            return await running.answer
        except asyncio.CancelledError:
            self._abandon(number)
            raise
        finally:
            self._calls.pop(number, None)
            running.close()
            if not self._calls:
                self._output.note_idle()
                self._worked_at = self._loop.time()

    def retire(self) -> None:
        """Take no new calls; end when those inside have."""
        self.retired = True
        self._end_if_done()

    def kill(self, reason: str, told: GatewayError | None = None) -> None:
        """End it now, through no fault of its own. The calls inside are told `told`, or else `reason`, which
        completes "the process of … "."""
        if self._reason is None:
            self.ended_by_us, self._told = True, told
        self._kill(reason)

    def _kill(self, reason: str) -> None:
        self.retired = True
        self._reason = self._reason or reason
        self._process.kill()

    async def wait(self) -> None:
        """Until nothing is left of it."""
        await asyncio.shield(self._watching)

    def _stir(self) -> None:
        """The sandbox looks closely at a worker with calls, and at one that has just had some."""
        if self._resting is None:
            self._process.busy = True
            self._resting = self._loop.call_later(REST_SECONDS, self._rest)

    def _rest(self) -> None:
        self._resting = None
        wait = REST_SECONDS if not self.idle else self._worked_at + REST_SECONDS - self._loop.time()
        if self.ended:
            return
        if wait > 0:
            self._resting = self._loop.call_later(wait, self._rest)
        else:
            self._process.busy = False

    def _abandon(self, number: int) -> None:
        if not self.ended:
            self._abandoned[number] = self._loop.call_later(CANCEL_SECONDS, self._give_up, number)
            self.channel.send(to_json({"id": number, "do": "cancel"}))

    def _give_up(self, number: int) -> None:
        """Its code goes on although nobody waits for it; only the end of the process stops it."""
        self._abandoned.pop(number).cancel()
        self._given_up.add(number)
        self.retire()
        self.changed()

    def _end_if_done(self) -> None:
        if self.retired and not self._calls and not self.claims:
            self.kill("was retired")

    def released(self) -> None:
        self.claims -= 1
        self._end_if_done()

    def _receive(self, message: Message) -> None:
        if "loaded" in message:
            self.loaded = True
            return
        number = message.get("id")
        if not isinstance(number, int):
            number = 0
        if number in self._given_up:
            return
        if number not in self._calls and number not in self._abandoned:
            self._violated("answered a call that nobody made")
        elif "progress" in message or "log" in message:
            self._report(number, message)
        elif number in self._abandoned:
            self._abandoned_answer(number, message)
        elif not self._calls[number].answered(message, tool_error):
            self._violated("sent an answer that is none")

    def _abandoned_answer(self, number: int, message: Message) -> None:
        if "stuck" in message:
            self._give_up(number)
        else:
            self._abandoned.pop(number).cancel()
            self.changed()

    def _report(self, number: int, message: Message) -> None:
        second = int(self._loop.time())
        self._reports = self._reports + 1 if second == self._second else 1
        self._second = second
        if self._reports > REPORTS_PER_SECOND:
            self._violated(f"sent more than {REPORTS_PER_SECOND} reports in a second")
        elif "log" in message:
            self._log(message["log"])
        elif number in self._calls:
            self._calls[number].report(message["progress"])

    def _log(self, said: Any) -> None:
        match said:
            case [str() as level, str() as text]:
                _log.getChild(self.toolset).log(_LEVELS.get(level, logging.INFO), "%s", text[:4096])

    def _violated(self, how: str) -> None:
        self.channel.close()
        self._kill(f"{how} and was ended")

    def _lost(self, reason: str | None) -> None:
        """The channel is gone, and soon the process: it is given a moment, so that we learn how it ended."""
        self.retired = True
        if reason is not None:
            self._kill(f"{reason} and was ended")
        elif not self.ended:
            self._loop.call_later(LEAVE_SECONDS, self._left)

    def _left(self) -> None:
        if not self.ended:
            self._kill("closed its connection to the gateway")

    def _check_output(self) -> None:
        limit = self._output.limit
        over = [call for call in self._calls.values() if self._output.printed - call.printed_before > limit]
        for call in over:
            call.fail(too_much_output(limit))
        if over or (not self._calls and self._output.since_idle() > limit):
            self._kill("printed without end and was ended")

    async def _watch(self) -> None:
        ended = Exit(-1)
        try:
            ended = await self._process.wait()
        except GatewayError as error:  # the sandbox could not begin
            self._told = self._told or error
        await self._output.end()
        self.ended = self.retired = True
        self.channel.close()
        for handle in filter(None, [*self._abandoned.values(), self._resting]):
            handle.cancel()
        self._abandoned.clear()
        for call in list(self._calls.values()):
            call.fail(self._told or self._died(ended))
        self.changed()

    def _died(self, ended: Exit) -> GatewayError:
        stderr = self._output.tail().replace(f"{self._root}/", "")
        how = self._reason or how_it_ended(ended, self._limits, stderr)
        return worker_died(self.toolset, how, None if self._reason else ended, stderr)
