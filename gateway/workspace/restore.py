"""Carrying out a plan on disk: by descriptors, whole files, nothing followed, nothing taken that moved meanwhile."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from gateway.errors import Conflict, Invalid
from gateway.workspace.blobs import BlobStore, copy
from gateway.workspace.deferred_unlink import DeferredUnlink
from gateway.workspace.exchange import exchange
from gateway.workspace.index import File, Index
from gateway.workspace.openat import DIRECTORY, LISTING, Parts, Way
from gateway.workspace.os_errors import refusing, shown
from gateway.workspace.remove_tree import temporary_name
from gateway.workspace.restore_plan import Content, Plan
from gateway.workspace.tree import EXECUTABLE, LINK
from gateway.workspace.walk import TEMPORARY

_LINK_LIMIT = 4096
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ALWAYS_RACY = 0
_PERMISSIONS, _READ, _EXECUTE = 0o777, 0o444, 0o111
_NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST}
_STAYS = {*_NOT_EMPTY, errno.ENOTDIR, errno.ELOOP, errno.EBUSY}


class Restore:
    """Changes one directory; `index` is what was seen of it just before."""

    def __init__(self, root: int, way: Way, blobs: BlobStore, index: Index) -> None:
        self._root = root
        self._way = way
        self._blobs = blobs
        self._index = index
        self._farewell = DeferredUnlink()

    def run(self, plan: Plan) -> dict[Parts, File]:
        """What was written, as it is on disk now."""
        try:
            return self._carried_out(plan)
        finally:
            self._farewell.finish()

    def _carried_out(self, plan: Plan) -> dict[Parts, File]:
        for directory, removed in _by_directory(plan.removed):
            self._remove(directory, removed)
        for directory, obstacles in _by_directory(plan.obstacles):
            self._remove_odd(directory, [parts[-1] for parts in obstacles])
        self._remove_emptied(plan)
        written: dict[Parts, File] = {}
        for directory, paths in _by_directory(plan.written):
            with self._made(directory) as parent:
                for parts in paths:
                    written[parts] = self._write(parent, parts, plan.written[parts])
        for parts in plan.made:
            with self._made(parts):
                pass
        return written

    def _remove(self, directory: Parts, removed: list[Parts]) -> None:
        with refusing(directory), suppress(FileNotFoundError), self._opened(directory) as parent:
            for parts in removed:
                if self._require_unmoved(parent, parts):
                    self._farewell.unlink(parent, parts[-1])

    def _remove_odd(self, directory: Parts, names: list[str]) -> None:
        with refusing(directory), suppress(FileNotFoundError), self._opened(directory) as parent:
            for name in names:
                if _is_odd(parent, name):
                    os.unlink(name, dir_fd=parent)

    def _remove_emptied(self, plan: Plan) -> None:
        for emptied in plan.emptied:
            directory = emptied
            while directory and directory not in plan.kept and self._remove_directory(directory, plan.cleared):
                directory = directory[:-1]

    def _remove_directory(self, parts: Parts, cleared: frozenset[Parts]) -> bool:
        """Whether the directory is gone; it stays when something is in it that is not ours to remove."""
        with refusing(parts), suppress(FileNotFoundError), self._opened(parts[:-1]) as parent:
            try:
                os.rmdir(parts[-1], dir_fd=parent)
            except OSError as error:
                if error.errno not in _STAYS:
                    raise
                return error.errno in _NOT_EMPTY and self._remove_leftovers(parent, parts, parts in cleared)
        return True

    def _remove_leftovers(self, parent: int, parts: Parts, odd_too: bool) -> bool:
        """Remove a directory in which only files are that an interrupted writer left, or `odd_too`."""
        directory = self._way.open(parent, parts[-1:], LISTING)
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries]
            if not all(name.startswith(TEMPORARY) or (odd_too and _is_odd(directory, name)) for name in names):
                return False
            for name in names:
                os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)
        os.rmdir(parts[-1], dir_fd=parent)
        return True

    def _write(self, parent: int, parts: Parts, content: Content) -> File:
        with refusing(parts):
            replaced = _stat(parent, parts[-1]) if self._index.find(parts) else None
            try:
                write = self._write_link if content.kind == LINK else self._write_file
                return File.seen(write(parent, parts, content, replaced), content.digest, _ALWAYS_RACY)
            except FileExistsError:
                raise _moved(parts) from None

    def _write_link(
        self, parent: int, parts: Parts, content: Content, replaced: os.stat_result | None
    ) -> os.stat_result:
        name = temporary_name() if replaced else parts[-1]
        with self._blobs.open(content.digest) as blob:
            target = blob.read(_LINK_LIMIT)
            if not target or b"\0" in target or blob.read(1):
                raise Invalid(f"{shown(parts)!r} is a link in the version, but to no path", code="INVALID_PATH")
        os.symlink(target, name, dir_fd=parent)
        with _removed_on_failure(parent, name):
            self._place(parent, name, parts)
            return os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)

    def _write_file(
        self, parent: int, parts: Parts, content: Content, replaced: os.stat_result | None
    ) -> os.stat_result:
        """In place where nothing is, since a crash is made good by doing it again; else beside it and renamed."""
        name = temporary_name() if replaced else parts[-1]
        with self._blobs.open(content.digest) as blob:
            fd = os.open(name, _NEW, 0o666, dir_fd=parent)
            try:
                with _removed_on_failure(parent, name):
                    copy(blob, fd)
                    _dress(fd, content.kind, replaced)
                    self._place(parent, name, parts)
                    return os.fstat(fd)
            finally:
                os.close(fd)

    def _place(self, parent: int, name: str, parts: Parts) -> None:
        """Give what was written its name. What had it is looked at once more after it is out of the way."""
        if name == parts[-1]:
            return
        if not self._require_unmoved(parent, parts) or not exchange(parent, name, parts[-1]):
            os.rename(name, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
            return
        replaced, known = _stat(parent, name), self._index.find(parts)
        if replaced is None or known is None or not known.renamed(replaced):
            exchange(parent, name, parts[-1])
            raise _moved(parts)
        self._farewell.unlink(parent, name)

    def _require_unmoved(self, parent: int, parts: Parts) -> bool:
        """Whether the file is still there; refused when it is no longer the one that a version holds."""
        found = _stat(parent, parts[-1])
        known = self._index.find(parts)
        if found is not None and (known is None or not known.same(found)):
            raise _moved(parts)
        return found is not None

    @contextmanager
    def _opened(self, parts: Parts) -> Iterator[int]:
        directory = self._way.open(self._root, parts, DIRECTORY)
        try:
            yield directory
        finally:
            os.close(directory)

    @contextmanager
    def _made(self, parts: Parts) -> Iterator[int]:
        with refusing(parts):
            directory = self._make(parts)
        try:
            yield directory
        finally:
            os.close(directory)

    def _make(self, parts: Parts) -> int:
        missing = list[str]()
        while True:
            try:
                here = self._way.open(self._root, parts[: len(parts) - len(missing)], DIRECTORY)
                break
            except FileNotFoundError:
                if len(missing) == len(parts):
                    raise
                missing.insert(0, parts[len(parts) - len(missing) - 1])
        for name in missing:
            above = here
            try:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=above)
                here = self._way.open(above, (name,), DIRECTORY)
            finally:
                os.close(above)
        return here


def _by_directory(paths: Iterable[Parts]) -> list[tuple[Parts, list[Parts]]]:
    """Paths under the directory they are in, those above before those below."""
    grouped: dict[Parts, list[Parts]] = {}
    for parts in paths:
        grouped.setdefault(parts[:-1], []).append(parts)
    return sorted(grouped.items())


@contextmanager
def _removed_on_failure(parent: int, name: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        raise


def _dress(fd: int, kind: str, replaced: os.stat_result | None) -> None:
    """Whether it can be executed, and the rest as it was with the file it replaces."""
    found = os.fstat(fd)
    mode = found.st_mode & _PERMISSIONS
    if replaced is not None and stat.S_ISREG(replaced.st_mode):
        mode = replaced.st_mode & _PERMISSIONS
        if (replaced.st_uid, replaced.st_gid) != (found.st_uid, found.st_gid):
            with suppress(PermissionError):
                os.fchown(fd, replaced.st_uid, replaced.st_gid)
    wanted = mode | stat.S_IXUSR | (mode & _READ) >> 2 if kind == EXECUTABLE else mode & ~_EXECUTE
    if wanted != found.st_mode & _PERMISSIONS:
        os.fchmod(fd, wanted)


def _is_odd(parent: int, name: str) -> bool:
    found = _stat(parent, name)
    return found is not None and not any(test(found.st_mode) for test in (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK))


def _stat(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _moved(parts: Parts) -> Conflict:
    return Conflict(f"{shown(parts)!r} was changed by someone else while a version was restored; try again")
