"""All workers: one per toolset and workspace, never more than fit, and none kept longer than it is of use."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from gateway.errors import ToolFailed, Unavailable
from gateway.runtime.function_call import Key, WorkerSpec
from gateway.runtime.worker_process import WORKER_DIED, Worker
from gateway.tasks import backoff

BACKOFF_SECONDS = 1.0
BACKOFF_LIMIT = 30.0
_FREE_TRIES = 2


class Backoff:
    """Counts, per version of a toolset, the workers in a row that ended before any of its code was loaded."""

    def __init__(self) -> None:
        self._failures: dict[Path, tuple[int, float]] = {}

    def check(self, place: WorkerSpec) -> None:
        """Refuse to start one more too early."""
        times, until = self._failures.get(place.directory, (0, 0.0))
        wait = until - asyncio.get_running_loop().time()
        if wait > 0:
            raise ToolFailed(
                f"the process of toolset {place.toolset!r} ended {times} times in a row while it started; "
                f"it is tried again in {wait:.0f} s. Look at the code that runs when its modules are imported",
                code=WORKER_DIED,
                retry_after=wait,
            )

    def note(self, place: WorkerSpec, good: bool) -> None:
        """A worker has ended: was it a good one, or did it never get as far as to run a tool?"""
        if good:
            self._failures.pop(place.directory, None)
            return
        times = self._failures.get(place.directory, (0, 0.0))[0] + 1
        pause = backoff(times - _FREE_TRIES + 1, BACKOFF_SECONDS, BACKOFF_LIMIT) if times >= _FREE_TRIES else 0.0
        self._failures[place.directory] = times, asyncio.get_running_loop().time() + pause

    def forget(self, directory: Path) -> None:
        self._failures.pop(directory, None)


# Workers that may wait to be started, per worker there may be; a call for one more is told to come back.
QUEUE_FACTOR = 16

# For so long calls may join workers that are there while others wait for room to start one.
PATIENCE = 2.0

CLOSE_SECONDS = 5.0

Start = Callable[[WorkerSpec], Awaitable[Worker]]


class _Starting:
    """A worker on its way, with the number of calls that wait for it."""

    def __init__(self, place: WorkerSpec) -> None:
        self.place = place
        self.calls = 0
        self.task: asyncio.Task[Worker]


class WorkerPool:
    """Each worker has one of `size` slots from before its start until nothing is left of it. Who needs a
    slot when none is free gets the next, first come first served; the least recently used idle worker
    is ended for it."""

    def __init__(self, start: Start, size: int, idle_seconds: float) -> None:
        self._start = start
        self._size = size
        self._idle_seconds = idle_seconds
        self._free = size
        self._current: dict[Key, tuple[WorkerSpec, Worker]] = {}
        self._starting: dict[Key, _Starting] = {}
        self._live: dict[Worker, WorkerSpec] = {}
        self._waiting: deque[tuple[asyncio.Future[None], float]] = deque()
        self._backoff = Backoff()
        self._closed = False

    @property
    def living(self) -> int:
        return len(self._live)

    @asynccontextmanager
    async def worker(self, place: WorkerSpec) -> AsyncIterator[Worker]:
        """A worker started for `place`, kept from being ended for as long as the call is in here."""
        worker = self._joined(place) or await self._started(place)
        try:
            yield worker
        finally:
            worker.released()
            if place.single_use:
                worker.kill("was ended after its call")
                with anyio.CancelScope(shield=True):
                    await worker.wait()
            self._look_at(worker)

    def retire(self, directory: Path) -> None:
        """Start no more calls in workers of this toolset's version; those inside may finish."""
        self._backoff.forget(directory)
        for key in [key for key in self._current if key[0] == directory]:
            self._current.pop(key)[1].retire()
        for starting in self._starting.values():
            if starting.place.directory == directory:
                starting.task.add_done_callback(_retire_started)

    async def close(self) -> None:
        """End everything; returns when it has ended, or after a few seconds."""
        self._closed = True
        for starting in list(self._starting.values()):
            starting.task.cancel()
        for worker in list(self._live):
            worker.kill("was ended with the gateway", self._closing())
        ending = [worker.wait() for worker in self._live] + [starting.task for starting in self._starting.values()]
        if ending:
            await asyncio.wait([asyncio.ensure_future(each) for each in ending], timeout=CLOSE_SECONDS)

    def _joined(self, place: WorkerSpec) -> Worker | None:
        """The worker that is there for the place, with the call counted in."""
        started_with, worker = self._current.get(place.key, (None, None))
        if worker is None:
            return None
        if started_with == place and worker.usable and not self._has_starving():
            worker.claims += 1
            return worker
        del self._current[place.key]
        worker.retire()
        return None

    def _has_starving(self) -> bool:
        """Whether someone has waited so long for room that busy workers must be let go idle."""
        return bool(self._waiting) and asyncio.get_running_loop().time() - self._waiting[0][1] > PATIENCE

    async def _started(self, place: WorkerSpec) -> Worker:
        """A new worker for the place, or the one that is just being started, with the call counted in."""
        starting = self._starting.get(place.key)
        while starting is not None and starting.place != place:
            await asyncio.wait([starting.task])
            if (worker := self._joined(place)) is not None:
                return worker
            starting = self._starting.get(place.key)
        if starting is None:
            starting = self._begin(place)
        starting.calls += 1
        try:
            return await asyncio.shield(starting.task)
        except asyncio.CancelledError:
            starting.calls -= 1
            if starting.task.cancelled():
                raise self._closing() from None
            if starting.task.done() and starting.task.exception() is None:
                starting.task.result().released()
                self._look_at(starting.task.result())
            raise

    def _begin(self, place: WorkerSpec) -> _Starting:
        if self._closed:
            raise self._closing()
        self._backoff.check(place)
        if len(self._starting) >= self._size * QUEUE_FACTOR:
            raise Unavailable("all workers are busy and too many calls wait (sandbox.workers)", code="OVERLOADED")
        starting = self._starting[place.key] = _Starting(place)
        starting.task = asyncio.get_running_loop().create_task(self._make(starting))
        starting.task.add_done_callback(_seen)
        return starting

    async def _make(self, starting: _Starting) -> Worker:
        place = starting.place
        try:
            await self._slot()
            try:
                worker = await self._start(place)
            except BaseException:
                self._give_slot()
                raise
        finally:
            del self._starting[place.key]
        worker.claims = starting.calls
        worker.changed = lambda: self._look_at(worker)
        self._live[worker] = place
        self._current[place.key] = place, worker
        self._look_at(worker)
        return worker

    async def _slot(self) -> None:
        """Wait for room for one more worker."""
        if self._free and not self._waiting:
            self._free -= 1
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future(), loop.time()
        self._waiting.append(turn)
        self._make_room()
        try:
            await turn[0]
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn[0].cancelled():
                self._give_slot()
            raise

    def _give_slot(self) -> None:
        if self._waiting:
            self._waiting.popleft()[0].set_result(None)
        else:
            self._free += 1

    def _make_room(self) -> None:
        """End idle workers, those first that were used longest ago, until one is ending for each who waits."""
        ending = sum(1 for worker in self._live if worker.retired and not worker.claims)
        idle = sorted((worker for worker in self._live if worker.usable and worker.idle), key=lambda each: each.used_at)
        for worker in idle[: max(0, len(self._waiting) - ending)]:
            worker.kill("was idle")

    def _look_at(self, worker: Worker) -> None:
        """After a call, and whenever a worker says that something changed."""
        if worker.ended:
            self._bury(worker)
        elif worker.usable and worker.idle:
            loop = asyncio.get_running_loop()
            worker.used_at = loop.time()
            if self._waiting:
                self._make_room()
            elif worker.idle_timer is None:
                worker.idle_timer = loop.call_later(self._idle_seconds, self._end_when_idle, worker)

    def _end_when_idle(self, worker: Worker) -> None:
        worker.idle_timer = None
        if not worker.usable:
            return
        loop = asyncio.get_running_loop()
        rest = worker.used_at + self._idle_seconds - loop.time()
        if worker.idle and rest <= 0:
            worker.kill("was idle")
        else:
            worker.idle_timer = loop.call_later(max(rest, 0.01), self._end_when_idle, worker)

    def _bury(self, worker: Worker) -> None:
        place = self._live.pop(worker, None)
        if place is None:
            return
        if worker.idle_timer is not None:
            worker.idle_timer.cancel()
        if self._current.get(place.key, (None, None))[1] is worker:
            del self._current[place.key]
        self._backoff.note(place, good=worker.loaded or worker.ended_by_us)
        self._give_slot()

    def _closing(self) -> Unavailable:
        return Unavailable("the gateway is stopping; call again when it is back", code="SHUTTING_DOWN")


def _seen(task: asyncio.Task[Worker]) -> None:
    """A failed start that nobody waits for any more is no news."""
    if not task.cancelled():
        task.exception()


def _retire_started(task: asyncio.Task[Worker]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().retire()
