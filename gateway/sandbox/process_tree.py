"""Resource usage of a process and everything it started, read from Linux's /proc.

Only the program's own figures are used: what it holds, maps and wrote. Figures of the whole machine say when it is
worth looking, never who is to blame. On systems without /proc everything reads as zero or as unknown.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

_STATUS = re.compile(rb"^(RssAnon|RssShmem|VmPTE|VmSize|VmSwap|Threads):\s+(\d+)", re.MULTILINE)
_IGNORED_SIGNALS = re.compile(rb"^SigIgn:\s+(\w+)", re.MULTILINE)
_WRITE_BYTES = re.compile(rb"^write_bytes: (\d+)", re.MULTILINE)
_PSS = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+)", re.MULTILINE)
_MACHINE_SHMEM = re.compile(rb"^Shmem:\s+(\d+)", re.MULTILINE)
_UNLINKED_MAPPING = re.compile(
    rb"^(\w+)-(\w+) \S{3}(\S) \S+ (\w+):(\w+) (\d+) +([^\n]* \(deleted\)|\[anon_shmem:[^\n]*)$", re.MULTILINE
)
_DESCRIPTORS_IN_FLIGHT = re.compile(rb"^scm_fds:\s+[1-9]", re.MULTILINE)
_MAPPINGS_INTERVAL = 0.5
_HAS_PROC = Path("/proc/self/stat").exists()
_KIBIBYTE = 1024
_CHUNK = 1 << 16
_MAPS_BYTES = 8 * 1024 * 1024  # /proc/PID/maps has at most 65,530 lines
_MOST_DESCRIPTORS = 20_000
_SIGCHLD_BIT = 1 << 16
_FLAGS_FIELD = 6  # among the fields of `stat` after the name
_PF_EXITING = 0x4
# Seconds that a busy machine may take to run a parent which waits for a child that has ended.
_ENDED_SECONDS = 2.0
_TICK = 0.01  # USER_HZ, the unit of times in /proc
# No core copies memory into the page cache faster: an upper bound where the kernel does not count for us.
_BYTES_PER_CPU_SECOND = 16 * 1024**3


@dataclass(frozen=True)
class Usage:
    """Totals of a process tree. `memory` is what the kernel cannot drop: anonymous and shared pages, swap and page
    tables, but not mapped files; pages shared by several processes count for each. `mapped` is their address space.
    `tasks` counts all threads. `hidden` are processes that exist and show nothing, as in a /proc with `hidepid`."""

    processes: tuple[int, ...] = ()
    tasks: int = 0
    memory: int = 0
    mapped: int = 0
    hidden: frozenset[int] = frozenset()


def usage(root: int) -> Usage:
    """The usage of all descendants of a process; the process itself is the sandbox's and does not count."""
    children = _child_lister()
    processes: list[int] = []
    tasks = memory = mapped = 0
    hidden = set()
    queue = list(children(root, 1))
    while queue:
        pid = queue.pop()
        status = _status(pid)
        if not status:
            if _is_hidden(pid):
                hidden.add(pid)
            continue
        processes.append(pid)
        own = status.pop(b"Threads", 1)
        tasks += own
        mapped += status.pop(b"VmSize", 0) * _KIBIBYTE
        memory += sum(status.values()) * _KIBIBYTE
        queue += children(pid, own)
    return Usage(tuple(processes), tasks, memory, mapped, frozenset(hidden))


def proportional_memory(pids: tuple[int, ...]) -> int:
    """The memory of these processes with shared pages counted once; slow."""
    total = 0
    for pid in pids:
        shares = _PSS.findall(read(f"/proc/{pid}/smaps_rollup"))
        status = _status(pid)
        own = sum(map(int, shares)) or status.get(b"RssAnon", 0) + status.get(b"RssShmem", 0)
        total += (own + status.get(b"VmPTE", 0)) * _KIBIBYTE
    return total


class Work(NamedTuple):
    """The work of a process tree: the bytes it wrote to disks and the CPU seconds it used. `exact` is False where the
    kernel's counters cannot be read, and CPU time bounds the bytes instead. `unread` is that bound for processes that
    are closed for a moment, which do not count yet."""

    written: float
    cpu_seconds: float
    exact: bool
    unread: float = 0.0

    def upper_bound_since(self, start: Work) -> tuple[float, float]:
        """At most so many bytes and CPU seconds more than at the start: the kernel tells CPU time in ticks."""
        rounding = 0 if self.exact else _TICK * _BYTES_PER_CPU_SECOND
        return self.written - start.written + rounding, self.cpu_seconds - start.cpu_seconds + _TICK

    def without_write_counters(self) -> Work:
        """The same work on a file system whose writes the kernel does not count, such as tmpfs."""
        return Work(self.cpu_seconds * _BYTES_PER_CPU_SECOND, self.cpu_seconds, exact=False)


class ClosedProcesses:
    """Processes whose counters cannot be read, from check to check. One that is starting, or has ended and nobody has
    waited for it yet, is closed for a moment only."""

    def __init__(self) -> None:
        self._before: dict[int, float] = {}
        self._since: dict[int, float] = {}

    def begin_check(self) -> None:
        self._before, self._since = self._since, {}

    def stays(self, pid: int) -> bool:
        """Return whether a closed process was closed at the last check, too, or for seconds if it has ended."""
        now = time.monotonic()
        since = self._since[pid] = self._before.get(pid, now)
        return pid in self._before and (now - since > _ENDED_SECONDS or _is_alive(pid))


def measure_work(root: int, closed: ClosedProcesses | None = None) -> Work | None:
    """The work of a process and all its descendants, the ended ones included: a parent that waits for a child takes
    over its counters. So a process is read after its children are listed and before they are read: a child that ends
    meanwhile is never counted twice. None on a system without /proc, and where a process ignores SIGCHLD: then the
    kernel drops the counters of its children. ProcessLookupError when the process has ended.

    A process that does not stay `closed` counts for nothing."""
    if not _HAS_PROC:
        return None
    if closed is not None:
        closed.begin_check()
    children = _child_lister()
    written = cpu = unread = 0.0
    exact = True
    queue = [root]
    while queue:
        pid = queue.pop()
        below = children(pid, 2)
        ticks = _cpu_ticks(pid)
        if ticks is None:
            if pid == root:
                raise ProcessLookupError
            continue
        if _drops_counters(pid):
            return None
        cpu += ticks * _TICK
        try:
            written += _written_bytes(pid)
        except PermissionError:
            most = ticks * _TICK * _BYTES_PER_CPU_SECOND
            if closed is None or closed.stays(pid):
                written += most
                exact = exact and not ticks
            else:
                unread += most
        queue += below
    return Work(written, cpu, exact, unread)


def _drops_counters(pid: int) -> bool:
    """Return whether a process ignores SIGCHLD. The kernel makes the first process of a PID namespace ignore it once
    all its threads are exiting, and that is not the program's doing: so a thread must be found that is not."""
    ignored = _IGNORED_SIGNALS.search(read(f"/proc/{pid}/status"))
    if not ignored or not int(ignored[1], 16) & _SIGCHLD_BIT:
        return False
    return _is_alive(pid)


def _is_alive(pid: int) -> bool:
    """Return whether a thread of a process is not exiting; the first one may have ended before others."""
    flags = (_stat_fields(f"/proc/{pid}/task/{thread}")[_FLAGS_FIELD:] for thread in threads_of(pid))
    return any(found and not int(found[0]) & _PF_EXITING for found in flags)


class SharedMemory:
    """Shared anonymous mappings of a program. Pages of theirs that no page table maps stay allocated and are in no
    process's figures, so they are looked at by mapping: now and then if the program maps that much, and at once if the
    machine's shared memory has grown by it. Only root sees how many pages a mapping has; for others it counts with its
    full size."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._looked = 0.0
        self.reset()

    def reset(self) -> None:
        """Measure the machine's growth from now on."""
        self._before = _machine_shared_memory()

    def exceeds_limit(self, pids: tuple[int, ...], mapped: int) -> bool:
        is_due = mapped > self._limit and time.monotonic() - self._looked > _MAPPINGS_INTERVAL
        if not is_due and _machine_shared_memory() - self._before <= self._limit:
            return False
        self._looked = time.monotonic()
        held: dict[int, int] = {}
        for pid in pids:
            with suppress(PermissionError):
                for mapping in unlinked_mappings(pid):
                    if mapping.is_memory:
                        held[mapping.inode] = max(_count_allocated(mapping), held.get(mapping.inode, 0))
        return sum(held.values()) > self._limit


class Mapping(NamedTuple):
    """A mapping of an unlinked file, or of shared anonymous memory (`is_memory`)."""

    pid: int
    start: int
    end: int
    device: int
    inode: int
    is_memory: bool

    def stat(self) -> os.stat_result | None:
        """The mapped file, or None when it is unmapped by now; PermissionError for everyone but root."""
        try:
            return Path("/proc", str(self.pid), "map_files", f"{self.start:x}-{self.end:x}").stat()
        except FileNotFoundError:
            if not read(f"/proc/{self.pid}/maps", 1) and threads_of(self.pid):
                raise PermissionError from None  # map_files needs the first thread, which has ended
            return None
        except ProcessLookupError:
            return None


def unlinked_mappings(pid: int) -> Iterator[Mapping]:
    """PermissionError when the process is closed to us, or has too many mappings."""
    for thread in threads_of(pid):  # the first may have ended
        task = f"/proc/{pid}/task/{thread}"
        maps = read(f"{task}/maps", _MAPS_BYTES)
        if len(maps) == _MAPS_BYTES or (not maps and is_closed(task)):
            raise PermissionError
        for start, end, kind, major, minor, inode, name in _UNLINKED_MAPPING.findall(maps):
            is_memory = kind == b"s" and name.startswith((b"/dev/zero ", b"[anon_shmem:"))
            device = os.makedev(int(major, 16), int(minor, 16))
            yield Mapping(pid, int(start, 16), int(end, 16), device, int(inode), is_memory)
        if maps:
            return


class DeletedFiles:
    """Unlinked files that the tree beneath `root` keeps on the disks of these folders, by descriptors and mappings,
    except on disks that are measured `elsewhere`. A descriptor on its way from socket to socket cannot be followed,
    nor what a process keeps to itself."""

    def __init__(self, root: int, folders: Sequence[Path], elsewhere: Sequence[Path] = ()) -> None:
        self._root = root
        self._devices = _devices(folders) - _devices(elsewhere)

    def find(self) -> tuple[list[os.stat_result], set[int]]:
        """Each file once, and the processes that may hold others; one may come and go meanwhile."""
        if not self._devices:
            return [], set()
        search = _DescriptorSearch(self._devices)
        for pid in usage(self._root).processes:
            search.inspect(pid)
        return list(search.found.values()), search.hidden


class _DescriptorSearch:
    def __init__(self, devices: set[int]) -> None:
        self.found: dict[tuple[int, int], os.stat_result] = {}
        self.hidden: set[int] = set()
        self._devices = devices
        self._left = _MOST_DESCRIPTORS

    def inspect(self, pid: int) -> None:
        for thread in threads_of(pid):  # each may have descriptors of its own, and the first one may have ended
            task = f"/proc/{pid}/task/{thread}"
            try:
                is_hidden = self._inspect_descriptors(task)
            except PermissionError:
                is_hidden = is_closed(task)
            except OSError:
                continue  # gone meanwhile
            if is_hidden:
                self.hidden.add(pid)
        try:
            self._inspect_mappings(pid)
        except PermissionError:
            self.hidden.add(pid)

    def _inspect_descriptors(self, task: str) -> bool:
        """Count deleted files; return whether some descriptors cannot be followed."""
        in_flight = False
        with os.scandir(f"{task}/fd") as entries:
            for entry in entries:
                self._left -= 1
                if self._left < 0:
                    return True
                with suppress(FileNotFoundError):
                    found = entry.stat()
                    if stat.S_ISSOCK(found.st_mode):
                        info = read(f"{task}/fdinfo/{entry.name}")
                        in_flight = in_flight or bool(_DESCRIPTORS_IN_FLIGHT.search(info))
                    else:
                        self._count(found)
        return in_flight

    def _inspect_mappings(self, pid: int) -> None:
        """A mapped file needs no descriptor."""
        for mapping in unlinked_mappings(pid):
            if mapping.device in self._devices and (mapping.device, mapping.inode) not in self.found:
                found = mapping.stat()
                if found is not None:
                    self._count(found)

    def _count(self, found: os.stat_result) -> None:
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_dev in self._devices:
            self.found[found.st_dev, found.st_ino] = found


def threads_of(pid: int) -> tuple[int, ...]:
    try:
        return tuple(int(entry.name) for entry in os.scandir(f"/proc/{pid}/task"))
    except OSError:
        return ()


def is_closed(task: str) -> bool:
    """True if a thread that we may not inspect made itself so: the kernel then says that it is root's, which no
    program is. It says so of an ended one too, which has nothing left to hide."""
    try:
        return b"RssAnon" in _numbers(f"{task}/status") and Path(task, "fd").stat().st_uid == 0
    except OSError:
        return False


def read(path: str, most: int = _CHUNK) -> bytes:
    """A file of /proc, up to `most` bytes; empty when it is gone or closed to us."""
    content = bytearray()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        while len(content) < most and (more := os.read(fd, min(_CHUNK, most - len(content)))):
            content += more
    except OSError:
        return b""
    finally:
        os.close(fd)
    return bytes(content)


def _count_allocated(mapping: Mapping) -> int:
    try:
        found = mapping.stat()
    except PermissionError:
        return mapping.end - mapping.start
    return found.st_blocks * 512 if found else 0


def _machine_shared_memory() -> int:
    found = _MACHINE_SHMEM.search(read("/proc/meminfo"))
    return int(found[1]) * _KIBIBYTE if found else 0


def _written_bytes(pid: int) -> int:
    """Bytes that a process and the children it waited for made dirty on disks; 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:  # noqa: PTH123 - one for each process and look
            found = _WRITE_BYTES.search(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    if found is None:
        raise PermissionError
    return int(found[1])


def _cpu_ticks(pid: int) -> int | None:
    """Clock ticks of CPU of a process and the children it waited for."""
    fields = _stat_fields(f"/proc/{pid}")
    return sum(map(int, fields[11:15])) if len(fields) > 14 else None


def _stat_fields(directory: str) -> list[bytes]:
    """The fields of `stat` after the name of the program, from the state on; none when the process has gone."""
    return read(f"{directory}/stat").rpartition(b")")[2].split()


def _status(pid: int) -> dict[bytes, int]:
    """Of a process whose first thread has ended, another thread's."""
    status = _numbers(f"/proc/{pid}/status")
    if b"RssAnon" in status or status.get(b"Threads", 0) <= 1:
        return status
    others = (_numbers(f"/proc/{pid}/task/{thread}/status") for thread in threads_of(pid))
    return next((found for found in others if b"RssAnon" in found), status)


def _numbers(path: str) -> dict[bytes, int]:
    return {name: int(value) for name, value in _STATUS.findall(read(path))}


def _is_hidden(pid: int) -> bool:
    """True if the process exists: a /proc mounted with `hidepid` shows us, unless we are root, no process that is not
    dumpable."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False  # gone, and its number perhaps someone else's
    return not read(f"/proc/{pid}/status")  # one that ends at this moment is shown again


def _child_lister() -> Callable[[int, int], tuple[int, ...]]:
    """A function that lists the children of a process, given how many threads it has."""
    return _children if _kernel_lists_children() else _children_by_parent()


@cache
def _kernel_lists_children() -> bool:
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _children(pid: int, threads: int) -> tuple[int, ...]:
    found: list[int] = []
    for thread in threads_of(pid) if threads > 1 else (pid,):
        found += map(int, read(f"/proc/{pid}/task/{thread}/children").split())
    return tuple(found)


def _children_by_parent() -> Callable[[int, int], tuple[int, ...]]:
    """For a kernel that tells parents only."""
    family: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for pid in pids():
        fields = _stat_fields(f"/proc/{pid}")
        if len(fields) > 1:
            family[int(fields[1])] += (pid,)
    return lambda pid, _: family[pid]


def pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()] if _HAS_PROC else []


def _devices(folders: Sequence[Path]) -> set[int]:
    found = set()
    for folder in folders:
        with suppress(OSError):
            found.add(folder.stat().st_dev)
    return found
