"""The pool of workers: one per toolset and workspace, bounded in number, and ended when idle."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from gateway.errors import ToolFailed, Unavailable
from gateway.runtime.worker_process import WORKER_DIED, Worker, WorkerKey, WorkerSpec
from gateway.tasks import backoff

# Pause before the next start after repeated failures, doubled each time up to the limit.
BACKOFF_SECONDS = 1.0
BACKOFF_LIMIT = 30.0

# Workers that may wait for a slot, per slot; a call for one more is refused.
QUEUE_FACTOR = 16

# Once a worker has waited this long for a slot, calls no longer join busy workers, so that one becomes idle.
STARVATION_SECONDS = 2.0

CLOSE_SECONDS = 5.0

Start = Callable[[WorkerSpec], Awaitable[Worker]]
_FREE_TRIES = 2


class Backoff:
    """Delays starts of a toolset version whose workers repeatedly end before any of its code was loaded."""

    def __init__(self) -> None:
        self._failures: dict[Path, tuple[int, float]] = {}

    def check(self, spec: WorkerSpec) -> None:
        """Refuse a start during the pause after failures."""
        times, until = self._failures.get(spec.directory, (0, 0.0))
        wait = until - asyncio.get_running_loop().time()
        if wait > 0:
            raise ToolFailed(
                f"the process of toolset {spec.toolset!r} ended {times} times in a row while it started; "
                f"the next start is in {wait:.0f} s. Check the code that runs when its modules are imported",
                code=WORKER_DIED,
                retry_after=wait,
            )

    def record(self, spec: WorkerSpec, succeeded: bool) -> None:
        """Record the end of a worker: `succeeded` if it loaded code, or was ended by the gateway."""
        if succeeded:
            self._failures.pop(spec.directory, None)
            return
        times = self._failures.get(spec.directory, (0, 0.0))[0] + 1
        pause = backoff(times - _FREE_TRIES + 1, BACKOFF_SECONDS, BACKOFF_LIMIT) if times >= _FREE_TRIES else 0.0
        self._failures[spec.directory] = times, asyncio.get_running_loop().time() + pause

    def forget(self, directory: Path) -> None:
        self._failures.pop(directory, None)


class _Starting:
    """A worker being started, with the number of calls that wait for it."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.calls = 0
        self.task: asyncio.Task[Worker]


class WorkerPool:
    """Workers in `size` slots. A worker holds its slot from before its start until its process has ended.

    Starts that find no free slot wait in order; the least recently used idle worker is ended for them.
    """

    def __init__(self, start: Start, size: int, idle_seconds: float) -> None:
        self._start = start
        self._size = size
        self._idle_seconds = idle_seconds
        self._free = size
        self._current: dict[WorkerKey, tuple[WorkerSpec, Worker]] = {}
        self._starting: dict[WorkerKey, _Starting] = {}
        self._workers: dict[Worker, WorkerSpec] = {}
        self._waiting: deque[tuple[asyncio.Future[None], float]] = deque()
        self._backoff = Backoff()
        self._closed = False

    @property
    def worker_count(self) -> int:
        return len(self._workers)

    @asynccontextmanager
    async def worker(self, spec: WorkerSpec) -> AsyncIterator[Worker]:
        """Yield a worker started with `spec`; it is not ended for being idle meanwhile."""
        worker = self._join_current(spec) or await self._join_started(spec)
        try:
            yield worker
        finally:
            worker.release()
            if spec.single_use:
                worker.kill("was ended after its call")
                with anyio.CancelScope(shield=True):
                    await worker.wait()
            self._update(worker)

    def retire(self, directory: Path) -> None:
        """Start no more calls in workers of this toolset version; running calls may finish."""
        self._backoff.forget(directory)
        for key in [key for key in self._current if key[0] == directory]:
            self._current.pop(key)[1].retire()
        for starting in self._starting.values():
            if starting.spec.directory == directory:
                starting.task.add_done_callback(_retire_started)

    async def close(self) -> None:
        """End all workers; returns when they have ended, or after `CLOSE_SECONDS`."""
        self._closed = True
        for starting in list(self._starting.values()):
            starting.task.cancel()
        for worker in list(self._workers):
            worker.kill("was ended with the gateway", self._closing_error())
        waits = [worker.wait() for worker in self._workers] + [starting.task for starting in self._starting.values()]
        if waits:
            await asyncio.wait([asyncio.ensure_future(wait) for wait in waits], timeout=CLOSE_SECONDS)

    def _join_current(self, spec: WorkerSpec) -> Worker | None:
        """Claim the current worker of a spec; retire it when it cannot be used."""
        started_with, worker = self._current.get(spec.key, (None, None))
        if worker is None:
            return None
        if started_with == spec and worker.usable and not self._has_starving():
            worker.claims += 1
            return worker
        del self._current[spec.key]
        worker.retire()
        return None

    def _has_starving(self) -> bool:
        """Return whether a start has waited so long that busy workers must be allowed to become idle."""
        return bool(self._waiting) and asyncio.get_running_loop().time() - self._waiting[0][1] > STARVATION_SECONDS

    async def _join_started(self, spec: WorkerSpec) -> Worker:
        """Claim a new worker, or one that is being started already."""
        starting = self._starting.get(spec.key)
        while starting is not None and starting.spec != spec:
            await asyncio.wait([starting.task])
            if (worker := self._join_current(spec)) is not None:
                return worker
            starting = self._starting.get(spec.key)
        if starting is None:
            starting = self._begin_start(spec)
        starting.calls += 1
        try:
            return await asyncio.shield(starting.task)
        except asyncio.CancelledError:
            starting.calls -= 1
            if starting.task.cancelled():
                raise self._closing_error() from None
            if starting.task.done() and starting.task.exception() is None:
                starting.task.result().release()
                self._update(starting.task.result())
            raise

    def _begin_start(self, spec: WorkerSpec) -> _Starting:
        if self._closed:
            raise self._closing_error()
        self._backoff.check(spec)
        if len(self._starting) >= self._size * QUEUE_FACTOR:
            raise Unavailable("all workers are busy and too many calls wait (sandbox.workers)", code="OVERLOADED")
        starting = self._starting[spec.key] = _Starting(spec)
        starting.task = asyncio.get_running_loop().create_task(self._start_worker(starting))
        starting.task.add_done_callback(_consume_exception)
        return starting

    async def _start_worker(self, starting: _Starting) -> Worker:
        spec = starting.spec
        try:
            await self._acquire_slot()
            try:
                worker = await self._start(spec)
            except BaseException:
                self._release_slot()
                raise
        finally:
            del self._starting[spec.key]
        worker.claims = starting.calls
        worker.on_change = lambda: self._update(worker)
        self._workers[worker] = spec
        self._current[spec.key] = spec, worker
        self._update(worker)
        return worker

    async def _acquire_slot(self) -> None:
        """Wait for a free slot."""
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
                self._release_slot()
            raise

    def _release_slot(self) -> None:
        if self._waiting:
            self._waiting.popleft()[0].set_result(None)
        else:
            self._free += 1

    def _make_room(self) -> None:
        """End idle workers, least recently used first, until one is ending for each waiting start."""
        ending = sum(1 for worker in self._workers if worker.retired and not worker.claims)
        idle = [worker for worker in self._workers if worker.usable and worker.idle]
        idle.sort(key=lambda worker: worker.used_at)
        for worker in idle[: max(0, len(self._waiting) - ending)]:
            worker.kill("was idle")

    def _update(self, worker: Worker) -> None:
        """React to a worker that may have become idle, or has ended."""
        if worker.ended:
            self._remove_ended(worker)
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

    def _remove_ended(self, worker: Worker) -> None:
        spec = self._workers.pop(worker, None)
        if spec is None:
            return
        if worker.idle_timer is not None:
            worker.idle_timer.cancel()
        if self._current.get(spec.key, (None, None))[1] is worker:
            del self._current[spec.key]
        self._backoff.record(spec, succeeded=worker.loaded or worker.ended_by_us)
        self._release_slot()

    def _closing_error(self) -> Unavailable:
        return Unavailable("the gateway is stopping; call again when it is back", code="SHUTTING_DOWN")


def _consume_exception(task: asyncio.Task[Worker]) -> None:
    """Keep asyncio from logging a failed start that no call waits for any more."""
    if not task.cancelled():
        task.exception()


def _retire_started(task: asyncio.Task[Worker]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().retire()
