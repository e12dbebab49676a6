"""All access to paths of a workspace: opening, listing, creating, renaming, deleting."""

from __future__ import annotations

import hashlib
import os
import stat
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gateway.errors import Conflict, GatewayError, Invalid, NotFound
from gateway.workspace import os_errors
from gateway.workspace.openat import DIRECTORY, LISTING, READING, Parts, PathOpener, choose_opener
from gateway.workspace.os_errors import show_path, translate_os_errors
from gateway.workspace.walk import ANY_DEPTH, DEPTH_LIMIT, TEMPORARY, Entry, Removed, Walk, remove_tree, temporary_name

NAME_LIMIT = 255
PATH_LIMIT = 4096
_PERMISSIONS = 0o777  # never setuid, setgid or sticky; the kernel also drops those when a file is rewritten


def parse(path: str) -> Parts:
    """Return the components of a caller's path. Refused if it is absolute, leads outside, or has invalid names."""
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    fault = _fault(path, parts)
    if fault:
        named = repr(path if len(path) <= 200 else f"{path[:200]}…")
        raise Invalid(f"{named} {fault}; paths are relative to the workspace root", code="INVALID_PATH")
    return parts


class Root:
    """A workspace's directory, held open; nothing outside it can be reached through it.

    Links are never followed and mounts never crossed, even if somebody changes the tree meanwhile. Methods take the
    `Parts` that `parse` returns and raise `GatewayError`.
    """

    def __init__(self, directory: Path, opener: PathOpener | None = None) -> None:
        self.opener = opener or choose_opener()
        self._fd = os.open(directory, os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def stat(self, parts: Parts) -> os.stat_result:
        """Return the status of a path without following a link."""
        if not parts:
            return os.fstat(self._fd)
        with self._parent(parts) as parent:
            return os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)

    def find(self, parts: Parts) -> Entry | None:
        """Return the entry at a path, or None."""
        try:
            return Entry(parts, self.stat(parts))
        except NotFound:
            return None

    def revision(self, parts: Parts) -> str | None:
        """Return what changes with every change of a file; None if there is none."""
        entry = self.find(parts)
        if entry is None:
            return None
        found = entry.stat
        text = f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def open(self, parts: Parts) -> BinaryIO:
        """Open a regular file for reading; refuse anything else without blocking on it."""
        with translate_os_errors(parts):
            fd = self.opener.open(self._fd, parts, READING)
        try:
            _require_regular(os.fstat(fd), parts)
        except GatewayError:
            os.close(fd)
            raise
        return os.fdopen(fd, "rb")

    def walk(self, parts: Parts = (), depth: int = ANY_DEPTH, enter: Callable[[Entry], bool] | None = None) -> Walk:
        """Walk a directory; `enter` chooses the directories to descend into, all by default."""
        return Walk(self.opener, lambda: self._directory(parts, LISTING), parts, depth, enter or (lambda entry: True))

    def create(self, parts: Parts, content: bytes, mode: int | None = None) -> None:
        """Write a new file; refused if the path exists."""
        found = self.find(parts)
        if found is not None and found.kind == "directory":
            raise os_errors.is_directory(repr(show_path(parts)))
        with self._temporary_file(parts, content, mode) as (parent, temporary):
            self.opener.rename_new(parent, temporary, parent, parts[-1])

    def replace(
        self, parts: Parts, content: bytes, *, seen: os.stat_result | None = None, mode: int | None = None
    ) -> None:
        """Write a whole file atomically, keeping the owner and, without a `mode`, the permissions of the replaced file.

        With `seen`, refused if the file has changed since.
        """
        found = self.find(parts)
        if found is not None:
            _require_regular(found.stat, parts)
        _require_same(found, seen, parts)
        with self._temporary_file(parts, content, mode, found) as (parent, temporary):
            _require_same(self.find(parts), seen, parts)
            os.rename(temporary, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)

    def make_directories(self, parts: Parts) -> list[Parts]:
        """Create the directory and its parents; return those that did not exist."""
        made: list[Parts] = []
        with translate_os_errors(parts):
            here = self.opener.open(self._fd, (), DIRECTORY)
            for depth in range(1, len(parts) + 1):
                here, new = self._make_directory(here, parts[:depth])
                if new:
                    made.append(parts[:depth])
            os.close(here)
        return made

    def remove(self, parts: Parts, *, seen: os.stat_result | None = None) -> None:
        """Remove a file, a link (not its target) or an empty directory."""
        with self._parent(parts) as parent:
            found = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            _require_same(Entry(parts, found), seen, parts)
            if stat.S_ISDIR(found.st_mode):
                os.rmdir(parts[-1], dir_fd=parent)
            else:
                os.unlink(parts[-1], dir_fd=parent)

    def remove_tree(self, parts: Parts) -> Removed:
        """Remove a directory and its content, yielding each removed path."""
        with self._parent(parts) as parent:
            yield from remove_tree(self.opener, parent, parts)

    def rename(self, source: Parts, target: Parts, *, over: bool = False) -> None:
        """Rename an entry. An existing target is replaced only with `over`, and never if it is a directory that is not
        empty."""
        if target[: len(source)] == source:
            where = "itself" if target == source else "a directory inside itself"
            raise Invalid(f"{show_path(source)!r} cannot be moved to {where}; choose another path", code="INVALID_PATH")
        self.stat(source)  # so that a missing source is reported by its own path
        with self._parent(source) as old, self._parent(target) as new:
            if not over:
                self.opener.rename_new(old, source[-1], new, target[-1])
                return
            try:
                os.rename(source[-1], target[-1], src_dir_fd=old, dst_dir_fd=new)
            except NotADirectoryError:  # a directory over a file
                raise os_errors.exists(repr(show_path(target))) from None

    @contextmanager
    def opened(self, parts: Parts) -> Iterator[int]:
        """Open a directory for the time of a `with` statement."""
        with translate_os_errors(parts):
            directory = self._directory(parts, LISTING)
        try:
            yield directory
        finally:
            os.close(directory)

    @contextmanager
    def _parent(self, parts: Parts) -> Iterator[int]:
        if not parts:
            raise Invalid("the workspace root itself cannot be changed; name something in it", code="INVALID_PATH")
        with translate_os_errors(parts):
            parent = self.opener.open(self._fd, parts[:-1], DIRECTORY)
            try:
                yield parent
            finally:
                os.close(parent)

    def _directory(self, parts: Parts, flags: int) -> int:
        try:
            return self.opener.open(self._fd, parts, flags)
        except NotADirectoryError:
            self.stat(parts)  # raises if it is missing; otherwise it is not a directory
            raise os_errors.not_a_directory(repr(show_path(parts))) from None

    @contextmanager
    def _temporary_file(
        self, parts: Parts, content: bytes, mode: int | None, like: Entry | None = None
    ) -> Iterator[tuple[int, str]]:
        """Write the content under a temporary name beside `parts`; removed afterwards if it still exists."""
        temporary = temporary_name()
        with self._parent(parts) as parent:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(temporary, flags, 0o666, dir_fd=parent)
            try:
                with os.fdopen(fd, "wb", buffering=0) as file:
                    _write_all(file.fileno(), content)
                    _set_attributes(file.fileno(), mode, like)
                yield parent, temporary
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)

    def _make_directory(self, above: int, parts: Parts) -> tuple[int, bool]:
        try:
            with suppress(FileNotFoundError):
                return self.opener.open(above, parts[-1:], DIRECTORY), False
            with suppress(FileExistsError):
                os.mkdir(parts[-1], dir_fd=above)
            return self.opener.open(above, parts[-1:], DIRECTORY), True
        except NotADirectoryError:
            raise os_errors.not_a_directory(repr(show_path(parts))) from None
        finally:
            os.close(above)


def _fault(path: str, parts: Parts) -> str | None:
    if path.startswith("/"):
        return "is an absolute path"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in path):
        return "contains a control character or a lone surrogate"
    if ".." in parts:
        return "contains '..'"
    if len(parts) > DEPTH_LIMIT:
        return f"is deeper than {DEPTH_LIMIT} directories"
    if len(path.encode()) > PATH_LIMIT or any(len(part.encode()) > NAME_LIMIT for part in parts):
        return f"is longer than {PATH_LIMIT} bytes, or {NAME_LIMIT} in one name"
    if any(part.startswith(TEMPORARY) for part in parts):
        return f"has a name beginning with {TEMPORARY!r}, which is reserved for files being written"
    return None


def _require_regular(found: os.stat_result, parts: Parts) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    path = repr(show_path(parts))
    if stat.S_ISDIR(found.st_mode):
        raise os_errors.is_directory(path)
    raise os_errors.is_link(path) if stat.S_ISLNK(found.st_mode) else os_errors.not_a_file(path)


def _require_same(found: Entry | None, seen: os.stat_result | None, parts: Parts) -> None:
    if seen is None or (found is not None and _version(found.stat) == _version(seen)):
        return
    raise Conflict(f"{show_path(parts)!r} was changed by somebody else; read it again and repeat the change")


def _version(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _set_attributes(fd: int, mode: int | None, like: Entry | None) -> None:
    """Set the permissions and, if permitted, the owner of the replaced file."""
    if like is not None:
        with suppress(PermissionError):
            os.fchown(fd, like.stat.st_uid, like.stat.st_gid)
        mode = like.stat.st_mode if mode is None else mode
    if mode is not None:
        os.fchmod(fd, mode & _PERMISSIONS)
