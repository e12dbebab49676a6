"""Stat cache of a workspace: the state at the last scan, so that only changed files are read again."""

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
from gateway.workspace.tree import EMPTY_DIRECTORY, EXECUTABLE, LINK, PLAIN, Tree, decode, encode
from gateway.workspace.walk import temporary_name

# Change times of several files: all seconds, then all nanoseconds.
ChangeTimes = tuple[list[int], list[int]]

# The change time of no file.
NEVER = (-1, -1)

_SECOND = 1_000_000_000
_NO_FOLLOW, _CHANGE_TIME = 0x100, 0x80
_SIZE, _SECONDS_AT, _NANOSECONDS_AT = 256, 96, 104  # layout of struct statx, the same on every machine
_BATCH = 256


def to_change_times(times: Iterable[int | None]) -> ChangeTimes:
    """Convert change times in nanoseconds to the form of `change_times`; None becomes NEVER."""
    pairs = [NEVER if time is None else divmod(time, _SECOND) for time in times]
    return [seconds for seconds, _ in pairs], [nanoseconds for _, nanoseconds in pairs]


def change_times(directory: int, names: Sequence[bytes]) -> ChangeTimes | None:
    """Return the change times of files in a directory without following links; None if one of them fails."""
    statx = _statx()
    if statx is None:
        return _stat_each(directory, names)
    if len(names) <= _BATCH:
        return _statx_buffers().change_times(statx, directory, names)
    seconds: list[int] = []
    nanoseconds: list[int] = []
    for start in range(0, len(names), _BATCH):
        some = _statx_buffers().change_times(statx, directory, names[start : start + _BATCH])
        if some is None:
            return None
        seconds += some[0]
        nanoseconds += some[1]
    return seconds, nanoseconds


def _stat_each(directory: int, names: Sequence[bytes]) -> ChangeTimes | None:
    try:
        return to_change_times(os.stat(name, dir_fd=directory, follow_symlinks=False).st_ctime_ns for name in names)
    except OSError:
        return None


class _StatxBuffers(threading.local):
    """Buffers for the results of statx, one set per thread."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_SIZE * _BATCH)
        start = ctypes.addressof(self._buffer)
        # Created once: a new pointer for each call would cost as much as the call.
        self.slots = [ctypes.c_void_p(start + _SIZE * index) for index in range(_BATCH)]
        whole = memoryview(self._buffer).cast("B")
        self._longs = whole.cast("q")
        self._words = whole.cast("I")

    def change_times(self, ask: Callable[..., int], directory: int, names: Sequence[bytes]) -> ChangeTimes | None:
        """Return the change times of at most as many files as there are slots."""
        if any(map(ask, repeat(directory), names, repeat(_NO_FOLLOW), repeat(_CHANGE_TIME), self.slots)):
            return None
        end = len(names) * _SIZE
        return (
            self._longs[_SECONDS_AT // 8 : end // 8 : _SIZE // 8].tolist(),
            self._words[_NANOSECONDS_AT // 4 : end // 4 : _SIZE // 4].tolist(),
        )


@functools.cache
def _statx_buffers() -> _StatxBuffers:
    return _StatxBuffers()


@functools.cache
def _statx() -> Callable[..., int] | None:
    """Return the C library's `statx` if it works here. Without declared argument types, which ctypes would check on
    every call."""
    ask: Callable[..., int] | None = getattr(ctypes.CDLL(None), "statx", None) if sys.platform == "linux" else None
    if ask is None:
        return None
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return ask if ask(here, b".", _NO_FOLLOW, _CHANGE_TIME, _statx_buffers().slots[0]) == 0 else None
    finally:
        os.close(here)


# A file that changed this recently may change again without a new time stamp, because clocks tick coarsely.
RACY_NANOSECONDS = 20_000_000

_HEADER = b"toolgate-index-2"

# Files with rules about the names beside and below them, the later with precedence.
IGNORE_FILES = (".gitignore", ".toolgateignore")


# A file whose stamp is unchanged has not changed.
stamp_of: Callable[[os.stat_result], tuple[int, ...]] = attrgetter(
    "st_mtime_ns",
    "st_ctime_ns",  # changes also when the modification time is set back
    "st_size",
    "st_ino",
    "st_mode",
)


class File(NamedTuple):
    """A file or link as it was read. `racy`: too recent to trust its stamp, so it is read again."""

    stamp: tuple[int, ...]
    kind: str
    digest: str
    racy: bool

    @classmethod
    def from_stat(cls, found: os.stat_result, digest: str, limit: int) -> File:
        racy = max(found.st_mtime_ns, found.st_ctime_ns) >= limit
        return cls(stamp_of(found), _kind(found.st_mode), digest, racy)

    def same(self, found: os.stat_result) -> bool:
        """Return whether the stamp is unchanged."""
        return self.stamp == stamp_of(found)

    def same_after_rename(self, found: os.stat_result) -> bool:
        """Return whether the stamp is unchanged except for the change time, which a rename updates."""
        return (self.stamp[0], *self.stamp[2:]) == (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)

    @property
    def newest(self) -> int:
        return max(self.stamp[:2])


# Times of a directory, and its inode, since two directories can swap names.
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Folder:
    """A directory as it was listed. `path` is as on disk; without a `stamp` it is listed again. `mode` has its
    permissions."""

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
    def change_times(self) -> ChangeTimes:
        """The expected change times of its files. Any change of a file updates its change time, which nobody can set.
        A racy file has NEVER, so that it is always read again."""
        return to_change_times(None if file.racy else file.stamp[1] for file in self.files.values())

    @cached_property
    def encoded_names(self) -> list[bytes]:
        """The files' names as bytes."""
        return [os.fsencode(name) for name in self.files]

    @cached_property
    def has_ignore_file(self) -> bool:
        return any(name in place for name in IGNORE_FILES for place in (self.files, self.ignored, self.skipped))

    @property
    def names(self) -> dict[str, bool] | None:
        """Every name in it and whether it is a directory; None if it contains something that is not in the tree."""
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
    """Every scanned directory by its path on disk, and the epoch of the blob store at the scan."""

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

    def derive(self, folders: Mapping[str, Folder]) -> Index:
        """Return the index of a later scan. If most folders are the same, its tree is derived from this one's."""
        later = Index(folders, self.epoch)
        every = self.folders.keys() | folders.keys()
        changed = {path for path in every if self.folders.get(path) is not folders.get(path)}
        if len(changed) * 4 < len(folders):
            files, meta = dict(self.tree.files), dict(self.tree.meta)
            for path in changed & self.folders.keys():
                for name in self.folders[path].tree.files:
                    del files[name]
                for name in self.folders[path].tree.meta:
                    del meta[name]
            for path in changed & folders.keys():
                files.update(folders[path].tree.files)
                meta.update(folders[path].tree.meta)
            later.__dict__["tree"] = Tree(files, meta)  # the value that the cached property would compute
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

    def for_epoch(self, epoch: str, missing: Collection[str]) -> Index:
        """Return the index for a new epoch of the blob store, without files whose blobs are missing."""
        return Index({path: _without(folder, missing) for path, folder in self.folders.items()}, epoch)

    def after(self, removed: Iterable[Parts], written: Mapping[Parts, File]) -> Index:
        """Return the index with our own changes; the directories that contain them are listed again."""
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
        return self.derive(folders)


def load(path: Path, root: os.stat_result) -> Index:
    """Load what `save` wrote for this directory; an empty index if it is missing, damaged or of another directory."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        header, checksum, body = path.read_bytes().split(b"\n", 2)
        if header == _HEADER and hashlib.sha256(body).hexdigest().encode() == checksum:
            content = orjson.loads(body)
            if content["root"] == root.st_ino:
                return Index({folder.path: folder for folder in map(_unpack, content["folders"])}, content["epoch"])
    return Index()


def save(index: Index, path: Path, root: os.stat_result) -> None:
    folders = [_pack(folder) for folder in index.folders.values()]
    body = orjson.dumps({"root": root.st_ino, "epoch": index.epoch, "folders": folders})
    content = b"\n".join([_HEADER, hashlib.sha256(body).hexdigest().encode(), body])
    temporary = path.with_name(temporary_name())
    try:
        temporary.touch(0o600)
        temporary.write_bytes(content)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def _pack(folder: Folder) -> list[object]:
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


def _unpack(row: list[Any]) -> Folder:
    path, stamp, files, folders, ignored, skipped, rules, mode = row
    return Folder(
        decode(path),
        tuple(stamp) if stamp else None,
        {decode(name): File(tuple(times), *rest) for name, (times, *rest) in files.items()},
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
