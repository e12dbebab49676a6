"""What a process and all it started use right now, as Linux tells it; nothing where it does not."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_STATUS = re.compile(rb"^(RssAnon|RssShmem|VmPTE|VmSwap|Threads):\s+(\d+)", re.MULTILINE)
_SHARES = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+)", re.MULTILINE)
_KIBIBYTE = 1024
_READ = 1 << 16


@dataclass(frozen=True)
class Usage:
    """`memory` counts what cannot be dropped: not files that are only mapped, but page tables. What
    processes share is counted for each of them."""

    processes: tuple[int, ...] = ()
    threads: int = 0
    memory: int = 0


def usage(root: int) -> Usage:
    """What all descendants of a process use; the process itself is ours and does not count."""
    kin = _children if _kernel_lists_children() else _counted()
    processes: list[int] = []
    threads = memory = 0
    queue = list(kin(root, 1))
    while queue:
        pid = queue.pop()
        status = {name: int(value) for name, value in _STATUS.findall(_read(f"/proc/{pid}/status"))}
        if not status:
            continue  # gone meanwhile
        processes.append(pid)
        own = status.pop(b"Threads", 1)
        threads += own
        memory += sum(status.values()) * _KIBIBYTE
        queue += kin(pid, own)
    return Usage(tuple(processes), threads, memory)


def shared_out(pids: tuple[int, ...]) -> int:
    """The memory of these processes with what several of them share counted once; slow."""
    total = 0
    for pid in pids:
        shares = _SHARES.findall(_read(f"/proc/{pid}/smaps_rollup"))
        status = {name: int(value) for name, value in _STATUS.findall(_read(f"/proc/{pid}/status"))}
        own = sum(map(int, shares)) if shares else sum(status.get(name, 0) for name in (b"RssAnon", b"RssShmem"))
        total += (own + status.get(b"VmPTE", 0)) * _KIBIBYTE
    return total


def tasks_of(uid: int) -> int:
    """The threads of a user in the whole machine."""
    total = 0
    for pid in _pids():
        try:
            if Path(f"/proc/{pid}").stat().st_uid == uid:
                total += len(_threads(pid))
        except OSError:
            continue
    return total


@cache
def _kernel_lists_children() -> bool:
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _children(pid: int, threads: int) -> tuple[int, ...]:
    found: list[int] = []
    for thread in _threads(pid) if threads > 1 else (pid,):
        found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return tuple(found)


def _counted() -> Callable[[int, int], tuple[int, ...]]:
    """The same for a kernel that tells parents, not children."""
    family: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for pid in _pids():
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if len(fields) > 1:
            family[int(fields[1])] += (pid,)
    return lambda pid, _: family[pid]


def _pids() -> list[int]:
    try:
        return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    except FileNotFoundError:
        return []


def _threads(pid: int) -> tuple[int, ...]:
    try:
        return tuple(int(entry.name) for entry in os.scandir(f"/proc/{pid}/task"))
    except OSError:
        return ()


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _READ)
    except OSError:
        return b""
    finally:
        os.close(fd)
