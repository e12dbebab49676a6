"""Folders of installed toolsets: one per version, immutable once in place; versions being made are kept apart.

toolsets/<id>/<digest>/…          the files of one version and its toolset.yaml
toolsets/.staging/<new id>/…      a version being made; its process holds a lock on the folder
toolsets.lock                     held while a version is put in place or removed
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import anyio
from anyio import to_thread

from gateway.bundles import spec
from gateway.bundles.archive import Bundle, BundleFile, write_zip
from gateway.bundles.installed import InstalledToolset
from gateway.bundles.paths import quote_path
from gateway.bundles.spec import FILE_NAME
from gateway.bundles.zip_reader import CHUNK
from gateway.db.toolsets import FileRow
from gateway.errors import Unavailable
from gateway.files import FileLock, lock, sync_directory, sync_file, sync_file_system, try_lock
from gateway.names import new_id

DIGEST_SHOWN = 32  # hexadecimal digits of a digest in the name of a version's folder
_VERSION = re.compile(f"[0-9a-f]{{{DIGEST_SHOWN}}}")
_PRIVATE = 0o700
# Up to this many files, syncing each costs less than syncing the whole file system.
_SYNC_EACH_LIMIT = 8


class ToolsetStore:
    """The folders of installed toolsets in one data directory, shared by any number of processes."""

    def __init__(self, data_dir: Path) -> None:
        self.directory = data_dir.absolute() / "toolsets"
        self._staging = self.directory / ".staging"
        self._lock = self.directory.with_name("toolsets.lock")

    def version_path(self, toolset_id: str, digest: str) -> Path:
        """Return the folder of a version, whether it exists yet or not."""
        return self.directory / toolset_id / digest[:DIGEST_SHOWN]

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the lock of the store, which excludes all other processes."""
        self._lock.parent.mkdir(_PRIVATE, parents=True, exist_ok=True)
        with closing(FileLock(self._lock)) as lock:
            await lock.acquire()
            yield

    @asynccontextmanager
    async def staging(self) -> AsyncIterator[Path]:
        """Yield a path at which to make a version; it is removed afterwards unless it was put in place."""
        async with self.locked():  # else a clean-up could see the folder before it is locked
            place, descriptor = await to_thread.run_sync(self._new_staging)
        try:
            yield place / "toolset"
        finally:
            with anyio.CancelScope(shield=True):
                async with self.locked():
                    await to_thread.run_sync(self._remove_staging, place)
            os.close(descriptor)

    def add_version(self, made: Path, toolset_id: str, bundle: Bundle) -> None:
        """Move a version that was made and synced into its place; call it while locked.

        An existing version is kept when it is intact, since it may be in use.
        """
        target = self.version_path(toolset_id, bundle.digest)
        with storage_errors():
            target.parent.mkdir(_PRIVATE, parents=True, exist_ok=True)
            if target.exists() and find_difference(target, bundle) is None:
                return
            with suppress(FileNotFoundError):
                target.rename(made.with_name("damaged"))
            made.rename(target)
            sync_directory(str(target.parent))
            sync_directory(str(self.directory))

    def remove_other_versions(self, toolset_id: str, digests: Collection[str]) -> int:
        """Remove the other versions of a toolset unless they are in use; return how many. Call it while locked."""
        home = self.directory / toolset_id
        kept = {digest[:DIGEST_SHOWN] for digest in digests}
        removed = sum(_remove_unused(version_path) for version_path in _versions(home) if version_path.name not in kept)
        with suppress(OSError):
            home.rmdir()
        return removed

    def remove(self, toolset_id: str) -> None:
        """Remove every version of a toolset, even those in use. Call it while locked."""
        home = self.directory / toolset_id
        for version_path in _versions(home):
            shutil.rmtree(version_path, ignore_errors=True)
        with suppress(OSError):
            home.rmdir()

    def clean(self, digests: Mapping[str, str]) -> int:
        """Remove every folder except current versions (`{id: digest}`), versions in use and versions being made.

        Return the number of folders removed. Call it while locked.
        """
        removed = sum(_remove_unused(place) for place in _list_directory(self._staging) if place.is_dir())
        with suppress(OSError):
            self._staging.rmdir()
        for home in _list_directory(self.directory):
            if home != self._staging and not home.is_symlink():
                removed += self.remove_other_versions(home.name, [digests[home.name]] if home.name in digests else [])
        return removed

    def _new_staging(self) -> tuple[Path, int]:
        place = self._staging / new_id()
        with storage_errors():
            place.mkdir(_PRIVATE, parents=True)
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        lock(descriptor)
        return place, descriptor

    def _remove_staging(self, place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)
        for empty in (self._staging, self.directory):
            with suppress(OSError):
                empty.rmdir()


@contextmanager
def hold_version(version_path: Path) -> Iterator[None]:
    """Keep a version from being removed meanwhile, except by uninstall; `Unavailable` when it is gone."""
    try:
        descriptor = os.open(version_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise _version_missing(version_path) from None
    try:
        if not try_lock(descriptor, shared=True) or not _is_same_file(descriptor, version_path):
            raise _version_missing(version_path)
        yield
    finally:
        os.close(descriptor)


def unpack(bundle: Bundle, directory: Path) -> None:
    """Write the bundle into a new directory, as read-only files."""
    write_files(bundle.files.values(), directory)
    with storage_errors():
        _write(directory / FILE_NAME, [_manifest(bundle)], 0o444)


def write_files(files: Iterable[BundleFile], directory: Path) -> None:
    """Write files into a new directory, read-only."""
    with storage_errors():
        directory.mkdir(_PRIVATE)
        for file in files:
            (directory / file.path).parent.mkdir(_PRIVATE, parents=True, exist_ok=True)
            _write(directory / file.path, file.chunks(), 0o555 if file.executable else 0o444)


def find_difference(directory: Path, bundle: Bundle) -> str | None:
    """Return the first path that differs from what `unpack` wrote, or None when the directory is intact."""
    wanted = {path: (file.sha256, file.executable) for path, file in bundle.files.items()}
    wanted[FILE_NAME] = (hashlib.sha256(_manifest(bundle)).hexdigest(), False)
    for path in _files(directory):
        name = path.relative_to(directory).as_posix()
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode) or wanted.pop(name, None) != (_sha256(path), bool(mode & stat.S_IXUSR)):
            return name
    return min(wanted, default=None)


def is_complete(directory: Path, bundle: Bundle) -> bool:
    """Return whether every file of the bundle exists with its size; contents are not read."""
    sizes = {path: file.size for path, file in bundle.files.items()} | {FILE_NAME: len(_manifest(bundle))}
    try:
        return all((directory / path).stat().st_size == size for path, size in sizes.items())
    except OSError:
        return False


def sync(directory: Path) -> None:
    """Return when everything in the directory survives a loss of power."""
    with storage_errors():
        files = list(_files(directory))
        if len(files) > _SYNC_EACH_LIMIT and sync_file_system(directory):
            return
        for path in files:
            sync_file(str(path))
        for folder in {directory, *(path.parent for path in directory.rglob("*"))}:
            sync_directory(str(folder))


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turn errors of the file system into `STORAGE_UNAVAILABLE`."""
    try:
        yield
    except OSError as error:
        reason = f"the toolset cannot be stored: {error.strerror or error}"
        raise Unavailable(reason, code="STORAGE_UNAVAILABLE") from error


def _manifest(bundle: Bundle) -> bytes:
    return spec.dump(bundle.spec).encode()


def _write(path: Path, chunks: Iterable[bytes], mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        for chunk in chunks:
            file.write(chunk)


def _files(directory: Path) -> Iterator[Path]:
    """Every file and symbolic link in a directory, at any depth; links are not followed."""
    for folder, folders, names in os.walk(directory):
        yield from (Path(folder, name) for name in names)
        yield from (path for name in folders if (path := Path(folder, name)).is_symlink())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _list_directory(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _versions(home: Path) -> list[Path]:
    """The versions in a toolset's folder. Other entries are left alone: they may be a person's own files."""
    return [path for path in _list_directory(home) if _VERSION.fullmatch(path.name) and not path.is_symlink()]


def _remove_unused(folder: Path) -> bool:
    """Remove a folder unless a process holds it; return whether it was removed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not try_lock(descriptor):
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _version_missing(version: Path) -> Unavailable:
    where = f"{version.parent.name}/{version.name}"
    reason = f"the files of toolset {where} are gone; ask for the toolset again, or install it again"
    return Unavailable(reason, code="TOOLSET_GONE")


def export_bundle(toolset: InstalledToolset, rows: Sequence[FileRow], file: BinaryIO) -> None:
    """Write the toolset as a ZIP file; refused before the first byte when a stored file was changed."""
    with hold_version(toolset.directory):
        files = {row.path: open_stored_file(toolset, row) for row in rows}
        for stored in files.values():
            for _ in stored.chunks():
                pass
        write_zip(Bundle(toolset.spec, files), file)


def open_stored_file(toolset: InstalledToolset, row: FileRow) -> BundleFile:
    """Return a file of an installed toolset; reading it is refused when it was changed since."""

    def source() -> Iterator[bytes]:
        digest = hashlib.sha256()
        try:
            with (toolset.directory / row.path).open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                    yield chunk
        except OSError as error:
            raise _file_changed(toolset, row, f"cannot be read ({error.strerror})") from error
        if digest.hexdigest() != row.sha256:
            raise _file_changed(toolset, row, "was changed since it was installed")

    return BundleFile(row.path, row.size, row.sha256, row.executable, source)


def _file_changed(toolset: InstalledToolset, row: FileRow, what: str) -> Unavailable:
    reason = f"the stored file {quote_path(row.path)} of toolset {toolset.id!r} {what}; install the toolset again"
    return Unavailable(reason, code="STORED_FILE_CHANGED", toolset=toolset.id, path=row.path)
