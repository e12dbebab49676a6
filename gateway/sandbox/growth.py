"""How much a program's folders have grown, found out without walking them more often than needed."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from . import Program
from .nameless import Nameless

DEPTH_LIMIT = 256
"""Below it nothing is measured, so a program that makes or changes a folder there has gone too far."""

_CLOCK_TICK = 0.02

_FIRST_WALK = 0.4
"""Seconds a program may run before its folders are walked; most have ended by then."""

_STALE = 5.0
FOLDER = 0  # in place of a process's number
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Size:
    bytes: int = 0
    files: int = 0

    def __sub__(self, other: Size) -> Size:
        return Size(self.bytes - other.bytes, self.files - other.files)

    def __add__(self, other: Size) -> Size:
        return Size(self.bytes + other.bytes, self.files + other.files)

    def exceeds(self, limit: Size, share: float = 1) -> bool:
        return self.bytes > limit.bytes * share or self.files > limit.files * share

    def within(self, least: Size, most: Size) -> Size:
        return Size(
            min(max(self.bytes, least.bytes), most.bytes),
            min(max(self.files, least.files), most.files),
        )


class Gauge(Protocol):
    """Something that fills up while a program runs."""

    def renew(self) -> None:
        """What is there now is not the program's doing. Called from any thread."""
        ...

    def full(self) -> bool: ...


class Filled:
    """A file system of the program's own, which tells what is in it. Until it is there, the path leads to
    the `host`'s."""

    def __init__(self, path: Path, limit: Size, host: Path) -> None:
        self._path = path
        self._limit = limit
        self._host = host

    def renew(self) -> None:
        return

    def full(self) -> bool:
        try:
            if self._path.stat().st_dev == self._host.stat().st_dev:
                return False
            found = os.statvfs(self._path)  # asked last: once it is the program's own it stays so
        except OSError:
            return False  # not there yet, or not any more
        used = Size((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree)
        return used.exceeds(self._limit)


class Growth:
    """Folders on file systems that others use too.

    Walking a large folder costs more than most programs. The file system says at once how much was
    taken from it, by whomever; the folders are walked only when that could be too much, and now and
    then. What was taken before the first walk, and is there in new files, counts as the program's; so do
    files that it holds and that have no name any more. A program can hide what it makes, in a folder
    that nobody but root may list: then all that was taken from the file system since it began counts as
    the program's. A process that begins or ends is closed to us for a moment too, so only what is hidden
    from two looks in a row counts as hidden.
    """

    _base: Size | None
    _growth: Size
    _hidden: set[int]
    _free_first: Size
    _free_then: Size
    _since: float
    _walked: float
    _effort: float

    def __init__(self, folders: Sequence[Path], limit: Size, nameless: Nameless | None = None) -> None:
        self._folders = folders
        self._limit = limit
        self._nameless = nameless
        self._renewed: _Moment | None = None
        self._begin(_Moment(folders))

    def renew(self) -> None:
        self._renewed = _Moment(self._folders)

    def full(self) -> bool:
        if (renewed := self._renewed) is not None:
            self._renewed = None
            self._begin(renewed)
        free = _free(self._folders)
        if not self._suspicious(self._free_then - free):
            return False
        began = time.monotonic()
        walk = _Walk(self._since, self._base.files + self._limit.files if self._base else None)
        size = walk.measure(self._folders, self._nameless)
        if self._base is None:
            # Others take from the file system too: what is older than the program is none of its doing.
            self._base = size - (self._free_then - free).within(Size(), walk.fresh)
        self._growth = size - self._base
        self._walked = time.monotonic()
        self._effort = self._walked - began
        still, self._hidden = self._hidden & walk.hidden, walk.hidden
        if not walk.hidden:  # else it is looked at again soon
            self._free_then = free
        if still and (self._free_first - free).exceeds(self._limit):
            return True
        return walk.buried or self._growth.exceeds(self._limit)

    def _begin(self, moment: _Moment) -> None:
        self._since = moment.since
        self._base = None
        self._growth = Size()
        self._hidden = set()
        self._free_first = self._free_then = moment.free
        self._walked = moment.at
        self._effort = 0.0

    def _suspicious(self, taken: Size) -> bool:
        age = time.monotonic() - self._walked
        if taken.exceeds(self._limit - self._growth, share=0.5):
            return age > 4 * self._effort
        return age > (_FIRST_WALK if self._base is None else max(_STALE, 20 * self._effort))


class _Moment:
    """When a program began, and what there was then."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.since = time.time() - _CLOCK_TICK
        self.free = _free(folders)
        self.at = time.monotonic()


def growth_of(program: Program, root: int) -> list[Gauge]:
    """A gauge of all folders a program may write to, if there are any; `root` is the process above all of its own."""
    folders = writable(program)
    limit = Size(program.limits.disk, program.limits.files)
    return [Growth(folders, limit, Nameless(root, folders))] if folders else []


def writable(program: Program) -> list[Path]:
    return [mount.source for mount in program.mounts if mount.writable]


def _free(folders: Sequence[Path]) -> Size:
    """What the file systems of these folders have left."""
    left: dict[int, Size] = {}
    for folder in folders:
        with suppress(OSError):
            found = os.statvfs(folder)
            left[folder.stat().st_dev] = Size(found.f_bfree * found.f_frsize, found.f_ffree)
    return sum(left.values(), Size())


class _Walk:
    """Counts blocks and files beneath folders, following nothing; stops at `enough` files. `fresh` is
    what changed `since` then, and `buried` whether anything did that is too deep to look at. `hidden` are
    the processes of the program that keep something from us; FOLDER, if there is one of ours that is closed."""

    def __init__(self, since: float, enough: int | None) -> None:
        self.buried = False
        self.hidden: set[int] = set()
        self._since = since
        self._enough = enough
        self._blocks = self._fresh_blocks = 0
        self._files = self._fresh_files = 0
        self._linked: set[tuple[int, int]] = set()

    def measure(self, folders: Sequence[Path], nameless: Nameless | None = None) -> Size:
        for folder in folders:
            self._open(folder, None, 0)
        if nameless is not None and not self._done:
            self._hold(nameless)
        return Size(self._blocks * 512, self._files)

    @property
    def fresh(self) -> Size:
        return Size(self._fresh_blocks * 512, self._fresh_files)

    @property
    def _done(self) -> bool:
        return self.buried or (self._enough is not None and self._files > self._enough)

    def _hold(self, nameless: Nameless) -> None:
        files, hidden = nameless.look()
        self.hidden |= hidden
        self._files += len(files)
        for found in files:
            self._count(found)

    def _open(self, name: Path | str, fd: int | None, depth: int) -> None:
        try:
            self._enter(os.open(name, _DIRECTORY, dir_fd=fd), depth)
        except PermissionError:
            if _is_ours(name, fd):
                self.hidden.add(FOLDER)
        except OSError:
            return  # gone meanwhile

    def _enter(self, fd: int, depth: int) -> None:
        try:
            found = os.fstat(fd)
            self._count(found)
            if depth > DEPTH_LIMIT:
                self.buried = self.buried or found.st_ctime >= self._since
                return
            for name in self._folders_in(fd):
                if self._done:
                    return
                self._open(name, fd, depth + 1)
        finally:
            os.close(fd)

    def _folders_in(self, fd: int) -> list[str]:
        folders = []
        with os.scandir(fd) as entries:
            for entry in entries:
                self._files += 1
                if self._done:
                    break
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                    continue
                try:
                    self._count(entry.stat(follow_symlinks=False))
                except PermissionError:
                    self.hidden.add(FOLDER)
                except OSError:
                    continue
        return folders

    def _count(self, found: os.stat_result) -> None:
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            key = (found.st_dev, found.st_ino)
            if key in self._linked:
                return
            self._linked.add(key)
        self._blocks += found.st_blocks
        if found.st_ctime >= self._since:
            self._fresh_blocks += found.st_blocks
            self._fresh_files += 1


def _is_ours(name: Path | str, fd: int | None) -> bool:
    """Whether a program that is who we are can lock and unlock it; what others lock, it cannot fill either."""
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False).st_uid == os.geteuid()
    except FileNotFoundError:
        return False
    except OSError:
        return True
