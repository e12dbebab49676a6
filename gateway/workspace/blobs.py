"""Contents by their SHA-256: kept once, never rewritten, checked when they are read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from ..errors import Invalid, Unavailable
from .durability import sync_directory, sync_file, sync_file_system
from .tree import is_digest

CHUNK = 256 * 1024
"""How much of a content is in memory at a time; what is shorter is handled in one piece."""

TEMPORARY_DIRECTORY = "tmp"

_CLONE = 0x40049409  # FICLONE of linux/fs.h
_EACH = 8  # up to here syncing one by one costs less than syncing the whole file system


class BlobStore(Protocol):
    """Where contents are kept. Written by one thread at a time; nothing is durable before `sync`."""

    def put(self, source: BinaryIO) -> str:
        """Keep everything from here to the end of `source`; returns its SHA-256."""
        ...

    def open(self, digest: str) -> BinaryIO:
        """A content to read; BLOB_MISSING when it is not there, BLOB_CORRUPT at its end when it is another."""
        ...

    def missing(self, digests: Iterable[str]) -> set[str]:
        """Which of these are not there."""
        ...

    def sync(self) -> None:
        """Return when everything that was put survives a loss of power."""
        ...

    def epoch(self) -> str:
        """A mark that changes before anything is removed: what was there under it still is."""
        ...


class FileBlobs:
    """Contents as files `ab/abcd…` of a directory, written under `tmp/` and renamed when they are whole."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._temporary = directory / TEMPORARY_DIRECTORY
        self._temporary.mkdir(0o700, parents=True, exist_ok=True)
        self._unsynced: list[str] = []
        self._epoch = directory / "epoch"
        if not self._epoch.exists():
            self.begin_epoch()

    def put(self, source: BinaryIO) -> str:
        first = source.read(CHUNK)
        return self._put_piece(first) if len(first) < CHUNK else self._put_stream(source, first)

    def open(self, digest: str) -> BinaryIO:
        try:
            return io.BufferedReader(_Verified(self.path(digest), digest), CHUNK)
        except FileNotFoundError:
            raise blob_missing(digest) from None

    def missing(self, digests: Iterable[str]) -> set[str]:
        return {digest for digest in digests if not os.access(self.path(digest), os.R_OK)}

    def sync(self) -> None:
        unsynced = self._unsynced
        if len(unsynced) > _EACH and sync_file_system(self.directory):
            unsynced.clear()
            return
        for path in unsynced:
            sync_file(path)
        for directory in {str(self.directory), *(os.path.dirname(path) for path in unsynced)} if unsynced else ():  # noqa: PTH120
            sync_directory(directory)
        unsynced.clear()

    def epoch(self) -> str:
        return self._epoch.read_text()

    def begin_epoch(self) -> None:
        """From now on nobody may rely on what was there before without asking."""
        temporary = self._new_temporary()
        Path(temporary).write_text(secrets.token_hex(8))
        Path(temporary).rename(self._epoch)

    def path(self, digest: str) -> str:
        if not is_digest(digest):
            raise Invalid(f"{digest[:80]!r} is not a SHA-256 in lower-case hexadecimal", code="INVALID_DIGEST")
        return f"{self.directory}/{digest[:2]}/{digest}"

    @contextlib.contextmanager
    def held(self, operation: int) -> Iterator[None]:
        """A lock between writers (shared) and a sweep (exclusive), in whichever processes they are.

        Without it a sweep could look at an old blob, a writer find it and rely on it, and the sweep
        remove it.
        """
        lock = os.open(self._temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, operation)
            yield
        finally:
            os.close(lock)

    def _put_piece(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        if not self._refresh(digest, len(content)):
            with self._written() as file:
                file.write(content)
                self._place(file, digest)
        return digest

    def _put_stream(self, source: BinaryIO, first: bytes) -> str:
        with self._written() as file:
            if _clone(source, file):
                source, first = file, b""  # what was cloned can no longer change while it is read
            sha = hashlib.sha256(first)
            file.write(first)
            for chunk in iter(lambda: source.read(CHUNK), b""):
                sha.update(chunk)
                if source is not file:
                    file.write(chunk)
            file.flush()
            digest = sha.hexdigest()
            if not self._refresh(digest, os.fstat(file.fileno()).st_size):
                self._place(file, digest)
        return digest

    def _refresh(self, digest: str, size: int) -> bool:
        """Whether the blob is there; if so it is young again, and a sweep leaves it."""
        path = self.path(digest)
        if not os.path.exists(path):  # noqa: PTH110 - called for every file of an import
            return False
        with self.held(fcntl.LOCK_SH):
            try:
                os.utime(path)
                if os.stat(path).st_size == size:  # noqa: PTH116
                    return True
                os.unlink(path)  # noqa: PTH108 - cut short by a loss of power before it was synced
            except FileNotFoundError:
                pass
        return False

    @contextlib.contextmanager
    def _written(self) -> Iterator[BinaryIO]:
        """A new temporary file; what has not been placed at the end is removed."""
        temporary = self._new_temporary()
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            with io.BufferedRandom(io.FileIO(fd, "r+"), CHUNK) as file:
                file.raw.name = temporary
                yield file
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)  # noqa: PTH108
            raise

    def _new_temporary(self) -> str:
        return f"{self._temporary}/{secrets.token_hex(8)}"
