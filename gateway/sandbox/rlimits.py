"""What the kernel holds each process to by itself; totals of a tree are the watchdog's."""

from __future__ import annotations

import resource

from . import Limits

THREADS = 4
"""Threads for each process a program may have: numeric libraries start one for every core."""

_SPARE_DATA = 512 * 1024 * 1024
_TASKS_OF_OTHERS = 1024
"""Threads that others of the same user may start while a program runs, where the kernel counts them together."""


def rlimits(limits: Limits, tasks: int | None = None) -> list[tuple[int, int]]:
    """Numbers and values for `setrlimit`. `tasks` is how many threads the user has already, where the kernel counts
    those too; 0 where it counts the program's alone, and None where it does not count for us at all."""
    held = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        # Far above the limit that counts: this one only slows down who outruns the watchdog.
        (resource.RLIMIT_DATA, 2 * limits.memory + _SPARE_DATA),
    ]
    if tasks is not None:
        others = tasks + _TASKS_OF_OTHERS if tasks else 0
        held.append((resource.RLIMIT_NPROC, others + THREADS * limits.processes))
    if limits.cpu_seconds is not None:
        held.append((resource.RLIMIT_CPU, limits.cpu_seconds))
    return held
