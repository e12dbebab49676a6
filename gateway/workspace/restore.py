"""Restoring a tree into a folder: a plan of steps, and its execution through descriptors, without following links."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from gateway.errors import Conflict, Invalid
from gateway.workspace.blobs import BlobStore, copy
from gateway.workspace.index import File, Index
from gateway.workspace.openat import DIRECTORY, LISTING, Parts, PathOpener, exchange
from gateway.workspace.os_errors import show_path, translate_os_errors
from gateway.workspace.snapshot import ODD
from gateway.workspace.tree import (
    EMPTY_DIRECTORY,
    EXECUTABLE,
    LINK,
    PLAIN,
    Patch,
    Tree,
    diff,
    directories,
    locate,
    require_sound,
)
from gateway.workspace.walk import TEMPORARY, temporary_name


class Content(NamedTuple):
    """The content and kind of a path in the target."""

    digest: str
    kind: str


@dataclass(frozen=True)
class Plan:
    """Steps of a restore in order. Repeating a step is harmless."""

    # The whole restore as a change of the tree.
    patch: Patch
    # Files and links to remove.
    removed: tuple[Parts, ...]
    # Pipes, sockets and devices in the way.
    obstacles: tuple[Parts, ...]
    # Directories to remove if they are empty, deepest first.
    emptied: tuple[Parts, ...]
    # Those of them that a file replaces.
    cleared: frozenset[Parts]
    # Directories that will contain something.
    kept: frozenset[Parts]
    written: Mapping[Parts, Content]
    # Empty directories to create.
    made: tuple[Parts, ...]


def plan(index: Index, target: Tree) -> Plan:
    """Plan the steps from the state of `index` to `target`.

    Refused as INVALID_PATH if the target is inconsistent, and as a conflict if something that is in no version, such
    as an ignored file, is in the way.
    """
    current = index.tree
    patch = diff(current, target)
    named = {path: locate(path) for path in (*patch.files, *patch.meta) if path in target.files or path in target.meta}
    require_sound(target, named)
    made = [path for path in named if target.meta.get(path) == EMPTY_DIRECTORY]
    _require_empty(target, made)
    removed = [locate(path) for path, digest in patch.files.items() if digest is None]
    dropped = [locate(path) for path in patch.meta if current.meta.get(path) == EMPTY_DIRECTORY]
    written = {
        parts: Content(target.files[path], target.meta.get(path, PLAIN))
        for path, parts in named.items()
        if path in target.files
    }
    cleared = _directories_to_clear(index, written, set(removed))
    wanted = {above for parts in named.values() for above in _above(parts)} | {named[path] for path in made}
    emptied = {*(parts[:-1] for parts in removed), *dropped, *cleared} - wanted - {()}
    return Plan(
        patch=patch,
        removed=tuple(removed),
        obstacles=tuple(_obstacles(index, named.values())),
        emptied=tuple(sorted(emptied, key=len, reverse=True)),
        kept=frozenset(wanted),
        cleared=frozenset(cleared),
        written=written,
        made=tuple(named[path] for path in made),
    )


def _require_empty(target: Tree, paths: list[str]) -> None:
    if not paths:
        return
    above = directories(Tree(target.files))
    for path in paths:
        if path in above:
            raise Invalid(f"the version lists {path!a} as an empty directory and also files in it", code="INVALID_PATH")


def _directories_to_clear(index: Index, written: Iterable[Parts], removed: AbstractSet[Parts]) -> set[Parts]:
    """Return every directory at or below a path that a file replaces; all their content must be removed by the plan."""
    tops = {"/".join(parts) for parts in written} & index.folders.keys()
    folders = [folder for folder in index.folders.values() if tops and _is_at_or_below(folder.path, tops)]
    for folder in folders:
        parts = tuple(folder.path.split("/"))
        staying = [*folder.ignored, *(name for name, reason in folder.skipped.items() if reason != ODD)]
        if staying:
            raise _occupied_error((*parts, staying[0]))
        for name in folder.files:
            if (*parts, name) not in removed:
                raise Invalid(
                    f"the version lists {show_path(parts)!r} as a file and also files below it", code="INVALID_PATH"
                )
    return {tuple(folder.path.split("/")) for folder in folders}


def _is_at_or_below(path: str, tops: AbstractSet[str]) -> bool:
    return path in tops or any("/".join(parts) in tops for parts in _above(tuple(path.split("/"))))


def _obstacles(index: Index, paths: Iterable[Parts]) -> Iterator[Parts]:
    """Yield pipes, sockets and devices in the way of a path; anything else that is in no version is a conflict."""
    for place in {parts[:depth] for parts in paths for depth in range(1, len(parts) + 1)}:
        folder = index.folders.get("/".join(place[:-1]))
        if folder is None:
            continue
        reason = folder.skipped.get(place[-1])
        if place[-1] in folder.ignored or reason not in (None, ODD):
            raise _occupied_error(place)
        if reason is not None:
            yield place


def _above(parts: Parts) -> Iterator[Parts]:
    return (parts[:depth] for depth in range(1, len(parts)))


def _occupied_error(parts: Parts) -> Conflict:
    return Conflict(
        f"{show_path(parts)!r} is in the way of the restore, and no version has it (it is ignored or unreadable); "
        "move it away first",
        code="UNVERSIONED_FILE",
        path=show_path(parts),
    )


_HELD = 256  # files kept open; beyond that the space is freed immediately
_HOLD = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC


class DeferredUnlink:
    """Unlinks files, but frees their space in a background thread. Freeing is the slowest part and happens when the
    last descriptor is closed, after a crash by the kernel."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def unlink(self, parent: int, name: str) -> None:
        if hasattr(os, "O_PATH") and len(self._held) < _HELD:
            self._held.append(os.open(name, _HOLD, dir_fd=parent))
        os.unlink(name, dir_fd=parent)

    def flush(self) -> None:
        """Close all descriptors in a background thread."""
        if self._held:
            threading.Thread(target=_close, args=(self._held,), name="deferred-unlink", daemon=True).start()
            self._held = []


def _close(held: list[int]) -> None:
    for fd in held:
        os.close(fd)


_LINK_LIMIT = 4096
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ALWAYS_RACY = 0
_PERMISSIONS, _READ, _EXECUTE = 0o777, 0o444, 0o111
_NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST}
_STAYS = {*_NOT_EMPTY, errno.ENOTDIR, errno.ELOOP, errno.EBUSY}


class Restore:
    """Restores one directory; `index` is its state just before."""

    def __init__(self, root: int, opener: PathOpener, blobs: BlobStore, index: Index) -> None:
        self._root = root
        self._opener = opener
        self._blobs = blobs
        self._index = index
        self._unlinks = DeferredUnlink()

    def run(self, plan: Plan) -> dict[Parts, File]:
        """Carry out the plan; return the written files as they are on disk."""
        try:
            return self._run_steps(plan)
        finally:
            self._unlinks.flush()

    def _run_steps(self, plan: Plan) -> dict[Parts, File]:
        for directory, removed in _by_directory(plan.removed):
            self._remove(directory, removed)
        for directory, obstacles in _by_directory(plan.obstacles):
            self._remove_odd(directory, [parts[-1] for parts in obstacles])
        self._remove_emptied(plan)
        written: dict[Parts, File] = {}
        for directory, paths in _by_directory(plan.written):
            with self._make_directory(directory) as parent:
                for parts in paths:
                    written[parts] = self._write(parent, parts, plan.written[parts])
        for parts in plan.made:
            with self._make_directory(parts):
                pass
        return written

    def _remove(self, directory: Parts, removed: list[Parts]) -> None:
        with translate_os_errors(directory), suppress(FileNotFoundError), self._open_directory(directory) as parent:
            for parts in removed:
                if self._require_unchanged(parent, parts):
                    self._unlinks.unlink(parent, parts[-1])

    def _remove_odd(self, directory: Parts, names: list[str]) -> None:
        with translate_os_errors(directory), suppress(FileNotFoundError), self._open_directory(directory) as parent:
            for name in names:
                if _is_odd(parent, name):
                    os.unlink(name, dir_fd=parent)

    def _remove_emptied(self, plan: Plan) -> None:
        for emptied in plan.emptied:
            directory = emptied
            while directory and directory not in plan.kept and self._remove_directory(directory, plan.cleared):
                directory = directory[:-1]

    def _remove_directory(self, parts: Parts, cleared: frozenset[Parts]) -> bool:
        """Remove a directory; False if it contains something that must stay."""
        with translate_os_errors(parts), suppress(FileNotFoundError), self._open_directory(parts[:-1]) as parent:
            try:
                os.rmdir(parts[-1], dir_fd=parent)
            except OSError as error:
                if error.errno not in _STAYS:
                    raise
                return error.errno in _NOT_EMPTY and self._remove_leftovers(parent, parts, parts in cleared)
        return True

    def _remove_leftovers(self, parent: int, parts: Parts, odd_too: bool) -> bool:
        """Remove a directory that contains only leftovers of interrupted writers or, with `odd_too`, special files."""
        directory = self._opener.open(parent, parts[-1:], LISTING)
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
        with translate_os_errors(parts):
            replaced = _stat(parent, parts[-1]) if self._index.find(parts) else None
            try:
                write = self._write_link if content.kind == LINK else self._write_file
                return File.from_stat(write(parent, parts, content, replaced), content.digest, _ALWAYS_RACY)
            except FileExistsError:
                raise _changed_error(parts) from None

    def _write_link(
        self, parent: int, parts: Parts, content: Content, replaced: os.stat_result | None
    ) -> os.stat_result:
        name = temporary_name() if replaced else parts[-1]
        with self._blobs.open(content.digest) as blob:
            target = blob.read(_LINK_LIMIT)
            if not target or b"\0" in target or blob.read(1):
                raise Invalid(
                    f"{show_path(parts)!r} is a link without a valid target in the version", code="INVALID_PATH"
                )
        os.symlink(target, name, dir_fd=parent)
        with _removed_on_failure(parent, name):
            self._place(parent, name, parts)
            return os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)

    def _write_file(
        self, parent: int, parts: Parts, content: Content, replaced: os.stat_result | None
    ) -> os.stat_result:
        """Write a new file in place, since a crash is repaired by repeating it; replace an existing one by rename."""
        name = temporary_name() if replaced else parts[-1]
        with self._blobs.open(content.digest) as blob:
            fd = os.open(name, _NEW, 0o666, dir_fd=parent)
            try:
                with _removed_on_failure(parent, name):
                    copy(blob, fd)
                    _set_attributes(fd, content.kind, replaced)
                    self._place(parent, name, parts)
                    return os.fstat(fd)
            finally:
                os.close(fd)

    def _place(self, parent: int, name: str, parts: Parts) -> None:
        """Rename the written file to its name. The replaced file is checked once more after the exchange."""
        if name == parts[-1]:
            return
        if not self._require_unchanged(parent, parts) or not exchange(parent, name, parts[-1]):
            os.rename(name, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
            return
        replaced, known = _stat(parent, name), self._index.find(parts)
        if replaced is None or known is None or not known.same_after_rename(replaced):
            exchange(parent, name, parts[-1])
            raise _changed_error(parts)
        self._unlinks.unlink(parent, name)

    def _require_unchanged(self, parent: int, parts: Parts) -> bool:
        """Return whether the file exists; refused if it is no longer the one that a version has."""
        found = _stat(parent, parts[-1])
        known = self._index.find(parts)
        if found is not None and (known is None or not known.same(found)):
            raise _changed_error(parts)
        return found is not None

    @contextmanager
    def _open_directory(self, parts: Parts) -> Iterator[int]:
        directory = self._opener.open(self._root, parts, DIRECTORY)
        try:
            yield directory
        finally:
            os.close(directory)

    @contextmanager
    def _make_directory(self, parts: Parts) -> Iterator[int]:
        with translate_os_errors(parts):
            directory = self._make(parts)
        try:
            yield directory
        finally:
            os.close(directory)

    def _make(self, parts: Parts) -> int:
        missing = list[str]()
        while True:
            try:
                here = self._opener.open(self._root, parts[: len(parts) - len(missing)], DIRECTORY)
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
                here = self._opener.open(above, (name,), DIRECTORY)
            finally:
                os.close(above)
        return here


def _by_directory(paths: Iterable[Parts]) -> list[tuple[Parts, list[Parts]]]:
    """Group paths by their directory, parents first."""
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


def _set_attributes(fd: int, kind: str, replaced: os.stat_result | None) -> None:
    """Set the executable bits for `kind`; take other permissions and the owner from the replaced file."""
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


def _changed_error(parts: Parts) -> Conflict:
    return Conflict(f"{show_path(parts)!r} was changed by another program during the restore; try again")
