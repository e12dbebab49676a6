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
    processes share is counted for each of them. `hidden` is whether there is one of which nothing is told."""

    processes: tuple[int, ...] = ()
    threads: int = 0
    memory: int = 0
    hidden: bool = False


def usage(root: int) -> Usage:
    """What all descendants of a process use; the process itself is ours and does not count."""
    kin = _children if _kernel_lists_children() else _counted()
    processes: list[int] = []
    threads = memory = 0
    hidden = False
    queue = list(kin(root, 1))
    while queue:
        pid = queue.pop()
        status = _status(pid)
        if not status:
            hidden = hidden or _is_hidden(pid)
            continue
        processes.append(pid)
        own = status.pop(b"Threads", 1)
        threads += own
        memory += sum(status.values()) * _KIBIBYTE
        queue += kin(pid, own)
    return Usage(tuple(processes), threads, memory, hidden)


def shared_out(pids: tuple[int, ...]) -> int:
    """The memory of these processes with what several of them share counted once; slow."""
    total = 0
    for pid in pids:
        shares = _SHARES.findall(read(f"/proc/{pid}/smaps_rollup"))
        status = _status(pid)
        own = sum(map(int, shares)) if shares else sum(status.get(name, 0) for name in (b"RssAnon", b"RssShmem"))
        total += (own + status.get(b"VmPTE", 0)) * _KIBIBYTE
    return total


def tasks_of(uid: int) -> int:
    """The threads of a user in the whole machine."""
    total = 0
    for pid in _pids():
        try:
            if Path(f"/proc/{pid}").stat().st_uid == uid:
                total += len(tasks(pid))
        except OSError:
            continue
    return total


def tasks(pid: int) -> tuple[int, ...]:
    """The threads of a process."""
    try:
        return tuple(int(entry.name) for entry in os.scandir(f"/proc/{pid}/task"))
    except OSError:
        return ()


def keeps_us_out(task: str) -> bool:
    """Whether a thread that we may not look into wants it so: then the kernel says it is root's, as no program is.
    So it says of one that has ended, which has nothing left to hide."""
    try:
        return b"RssAnon" in _numbers(f"{task}/status") and Path(task, "fd").stat().st_uid == 0
    except OSError:
        return False


def read(path: str, most: int = _READ) -> bytes:
    """What a file of the kernel's says, up to `most` bytes; nothing when it is gone or closed to us."""
    told = bytearray()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        while len(told) < most and (more := os.read(fd, min(_READ, most - len(told)))):
            told += more
    except OSError:
        return b""
    finally:
        os.close(fd)
    return bytes(told)


def _status(pid: int) -> dict[bytes, int]:
    """Of a process whose first thread has ended, what one of the others tells."""
    status = _numbers(f"/proc/{pid}/status")
    if b"RssAnon" in status or status.get(b"Threads", 0) <= 1:
        return status
    others = (_numbers(f"/proc/{pid}/task/{thread}/status") for thread in tasks(pid))
    return next((found for found in others if b"RssAnon" in found), status)


def _numbers(path: str) -> dict[bytes, int]:
    return {name: int(value) for name, value in _STATUS.findall(read(path))}


def _is_hidden(pid: int) -> bool:
    """Whether it is there all the same: a /proc mounted with `hidepid` does not show us, unless we are root, a process
    that keeps its memory to itself."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False  # gone, and its number someone else's perhaps
    return not read(f"/proc/{pid}/status")  # one that ends at this moment is shown again


@cache
def _kernel_lists_children() -> bool:
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _children(pid: int, threads: int) -> tuple[int, ...]:
    found: list[int] = []
    for thread in tasks(pid) if threads > 1 else (pid,):
        found += map(int, read(f"/proc/{pid}/task/{thread}/children").split())
    return tuple(found)


def _counted() -> Callable[[int, int], tuple[int, ...]]:
    """The same for a kernel that tells parents, not children."""
    family: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for pid in _pids():
        fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if len(fields) > 1:
            family[int(fields[1])] += (pid,)
    return lambda pid, _: family[pid]


def _pids() -> list[int]:
    try:
        return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    except FileNotFoundError:
        return []
