"""Runs the calls of a worker side by side: plain functions in a few threads, coroutines on one event loop."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import importlib
import inspect
import threading
import time
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
_PROGRESS_INTERVAL = 0.02
_LOG_LINES_LIMIT = 500
_LINE_LIMIT = 4 * 1024


class CallReporter:
    """Sends progress and log lines of one call. Of reports in quick succession only the last is sent."""

    def __init__(self, channel: GatewayChannel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._lock = threading.Lock()
        self._sent_at = 0.0
        self._pending: Progress | None = None
        self._timer: threading.Timer | None = None
        self._lines = 0
        self._closed = False

    def __call__(self, report: Progress | Log) -> None:
        if not self._channel.is_ours:
            return
        with self._lock:
            if self._closed:
                return
            if isinstance(report, Log):
                self._log(report)
            else:
                self._progress(Progress(*_validate(report)))

    def close(self) -> None:
        """Send the pending report before the result, and nothing after it."""
        with self._lock:
            self._flush()
            self._closed = True

    def _progress(self, report: Progress) -> None:
        self._pending = report
        wait = self._sent_at + _PROGRESS_INTERVAL - time.monotonic()
        if wait <= 0:
            self._flush()
        elif self._timer is None:
            self._timer = threading.Timer(wait, self._flush_on_timer)
            self._timer.daemon = True
            self._timer.start()

    def _flush_on_timer(self) -> None:
        with self._lock:
            self._timer = None
            self._flush()

    def _flush(self) -> None:
        if self._pending is not None and not self._closed:
            self._channel.send({"id": self._number, "progress": self._pending})
            self._pending = None
            self._sent_at = time.monotonic()

    def _log(self, line: Log) -> None:
        self._lines += 1
        if self._lines <= _LOG_LINES_LIMIT:
            self._channel.send({"id": self._number, "log": [line.level, str(line.message)[:_LINE_LIMIT]]})


def _validate(report: Progress) -> tuple[float, float | None, str | None]:
    total = None if report.total is None else float(report.total)
    message = None if report.message is None else str(report.message)[:_LINE_LIMIT]
    return float(report.done), total, message


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
        """Return the next call for this thread; cancellations are handled while reading."""
        with self._reading:
            while True:
                message = self._channel.receive()
                if message["do"] == "cancel":
                    self._cancel(message["id"])
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
        reporter = CallReporter(self._channel, number)
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
