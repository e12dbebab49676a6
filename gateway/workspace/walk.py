"""Directory entries, and a bounded walk over them that follows no link."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from gateway.workspace.openat import LISTING, Parts, PathOpener
from gateway.workspace.os_errors import show_path, translate_os_errors

# Prefix of files that are being written; they are never listed, and a sweep removes leftovers.
TEMPORARY = ".toolgate-"

DEPTH_LIMIT = 64
# For a walk: as deep as a path may be; a deeper tree is reported as truncated.
ANY_DEPTH = DEPTH_LIMIT + 1
WALK_LIMIT = 100_000

Kind = Literal["file", "directory", "symlink", "other"]

_VANISHED = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}
_EARLIEST, _LATEST = -62_135_596_800, 253_402_300_799  # years 1 to 9999, the range of datetime


def kind(found: os.stat_result) -> Kind:
    if stat.S_ISREG(found.st_mode):
        return "file"
    if stat.S_ISDIR(found.st_mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(found.st_mode) else "other"


def modified_at(found: os.stat_result) -> str:
    return timestamp(found.st_mtime_ns)


def timestamp(nanoseconds: int) -> str:
    """Return ISO 8601 in UTC; a time beyond the years 1 to 9999, which anyone can set on a file, is clamped."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    moment = datetime.fromtimestamp(min(max(seconds, _EARLIEST), _LATEST), UTC).replace(tzinfo=None)
    return f"{moment.isoformat()}.{rest // 1_000_000:03d}Z"


@dataclass(frozen=True)
class Entry:
    """An entry of a directory; a link is not followed. `parts` is its path from the root."""

    parts: Parts
    stat: os.stat_result

    @property
    def name(self) -> str:
        return self.parts[-1]

    @property
    def kind(self) -> Kind:
        return kind(self.stat)

    @property
    def path(self) -> str:
        return show_path(self.parts)

    @property
    def hidden(self) -> bool:
        return self.name.startswith(".")


Entries = Generator[Entry, None, None]
# Decides whether a walk descends into a directory.
Enter = Callable[[Entry], bool]


class Walk:
    """Entries under a directory, depth first, sorted by name, a directory before what is in it.

    `truncated` says afterwards that a limit on depth or number cut it short. What vanishes on the
    opener, or cannot be entered, is passed over.
    """

    def __init__(self, opener: PathOpener, start: Callable[[], int], base: Parts, depth: int, enter: Enter) -> None:
        self.truncated = False
        self._opener = opener
        self._left = WALK_LIMIT
        self._enter = enter
        self._entries = self._from(start, base, depth)

    def __iter__(self) -> Iterator[Entry]:
        return self._entries

    def __enter__(self) -> Walk:
        return self

    def __exit__(self, *exception: object) -> None:
        self._entries.close()

    def _from(self, start: Callable[[], int], base: Parts, depth: int) -> Entries:
        with translate_os_errors(base):
            yield from self._under(start(), base, depth)

    def _under(self, directory: int, base: Parts, depth: int) -> Entries:
        try:
            for name in self._names(directory):
                entry = _look(directory, (*base, name))
                if entry is None:
                    continue
                yield entry
                if entry.kind == "directory" and depth > 1 and self._enter(entry):
                    yield from self._inside(directory, entry, depth - 1)
        finally:
            os.close(directory)

    def _inside(self, directory: int, entry: Entry, depth: int) -> Entries:
        if len(entry.parts) >= DEPTH_LIMIT:
            self.truncated = True
            return
        try:
            inner = self._opener.open(directory, (entry.name,), LISTING)
        except OSError as error:
            if error.errno not in _VANISHED:
                raise
            return
        yield from self._under(inner, entry.parts, depth)

    def _names(self, directory: int) -> list[str]:
        with os.scandir(directory) as found:
            names = [entry.name for entry in itertools.islice(found, self._left + 1)]
        self.truncated = self.truncated or len(names) > self._left
        names = sorted(name for name in names[: self._left] if not name.startswith(TEMPORARY))
        self._left -= len(names)
        return names


def _look(directory: int, parts: Parts) -> Entry | None:
    try:
        return Entry(parts, os.stat(parts[-1], dir_fd=directory, follow_symlinks=False))
    except (FileNotFoundError, PermissionError):  # gone, or in a directory that can be listed but not entered
        return None


_NOT_A_DIRECTORY = {errno.ENOTDIR, errno.ELOOP, errno.ENOENT}

Removed = Generator[Parts, None, None]


def remove_tree(opener: PathOpener, parent: int, parts: Parts) -> Removed:
    """Remove the directory `parts`, whose parent is open, yielding each removed path."""
    top = opener.open(parent, parts[-1:], LISTING)
    try:
        while names := _names(top):  # repeated, because directories that were too deep are moved up here
            yield from _remove(opener, top, names, parts, top)
    finally:
        os.close(top)
    os.rmdir(parts[-1], dir_fd=parent)
    yield parts


def temporary_name() -> str:
    return f"{TEMPORARY}{secrets.token_hex(8)}"


def _remove(opener: PathOpener, directory: int, names: list[str], base: Parts, top: int, depth: int = 1) -> Removed:
    for name in names:
        inner = _enter(opener, directory, name)
        if inner is None:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
        elif depth < DEPTH_LIMIT:
            yield from _remove_inner(opener, directory, inner, (*base, name), top, depth)
        else:  # bounds our stack and descriptors, however deep the tree is
            os.close(inner)
            os.rename(name, temporary_name(), src_dir_fd=directory, dst_dir_fd=top)
            continue
        yield (*base, name)


def _remove_inner(opener: PathOpener, directory: int, inner: int, parts: Parts, top: int, depth: int) -> Removed:
    try:
        yield from _remove(opener, inner, _names(inner), parts, top, depth + 1)
    finally:
        os.close(inner)
    os.rmdir(parts[-1], dir_fd=directory)


def _enter(opener: PathOpener, directory: int, name: str) -> int | None:
    try:
        return opener.open(directory, (name,), LISTING)
    except OSError as error:
        if error.errno in _NOT_A_DIRECTORY:
            return None
        raise


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as found:
        return sorted(entry.name for entry in found)
