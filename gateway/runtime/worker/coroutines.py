"""The coroutines of a worker, on one loop in its main thread; a toolset without any never pays for it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

Finish = Callable[[Any, BaseException | None], None]


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
