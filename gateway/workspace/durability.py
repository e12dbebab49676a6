"""Making what was written survive a loss of power."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
from collections.abc import Callable
from pathlib import Path

_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)  # macOS, where fsync leaves it in the drive's cache


def sync_file(path: str) -> None:
    """The content of a file, whichever descriptor wrote it, and the name it was given by the last rename.

    Not `fdatasync`: the rename touched the file's times, so that ext4, XFS and btrfs make both durable
    in one commit, where syncing the directory would be a second one.
    """
    _with_descriptor(path, os.O_RDONLY, _sync)


def sync_directory(path: str) -> None:
    """The names in a directory."""
    _with_descriptor(path, os.O_RDONLY | os.O_DIRECTORY, os.fsync)


def sync_file_system(path: Path) -> bool:
    """Everything on the file system of `path`; False where the system has no such call."""
    if not hasattr(_libc(), "syncfs"):
        return False
    _with_descriptor(str(path), os.O_RDONLY | os.O_DIRECTORY, _syncfs)
    return True


def _with_descriptor(path: str, flags: int, sync: Callable[[int], object]) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def _sync(fd: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(fd, _FULL_SYNC)
    else:
        os.fsync(fd)


def _syncfs(fd: int) -> None:
    if _libc().syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
