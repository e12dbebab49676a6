"""Calls side by side: plain functions in threads, a few at a time, and coroutines on one loop."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import inspect
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from covalt_toolset import BadReturn, ToolContext, describe, invoke, load, set_context

from .channel import Channel, TooLarge, end
from .coroutines import Coroutine, Coroutines
from .failures import failure
from .reports import Reports

THREADS = 8
Message = dict[str, Any]


class Calls:
    """One thread reads; the one that reads a call also runs it, and another reads on. So a call on its
    own waits for no other thread. When all threads run calls, further ones queue in the order they came."""

    def __init__(self, channel: Channel, toolset: str, root: Path, workspace: Path) -> None:
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
        reports = Reports(self._channel, number)
        try:
            result = self._describe(message) if message["do"] == "describe" else self._call(message, reports)
        except BaseException as error:  # a stranger's code may raise anything, `SystemExit` too
            self._finish(number, reports, error=error)
            return
        if not inspect.isawaitable(result):
            self._finish(number, reports, result)
            return
        coroutine = self._coroutines.make(result, functools.partial(self._finish, number, reports))
        with self._state:
            self._active[number] = coroutine
        coroutine.begin()

    def _call(self, message: Message, reports: Reports) -> Any:
        function = self._function(message["entrypoint"])
        call = message["call"]
        set_context(ToolContext(self._workspace, message["chat"], self._toolset, call, self._root, reports))
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

    def _finish(self, number: int, reports: Reports, value: Any = None, error: BaseException | None = None) -> None:
        """Send the answer, the last that is heard of the call; a tool's fork must not give it a second time."""
        if not self._channel.ours:
            end()
        reports.close()
        with self._state:
            self._active.pop(number, None)
        if error is not None:
            self._channel.send({"id": number, "error": failure(error, self._root)})
            return
        try:
            self._channel.send({"id": number, "value": value})
        except (TooLarge, ValueError, TypeError, RecursionError) as refusal:
            told = failure(BadReturn(f"returned what cannot be sent: {refusal}"), self._root)
            self._channel.send({"id": number, "error": told})
