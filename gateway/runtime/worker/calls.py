"""Runs the calls of a worker side by side: plain functions in a few threads, coroutines on one event loop."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import importlib
import inspect
import math
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covalt_toolset import (
    BadArguments,
    BadReturn,
    Log,
    Progress,
    ToolContext,
    ToolsetError,
    describe,
    invoke,
    load,
    set_context,
)

from .channel import FrameTooLarge, GatewayChannel, end

if TYPE_CHECKING:
    import asyncio

Message = dict[str, Any]
Finish = Callable[[Any, BaseException | None], None]

THREADS = 8
TEXT_LIMIT = 8 * 1024
# Reports in one message, and the characters of their texts beyond the first.
_BATCH, _BATCH_TEXT = 128, 32 * 1024
# Reports that wait here while a coroutine, which must not block the others, reports faster than they are delivered.
_PENDING_LIMIT = 8000
# The time a function waits for a caller that takes no reports.
_WAIT_SECONDS = 5.0
_MAIN_THREAD = threading.main_thread()  # the one of coroutines
_LOG_LINES_LIMIT = 500
_LINE_LIMIT = 4 * 1024


class CallReporter:
    """Sends progress and log lines of one call. Reports go in batches, the next one when the gateway has delivered the
    last. With `every`, none is left out: a function that reports faster than its caller takes reports waits here.
    Otherwise only the newest report is kept."""

    def __init__(self, channel: GatewayChannel, number: int, every: bool) -> None:
        self._channel = channel
        self._number = number
        self._every = every
        self._changed = threading.Condition()
        self._pending: list[Progress] = []
        self._delivering = False
        self._patient = True
        self._lines = 0
        self._closed = False

    def __call__(self, report: Progress | Log) -> None:
        if not self._channel.is_ours:
            return
        with self._changed:
            if isinstance(report, Log):
                self._log(report)
            else:
                self._progress(Progress(*_validate(report)))

    def confirm(self) -> None:
        """Send the next batch: the gateway has delivered the last."""
        with self._changed:
            self._delivering, self._patient = False, True
            self._send_batch()
            self._changed.notify_all()

    def close(self) -> None:
        """Send the pending reports before the result, and nothing after it."""
        with self._changed:
            while self._pending:
                self._send_batch()
            self._closed = True
            self._changed.notify_all()

    def _progress(self, report: Progress) -> None:
        if not self._every:
            self._pending.clear()
        elif len(self._pending) >= _BATCH and self._patient and threading.current_thread() is not _MAIN_THREAD:
            self._patient = self._changed.wait_for(lambda: self._closed or len(self._pending) < _BATCH, _WAIT_SECONDS)
        if len(self._pending) >= _PENDING_LIMIT:
            self._pending.pop()
        if not self._closed:
            self._pending.append(report)
        if not self._delivering:
            self._send_batch()

    def _send_batch(self) -> None:
        count = size = 0
        for report in self._pending[:_BATCH]:
            size += len(report.message or "")
            if count and size > _BATCH_TEXT:
                break
            count += 1
        batch, self._pending = self._pending[:count], self._pending[count:]
        if batch:
            self._channel.send({"id": self._number, "progress": batch})
            self._delivering = True

    def _log(self, line: Log) -> None:
        self._lines += 1
        if self._lines <= _LOG_LINES_LIMIT and not self._closed:
            self._channel.send({"id": self._number, "log": [line.level, str(line.message)[:_LINE_LIMIT]]})


def _validate(report: Progress) -> tuple[float, float | None, str | None]:
    done, total = float(report.done), None if report.total is None else float(report.total)
    if not math.isfinite(done) or not math.isfinite(total or 0):
        raise ValueError("progress is reported in finite numbers")
    return done, total, None if report.message is None else str(report.message)[:_LINE_LIMIT]


class Coroutines:
    """The event loop of coroutines, in the main thread; created when the first one starts."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._made = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def serve(self) -> None:
        """Run coroutines in this thread, until the process ends."""
        self._wanted.wait()
        asyncio = importlib.import_module("asyncio")  # 20 ms and 4 MiB that most toolsets do not need
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._made.set()
        while True:
            self._loop.run_forever()

    def make(self, awaitable: Awaitable[Any], finish: Finish) -> Coroutine:
        return Coroutine(self, awaitable, finish)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        self._wanted.set()
        self._made.wait()
        assert self._loop is not None  # noqa: S101 - made is set after it
        return self._loop


class Coroutine:
    """The coroutine of one call, started and cancelled from other threads; `finish` gets its result or error."""

    def __init__(self, coroutines: Coroutines, awaitable: Awaitable[Any], finish: Finish) -> None:
        self._coroutines = coroutines
        self._awaitable = awaitable
        self._finish = finish
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start it in the calling context."""
        self._coroutines.loop.call_soon_threadsafe(self._start)

    def cancel(self) -> None:
        self._coroutines.loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        self._task = self._coroutines.loop.create_task(self._run())

    def _cancel(self) -> None:
        if self._task is None:  # not started yet: try again in the next iteration of the loop
            self._coroutines.loop.call_later(0.001, self._cancel)
        else:  # after its first step, so that `_run` catches the cancellation
            self._coroutines.loop.call_soon(self._task.cancel)

    async def _run(self) -> None:
        try:
            value = await self._awaitable
        except BaseException as error:  # `SystemExit` too: it would end the loop with every call on it
            self._finish(None, error)
        else:
            self._finish(value, None)


def describe_error(error: BaseException, root: Path) -> dict[str, Any]:
    """Describe an exception for a message's `error`. Paths are relative to the toolset's directory `root`."""
    fields: dict[str, Any] = {"kind": _kind(error), "message": _text(error, root)}
    if fields["kind"] == "raised":
        fields |= {"type": type(error).__name__[:200], "place": _place(error, root)}
    return fields


def _kind(error: BaseException) -> str:
    if isinstance(error, BadArguments):
        return "arguments"
    if isinstance(error, BadReturn):
        return "output"
    return "toolset" if isinstance(error, ToolsetError) else "raised"


def _text(error: BaseException, root: Path) -> str:
    try:
        text = str(error)
    except BaseException:  # an untrusted `__str__`
        return "its message cannot be read"
    text = text.replace(f"{root}/", "").replace(f" in {root}", "").replace(str(root), "the toolset")
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}…"


def _place(error: BaseException, root: Path) -> str | None:
    """Return the last line of the traceback that is in the toolset's files."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith(f"{root}/"):
            place = f"{file[len(str(root)) + 1 :]} line {line}"
    return place


class CallRunner:
    """Runs calls in threads. The thread that reads a call also runs it while another thread goes on reading, so a
    single call needs no thread switch. When all threads are busy, calls queue in order."""

    def __init__(self, channel: GatewayChannel, toolset: str, root: Path, workspace: Path) -> None:
        self._channel = channel
        self._toolset = toolset
        self._root = root
        self._workspace = workspace
        self._reading = threading.Lock()
        self._state = threading.Lock()
        self._loading = threading.Lock()
        self._functions: dict[str, Callable[..., Any]] = {}
        self._queue: deque[Message] = deque()
        self._running = 0
        self._threads = 0
        self._active: dict[int, Coroutine | None] = {}
        self._reporters: dict[int, CallReporter] = {}
        self._coroutines = Coroutines()

    def serve(self) -> None:
        """Serve until the process ends with its channel. The main thread runs coroutines."""
        self._start_thread()
        self._coroutines.serve()

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._work, daemon=True).start()
        except RuntimeError:  # no thread left: a busy thread reads again after its call
            return
        self._threads += 1

    def _work(self) -> None:
        message = self._next()
        while True:
            contextvars.Context().run(self._run, message)
            message = self._pop_queued() or self._next()

    def _next(self) -> Message:
        """Return the next call for this thread; other messages are handled while reading."""
        with self._reading:
            while True:
                message = self._channel.receive()
                if message["do"] == "cancel":
                    self._cancel(message["id"])
                elif message["do"] == "confirm":
                    if (reporter := self._reporters.get(message["id"])) is not None:
                        reporter.confirm()
                elif self._accept(message):
                    return message

    def _accept(self, message: Message) -> bool:
        """Accept a call for this thread, or queue it and return False."""
        with self._state:
            if self._running == THREADS:
                self._queue.append(message)
                return False
            self._running += 1
            self._active[message["id"]] = None
            if self._running >= self._threads:
                self._start_thread()
            return True

    def _pop_queued(self) -> Message | None:
        with self._state:
            if not self._queue:
                self._running -= 1
                return None
            message = self._queue.popleft()
            self._active[message["id"]] = None
            return message

    def _cancel(self, number: int) -> None:
        """Cancel a coroutine, drop a queued call, or report that a running function cannot be stopped."""
        with self._state:
            waiting = next((message for message in self._queue if message["id"] == number), None)
            if waiting is not None:
                self._queue.remove(waiting)
            coroutine = self._active.get(number)
            state = "cancelled" if waiting is not None else "stuck" if number in self._active else None
            if state is not None and coroutine is None:
                self._channel.send({"id": number, state: True})  # under the lock, to arrive before the result
        if coroutine is not None:
            coroutine.cancel()

    def _run(self, message: Message) -> None:
        number = message["id"]
        reporter = self._reporters[number] = CallReporter(self._channel, number, message.get("every_report", False))
        try:
            result = self._describe(message) if message["do"] == "describe" else self._call(message, reporter)
        except BaseException as error:  # untrusted code may raise anything, also `SystemExit`
            self._finish(number, reporter, error=error)
            return
        if not inspect.isawaitable(result):
            self._finish(number, reporter, result)
            return
        coroutine = self._coroutines.make(result, functools.partial(self._finish, number, reporter))
        with self._state:
            self._active[number] = coroutine
        coroutine.start()

    def _call(self, message: Message, reporter: CallReporter) -> Any:
        function = self._load_function(message["entrypoint"])
        call = message["call"]
        set_context(ToolContext(self._workspace, message["chat"], self._toolset, call, self._root, reporter))
        return invoke(function, message["arguments"])

    def _describe(self, message: Message) -> Any:
        return dataclasses.asdict(describe(self._load_function(message["entrypoint"]), message["input_schema"]))

    def _load_function(self, entrypoint: str) -> Callable[..., Any]:
        function = self._functions.get(entrypoint)
        if function is None:
            with self._loading:
                function = self._functions[entrypoint] = load(entrypoint, self._root)
            self._channel.send({"loaded": entrypoint})
        return function

    def _finish(
        self, number: int, reporter: CallReporter, value: Any = None, error: BaseException | None = None
    ) -> None:
        """Send the result or error. A fork of the worker made by the tool ends here, so that it is not sent twice."""
        if not self._channel.is_ours:
            end()
        reporter.close()
        self._reporters.pop(number, None)
        with self._state:
            self._active.pop(number, None)
        if error is not None:
            self._channel.send({"id": number, "error": describe_error(error, self._root)})
            return
        try:
            self._channel.send({"id": number, "value": value})
        except (FrameTooLarge, ValueError, TypeError, RecursionError) as refusal:
            error = BadReturn(f"returned a value that cannot be sent: {refusal}")
            self._channel.send({"id": number, "error": describe_error(error, self._root)})
