"""Files that several processes share: locks between them, and writes that are whole, private and on the disk."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import IO

SHORTEST_WAIT, LONGEST_WAIT = 0.002, 0.03  # seconds between two attempts at a lock

_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)  # macOS, where fsync leaves it in the drive's cache


def lock(file: int | IO[bytes], *, shared: bool = False) -> None:
    """Wait for the lock on an open file or directory. It lasts until the file is closed, also by a killed process."""
    fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_lock(file: int | IO[bytes], *, shared: bool = False) -> bool:
    """Take the lock on an open file or directory; False when somebody else has it."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FileLock:
    """One lock between processes, taken any number of times by `with`, or by `acquire` until it is closed."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def try_acquire(self) -> bool:
        return try_lock(self.descriptor)

    async def acquire(self) -> None:
        """Try again and again: a lock that blocks would hold a thread for as long as another process has it."""
        while not self.try_acquire():  # noqa: ASYNC110 - another process sets no event of ours
            await asyncio.sleep(random.uniform(SHORTEST_WAIT, LONGEST_WAIT))  # noqa: S311 - no secret

    def close(self) -> None:
        os.close(self.descriptor)


class SharedCounter:
    """A number in a file that every process maps into its memory, to notice changes without a system call."""

    _NUMBER = struct.Struct("=Q")

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(path)
        with self._lock:
            size = os.fstat(self._lock.descriptor).st_size
            if size < self._NUMBER.size:
                os.pwrite(self._lock.descriptor, bytes(self._NUMBER.size - size), size)
            self._memory = mmap.mmap(self._lock.descriptor, self._NUMBER.size)

    def read(self) -> bytes:
        """Return the number as bytes, to be compared with an earlier one."""
        return self._memory[:]

    def increment(self) -> None:
        with self._lock:
            self._NUMBER.pack_into(self._memory, 0, self._NUMBER.unpack(self._memory)[0] + 1)

    def close(self) -> None:
        self._memory.close()
        self._lock.close()


def create_file(path: Path, content: bytes, mode: int = 0o600) -> Path:
    """A new file, whole and on the disk; `FileExistsError` when there is one of that name."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with contextlib.ExitStack() as undo, os.fdopen(descriptor, "wb") as file:
        undo.callback(path.unlink)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), mode)
        undo.pop_all()
    return path


def replace_private(path: Path, content: bytes) -> None:
    """Put `content` in the place of a file that only its owner can read. Nobody ever reads half of it; once this
    returns it survives a power loss."""
    temporary = create_file(path.with_name(f".{path.name}.{os.urandom(6).hex()}"), content)
    try:
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(str(path.parent))


def sync_file(path: str) -> None:
    """Write out the content of a file, whichever descriptor wrote it, and the name it got by the last rename.

    Not `fdatasync`: the rename touched the file's times, so that ext4, XFS and btrfs make both durable
    in one commit, where syncing the directory would be a second one.
    """
    _with_descriptor(path, os.O_RDONLY, _sync)


def sync_directory(path: str) -> None:
    """Write out the names in a directory."""
    _with_descriptor(path, os.O_RDONLY | os.O_DIRECTORY, os.fsync)


def sync_file_system(path: Path) -> bool:
    """Write out everything on the file system of `path`; False where the system has no such call."""
    if not hasattr(_libc(), "syncfs"):
        return False
    _with_descriptor(str(path), os.O_RDONLY | os.O_DIRECTORY, _syncfs)
    return True


def _with_descriptor(path: str, flags: int, sync: Callable[[int], object]) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fsync(descriptor)


def _syncfs(descriptor: int) -> None:
    if _libc().syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
