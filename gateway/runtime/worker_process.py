"""One worker process as the gateway sees it: calls go in, answers come out, and it may end at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import signal
from collections.abc import Callable, Mapping
from typing import Any, cast

import orjson

from gateway.calls import Progress, no_progress, to_json
from gateway.errors import GatewayError, Invalid, ToolFailed
from gateway.sandbox import Exit, Limits, Process

WORKER_DIED = "WORKER_DIED"
OUTPUT_LIMIT = "OUTPUT_LIMIT"
_TEXT_LIMIT = 16 * 1024
_MEBIBYTE = 1024 * 1024


def tool_error(said: Any) -> GatewayError:
    """The worker's word on a call that failed, as one of our errors."""
    told: Mapping[str, Any] = said if isinstance(said, dict) else {}
    message = _text(told.get("message")) or "it failed without a word"
    match told.get("kind"):
        case "arguments":
            return Invalid(message)
        case "output":
            return ToolFailed(message, code="INVALID_OUTPUT")
        case "toolset":
            return ToolFailed(message)
    kind, place = _text(told.get("type")) or "Exception", _text(told.get("place"))
    where = f" ({place})" if place else ""
    own = _text(told.get("message"))
    return ToolFailed(f"{kind}: {own}{where}" if own else f"{kind}{where}", type=kind, text=own, place=place)


def too_much_output(limit: int) -> ToolFailed:
    printed = f"more than {limit // _MEBIBYTE} MiB" if limit >= _MEBIBYTE else f"more than {limit:,} bytes"
    return ToolFailed(
        f"the tool printed {printed} during one call and was ended; have it write to a file instead",
        code=OUTPUT_LIMIT,
        limit=limit,
    )


def worker_died(toolset: str, how: str, ended: Exit | None, stderr: str) -> ToolFailed:
    """`how` completes "the process of … "; the details have what an author needs to find out why."""
    return ToolFailed(
        f"the process of toolset {toolset!r} {how}; the next call starts a new one",
        code=WORKER_DIED,
        **({} if ended is None else exit_details(ended)),
        stderr=stderr,
    )


def exit_details(ended: Exit) -> dict[str, Any]:
    name = signal_name(ended.code)
    code = {"exit_code": ended.code} if name is None else {"signal": name}
    return code if ended.killed is None else {**code, "limit": ended.killed}


def how_it_ended(ended: Exit, limits: Limits, stderr: str) -> str:
    """In words for someone who never saw the code."""
    match ended.killed:
        case "memory":
            return f"used more than the {limits.memory // _MEBIBYTE} MiB of memory it may use (sandbox.memory_mb)"
        case "processes":
            return f"used all of the {limits.processes} processes and threads it may have"
        case "disk":
            return f"wrote more than the {limits.disk // _MEBIBYTE} MiB it may add to its files"
        case str() as limit:
            return f"went over its limit of {limit}"
    name = signal_name(ended.code)
    last = stderr.strip().rpartition("\n")[2][:300]
    if name is not None:
        return f"crashed ({_SIGNALS.get(name, name)})"
    return f"ended itself with exit code {ended.code}" + (f", saying {last!r}" if last else "")


def signal_name(code: int) -> str | None:
    """The signal behind an exit code, as `SIGSEGV`; None for a code the program chose."""
    number = code - 128 if code > 128 else -code
    try:
        return signal.Signals(number).name if number > 0 else None
    except ValueError:
        return None


_SIGNALS = {
    "SIGSEGV": "SIGSEGV: it touched memory that is not its own",
    "SIGKILL": "SIGKILL: it was killed from outside, perhaps for lack of memory",
    "SIGABRT": "SIGABRT: it gave itself up",
    "SIGXCPU": "SIGXCPU: it used up its processor time",
    "SIGSYS": "SIGSYS: it asked the system for something it may not do",
}


def _text(value: Any) -> str | None:
    return value[:_TEXT_LIMIT] if isinstance(value, str) else None


_HEADER = 4
_LONG_INTEGER = re.compile(rb"[0-9]{19}")


class WorkerChannel(asyncio.Protocol):
    """Hands each message to `receive`; `lost` is told once, with what was wrong, or None for a plain end."""

    def __init__(
        self, receive: Callable[[dict[str, Any]], None], lost: Callable[[str | None], None], limit: int
    ) -> None:
        self._receive = receive
        self._lost = lost
        self._limit = limit
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def send(self, message: bytes) -> None:
        if self._transport is not None:
            self._transport.write(len(message).to_bytes(_HEADER, "big") + message)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost(None)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while self._transport is not None and len(received) >= _HEADER:
            end = _HEADER + int.from_bytes(received[:_HEADER], "big")
            if end > _HEADER + self._limit:
                self._refuse(f"announced a message of {end - _HEADER:,} bytes")
            if len(received) < end or self._transport is None:
                return
            frame = bytes(received[_HEADER:end])
            del received[:end]
            self._dispatch(frame)

    def _dispatch(self, frame: bytes) -> None:
        try:
            message = _parse_frame(frame)
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict):
            self._receive(message)
        else:
            self._refuse("sent what is no message")

    def _refuse(self, reason: str) -> None:
        """Nothing after this is read: a stream that is wrong in one place is wrong from there on."""
        self.close()
        self._transport = None
        self._received.clear()
        self._lost(reason)


def _parse_frame(frame: bytes) -> Any:
    """orjson is fast, and rounds integers of more than 64 bits."""
    if _LONG_INTEGER.search(frame):
        return json.loads(frame, parse_constant=_refuse_constant)
    return orjson.loads(frame)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


_FLUSH_SECONDS = 1.0
_log = logging.getLogger(__name__)


class PendingCall:
    """Its answer, and its reports: while one is being told, only the newest of those that come is kept."""

    def __init__(self, answer: asyncio.Future[Any], progress: Progress, printed_before: int) -> None:
        self.answer = answer
        self.printed_before = printed_before
        self._progress = progress
        self._newest: tuple[float, float | None, str | None] | None = None
        self._telling: asyncio.Task[None] | None = None

    def answered(self, message: dict[str, Any], error: Callable[[Any], GatewayError]) -> bool:
        """Whether the message is an answer; if so, whoever waits has it."""
        if "value" in message:
            if not self.answer.done():
                self.answer.set_result(message["value"])
        elif "error" in message:
            self.fail(error(message["error"]))
        else:
            return False
        return True

    def fail(self, error: GatewayError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def report(self, said: Any) -> None:
        match said:
            case [float() | int() as done, (float() | int() | None) as total, (str() | None) as message]:
                self._newest = (done, total, message)
                if self._telling is None:
                    self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def reported(self) -> None:
        """Wait until the last report was told, but not for ever."""
        if (telling := self._telling) is not None:
            await asyncio.wait([telling], timeout=_FLUSH_SECONDS)
            telling.cancel()

    def close(self) -> None:
        """A call that is cancelled has nobody to tell any more."""
        if self.answer.cancelled() and self._telling is not None:
            self._telling.cancel()

    async def _tell(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while self._newest is not None:
                newest, self._newest = self._newest, None
                try:
                    await self._progress(*newest)
                except Exception:  # whoever watches must not break the call
                    _log.debug("a progress report was not taken", exc_info=True)
        self._telling = None


TAIL_BYTES = 8 * 1024
OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
_CHUNK = 64 * 1024
_DRAIN_SECONDS = 0.5


class WorkerOutput:
    """`printed` counts the bytes of both streams; `check` is called whenever it grew."""

    def __init__(self, process: Process, check: Callable[[], None]) -> None:
        self.printed = 0
        self.limit = OUTPUT_LIMIT_BYTES
        self._idle_from = 0
        self._check = check
        self._tail = b""
        loop = asyncio.get_running_loop()
        self._reading = [
            loop.create_task(self._drain(process.stdout, keep=False)),
            loop.create_task(self._drain(process.stderr, keep=True)),
        ]

    def tail(self) -> str:
        """The end of what it printed on stderr."""
        return self._tail.decode("utf-8", "replace")

    def since_idle(self) -> int:
        return self.printed - self._idle_from

    def note_idle(self) -> None:
        """From here on what is printed belongs to no call."""
        self._idle_from = self.printed

    async def end(self) -> None:
        """Read what is left of a process that has ended."""
        await asyncio.wait(self._reading, timeout=_DRAIN_SECONDS)
        for task in self._reading:
            task.cancel()

    async def _drain(self, stream: asyncio.StreamReader, keep: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await stream.read(_CHUNK):
                self.printed += len(chunk)
                if keep:
                    self._tail = (self._tail + chunk)[-TAIL_BYTES:]
                self._check()


# How long a cancelled coroutine has to give up before its worker is retired.
CANCEL_SECONDS = 1.0

# How long a worker that closed its channel has to end by itself, so that we learn how.
LEAVE_SECONDS = 0.5

# After so long without a call a worker is told to the sandbox as idle; at each call it would cost too much.
REST_SECONDS = 1.0

# More reports than this are no accident: the worker itself sends far fewer.
REPORTS_PER_SECOND = 1000

Message = dict[str, Any]
_toolset_log = logging.getLogger("gateway.toolset")
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
        self.channel = WorkerChannel(self._receive, self._lost, frame_bytes)
        self._process = process
        self._root = root
        self._limits = limits
        self._frame_bytes = frame_bytes
        self._number = 0
        self._calls: dict[int, PendingCall] = {}
        self._abandoned: dict[int, asyncio.TimerHandle] = {}
        self._given_up: set[int] = set()
        self._reason: str | None = None
        self._told: GatewayError | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._worked_at = 0.0
        self._reports = 0
        self._second = 0
        self._loop = asyncio.get_running_loop()
        self._output = WorkerOutput(process, self._check_output)
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
        running = PendingCall(self._loop.create_future(), progress, self._output.printed)
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

    async def _wait_for_answer(self, number: int, running: PendingCall) -> Any:
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
                _toolset_log.getChild(self.toolset).log(_LEVELS.get(level, logging.INFO), "%s", text[:4096])

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
