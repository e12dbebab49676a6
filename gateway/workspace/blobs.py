"""Contents by their SHA-256: kept once, never rewritten, checked when they are read."""

# ruff: noqa: PTH103, PTH104, PTH108, PTH116, PTH120 - called for every file of an import, where a Path each would show

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import itertools
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from gateway.errors import Invalid, Unavailable
from gateway.workspace.durability import sync_directory, sync_file, sync_file_system
from gateway.workspace.tree import is_digest

if TYPE_CHECKING:
    from typing_extensions import Buffer

# How much of a content is in memory at a time; what is shorter is handled in one piece.
CHUNK = 256 * 1024

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
        self.temporary = directory / "tmp"
        self.temporary.mkdir(0o700, parents=True, exist_ok=True)
        self._unsynced: list[str] = []
        self._new_shard = False
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
        if len(unsynced) <= _EACH or not sync_file_system(self.directory):
            for path in unsynced:
                sync_file(path)
            if self._new_shard:
                sync_directory(str(self.directory))
        unsynced.clear()
        self._new_shard = False

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
        lock = os.open(self.temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, operation)
            yield
        finally:
            os.close(lock)

    def _put_piece(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        if not self._refresh(digest, len(content)):
            with self._writing() as (fd, temporary):
                write_all(fd, content)
                self._place(temporary, digest)
        return digest

    def _put_stream(self, source: BinaryIO, first: bytes) -> str:
        with self._writing() as (fd, temporary):
            digest, size = _copy_hashed(source, first, fd)
            if self._refresh(digest, size):
                os.unlink(temporary)
            else:
                self._place(temporary, digest)
        return digest

    def _refresh(self, digest: str, size: int) -> bool:
        """Whether the blob is there; if so it is young again, and a sweep leaves it."""
        path = self.path(digest)
        if not os.access(path, os.F_OK):
            return False
        with self.held(fcntl.LOCK_SH):
            try:
                os.utime(path)
                if os.stat(path).st_size == size:
                    return True
                os.unlink(path)  # cut short when the power went before it was synced
            except FileNotFoundError:  # a sweep was first
                pass
        return False

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[int, str]]:
        """A new temporary file, removed when writing it or placing it fails."""
        temporary = self._new_temporary()
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            yield fd, temporary
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        finally:
            os.close(fd)

    def _place(self, temporary: str, digest: str) -> None:
        path = self.path(digest)
        try:
            os.rename(temporary, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            os.rename(temporary, path)
            self._new_shard = True
        self._unsynced.append(path)

    def _new_temporary(self) -> str:
        return f"{self.temporary}/{secrets.token_hex(8)}"


def blob_missing(digest: str, path: str | None = None) -> Unavailable:
    of = f" of {path!r}" if path else ""
    message = f"the content {digest}{of} is missing where contents are kept; restore it from a backup"
    return Unavailable(message, code="BLOB_MISSING", digest=digest, path=path)


def blob_corrupt(digest: str) -> Unavailable:
    message = f"the content kept as {digest} is damaged: it no longer has that SHA-256; restore it from a backup"
    return Unavailable(message, code="BLOB_CORRUPT", digest=digest)


def copy(source: BinaryIO, target: int) -> None:
    """All of a content into an empty file; shared on disk where the file system can, read either way,
    because reading to the end is what checks it."""
    first = source.read(CHUNK)
    shared = len(first) == CHUNK and _clone(source, target)
    chunk = first
    while chunk:
        if not shared:
            write_all(target, chunk)
        chunk = source.read(CHUNK)


def write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


class _Verified(io.FileIO):
    """A file whose end is only reached when what was read has the expected SHA-256."""

    def __init__(self, path: str, digest: str) -> None:
        super().__init__(path)
        self._digest = digest
        self._sha = hashlib.sha256()

    def readinto(self, buffer: Buffer) -> int:
        count = super().readinto(buffer) or 0
        self._sha.update(memoryview(buffer)[:count])
        if count == 0 and self._sha.hexdigest() != self._digest:
            raise blob_corrupt(self._digest)
        return count

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self.read(CHUNK), b""))

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        piece = bytearray(size)
        return bytes(memoryview(piece)[: self.readinto(piece)])

    def seekable(self) -> bool:
        return False

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        raise io.UnsupportedOperation("a content is read from beginning to end")


def _copy_hashed(source: BinaryIO, first: bytes, target: int) -> tuple[str, int]:
    """SHA-256 and size of what is now in `target`, in one pass and never whole in memory."""
    if _clone(source, target):  # what was cloned can no longer change while it is read
        with os.fdopen(os.dup(target), "rb", buffering=0) as cloned:
            return _hashed(iter(lambda: cloned.read(CHUNK), b""), lambda chunk: None)
    chunks = itertools.chain([first], iter(lambda: source.read(CHUNK), b""))
    return _hashed(chunks, lambda chunk: write_all(target, chunk))


def _hashed(chunks: Iterator[bytes], each: Callable[[bytes], None]) -> tuple[str, int]:
    sha, size = hashlib.sha256(), 0
    for chunk in chunks:
        sha.update(chunk)
        each(chunk)
        size += len(chunk)
    return sha.hexdigest(), size


def _clone(source: BinaryIO, target: int) -> bool:
    """Whether `target` now shares the blocks of `source`: on btrfs, XFS and the like."""
    try:
        fcntl.ioctl(target, _CLONE, source.fileno())
    except OSError:  # another file system, or no file at all
        return False
    return True
