"""What was seen of a workspace the last time, so that only what moved since is read again: a cache, never the truth."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import stat
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from gateway.workspace.openat import Parts
from gateway.workspace.remove_tree import temporary_name
from gateway.workspace.tree import EMPTY_DIRECTORY, EXECUTABLE, LINK, PLAIN, Tree, decode, encode

# Change times as the kernel has them: the seconds of all, and the nanoseconds of all.
Moments = tuple[list[int], list[int]]

# No file's change time.
NEVER = (-1, -1)

_SECOND = 1_000_000_000
_NO_FOLLOW, _CHANGE_TIME = 0x100, 0x80
_SIZE, _SECONDS_AT, _NANOSECONDS_AT = 256, 96, 104  # of struct statx, the same on every machine
_AT_ONCE = 256


def moments(times: Iterable[int | None]) -> Moments:
    """Change times in nanoseconds, as `change_times` tells them; None is told as no file's."""
    pairs = [NEVER if time is None else divmod(time, _SECOND) for time in times]
    return [seconds for seconds, _ in pairs], [nanoseconds for _, nanoseconds in pairs]


def change_times(directory: int, names: Sequence[bytes]) -> Moments | None:
    """When each of the files in a directory last changed, links not followed; None when one cannot be asked."""
    ask = _statx()
    if ask is None:
        return _asked_one_by_one(directory, names)
    if len(names) <= _AT_ONCE:
        return _rooms().asked(ask, directory, names)
    seconds: list[int] = []
    nanoseconds: list[int] = []
    for start in range(0, len(names), _AT_ONCE):
        some = _rooms().asked(ask, directory, names[start : start + _AT_ONCE])
        if some is None:
            return None
        seconds += some[0]
        nanoseconds += some[1]
    return seconds, nanoseconds


def _asked_one_by_one(directory: int, names: Sequence[bytes]) -> Moments | None:
    try:
        return moments(os.stat(name, dir_fd=directory, follow_symlinks=False).st_ctime_ns for name in names)
    except OSError:
        return None


class _Room(threading.local):
    """Where the kernel puts its answers; each thread has its own."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_SIZE * _AT_ONCE)
        start = ctypes.addressof(self._buffer)
        # Made once: to make a pointer for each call would cost as much as the call.
        self.slots = [ctypes.c_void_p(start + _SIZE * index) for index in range(_AT_ONCE)]
        whole = memoryview(self._buffer).cast("B")
        self._longs = whole.cast("q")
        self._words = whole.cast("I")

    def asked(self, ask: Callable[..., int], directory: int, names: Sequence[bytes]) -> Moments | None:
        """The change times of no more files than there are slots."""
        if any(map(ask, repeat(directory), names, repeat(_NO_FOLLOW), repeat(_CHANGE_TIME), self.slots)):
            return None
        end = len(names) * _SIZE
        return (
            self._longs[_SECONDS_AT // 8 : end // 8 : _SIZE // 8].tolist(),
            self._words[_NANOSECONDS_AT // 4 : end // 4 : _SIZE // 4].tolist(),
        )


@functools.cache
def _rooms() -> _Room:
    return _Room()


@functools.cache
def _statx() -> Callable[..., int] | None:
    """The C library's `statx`, where there is one that works here; without declared argument types, which would be
    checked on every call."""
    ask: Callable[..., int] | None = getattr(ctypes.CDLL(None), "statx", None) if sys.platform == "linux" else None
    if ask is None:
        return None
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return ask if ask(here, b".", _NO_FOLLOW, _CHANGE_TIME, _rooms().slots[0]) == 0 else None
    finally:
        os.close(here)


# Something that changed this recently may change again without its times showing it: clocks tick coarsely.
RACY_NANOSECONDS = 20_000_000

_HEADER = b"toolgate-index-2"


# What shows that a file has changed, when one of it has.
stamp_of: Callable[[os.stat_result], tuple[int, ...]] = attrgetter(
    "st_mtime_ns",
    "st_ctime_ns",  # moves also when the modification time is set back
    "st_size",
    "st_ino",
    "st_mode",
)


class File(NamedTuple):
    """A file or link when it was read. `racy`: too young to trust its stamp, so it is read again."""

    stamp: tuple[int, ...]
    kind: str
    digest: str
    racy: bool

    @classmethod
    def seen(cls, found: os.stat_result, digest: str, limit: int) -> File:
        racy = max(found.st_mtime_ns, found.st_ctime_ns) >= limit
        return cls(stamp_of(found), _kind(found.st_mode), digest, racy)

    def same(self, found: os.stat_result) -> bool:
        """Whether nothing shows that the file has changed."""
        return self.stamp == stamp_of(found)

    def renamed(self, found: os.stat_result) -> bool:
        """The same, of a file that has been renamed since, which moves its change time."""
        return (self.stamp[0], *self.stamp[2:]) == (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)

    @property
    def newest(self) -> int:
        return max(self.stamp[:2])


# When a directory's names last changed, and its inode, since two directories can trade names.
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Folder:
    """A directory when it was listed. `path` is as on disk; no `stamp`: list it again. `mode` are its permissions."""

    path: str
    stamp: Stamp | None = None
    files: Mapping[str, File] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    ignored: frozenset[str] = frozenset()
    skipped: Mapping[str, str] = field(default_factory=dict)
    rules: str = ""
    mode: int = 0

    def below(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    @cached_property
    def change_times(self) -> Moments:
        """What each file in it must still show, where no name came or went: whatever changes a file moves its
        change time, which nobody can set. No file shows what one has that is to be read again in any case."""
        return moments(None if file.racy else file.stamp[1] for file in self.files.values())

    @cached_property
    def encoded_names(self) -> list[bytes]:
        """The files' names as the system has them."""
        return [os.fsencode(name) for name in self.files]

    @property
    def names(self) -> dict[str, bool] | None:
        """Every name in it and whether it is a directory; None when something in it is not in the tree."""
        if self.ignored or self.skipped:
            return None
        return {**dict.fromkeys(self.files, False), **dict.fromkeys(self.folders, True)}

    @cached_property
    def tree(self) -> Tree:
        """This directory's part of the tree."""
        base = encode(self.path) + "/" if self.path else ""
        files = {base + encode(name): file.digest for name, file in self.files.items()}
        meta = {base + encode(name): file.kind for name, file in self.files.items() if file.kind}
        if self.path and not (self.files or self.folders or self.ignored or self.skipped):
            meta[base[:-1]] = EMPTY_DIRECTORY
        return Tree(files, meta)


@dataclass(frozen=True)
class Index:
    """Every directory seen, by its path on disk, and under which epoch of the blob store."""

    folders: Mapping[str, Folder] = field(default_factory=dict)
    epoch: str = ""

    @cached_property
    def tree(self) -> Tree:
        files: dict[str, str] = {}
        meta: dict[str, str] = {}
        for folder in self.folders.values():
            files.update(folder.tree.files)
            meta.update(folder.tree.meta)
        return Tree(files, meta)

    def followed_by(self, folders: Mapping[str, Folder]) -> Index:
        """The index of a later look. Where most folders are the same, its tree costs what has changed."""
        later = Index(folders, self.epoch)
        every = self.folders.keys() | folders.keys()
        moved = {path for path in every if self.folders.get(path) is not folders.get(path)}
        if len(moved) * 4 < len(folders):
            files, meta = dict(self.tree.files), dict(self.tree.meta)
            for path in moved & self.folders.keys():
                for name in self.folders[path].tree.files:
                    del files[name]
                for name in self.folders[path].tree.meta:
                    del meta[name]
            for path in moved & folders.keys():
                files.update(folders[path].tree.files)
                meta.update(folders[path].tree.meta)
            later.__dict__["tree"] = Tree(files, meta)  # as the property would have put it together
        return later

    @property
    def skipped(self) -> dict[str, str]:
        return {
            encode(folder.below(name)): reason
            for folder in self.folders.values()
            for name, reason in folder.skipped.items()
        }

    def find(self, parts: Parts) -> File | None:
        folder = self.folders.get("/".join(parts[:-1]))
        return folder.files.get(parts[-1]) if folder else None

    def under(self, epoch: str, missing: Collection[str]) -> Index:
        """For a new epoch of the blob store: files of missing contents forgotten, so that they are read again."""
        return Index({path: _without(folder, missing) for path, folder in self.folders.items()}, epoch)

    def after(self, removed: Iterable[Parts], written: Mapping[Parts, File]) -> Index:
        """With our own changes in it; the directories they are in are listed again."""
        changed: dict[str, dict[str, File]] = {}
        folders = dict(self.folders)
        for parts in (*removed, *written):
            path = "/".join(parts[:-1])
            files = changed.setdefault(path, dict(folders[path].files) if path in folders else {})
            files.pop(parts[-1], None)
        for parts, file in written.items():
            changed["/".join(parts[:-1])][parts[-1]] = file
        for path, files in changed.items():
            folders[path] = replace(folders.get(path, Folder(path)), stamp=None, files=files)
        return self.followed_by(folders)


def load(path: Path, root: os.stat_result) -> Index:
    """What `save` wrote for this directory; an empty index when it is missing, damaged or another's."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        header, checksum, body = path.read_bytes().split(b"\n", 2)
        if header == _HEADER and hashlib.sha256(body).hexdigest().encode() == checksum:
            content = orjson.loads(body)
            if content["root"] == root.st_ino:
                return Index({folder.path: folder for folder in map(_unpacked, content["folders"])}, content["epoch"])
    return Index()


def save(index: Index, path: Path, root: os.stat_result) -> None:
    folders = [_packed(folder) for folder in index.folders.values()]
    body = orjson.dumps({"root": root.st_ino, "epoch": index.epoch, "folders": folders})
    content = b"\n".join([_HEADER, hashlib.sha256(body).hexdigest().encode(), body])
    temporary = path.with_name(temporary_name())
    try:
        temporary.touch(0o600)
        temporary.write_bytes(content)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def _packed(folder: Folder) -> list[object]:
    return [
        encode(folder.path),
        folder.stamp,
        {encode(name): tuple(file) for name, file in folder.files.items()},
        [encode(name) for name in folder.folders],
        [encode(name) for name in folder.ignored],
        {encode(name): reason for name, reason in folder.skipped.items()},
        folder.rules,
        folder.mode,
    ]


def _unpacked(row: list[Any]) -> Folder:
    path, moved, files, folders, ignored, skipped, rules, mode = row
    return Folder(
        decode(path),
        tuple(moved) if moved else None,
        {decode(name): File(tuple(stamp), *rest) for name, (stamp, *rest) in files.items()},
        tuple(map(decode, folders)),
        frozenset(map(decode, ignored)),
        {decode(name): reason for name, reason in skipped.items()},
        rules,
        mode,
    )


def _without(folder: Folder, digests: Collection[str]) -> Folder:
    files = {name: file for name, file in folder.files.items() if file.digest not in digests}
    return folder if len(files) == len(folder.files) else replace(folder, stamp=None, files=files)


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return LINK
    return EXECUTABLE if mode & stat.S_IXUSR else PLAIN
