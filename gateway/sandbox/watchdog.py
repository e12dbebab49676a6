"""Ends programs that use more than they may: two threads look at all of them, often at the busy ones."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from gateway.sandbox import Killed, Limits
from gateway.sandbox.disk_usage import Gauge
from gateway.sandbox.process_tree import SharedMemory, proportional_memory, usage
from gateway.sandbox.rlimits import TaskLimit

_log = logging.getLogger(__name__)
_MEMORY_INTERVAL = 0.06
_DISK_INTERVAL = 0.1
_IDLE_INTERVAL = 5.0
_SECONDS_AT_TASK_LIMIT = 1.0
_HIDDEN = (
    "a program was ended because it hides what it uses, as /proc is mounted with hidepid; "
    "mount it without, or with the group of the gateway as gid"
)


class Watch:
    """The limits of one program: the tree beneath `root`, and what its gauges show."""

    def __init__(self, limits: Limits, root: int, gauges: Sequence[Gauge], task_limit: TaskLimit | None = None) -> None:
        self._limits = limits
        self._task_limit = task_limit or TaskLimit(limits.processes)
        self._at_task_limit: float | None = None
        self._root = root
        self._gauges = gauges
        self._shared = SharedMemory(limits.memory)
        self._hidden: frozenset[int] = frozenset()
        self._busy = True
        self._rounds = [_Round(_MEMORY, self._tree_exceeds)]
        if gauges:
            self._rounds.append(_Round(_DISK, self._disk_exceeds))

    @property
    def busy(self) -> bool:
        return self._busy

    @busy.setter
    def busy(self, busy: bool) -> None:
        if busy and not self._busy and self._limits.per_task:
            for gauge in self._gauges:
                gauge.reset()
            self._shared.reset()
        self._busy = busy
        for round_ in self._rounds:
            round_.become(busy)

    def start(self, loop: asyncio.AbstractEventLoop, end: Callable[[Killed], None]) -> None:
        """Look from now on, and `end` the program in its loop when it uses too much."""

        def report(killed: Killed) -> None:
            with suppress(RuntimeError):  # the loop has closed; what runs ends with us
                loop.call_soon_threadsafe(end, killed)

        for round_ in self._rounds:
            round_.report = report
            round_.patrol.add(round_)

    def stop(self) -> None:
        for round_ in self._rounds:
            round_.patrol.remove(round_)

    def _tree_exceeds(self) -> Killed | None:
        limits, found = self._limits, usage(self._root)
        if self._tasks_exceed(found.tasks):
            return "processes"
        if found.memory > limits.memory and proportional_memory(found.processes) > limits.memory:
            return "memory"
        if self._shared.exceeds_limit(found.processes, found.mapped):
            return "memory"
        still_hidden, self._hidden = self._hidden & found.hidden, found.hidden
        if still_hidden:  # to two looks in a row: one that is just starting is hidden for a moment
            _log.warning(_HIDDEN)
            return "memory"
        return None

    def _tasks_exceed(self, tasks: int) -> bool:
        """At the limit the kernel refuses more, and most programs cope or end. One that stays there is a bomb."""
        if not self._task_limit.is_reached(tasks):
            self._at_task_limit = None
            return False
        now = time.monotonic()
        if self._at_task_limit is None:
            self._at_task_limit = now
        return tasks > self._limits.processes or now - self._at_task_limit >= _SECONDS_AT_TASK_LIMIT

    def _disk_exceeds(self) -> Killed | None:
        return "disk" if any(gauge.is_full() for gauge in self._gauges) else None


class _Round:
    """One program's place in a patrol."""

    report: Callable[[Killed], None]

    def __init__(self, patrol: Patrol, look: Callable[[], Killed | None]) -> None:
        self.patrol = patrol
        self.look = look
        self.busy = True
        self.stirred = True
        self.looked = time.monotonic()

    def become(self, busy: bool) -> None:
        self.busy = busy
        if busy:
            self.stirred = True
            self.patrol.wake()

    @property
    def awake(self) -> bool:
        """Busy, or it was since it was last looked at: a short task too may have left something."""
        return self.busy or self.stirred


class Patrol:
    """A thread that goes from program to program. While all are idle it sleeps for seconds; when there
    are none it ends."""

    def __init__(self, name: str, interval: float) -> None:
        self._name = name
        self._interval = interval
        self._lock = threading.Lock()
        self._rounds: list[_Round] = []
        self._thread: threading.Thread | None = None
        self._resting = False
        self._stir = threading.Event()

    def add(self, round_: _Round) -> None:
        with self._lock:
            self._rounds.append(round_)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"toolgate-{self._name}", daemon=True)
                self._thread.start()
        self.wake()

    def remove(self, round_: _Round) -> None:
        with self._lock, suppress(ValueError):
            self._rounds.remove(round_)

    def wake(self) -> None:
        if self._resting:
            self._stir.set()

    def _run(self) -> None:
        while True:
            time.sleep(self._interval)
            with self._lock:
                if not self._rounds:
                    self._thread = None
                    return
                rounds = tuple(self._rounds)
            for round_ in rounds:
                self._visit(round_)
            self._rest()

    def _visit(self, round_: _Round) -> None:
        now = time.monotonic()
        if not round_.awake and now - round_.looked < _IDLE_INTERVAL:
            return
        round_.stirred = False
        round_.looked = now
        try:
            killed = round_.look()
        except Exception:
            _log.exception("a program's limits could not be looked at")
            return
        if killed:
            round_.report(killed)

    def _rest(self) -> None:
        self._stir.clear()
        self._resting = True  # set before looking: who stirs after the look finds it
        with self._lock:
            awake = any(round_.awake for round_ in self._rounds)
        if not awake:
            self._stir.wait(_IDLE_INTERVAL)
        self._resting = False


_MEMORY = Patrol("watch-memory", _MEMORY_INTERVAL)
_DISK = Patrol("watch-disk", _DISK_INTERVAL)
