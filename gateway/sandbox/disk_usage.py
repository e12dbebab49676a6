"""Disk usage of a program: what it has added to the folders it may write to.

The kernel counts what each process writes. A program whose own counters are below its limit is never ended, whatever
others do to the same folder or disk; only one that wrote more is held to what the folder has grown by and to deleted
files that it holds open. The free space of a disk says when to look, not who is to blame.
"""

from __future__ import annotations

import math
import os
import re
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gateway.sandbox import Program
from gateway.sandbox.process_tree import ClosedProcesses, DeletedFiles, Work, measure_work, read
from gateway.sandbox.run_user import account

# Deeper folders are not measured, so a program that changes one there has gone too far.
DEPTH_LIMIT = 256

_CLOCK_TICK = 0.02
# Seconds a program runs before its folders are walked; most have ended by then.
_FIRST_WALK = 0.4

_STALE = 5.0
_FOLDER = 0  # stands for a closed folder among the numbers of closed processes
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# No kernel makes a file in less: a program that used less CPU cannot have made so many.
_CPU_SECONDS_PER_FILE = 2e-6

# File systems whose writes the kernel counts for the process that makes them; not so in memory or over FUSE.
_COUNTED_FILE_SYSTEMS = frozenset(
    ("bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "nfs", "nfs4", "overlay", "vfat", "xfs", "zfs")
)

_CAPABILITIES = re.compile(rb"^CapEff:\s+(\w+)", re.MULTILINE)
_CAP_SYS_PTRACE = 19

NOT_INSPECTABLE = (
    "the gateway is root without CAP_SYS_PTRACE, as in many containers: what programs write is estimated from their "
    "CPU time, and deleted files that they keep open are not limited; run it as a normal user, or grant the capability"
)


@dataclass(frozen=True)
class DiskSize:
    bytes: float = 0
    files: float = 0

    def __sub__(self, other: DiskSize) -> DiskSize:
        return DiskSize(self.bytes - other.bytes, self.files - other.files)

    def __add__(self, other: DiskSize) -> DiskSize:
        return DiskSize(self.bytes + other.bytes, self.files + other.files)

    def exceeds(self, limit: DiskSize, share: float = 1) -> bool:
        return self.bytes > limit.bytes * share or self.files > limit.files * share

    def at_most(self, other: DiskSize) -> DiskSize:
        return DiskSize(max(min(self.bytes, other.bytes), 0), max(min(self.files, other.files), 0))


_UNKNOWN = DiskSize(math.inf, math.inf)


class Meter(Protocol):
    """Something that fills up while a program runs."""

    def reset(self) -> None:
        """Count from now on. Called from any thread."""
        ...

    def is_full(self) -> bool: ...


class TmpfsUsage:
    """A file system of the program's own. Until it is mounted, its path leads to the `host`'s."""

    def __init__(self, path: Path, limit: DiskSize, host: Path) -> None:
        self._path = path
        self._limit = limit
        self._host = host

    def reset(self) -> None:
        return

    def is_full(self) -> bool:
        try:
            if self._path.stat().st_dev == self._host.stat().st_dev:
                return False
            found = os.statvfs(self._path)  # after the check: once mounted it stays mounted
        except OSError:
            return False  # not there yet, or not any more
        used = DiskSize((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree)
        return used.exceeds(self._limit)


class DiskUsage:
    """Growth of folders on file systems that others use too; `root` is the process above all of the program's.

    Walking a large folder costs more than most programs, so it is done early on, every few seconds, and when the
    program wrote enough to matter. What was added before the first walk is at most what changed since the program
    began, and at most what it can have written. Deleted files that it holds count too. A program can hide files, in a
    folder that only root may list or by descriptors that nobody can follow: then all that it wrote counts. A process
    that is just starting or ending is closed for a moment, so only what stays closed is hidden, and counts by CPU time.
    Of a program that drops the counters of its children nothing bounds what it wrote, so its folders are walked at once
    and often, and all their growth counts.
    A `sparing` meter walks only once the program can have added too much: one that waits for days costs no walks.
    """

    _base: DiskSize | None
    _growth: DiskSize
    _hidden: set[int]
    _start: _Moment
    _last: _Moment
    _walked: float
    _effort: float

    def __init__(
        self,
        folders: Sequence[Path],
        limit: DiskSize,
        root: int,
        deleted: DeletedFiles | None = None,
        *,
        sparing: bool = False,
    ) -> None:
        self._sparing = sparing
        self._folders = folders
        self._limit = limit
        self._root = root
        self._deleted = deleted
        self._counted: bool | None = None
        self._work: Work | None = Work(0, 0.0, exact=True)
        self._closed = ClosedProcesses()
        self._next_start: _Moment | None = None
        self._begin(_Moment(folders, self._work))

    def reset(self) -> None:
        # The event loop calls this before every call of a worker, so the work is that of the last look.
        self._next_start = _Moment(self._folders, self._work)

    def is_full(self) -> bool:
        if (start := self._next_start) is not None:
            self._next_start = None
            self._begin(start)
        try:
            self._work = self._read_work()
        except ProcessLookupError:
            return False  # the program has just ended
        now = _Moment(self._folders, self._work)
        if not self._is_due(now):
            return False
        most = now.most_added_since(self._start)
        overspent = now.is_exact and most.bytes > self._limit.bytes
        walk = _Walk(self._start.time, self._base.files + self._limit.files if self._base else None, overspent)
        size = walk.measure(self._folders, self._deleted)
        if self._base is None:
            added = now.estimate_since(self._start) if most == _UNKNOWN else most + now.unread
            self._base = size - walk.changed.at_most(added)
        self._growth = (size - self._base).at_most(most)
        self._walked = time.monotonic()
        self._effort = self._walked - now.monotonic
        still_hidden, self._hidden = self._hidden & walk.hidden, walk.hidden
        if not walk.hidden:  # else it is looked at again soon
            self._last = now
        if still_hidden and now.most_hidden_since(self._start).exceeds(self._limit):
            return True
        return walk.too_deep or self._growth.exceeds(self._limit)

    def _begin(self, moment: _Moment) -> None:
        self._base = None
        self._growth = DiskSize()
        self._hidden = set()
        self._start = self._last = moment
        self._walked = moment.monotonic
        self._effort = 0.0

    def _read_work(self) -> Work | None:
        if self._counted is None:
            self._counted = all(_file_system(folder) in _COUNTED_FILE_SYSTEMS for folder in self._folders)
        work = measure_work(self._root, self._closed)
        return work if self._counted or work is None else work.without_write_counters()

    def _is_due(self, now: _Moment) -> bool:
        if self._sparing and self._base is not None:
            most = self._growth + now.most_added_since(self._last)
            if not most.exceeds(self._limit):
                return False
        age = now.monotonic - self._walked
        if not now.is_counted and (self._base is None or age > max(_FIRST_WALK, 20 * self._effort)):
            return True
        if now.estimate_since(self._last).exceeds(self._limit - self._growth, share=0.5):
            return age > 4 * self._effort
        return age > (_FIRST_WALK if self._base is None else max(_STALE, 20 * self._effort))


class _Moment:
    """A point in time: the free space of the folders' disks, and the work that the program had done."""

    def __init__(self, folders: Sequence[Path], work: Work | None) -> None:
        self.time = time.time() - _CLOCK_TICK
        self.monotonic = time.monotonic()
        self._free = _free_space(folders)
        self._work = work

    @property
    def is_counted(self) -> bool:
        return self._work is not None

    @property
    def is_exact(self) -> bool:
        return self._work is not None and self._work.exact

    @property
    def unread(self) -> DiskSize:
        """An upper bound on what processes wrote that are closed for a moment."""
        return DiskSize(self._work.unread if self._work is not None else 0)

    def most_added_since(self, start: _Moment) -> DiskSize:
        """An upper bound on what the program added."""
        if self._work is None or start._work is None:
            return _UNKNOWN
        written, cpu_seconds = self._work.upper_bound_since(start._work)
        return DiskSize(written, cpu_seconds / _CPU_SECONDS_PER_FILE)

    def estimate_since(self, start: _Moment) -> DiskSize:
        """An estimate of what the program added, to decide when to look: its counter if exact, else the lost space."""
        taken = start._free - self._free
        return DiskSize(self.most_added_since(start).bytes if self.is_exact else taken.bytes, taken.files)

    def most_hidden_since(self, start: _Moment) -> DiskSize:
        """An upper bound on what the program added out of sight: nothing that is still free."""
        return self.most_added_since(start).at_most(self.estimate_since(start))


class _Walk:
    """Counts blocks and files beneath folders, following no links; stops at `enough` files. `changed` is what changed
    `since` then, and `too_deep` whether that is too deep to measure. `hidden` are the processes and folders closed to
    us; a folder that did not change since is only taken for hidden if the program has `overspent`."""

    def __init__(self, since: float, enough: float | None, overspent: bool) -> None:
        self.too_deep = False
        self.hidden: set[int] = set()
        self._since = since
        self._enough = enough
        self._overspent = overspent
        self._blocks = self._changed_blocks = 0
        self._files = self._changed_files = 0
        self._linked: set[tuple[int, int]] = set()

    def measure(self, folders: Sequence[Path], deleted: DeletedFiles | None = None) -> DiskSize:
        for folder in folders:
            self._open(folder, None, 0)
        if deleted is not None and not self._is_done:
            files, hidden = deleted.find()
            self.hidden |= hidden
            self._files += len(files)
            for found in files:
                self._count(found)
        return DiskSize(self._blocks * 512, self._files)

    @property
    def changed(self) -> DiskSize:
        return DiskSize(self._changed_blocks * 512, self._changed_files)

    @property
    def _is_done(self) -> bool:
        return self.too_deep or (self._enough is not None and self._files > self._enough)

    def _open(self, name: Path | str, fd: int | None, depth: int) -> None:
        try:
            self._enter(os.open(name, _DIRECTORY, dir_fd=fd), depth)
        except PermissionError:
            if self._may_hide_files(name, fd):
                self.hidden.add(_FOLDER)
        except OSError:
            return  # gone meanwhile

    def _enter(self, fd: int, depth: int) -> None:
        try:
            found = os.fstat(fd)
            self._count(found)
            if depth > DEPTH_LIMIT:
                self.too_deep = self.too_deep or found.st_ctime >= self._since
                return
            for name in self._list(fd):
                if self._is_done:
                    return
                self._open(name, fd, depth + 1)
        finally:
            os.close(fd)

    def _list(self, fd: int) -> list[str]:
        """Count what is in a folder and return the folders in it."""
        folders = []
        searchable = True
        with os.scandir(fd) as entries:
            for entry in entries:
                self._files += 1
                if self._is_done:
                    break
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                    continue
                try:
                    self._count(entry.stat(follow_symlinks=False))
                except PermissionError:
                    searchable = False
                except OSError:
                    continue
        if not searchable and self._may_hide_files(".", fd, os.fstat(fd)):
            self.hidden.add(_FOLDER)
        return folders

    def _may_hide_files(self, name: Path | str, fd: int | None, found: os.stat_result | None = None) -> bool:
        """True if the program can have put files into a folder that is closed to us: it is our own user's, and has
        changed since the program began or the program wrote more than it may."""
        try:
            found = found or os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:
            return self._overspent
        return found.st_uid == os.geteuid() and (self._overspent or found.st_ctime >= self._since)

    def _count(self, found: os.stat_result) -> None:
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            key = (found.st_dev, found.st_ino)
            if key in self._linked:
                return
            self._linked.add(key)
        self._blocks += found.st_blocks
        if found.st_ctime >= self._since:
            self._changed_blocks += found.st_blocks
            self._changed_files += 1


def measure(folder: Path) -> DiskSize:
    """The size of all that is in a folder."""
    return _Walk(0, None, overspent=False).measure([folder])


def folder_usage(program: Program, root: int) -> list[Meter]:
    """A meter of all folders a program may write to, if there are any."""
    folders = writable_folders(program)
    limit = DiskSize(program.limits.disk, program.limits.files)
    sparing = not program.limits.per_task
    return [DiskUsage(folders, limit, root, DeletedFiles(root, folders), sparing=sparing)] if folders else []


def writable_folders(program: Program) -> list[Path]:
    return [mount.source for mount in program.mounts if mount.writable]


def cannot_inspect_programs() -> bool:
    """True if programs run as another user and we may not inspect the processes of others."""
    held = _CAPABILITIES.search(read("/proc/self/status"))
    return account() is not None and held is not None and not int(held[1], 16) >> _CAP_SYS_PTRACE & 1


def _free_space(folders: Sequence[Path]) -> DiskSize:
    left: dict[int, DiskSize] = {}
    for folder in folders:
        with suppress(OSError):
            found = os.statvfs(folder)
            left[folder.stat().st_dev] = DiskSize(found.f_bfree * found.f_frsize, found.f_ffree)
    return sum(left.values(), DiskSize())


def _file_system(folder: Path) -> str:
    """The type of the file system a folder is on, by the longest mount point above it; empty if unknown."""
    place, best = os.path.realpath(folder), ("", "")
    for line in read("/proc/self/mountinfo", 1 << 20).decode(errors="surrogateescape").splitlines():
        fields, _, source = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields.split()[4])
        if len(point) >= len(best[0]) and Path(place).is_relative_to(point):
            best = (point, source.split()[0])
    return best[1]
