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

THREADS = 8
Message = dict[str, Any]
_INTERVAL = 0.02
_LINES_LIMIT = 500
_LINE_LIMIT = 4 * 1024
Finish = Callable[[Any, BaseException | None], None]
TEXT_LIMIT = 8 * 1024


class CallReporter:
    """One call's way out. Of reporter that come too fast the last one is sent, a moment later."""

    def __init__(self, channel: GatewayChannel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._lock = threading.Lock()
        self._sent_at = 0.0
        self._pending: Progress | None = None
        self._later: threading.Timer | None = None
        self._lines = 0
        self._closed = False

    def __call__(self, report: Progress | Log) -> None:
        if not self._channel.ours:
            return
        with self._lock:
            if self._closed:
                return
            if isinstance(report, Log):
                self._log(report)
            else:
                self._progress(Progress(*_validate(report)))

    def close(self) -> None:
        """The answer comes next: what is pending goes out before it, and nothing after."""
        with self._lock:
            self._flush()
            self._closed = True

    def _progress(self, report: Progress) -> None:
        self._pending = report
        wait = self._sent_at + _INTERVAL - time.monotonic()
        if wait <= 0:
            self._flush()
        elif self._later is None:
            self._later = threading.Timer(wait, self._flush_later)
            self._later.daemon = True
            self._later.start()

    def _flush_later(self) -> None:
        with self._lock:
            self._later = None
            self._flush()

    def _flush(self) -> None:
        if self._pending is not None and not self._closed:
            self._channel.send({"id": self._number, "progress": self._pending})
            self._pending = None
            self._sent_at = time.monotonic()

    def _log(self, line: Log) -> None:
        self._lines += 1
        if self._lines <= _LINES_LIMIT:
            self._channel.send({"id": self._number, "log": [line.level, str(line.message)[:_LINE_LIMIT]]})


def _validate(report: Progress) -> tuple[float, float | None, str | None]:
    total = None if report.total is None else float(report.total)
    message = None if report.message is None else str(report.message)[:_LINE_LIMIT]
    return float(report.done), total, message


class Coroutines:
    """Where coroutines run. The loop is made when the first one is to begin."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._made = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def serve(self) -> None:
        """Run coroutines in this thread, for ever."""
        self._wanted.wait()
        asyncio = importlib.import_module("asyncio")  # 20 ms and 4 MiB that most toolsets do without
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
    """One call's coroutine, begun and cancelled from other threads; whatever comes of it, `finish` is told."""

    def __init__(self, coroutines: Coroutines, awaitable: Awaitable[Any], finish: Finish) -> None:
        self._coroutines = coroutines
        self._awaitable = awaitable
        self._finish = finish
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Run it from now on, in the context this is called in."""
        self._coroutines.loop.call_soon_threadsafe(self._begin)

    def cancel(self) -> None:
        self._coroutines.loop.call_soon_threadsafe(self._cancel)

    def _begin(self) -> None:
        self._task = self._coroutines.loop.create_task(self._run())

    def _cancel(self) -> None:
        if self._task is None:  # not begun: the next round of the loop will find it
            self._coroutines.loop.call_later(0.001, self._cancel)
        else:  # its first step is before this, so that `_run` is there to tell
            self._coroutines.loop.call_soon(self._task.cancel)

    async def _run(self) -> None:
        try:
            value = await self._awaitable
        except BaseException as error:  # `SystemExit` too: it would end the loop, and every call on it
            self._finish(None, error)
        else:
            self._finish(value, None)


def failure(error: BaseException, root: Path) -> dict[str, Any]:
    """The error as a message's `error`. Paths are told relative to the toolset's directory `root`."""
    told: dict[str, Any] = {"kind": _kind(error), "message": _text(error, root)}
    if told["kind"] == "raised":
        told |= {"type": type(error).__name__[:200], "place": _place(error, root)}
    return told


def _kind(error: BaseException) -> str:
    if isinstance(error, BadArguments):
        return "arguments"
    if isinstance(error, BadReturn):
        return "output"
    return "toolset" if isinstance(error, ToolsetError) else "raised"


def _text(error: BaseException, root: Path) -> str:
    try:
        text = str(error)
    except BaseException:  # a stranger's `__str__`
        return "its text cannot be read"
    text = text.replace(f"{root}/", "").replace(f" in {root}", "").replace(str(root), "the toolset")
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}…"


def _place(error: BaseException, root: Path) -> str | None:
    """The last line of the toolset's own files that had a part in it."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith(f"{root}/"):
            found = f"{file[len(str(root)) + 1 :]} line {line}"
    return found


class CallRunner:
    """One thread reads; the one that reads a call also runs it, and another reads on. So a call on its
    own waits for no other thread. When all threads run calls, further ones queue in the order they came."""

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
        """For ever: the process ends with its channel. The main thread is the coroutines'."""
        self._start_thread()
        self._coroutines.serve()

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._work, daemon=True).start()
        except RuntimeError:  # no more threads for us: whoever runs now reads again afterwards
            return
        self._threads += 1

    def _work(self) -> None:
        message = self._next()
        while True:
            contextvars.Context().run(self._run, message)
            message = self._queued() or self._next()

    def _next(self) -> Message:
        """The next call for this thread to run; everything else that is read is done on the way."""
        with self._reading:
            while True:
                message = self._channel.receive()
                if message["do"] == "cancel":
                    self._cancel(message["id"])
                elif self._is_mine(message):
                    return message

    def _is_mine(self, message: Message) -> bool:
        with self._state:
            if self._running == THREADS:
                self._queue.append(message)
                return False
            self._running += 1
            self._active[message["id"]] = None
            if self._running >= self._threads:
                self._start_thread()
            return True

    def _queued(self) -> Message | None:
        with self._state:
            if not self._queue:
                self._running -= 1
                return None
            message = self._queue.popleft()
            self._active[message["id"]] = None
            return message

    def _cancel(self, number: int) -> None:
        """A coroutine is cancelled, a waiting call forgotten; a running function can only be told of."""
        with self._state:
            waiting = next((message for message in self._queue if message["id"] == number), None)
            if waiting is not None:
                self._queue.remove(waiting)
            coroutine = self._active.get(number)
            told = "cancelled" if waiting is not None else "stuck" if number in self._active else None
            if told is not None and coroutine is None:
                self._channel.send({"id": number, told: True})  # held, so that it comes before the answer
        if coroutine is not None:
            coroutine.cancel()

    def _run(self, message: Message) -> None:
        number = message["id"]
        reporter = CallReporter(self._channel, number)
        try:
            result = self._describe(message) if message["do"] == "describe" else self._call(message, reporter)
        except BaseException as error:  # a stranger's code may raise anything, `SystemExit` too
            self._finish(number, reporter, error=error)
            return
        if not inspect.isawaitable(result):
            self._finish(number, reporter, result)
            return
        coroutine = self._coroutines.make(result, functools.partial(self._finish, number, reporter))
        with self._state:
            self._active[number] = coroutine
        coroutine.begin()

    def _call(self, message: Message, reporter: CallReporter) -> Any:
        function = self._function(message["entrypoint"])
        call = message["call"]
        set_context(ToolContext(self._workspace, message["chat"], self._toolset, call, self._root, reporter))
        return invoke(function, message["arguments"])

    def _describe(self, message: Message) -> Any:
        return dataclasses.asdict(describe(self._function(message["entrypoint"]), message["input_schema"]))

    def _function(self, entrypoint: str) -> Callable[..., Any]:
        found = self._functions.get(entrypoint)
        if found is None:
            with self._loading:
                found = self._functions[entrypoint] = load(entrypoint, self._root)
            self._channel.send({"loaded": entrypoint})
        return found

    def _finish(
        self, number: int, reporter: CallReporter, value: Any = None, error: BaseException | None = None
    ) -> None:
        """Send the answer, the last that is heard of the call; a tool's fork must not give it a second time."""
        if not self._channel.ours:
            end()
        reporter.close()
        with self._state:
            self._active.pop(number, None)
        if error is not None:
            self._channel.send({"id": number, "error": failure(error, self._root)})
            return
        try:
            self._channel.send({"id": number, "value": value})
        except (FrameTooLarge, ValueError, TypeError, RecursionError) as refusal:
            told = failure(BadReturn(f"returned what cannot be sent: {refusal}"), self._root)
            self._channel.send({"id": number, "error": told})
