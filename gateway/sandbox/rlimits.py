"""Limits that the kernel enforces: per process, and on the number of tasks of a whole program.

A task is a process or a thread, as the kernel counts them together.
"""

from __future__ import annotations

import os
import re
import resource
from contextlib import suppress
from dataclasses import dataclass

from gateway.sandbox import Limits
from gateway.sandbox.process_tree import pids

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
