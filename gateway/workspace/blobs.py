"""Content-addressed blobs: stored once under their SHA-256, never rewritten, verified when read."""

# ruff: noqa: PTH103, PTH104, PTH108, PTH116, PTH120 - called for every file of an import, where creating a Path each time is measurable

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import itertools
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from gateway.errors import Invalid, Unavailable
from gateway.files import lock, sync_directory, sync_file, sync_file_system
from gateway.workspace.packs import Packs
from gateway.workspace.tree import is_digest

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Bytes of a blob in memory at a time; a shorter blob is read in one piece.
CHUNK = 256 * 1024

_CLONE = 0x40049409  # FICLONE of linux/fs.h
# Small blobs that are put before a `sync` as files of their own; the others go into a pack.
LOOSE_LIMIT = 8
# For more files, syncing the whole file system is faster than one fsync each, unless others write much.
_FSYNC_LIMIT = 16


class BlobStore(Protocol):
    """A store of blobs. Written by one thread at a time; nothing is durable before `sync`."""

    def put(self, source: BinaryIO) -> str:
        """Store the rest of `source`; return its SHA-256."""
        ...

    def open(self, digest: str) -> BinaryIO:
        """Open a blob for reading. Raises BLOB_MISSING, or BLOB_CORRUPT at its end if the SHA-256 differs."""
        ...

    def missing(self, digests: Iterable[str]) -> set[str]:
        """Return the digests that are not stored."""
        ...

    def sync(self) -> None:
        """Make everything that was put survive a power loss."""
        ...

    def epoch(self) -> str:
        """Return a token that changes before any blob is removed: while it is unchanged, every known blob still
        exists."""
        ...


class FileBlobs:
    """Blobs as files `ab/abcd…` of a directory, written under `tmp/` and renamed when complete. Of many small ones that
    are put before a `sync`, those after the first go into a pack. `taken` counts what was put, for reports."""

    def __init__(self, directory: Path) -> None:
        self.taken = 0
        self.directory = directory
        self.temporary = directory / "tmp"
        self.temporary.mkdir(0o700, parents=True, exist_ok=True)
        self.packs = Packs(directory / "packs", self.temporary)
        self._unsynced: list[str] = []
        self._new_shard = False
        self._epoch = directory / "epoch"
        if not self._epoch.exists():
            self.begin_epoch()

    def put(self, source: BinaryIO) -> str:
        first = source.read(CHUNK)
        self.taken += 1
        return self._put_piece(first) if len(first) < CHUNK else self._put_stream(source, first)

    def open(self, digest: str) -> BinaryIO:
        try:
            return io.BufferedReader(_Verified(self.path(digest), digest), CHUNK)
        except FileNotFoundError:
            content = self.packs.read(digest)
        if content is None:
            raise blob_missing(digest) from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise blob_corrupt(digest)
        return _as_file(content)

    def missing(self, digests: Iterable[str]) -> set[str]:
        self.packs.list()
        return {
            digest
            for digest in digests
            if not os.access(self.path(digest), os.R_OK) and self.packs.find(digest) is None
        }

    def sync(self) -> None:
        unsynced = self._unsynced
        self.packs.finish()
        if len(unsynced) <= _FSYNC_LIMIT or not sync_file_system(self.directory):
            for path in unsynced:
                sync_file(path)
            if self._new_shard:
                sync_directory(str(self.directory))
        unsynced.clear()
        self._new_shard = False

    def epoch(self) -> str:
        return self._epoch.read_text()

    def begin_epoch(self) -> None:
        """Start a new epoch: blobs known before must be looked up again."""
        temporary = self._new_temporary()
        Path(temporary).write_text(secrets.token_hex(8))
        Path(temporary).rename(self._epoch)

    def path(self, digest: str) -> str:
        if not is_digest(digest):
            raise Invalid(f"{digest[:80]!r} is not a SHA-256 in lower-case hexadecimal", code="INVALID_DIGEST")
        return f"{self.directory}/{digest[:2]}/{digest}"

    @contextlib.contextmanager
    def held(self, *, shared: bool) -> Iterator[None]:
        """Hold the lock between writers (shared) and a sweep (exclusive), across processes.

        Without it a sweep could select an old blob, a writer find and rely on it, and the sweep remove it.
        """
        descriptor = os.open(self.temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            lock(descriptor, shared=shared)
            yield
        finally:
            os.close(descriptor)

    def _put_piece(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        if self._refresh(digest, len(content)):
            return digest
        if len(self._unsynced) >= LOOSE_LIMIT:
            self.packs.add(digest, content)
        else:
            with self._writing() as (fd, temporary):
                write_all(fd, content)
                self._place(temporary, digest)
        return digest

    def _put_stream(self, source: BinaryIO, first: bytes) -> str:
        with self._writing() as (fd, temporary):
            digest, size = _copy_and_hash(source, first, fd)
            if self._refresh(digest, size):
                os.unlink(temporary)
            else:
                self._place(temporary, digest)
        return digest

    def _refresh(self, digest: str, size: int) -> bool:
        """Return whether the blob exists; if so, renew its age so that a sweep keeps it."""
        path = self.path(digest)
        if not os.access(path, os.F_OK):
            place = self.packs.find(digest)
            if place is None:
                return False
            path, size = place.pack, -1
        with self.held(shared=True):
            try:
                os.utime(path)
                if size < 0 or os.stat(path).st_size == size:
                    return True
                os.unlink(path)  # truncated by a power loss before it was synced
            except FileNotFoundError:  # a sweep was first
                pass
        return False

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[int, str]]:
        """Create a temporary file, removed if writing or placing it fails."""
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


def _as_file(content: bytes) -> BinaryIO:
    """Return a content as an open file with a descriptor, as readers of ranges need."""
    file: BinaryIO
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("blob"), "w+b")
    else:
        file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - the caller closes it
    file.write(content)
    file.seek(0)
    return file


def blob_missing(digest: str, path: str | None = None) -> Unavailable:
    of = f" of {path!r}" if path else ""
    message = f"the content {digest}{of} is missing from the blob store; restore it from a backup"
    return Unavailable(message, code="BLOB_MISSING", digest=digest, path=path)


def blob_corrupt(digest: str) -> Unavailable:
    message = f"the content stored as {digest} is damaged: its SHA-256 differs; restore it from a backup"
    return Unavailable(message, code="BLOB_CORRUPT", digest=digest)


def copy(source: BinaryIO, target: int) -> None:
    """Copy a blob into an empty file. Shares its blocks where the file system can; reads it either way,
    because reading to the end verifies it."""
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
    """A file that raises BLOB_CORRUPT at its end unless its SHA-256 is the expected one."""

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
        raise io.UnsupportedOperation("a blob is read from beginning to end")


def _copy_and_hash(source: BinaryIO, first: bytes, target: int) -> tuple[str, int]:
    """Copy to `target`; return SHA-256 and size. One pass, never whole in memory."""
    if _clone(source, target):  # the clone cannot change while it is read
        with os.fdopen(os.dup(target), "rb", buffering=0) as cloned:
            return _hash(iter(lambda: cloned.read(CHUNK), b""), lambda chunk: None)
    chunks = itertools.chain([first], iter(lambda: source.read(CHUNK), b""))
    return _hash(chunks, lambda chunk: write_all(target, chunk))


def _hash(chunks: Iterator[bytes], write: Callable[[bytes], None]) -> tuple[str, int]:
    sha, size = hashlib.sha256(), 0
    for chunk in chunks:
        sha.update(chunk)
        write(chunk)
        size += len(chunk)
    return sha.hexdigest(), size


def _clone(source: BinaryIO, target: int) -> bool:
    """Make `target` share the blocks of `source`; False where the file system cannot (it can on btrfs and XFS)."""
    try:
        fcntl.ioctl(target, _CLONE, source.fileno())
    except OSError:  # another file system, or no file at all
        return False
    return True
