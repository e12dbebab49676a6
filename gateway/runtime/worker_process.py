"""One worker process, seen from the gateway: its channel, its pending calls, its output and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import orjson

from gateway.calls import Progress, no_progress, to_json
from gateway.errors import GatewayError, Invalid, ToolFailed
from gateway.sandbox import Exit, Limits, Process
from gateway.tasks import ReportQueue
from gateway.value import Value
from gateway.workspace.hidden import Hidden

WORKER_DIED = "WORKER_DIED"
OUTPUT_LIMIT = "OUTPUT_LIMIT"

# Time for a cancelled coroutine to end before its worker is retired.
CANCEL_SECONDS = 1.0

# Time for a worker that closed its channel to exit, so that its exit code is known.
LEAVE_SECONDS = 0.5

# Time without calls after which the sandbox counts a worker as idle; switching at each call would cost too much.
IDLE_SECONDS = 1.0

# Limit of log lines; a worker that follows the protocol sends far fewer.
LINES_PER_SECOND = 1000

# Limit of the reports of a call that are not confirmed; a worker that follows the protocol keeps below it.
UNCONFIRMED_REPORTS = 10_000

# Time between the delivery of reports and the next batch, at least and per report. Where the caller wants the newest
# report only, it is `NEWEST_SECONDS`.
BATCH_SECONDS, REPORT_SECONDS, NEWEST_SECONDS = 0.005, 50e-6, 1.0

# Limit of output of one call, on stdout and stderr together.
OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024

STDERR_TAIL_BYTES = 8 * 1024

Message = dict[str, Any]
_TEXT_LIMIT = 16 * 1024
_MEBIBYTE = 1024 * 1024
_HEADER_BYTES = 4
_LONG_INTEGER = re.compile(rb"[0-9]{19}")
_CHUNK = 64 * 1024
_DRAIN_SECONDS = 0.5
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SIGNALS = {
    "SIGSEGV": "SIGSEGV: invalid memory access",
    "SIGKILL": "SIGKILL: killed from outside, perhaps for lack of memory",
    "SIGABRT": "SIGABRT: aborted",
    "SIGXCPU": "SIGXCPU: out of processor time",
    "SIGSYS": "SIGSYS: forbidden system call",
}
_log = logging.getLogger(__name__)
_toolset_log = logging.getLogger("gateway.toolset")


def make_tool_error(failure: Any) -> GatewayError:
    """Convert a failure that the worker sent; it is untrusted."""
    fields: Mapping[str, Any] = failure if isinstance(failure, dict) else {}
    message = _text(fields.get("message")) or "it failed without a message"
    match fields.get("kind"):
        case "arguments":
            return Invalid(message)
        case "output":
            return ToolFailed(message, code="INVALID_OUTPUT")
        case "toolset":
            return ToolFailed(message)
    kind, place = _text(fields.get("type")) or "Exception", _text(fields.get("place"))
    where = f" ({place})" if place else ""
    text = _text(fields.get("message"))
    return ToolFailed(f"{kind}: {text}{where}" if text else f"{kind}{where}", type=kind, text=text, place=place)


def make_output_error(limit: int) -> ToolFailed:
    printed = f"more than {limit // _MEBIBYTE} MiB" if limit >= _MEBIBYTE else f"more than {limit:,} bytes"
    return ToolFailed(
        f"the tool printed {printed} during one call and was ended; have it write to a file instead",
        code=OUTPUT_LIMIT,
        limit=limit,
    )


def worker_died_error(toolset: str, how: str, ended: Exit | None, stderr: str) -> ToolFailed:
    """Return the error of calls whose worker died. `how` completes "the process of toolset … "."""
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


def describe_exit(ended: Exit, limits: Limits, stderr: str) -> str:
    """Describe the end of a worker, to complete "the process of toolset … "."""
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
    return f"exited with code {ended.code}" + (f"; its last line on stderr: {last!r}" if last else "")


def signal_name(code: int) -> str | None:
    """Return the signal behind an exit code, such as `SIGSEGV`; None for a code the program chose."""
    number = code - 128 if code > 128 else -code
    try:
        return signal.Signals(number).name if number > 0 else None
    except ValueError:
        return None


def _text(value: Any) -> str | None:
    return value[:_TEXT_LIMIT] if isinstance(value, str) else None


class WorkerChannel(asyncio.Protocol):
    """The gateway's end of a worker's channel: length-prefixed JSON, all of it untrusted.

    `on_message` is called for each message, `on_closed` once, with the violation of the protocol or None.
    """

    def __init__(
        self, on_message: Callable[[dict[str, Any]], None], on_closed: Callable[[str | None], None], limit: int
    ) -> None:
        self._on_message = on_message
        self._on_closed = on_closed
        self._limit = limit
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def send(self, message: bytes) -> None:
        if self._transport is not None:
            self._transport.write(len(message).to_bytes(_HEADER_BYTES, "big") + message)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_closed(None)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while self._transport is not None and len(received) >= _HEADER_BYTES:
            end = _HEADER_BYTES + int.from_bytes(received[:_HEADER_BYTES], "big")
            if end > _HEADER_BYTES + self._limit:
                self._refuse(f"announced a message of {end - _HEADER_BYTES:,} bytes")
            if len(received) < end or self._transport is None:
                return
            frame = bytes(received[_HEADER_BYTES:end])
            del received[:end]
            self._dispatch(frame)

    def _dispatch(self, frame: bytes) -> None:
        try:
            message = _parse_frame(frame)
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict):
            self._on_message(message)
        else:
            self._refuse("sent an invalid message")

    def _refuse(self, reason: str) -> None:
        """Close the channel and read nothing more: after one invalid frame the stream cannot be trusted."""
        self.close()
        self._transport = None
        self._received.clear()
        self._on_closed(reason)


def _parse_frame(frame: bytes) -> Any:
    if _LONG_INTEGER.search(frame):  # orjson rounds integers of more than 64 bits
        return json.loads(frame, parse_constant=_refuse_constant)
    return orjson.loads(frame)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


class PendingCall:
    """A call in a worker: the future of its result, and its progress reports. `unconfirmed` is the number of reports
    since the worker was last told that all are delivered."""

    def __init__(
        self, result: asyncio.Future[Any], progress: Progress, printed_before: int, on_delivered: Callable[[], None]
    ) -> None:
        self.result = result
        self.printed_before = printed_before
        self.unconfirmed = 0
        self.reports = ReportQueue(on_delivered)
        self._progress = progress

    def resolve(self, message: dict[str, Any], error: Callable[[Any], GatewayError]) -> bool:
        """Set the result from a message; return False when the message is no result."""
        if "value" in message:
            if not self.result.done():
                self.result.set_result(message["value"])
        elif "error" in message:
            self.fail(error(message["error"]))
        else:
            return False
        return True

    def fail(self, error: GatewayError) -> None:
        if not self.result.done():
            self.result.set_exception(error)

    def report(self, batch: Any) -> None:
        for values in batch if isinstance(batch, list) else ():
            self.unconfirmed += 1
            match values:
                case [float() | int() as done, (float() | int() | None) as total, (str() | None) as message]:
                    self.reports.add(self._progress, done, total, message, size=len(message or ""))


class WorkerOutput:
    """Reads stdout and stderr of a worker, counts their bytes and keeps the end of stderr.

    `check` is called whenever the count `printed` has grown.
    """

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
        """Return the end of stderr."""
        return self._tail.decode("utf-8", "replace")

    def since_idle(self) -> int:
        return self.printed - self._idle_from

    def note_idle(self) -> None:
        """Count further output as output outside any call."""
        self._idle_from = self.printed

    async def end(self) -> None:
        """Read the rest of the output of a process that has ended."""
        await asyncio.wait(self._reading, timeout=_DRAIN_SECONDS)
        for task in self._reading:
            task.cancel()

    async def _drain(self, stream: asyncio.StreamReader, keep: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await stream.read(_CHUNK):
                self.printed += len(chunk)
                if keep:
                    self._tail = (self._tail + chunk)[-STDERR_TAIL_BYTES:]
                self._check()


class Worker:
    """A worker process. A *retired* worker takes no new calls and is killed after its last.

    `claims` counts calls that are about to use it. `on_change` is called when the worker may have become idle,
    and when it has ended.
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
        self.on_change: Callable[[], None] = lambda: None
        self.channel = WorkerChannel(self._on_message, self._on_closed, frame_bytes)
        self._process = process
        self._root = root
        self._limits = limits
        self._frame_bytes = frame_bytes
        self._number = 0
        self._calls: dict[int, PendingCall] = {}
        self._cancelled: dict[int, asyncio.TimerHandle] = {}
        self._given_up: set[int] = set()
        self._reason: str | None = None
        self._error: GatewayError | None = None
        self._busy_timer: asyncio.TimerHandle | None = None
        self._worked_at = 0.0
        self._line_count = 0
        self._line_second = 0
        self._loop = asyncio.get_running_loop()
        self._output = WorkerOutput(process, self._check_output)
        self._watch_task = self._loop.create_task(self._watch())

    @property
    def usable(self) -> bool:
        return not (self.retired or self.ended)

    @property
    def idle(self) -> bool:
        return not (self.claims or self._calls or self._cancelled)

    async def request(self, message: Mapping[str, Any], progress: Progress = no_progress) -> Any:
        """Send one request and return its result. Cancellation returns at once, and is passed on to the worker."""
        self._number = number = self._number + 1
        frame = to_json({"id": number, **message})
        if len(frame) > self._frame_bytes:
            size = f"{len(frame):,} bytes as JSON, and the limit is {self._frame_bytes:,}"
            raise Invalid(f"the arguments have {size}", code="REQUEST_TOO_LARGE", limit=self._frame_bytes)
        if self.ended:
            raise worker_died_error(self.toolset, "had just ended", None, "")
        on_delivered = partial(self._confirm_later, number, bool(message.get("every_report")))
        pending = PendingCall(self._loop.create_future(), progress, self._output.printed, on_delivered)
        self._calls[number] = pending
        self._mark_busy()
        self.channel.send(frame)
        try:
            value = await self._wait_for_result(number, pending)
            await pending.reports.flush()
        except GatewayError:  # the last report must arrive before the error
            await pending.reports.flush()
            raise
        finally:
            pending.reports.close()
        return value

    async def _wait_for_result(self, number: int, pending: PendingCall) -> Any:
        try:
            return await pending.result
        except asyncio.CancelledError:
            self._cancel_call(number)
            raise
        finally:
            self._calls.pop(number, None)
            if not self._calls:
                self._output.note_idle()
                self._worked_at = self._loop.time()

    def retire(self) -> None:
        """Take no new calls; end after the calls inside."""
        self.retired = True
        self._end_if_done()

    def kill(self, reason: str, error_for_calls: GatewayError | None = None) -> None:
        """End it now, not because of a failure of its own. The calls inside fail with `error_for_calls`, or else with
        `reason`, which completes "the process of toolset … "."""
        if self._reason is None:
            self.ended_by_us, self._error = True, error_for_calls
        self._kill(reason)

    def _kill(self, reason: str) -> None:
        self.retired = True
        self._reason = self._reason or reason
        self._process.kill()

    async def wait(self) -> None:
        """Wait until the process and its output have ended."""
        await asyncio.shield(self._watch_task)

    def _mark_busy(self) -> None:
        """Have the sandbox check limits often, until the worker has been idle for a while."""
        if self._busy_timer is None:
            self._process.busy = True
            self._busy_timer = self._loop.call_later(IDLE_SECONDS, self._check_idle)

    def _check_idle(self) -> None:
        self._busy_timer = None
        wait = IDLE_SECONDS if not self.idle else self._worked_at + IDLE_SECONDS - self._loop.time()
        if self.ended:
            return
        if wait > 0:
            self._busy_timer = self._loop.call_later(wait, self._check_idle)
        else:
            self._process.busy = False

    def _cancel_call(self, number: int) -> None:
        if not self.ended:
            self._cancelled[number] = self._loop.call_later(CANCEL_SECONDS, self._give_up, number)
            self.channel.send(to_json({"id": number, "do": "cancel"}))

    def _give_up(self, number: int) -> None:
        """Retire the worker: the code of a cancelled call goes on, and only the end of the process stops it."""
        self._cancelled.pop(number).cancel()
        self._given_up.add(number)
        self.retire()
        self.on_change()

    def _end_if_done(self) -> None:
        if self.retired and not self._calls and not self.claims:
            self.kill("was retired")

    def release(self) -> None:
        self.claims -= 1
        self._end_if_done()

    def _on_message(self, message: Message) -> None:
        if "loaded" in message:
            self.loaded = True
            return
        number = message.get("id")
        if not isinstance(number, int):
            number = 0
        if number in self._given_up:
            return
        if number not in self._calls and number not in self._cancelled:
            self._kill_for_violation("answered an unknown call")
        elif "progress" in message or "log" in message:
            self._report(number, message)
        elif number in self._cancelled:
            self._finish_cancelled(number, message)
        elif not self._calls[number].resolve(message, make_tool_error):
            self._kill_for_violation("sent an invalid answer")

    def _finish_cancelled(self, number: int, message: Message) -> None:
        if "stuck" in message:
            self._give_up(number)
        else:
            self._cancelled.pop(number).cancel()
            self.on_change()

    def _report(self, number: int, message: Message) -> None:
        if "log" in message:
            second = int(self._loop.time())
            self._line_count = self._line_count + 1 if second == self._line_second else 1
            self._line_second = second
            if self._line_count > LINES_PER_SECOND:
                self._kill_for_violation(f"sent more than {LINES_PER_SECOND} log lines in a second")
            else:
                self._log(message["log"])
        elif (pending := self._calls.get(number)) is not None:
            pending.report(message["progress"])
            if pending.unconfirmed > UNCONFIRMED_REPORTS:
                self._kill_for_violation(f"sent more than {UNCONFIRMED_REPORTS} reports before they were delivered")

    def _confirm_later(self, number: int, every: bool) -> None:
        """Tell the worker after a moment that the reports of a call are delivered, so that it sends the next."""
        if (pending := self._calls.get(number)) is not None:
            wait = max(BATCH_SECONDS, REPORT_SECONDS * pending.unconfirmed) if every else NEWEST_SECONDS
            self._loop.call_later(wait, self._confirm, number)

    def _confirm(self, number: int) -> None:
        if (pending := self._calls.get(number)) is not None:
            pending.unconfirmed = 0
            self.channel.send(to_json({"id": number, "do": "confirm"}))

    def _log(self, line: Any) -> None:
        match line:
            case [str() as level, str() as text]:
                _toolset_log.getChild(self.toolset).log(_LEVELS.get(level, logging.INFO), "%s", text[:4096])

    def _kill_for_violation(self, how: str) -> None:
        self.channel.close()
        self._kill(f"{how} and was ended")

    def _on_closed(self, reason: str | None) -> None:
        """Give the process a moment to exit after its channel closed, so that its exit code is known."""
        self.retired = True
        if reason is not None:
            self._kill(f"{reason} and was ended")
        elif not self.ended:
            self._loop.call_later(LEAVE_SECONDS, self._kill_if_alive)

    def _kill_if_alive(self) -> None:
        if not self.ended:
            self._kill("closed its connection to the gateway")

    def _check_output(self) -> None:
        limit = self._output.limit
        over = [call for call in self._calls.values() if self._output.printed - call.printed_before > limit]
        for call in over:
            call.fail(make_output_error(limit))
        if over or (not self._calls and self._output.since_idle() > limit):
            self._kill("printed too much and was ended")

    async def _watch(self) -> None:
        ended = Exit(-1)
        try:
            ended = await self._process.wait()
        except GatewayError as error:  # the sandbox could not be set up
            self._error = self._error or error
        await self._output.end()
        self.ended = self.retired = True
        self.channel.close()
        for handle in filter(None, [*self._cancelled.values(), self._busy_timer]):
            handle.cancel()
        self._cancelled.clear()
        for call in list(self._calls.values()):
            call.fail(self._error or self._make_died_error(ended))
        self.on_change()

    def _make_died_error(self, ended: Exit) -> GatewayError:
        stderr = self._output.tail().replace(f"{self._root}/", "")
        # A limit comes first: a large tree that is killed for one closes its connection long before it has ended.
        reason = None if ended.killed is not None else self._reason
        how = reason or describe_exit(ended, self._limits, stderr)
        return worker_died_error(self.toolset, how, None if reason else ended, stderr)


WorkerKey = tuple[Path, Path, bool, bool]


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """One call of a toolset's function.

    `directory` holds the toolset version and never changes; `env` has the secrets that the toolset declares; `id` is
    the call's id. Without `every_report`, only the newest progress report counts. Without `writable` the call cannot
    change the workspace, without `programs` it cannot start processes. `protected` are paths in the workspace that it
    cannot change, `hidden` paths that it cannot see. With `single_use` it has a worker of its own, which is ended with
    the call.
    """

    toolset: str
    directory: Path
    entrypoint: str
    arguments: Mapping[str, Any]
    workspace: Path
    chat: str
    id: str
    requirements: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    progress: Progress = no_progress
    every_report: bool = True
    writable: bool = True
    programs: bool = True
    protected: tuple[str, ...] = ()
    hidden: Hidden = ()
    single_use: bool = False


class WorkerSpec(Value):
    """Everything a worker is started with. A worker serves only calls with an equal spec: other secrets, packages or
    hidden files need another worker, and so does a workspace that was created again under the same name (`inode`).

    A `single_use` worker is ended after its first call: remaining code could change files that were checked already.
    """

    toolset: str
    directory: Path
    workspace: Path
    packages: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    inode: int = 0
    writable: bool = True
    programs: bool = True
    protected: tuple[str, ...] = ()
    hidden: Hidden = ()
    single_use: bool = False

    @classmethod
    def of(cls, call: FunctionCall, packages: Path | None) -> WorkerSpec:
        inode = os.stat(call.workspace).st_ino  # noqa: PTH116 - faster than Path.stat, for every call
        rights = call.writable, call.programs, call.protected, call.hidden, call.single_use
        return cls(call.toolset, call.directory, call.workspace, packages, call.env, inode, *rights)

    @property
    def key(self) -> WorkerKey:
        return self.directory, self.workspace, self.writable, self.programs
