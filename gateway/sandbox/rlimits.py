"""What the kernel holds each process to by itself; totals of a tree are the watchdog's."""

from __future__ import annotations

import resource

from . import Limits

THREADS = 4
"""Threads for each process a program may have: numeric libraries start one for every core."""

_SPARE_DATA = 512 * 1024 * 1024


def rlimits(limits: Limits, tasks: int | None = None) -> list[tuple[int, int]]:
    """Numbers and values for `setrlimit`. `tasks` is how many the user has already, where the kernel
    counts those too; None where it does not count for us at all."""
    held = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        # Far above the limit that counts: this one only slows down who outruns the watchdog.
        (resource.RLIMIT_DATA, 2 * limits.memory + _SPARE_DATA),
    ]
    if tasks is not None:
        held.append((resource.RLIMIT_NPROC, tasks + THREADS * limits.processes))
    if limits.cpu_seconds is not None:
        held.append((resource.RLIMIT_CPU, limits.cpu_seconds))
    return held
