"""Kills programs that exceed their limits: two threads check all programs, busy ones often."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gateway.sandbox import Killed, Limits
from gateway.sandbox.disk_usage import Meter
from gateway.sandbox.process_tree import SharedMemory, pids, proportional_memory, usage

_SPARE_DATA = 512 * 1024 * 1024
_COUNTS_BY_NAMESPACE = (5, 14)
_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class TaskLimit:
    """The number of tasks a program may have. The kernel counts `others` besides: with a `user`, they are all other
    tasks of that user as there were when the program was started, and otherwise those of the sandbox itself."""

    tasks: int
    others: int = 0
    user: int | None = None

    def is_reached(self, tasks: int) -> bool:
        """Return whether the kernel refuses one more task to a program that has so many. One that is refused because
        others of its user have started tasks since has reached its limit only if it has half of them itself."""
        if tasks >= self.tasks:
            return True
        return self.user is not None and 2 * tasks >= self.tasks and count_tasks(self.user) >= self.others + self.tasks


def rlimits(limits: Limits, task_limit: TaskLimit | None) -> list[tuple[int, int]]:
    """Numbers and values for `setrlimit`. None where the kernel cannot count tasks for us, or a cgroup does."""
    values = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        # Far above the real limit: this only slows down a program that is faster than the watchdog.
        (resource.RLIMIT_DATA, 2 * limits.memory + _SPARE_DATA),
    ]
    if task_limit is not None:
        values.append((resource.RLIMIT_NPROC, task_limit.others + task_limit.tasks))
    if limits.cpu_seconds is not None:
        values.append((resource.RLIMIT_CPU, limits.cpu_seconds))
    return values


def count_tasks(user: int) -> int:
    """The number of tasks of a user on the whole machine, processes that have ended and are not reaped included."""
    total = 0
    for pid in pids():
        with suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == user:  # noqa: PTH116 - two for each process
                total += os.stat(f"/proc/{pid}/task").st_nlink - 2  # noqa: PTH116
    return total


def counts_by_namespace(release: str | None = None) -> bool:
    """Return whether the kernel counts the tasks of a user in each user namespace apart: since Linux 5.14."""
    found = _VERSION.match(release or os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) >= _COUNTS_BY_NAMESPACE


_log = logging.getLogger(__name__)
_MEMORY_INTERVAL = 0.06
_DISK_INTERVAL = 0.1
_IDLE_INTERVAL = 5.0
_SECONDS_AT_TASK_LIMIT = 1.0
_HIDDEN = (
    "a program was killed because its processes are hidden: /proc is mounted with hidepid; "
    "mount /proc without it, or with the gateway's group as gid"
)


class Watch:
    """The limits of one program: the process tree beneath `root`, and its meters."""

    def __init__(self, limits: Limits, root: int, meters: Sequence[Meter], task_limit: TaskLimit | None = None) -> None:
        self._limits = limits
        self._task_limit = task_limit or TaskLimit(limits.processes)
        self._at_task_limit: float | None = None
        self._root = root
        self._meters = meters
        self._shared = SharedMemory(limits.memory)
        self._hidden: frozenset[int] = frozenset()
        self._busy = True
        self._checks = [_Check(_MEMORY, self._tree_exceeds)]
        if meters:
            self._checks.append(_Check(_DISK, self._disk_exceeds))

    @property
    def busy(self) -> bool:
        return self._busy

    @busy.setter
    def busy(self, busy: bool) -> None:
        if busy and not self._busy and self._limits.per_task:
            for meter in self._meters:
                meter.reset()
            self._shared.reset()
        self._busy = busy
        for check in self._checks:
            check.set_busy(busy)

    def start(self, loop: asyncio.AbstractEventLoop, end: Callable[[Killed], None]) -> None:
        """Start checking; call `end` in the event loop when a limit is exceeded."""

        def report(killed: Killed) -> None:
            with suppress(RuntimeError):  # the loop has closed; programs end with the gateway
                loop.call_soon_threadsafe(end, killed)

        for check in self._checks:
            check.report = report
            check.thread.add(check)

    def stop(self) -> None:
        for check in self._checks:
            check.thread.remove(check)

    def _tree_exceeds(self) -> Killed | None:
        limits, found = self._limits, usage(self._root)
        if self._tasks_exceed(found.tasks):
            return "processes"
        if found.memory > limits.memory and proportional_memory(found.processes) > limits.memory:
            return "memory"
        if self._shared.exceeds_limit(found.processes, found.mapped):
            return "memory"
        still_hidden, self._hidden = self._hidden & found.hidden, found.hidden
        if still_hidden:  # in two checks in a row: a process that is starting is hidden for a moment
            _log.warning(_HIDDEN)
            return "memory"
        return None

    def _tasks_exceed(self, tasks: int) -> bool:
        """Return whether the program stays at its task limit: the kernel refuses more tasks, and most programs cope or
        end."""
        if not self._task_limit.is_reached(tasks):
            self._at_task_limit = None
            return False
        now = time.monotonic()
        if self._at_task_limit is None:
            self._at_task_limit = now
        return tasks > self._limits.processes or now - self._at_task_limit >= _SECONDS_AT_TASK_LIMIT

    def _disk_exceeds(self) -> Killed | None:
        return "disk" if any(meter.is_full() for meter in self._meters) else None


class _Check:
    """The check of one program by a thread."""

    report: Callable[[Killed], None]

    def __init__(self, thread: WatchThread, run: Callable[[], Killed | None]) -> None:
        self.thread = thread
        self.run = run
        self.busy = True
        self.was_busy = True
        self.checked_at = time.monotonic()

    def set_busy(self, busy: bool) -> None:
        self.busy = busy
        if busy:
            self.was_busy = True
            self.thread.wake()

    @property
    def awake(self) -> bool:
        """True if it is busy or was since the last check: a short task may have left something, too."""
        return self.busy or self.was_busy


class WatchThread:
    """A thread that checks program after program. It sleeps for seconds while all are idle, and ends when there are
    none."""

    def __init__(self, name: str, interval: float) -> None:
        self._name = name
        self._interval = interval
        self._lock = threading.Lock()
        self._checks: list[_Check] = []
        self._thread: threading.Thread | None = None
        self._sleeping = False
        self._wake_event = threading.Event()

    def add(self, check: _Check) -> None:
        with self._lock:
            self._checks.append(check)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"toolgate-{self._name}", daemon=True)
                self._thread.start()
        self.wake()

    def remove(self, check: _Check) -> None:
        with self._lock, suppress(ValueError):
            self._checks.remove(check)

    def wake(self) -> None:
        if self._sleeping:
            self._wake_event.set()

    def _run(self) -> None:
        while True:
            time.sleep(self._interval)
            with self._lock:
                if not self._checks:
                    self._thread = None
                    return
                checks = tuple(self._checks)
            for check in checks:
                self._visit(check)
            self._sleep_if_idle()

    def _visit(self, check: _Check) -> None:
        now = time.monotonic()
        if not check.awake and now - check.checked_at < _IDLE_INTERVAL:
            return
        check.was_busy = False
        check.checked_at = now
        try:
            killed = check.run()
        except Exception:
            _log.exception("checking a program's limits failed")
            return
        if killed:
            check.report(killed)

    def _sleep_if_idle(self) -> None:
        self._wake_event.clear()
        self._sleeping = True  # set before the check: a wake-up after it is not lost
        with self._lock:
            awake = any(check.awake for check in self._checks)
        if not awake:
            self._wake_event.wait(_IDLE_INTERVAL)
        self._sleeping = False


_MEMORY = WatchThread("watch-memory", _MEMORY_INTERVAL)
_DISK = WatchThread("watch-disk", _DISK_INTERVAL)
