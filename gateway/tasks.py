"""Small tools around asyncio tasks: sets of background tasks, queues of reports, shared timers, cancel scopes of calls,
back-off."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Self
from weakref import ref

from anyio._backends._asyncio import CancelScope, _task_states

# Seconds after which a call that goes on despite its cancellation is cancelled again.
_CANCEL_AGAIN_SECONDS = 0.01

# Reports of one call that may wait for their receiver, and the size of their texts together.
REPORTS, REPORT_TEXT = 10_000, 4 * 1024 * 1024

# Reports delivered in one turn of the event loop.
REPORTS_PER_TURN = 100

# The time in which a receiver must take a report, so that those after it are still waited for at the end of a call.
FLUSH_SECONDS = 5.0

_log = logging.getLogger(__name__)


class TaskSet(set[asyncio.Task[Any]]):
    """Tasks in the background, referenced until they end: the event loop itself references them only weakly."""

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    def cancel(self) -> None:
        for task in self:
            task.cancel()


class ReportQueue:
    """Reports of one call, delivered in order by one task, as fast as the receiver takes them. None is left out, unless
    more wait than `REPORTS` or `REPORT_TEXT` allow: then each new report replaces the one before it. `on_empty` is
    called whenever all are delivered."""

    def __init__(self, on_empty: Callable[[], None] | None = None) -> None:
        self._on_empty = on_empty
        self._waiting: deque[tuple[int, Callable[..., Awaitable[None]], tuple[Any, ...]]] = deque()
        self._size = 0
        self._delivered = 0
        self._replaced = False
        self._delivery: asyncio.Task[None] | None = None

    def add(self, receiver: Callable[..., Awaitable[None]], *report: Any, size: int = 0) -> None:
        """Deliver a report by `receiver(*report)`; `size` is that of its text."""
        if self._waiting and (len(self._waiting) >= REPORTS or self._size + size > REPORT_TEXT):
            self._size -= self._waiting.pop()[0]
            if not self._replaced:
                self._replaced = True
                _log.warning("a caller is too slow for the reports of its call, and misses some of them")
        self._size += size
        self._waiting.append((size, receiver, report))
        if self._delivery is None:
            self._delivery = asyncio.get_running_loop().create_task(self._deliver())

    async def flush(self) -> None:
        """Wait until all reports are delivered, or the receiver has taken none for `FLUSH_SECONDS`."""
        while (delivery := self._delivery) is not None:
            before = self._delivered
            await asyncio.wait([delivery], timeout=FLUSH_SECONDS)
            if self._delivered == before:
                return

    def close(self) -> None:
        """Deliver no more."""
        if self._delivery is not None:
            self._delivery.cancel()

    async def _deliver(self) -> None:
        try:
            while self._waiting:
                size, receiver, report = self._waiting.popleft()
                self._size -= size
                try:
                    await receiver(*report)
                except Exception:  # a failing receiver must not break the call
                    _log.debug("a report could not be delivered", exc_info=True)
                self._delivered += 1
                if not self._delivered % REPORTS_PER_TURN:
                    await asyncio.sleep(0)
        finally:
            self._delivery = None
        if self._on_empty is not None:
            self._on_empty()


class SharedTimer:
    """One timer for many deadlines of the same length. Every call sets one and hardly any is reached, so there is a
    single handle of the event loop, set for the oldest of them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadlines: dict[Hashable, tuple[float, Callable[..., None], tuple[Any, ...]]] = {}
        self._handle: asyncio.TimerHandle | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def add(self, key: Hashable, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back with the arguments after the timer's seconds, unless the key is removed before."""
        loop = self.loop
        if self._handle is None or loop is None:
            loop = self.loop = asyncio.get_running_loop()  # a system call each time, in Python 3.11
            self._handle = loop.call_later(self._seconds, self._fire)
        self._deadlines[key] = loop.time() + self._seconds, callback, arguments

    @property
    def waits(self) -> bool:
        """True while a deadline is ahead."""
        return bool(self._deadlines)

    def remove(self, key: Hashable) -> None:
        self._deadlines.pop(key, None)

    def suspend(self, key: Hashable) -> Callable[[], None] | None:
        """Remove a deadline; return a function that sets it again, with all of the timer's seconds. None if there is
        none."""
        deadline = self._deadlines.pop(key, None)
        return None if deadline is None else partial(self.add, key, deadline[1], *deadline[2])

    def take(self, key: Hashable) -> tuple[Any, ...] | None:
        """Remove a deadline and return the arguments of its callback; None if there is none."""
        deadline = self._deadlines.pop(key, None)
        return None if deadline is None else deadline[2]

    def restart(self, key: Hashable) -> None:
        """Give a deadline that is not reached the timer's seconds again."""
        deadline = self._deadlines.pop(key, None)  # taken out first: the oldest stay in front
        if deadline is not None and self.loop is not None:
            self._deadlines[key] = self.loop.time() + self._seconds, *deadline[1:]

    def _fire(self) -> None:
        assert self.loop is not None  # noqa: S101 - it was set with the handle
        now, self._handle = self.loop.time(), None
        for key, (deadline, callback, arguments) in list(self._deadlines.items()):  # oldest first
            if deadline > now:
                self._handle = self.loop.call_at(deadline, self._fire)
                return
            del self._deadlines[key]
            callback(*arguments)


class CallScope:
    """A cancel scope for one call. Like anyio's, it cancels again until the block ends, and waits for shielded blocks
    within. Hardly any is ever cancelled, so making, entering and leaving one does next to nothing."""

    loop: asyncio.AbstractEventLoop | None = None  # the running one, where it is known
    cancel_called = False
    cancelled_caught = False
    _calls = 0
    _task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        self._task = task = asyncio.current_task(self.loop)
        assert task is not None  # noqa: S101 - nobody else awaits
        self._outer = _innermost_scope(task) if ref(task) in _task_states.data else None  # type: ignore[attr-defined]
        self._cancelling = task.cancelling()
        if self.cancel_called:
            self._deliver()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        task, self._task = self._task, None
        if not self.cancel_called or task is None:
            return False
        while self._calls:
            self._calls -= 1
            task.uncancel()
        # Somebody else may have cancelled the task too.
        self.cancelled_caught = kind is asyncio.CancelledError and task.cancelling() <= self._cancelling
        return self.cancelled_caught

    def cancel(self) -> None:
        self.cancel_called = True
        self._deliver()

    def _deliver(self) -> None:
        task = self._task
        if task is None:
            return
        waiter = task._fut_waiter  # type: ignore[attr-defined]  # one that is done: its result must not be lost
        may_cancel = task is not asyncio.current_task() and (waiter is None or not waiter.done())
        if may_cancel and not self._is_shielded(task):
            self._calls += 1
            task.cancel()
        task.get_loop().call_later(_CANCEL_AGAIN_SECONDS, self._deliver)

    def _is_shielded(self, task: asyncio.Task[Any]) -> bool:
        scope = _innermost_scope(task)
        while scope is not None and scope is not self._outer:
            if scope.shield:
                return True
            scope = scope._parent_scope
        return False


def _innermost_scope(task: asyncio.Task[Any]) -> CancelScope | None:
    """Return the scope of anyio that a task is in, for which anyio has no public function."""
    state = _task_states.get(task)
    return None if state is None else state.cancel_scope


def backoff(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after so many failures in a row: `first` after one, twice as long after each further one."""
    return min(longest, first * 2.0 ** min(failures - 1, 16))


def backoff_with_jitter(failures: int, first: float, longest: float) -> float:
    """Seconds to wait like `backoff`, or down to half of them: many who failed together do not return together."""
    seconds = backoff(failures, first, longest)
    return random.uniform(seconds / 2, seconds)  # noqa: S311 - no secret
