"""Looking at a workspace: a stat for every file, a listing for every directory that moved, a read for what changed."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, Protocol

from gateway.workspace.blobs import BlobStore
from gateway.workspace.folder_access import restore_access_below, restore_access_open
from gateway.workspace.index import RACY_NANOSECONDS, File, Folder, Index, Stamp, change_times, stamp_of
from gateway.workspace.openat import DIRECTORY, LISTING, READING, Parts, Way
from gateway.workspace.os_errors import refusal
from gateway.workspace.remove_tree import temporary_name
from gateway.workspace.walk import TEMPORARY

ODD = "a pipe, socket or device"
UNREADABLE = "not readable by the gateway"
ELSEWHERE = "on another file system, or too deep"

# A file, why it was skipped, or None when it is gone.
Finding = File | str | None

_ATTEMPTS = 3
_UNKNOWN_CLOCK = 2_000_000_000
_VANISHED = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_CLOSED = {
    errno.EACCES: UNREADABLE,
    errno.EPERM: UNREADABLE,
    errno.EXDEV: ELSEWHERE,
    errno.ENAMETOOLONG: ELSEWHERE,
}

_HELD = 16  # directories open at once, one in another


class Rules(Protocol):
    """What is left out of a directory; `key` is equal for equal rules, now and in another process."""

    @property
    def key(self) -> str: ...

    def ignores(self, path: str, is_directory: bool) -> bool: ...


class Ignore(Protocol):
    """What is left out of a workspace, found out from it as it is at the moment."""

    def inside(self, above: Any, path: str, directory: int, way: Way) -> Rules | None:
        """The rules in the directory `path`, which is open, given those of the one above it."""
        ...


def scan(
    root: int, way: Way, blobs: BlobStore, known: Index, ignore: Ignore | None = None, *, ours: bool = False
) -> Index:
    """The workspace as it is now, every content of it put into `blobs`.

    Nothing is followed or waited for. What cannot be read is noted as skipped; `known` is what an
    earlier scan of the same directory returned, and saves reading what has not moved. When all is
    `ours`, directories that lock us out are opened again.
    """
    folders = _Scan(root, way, blobs, known, ignore, ours).folders()
    if len(folders) == len(known.folders) and all(known.folders.get(path) is folders[path] for path in folders):
        return known  # with the tree it has already put together
    return known.followed_by(folders)


def file_clock(root: int) -> int:
    """The time the file system of `root` puts on a file written now; its clock need not be ours."""
    try:
        probe = _open_probe(root)
    except OSError:  # read-only, so that only someone else can write, by a clock we do not know
        return time.time_ns() - _UNKNOWN_CLOCK
    try:
        return os.fstat(probe).st_mtime_ns
    finally:
        os.close(probe)


class _Scan:
    def __init__(self, root: int, way: Way, blobs: BlobStore, known: Index, ignore: Ignore | None, ours: bool) -> None:
        self._root = root
        self._way = way
        self._blobs = blobs
        self._known = known.folders
        self._ignore = ignore
        self._ours = ours
        self._limit = file_clock(root) - RACY_NANOSECONDS

    def folders(self) -> dict[str, Folder]:
        """Every directory, those above before those below."""
        found: dict[str, Folder] = {}
        pending: list[tuple[str, Rules | None]] = [("", None)]
        while pending:
            path, rules = pending.pop()
            self._enter(self._root, tuple(path.split("/")) if path else (), path, rules, found, pending)
        return found

    def _enter(
        self,
        above: int,
        parts: Parts,
        path: str,
        rules: Rules | None,
        found: dict[str, Folder],
        pending: list[tuple[str, Rules | None]],
        depth: int = 0,
    ) -> None:
        """A directory and what is below it, each opened from the one above; what lies too deep for so many
        open ones is left `pending`."""
        try:
            directory = self._open(above, parts)
        except OSError as error:
            _note_closed(found, path, error)
            return
        try:
            if self._ignore is not None:
                rules = self._ignore.inside(rules, path, directory, self._way)
            folder = found[path] = self._visit(directory, path, rules)
            for name in folder.folders:
                if depth == _HELD:
                    pending.append((folder.below(name), rules))
                else:
                    self._enter(directory, (name,), folder.below(name), rules, found, pending, depth + 1)
        except OSError as error:  # it may be listed but not entered, or is gone
            found.pop(path, None)
            _note_closed(found, path, error)
        finally:
            os.close(directory)

    def _open(self, above: int, parts: Parts) -> int:
        try:
            directory = self._way.open(above, parts, LISTING)
        except PermissionError:
            if not self._ours or not parts:
                raise
            self._restore(above, parts)
            directory = self._way.open(above, parts, LISTING)
        if self._ours:
            restore_access_open(directory)
        return directory

    def _restore(self, above: int, parts: Parts) -> None:
        parent = self._way.open(above, parts[:-1], DIRECTORY)
        try:
            restore_access_below(parent, parts[-1])
        finally:
            os.close(parent)

    def _visit(self, directory: int, path: str, rules: Rules | None) -> Folder:
        known = self._known.get(path)
        found = os.fstat(directory)
        stamp = found.st_mtime_ns, found.st_ctime_ns, found.st_ino
        key, mode = rules.key if rules else "", stat.S_IMODE(found.st_mode)
        if known is not None and known.rules == key:
            if known.stamp == stamp:
                return self._recheck(directory, known)
            if known.names == _names(directory):
                trusted = replace(known, stamp=self._trusted(found, stamp), mode=mode)
                return self._reread(directory, trusted, known.files)
        return self._list(directory, Folder(path, self._trusted(found, stamp), rules=key, mode=mode), rules)

    def _trusted(self, found: os.stat_result, stamp: Stamp) -> Stamp | None:
        return None if max(found.st_mtime_ns, found.st_ctime_ns) >= self._limit else stamp

    def _recheck(self, directory: int, folder: Folder) -> Folder:
        """A directory in which no name came or went: the change time of each file it had."""
        shown = change_times(directory, folder.encoded_names)
        if shown == folder.change_times:
            return folder
        if shown is None:  # one is gone
            return self._reread(directory, folder, folder.files)
        rows = zip(folder.files, *folder.change_times, *shown, strict=True)
        return self._reread(directory, folder, [name for name, *was, now, then in rows if was != [now, then]])

    def _reread(self, directory: int, folder: Folder, names: Iterable[str]) -> Folder:
        """A directory with the names it had, and those of them read that have moved."""
        moved = _moved(directory, {name: folder.files[name] for name in names})
        if not moved:
            return folder
        return _with_findings(folder, {name: self._read(directory, name, moved[name]) for name in moved})

    def _list(self, directory: int, folder: Folder, rules: Rules | None) -> Folder:
        known = self._known.get(folder.path, folder).files
        folders, ignored, findings = [], [], dict[str, Finding]()
        with os.scandir(directory) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(TEMPORARY):
                    continue
                is_directory = entry.is_dir(follow_symlinks=False)
                if rules is not None and rules.ignores(folder.below(name), is_directory):
                    ignored.append(name)
                elif is_directory:
                    folders.append(name)
                else:
                    findings[name] = self._look(directory, name, known.get(name))
        return _with_findings(replace(folder, folders=tuple(folders), ignored=frozenset(ignored)), findings)

    def _look(self, directory: int, name: str, known: File | None) -> Finding:
        found = _stat(directory, name)
        if found is not None and known is not None and not known.racy and known.same(found):
            return known
        return self._read(directory, name, found)

    def _read(self, directory: int, name: str, found: os.stat_result | None) -> Finding:
        """The file with its content kept, as it was at one moment, or racy when it would not hold still."""
        file: File | None = None
        for _ in range(_ATTEMPTS):
            if found is None:
                return None
            if stat.S_ISLNK(found.st_mode):
                return self._read_link(directory, name, found)
            if not stat.S_ISREG(found.st_mode):
                return ODD
            try:
                opened = self._way.open(directory, (name,), READING)
            except OSError as error:
                if error.errno not in _VANISHED:
                    return _reason(error)
                found = _stat(directory, name)
                continue
            file, found = self._keep(opened, name, found)
            if file.same(found):
                return file
        return file and file._replace(racy=True)

    def _read_link(self, directory: int, name: str, found: os.stat_result) -> Finding:
        try:
            target = os.readlink(name, dir_fd=directory)
        except OSError:  # replaced since; its directory has moved with it, and is listed the next time
            return None
        return File.seen(found, self._put(io.BytesIO(os.fsencode(target)), name), self._limit)

    def _keep(self, opened: int, name: str, found: os.stat_result) -> tuple[File, os.stat_result]:
        """The content under what was `found` before it was read, and what was found afterwards."""
        with io.FileIO(opened) as source:
            digest = self._put(source, name)
            return File.seen(found, digest, self._limit), os.fstat(opened)

    def _put(self, source: BinaryIO, name: str) -> str:
        try:
            return self._blobs.put(source)
        except OSError as error:
            raise refusal(error, (name,)) from error


def _names(directory: int) -> dict[str, bool]:
    """Every name in a directory, and whether it is a directory."""
    with os.scandir(directory) as entries:
        return {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}


def _moved(directory: int, files: Mapping[str, File]) -> dict[str, os.stat_result | None]:
    """The files that are no longer as they were, or were too young to tell."""
    try:
        found: Iterable[os.stat_result | None] = list(map(partial(os.lstat, dir_fd=directory), files))
    except FileNotFoundError:  # one of them, so each is asked by itself
        found = (_stat(directory, name) for name in files)
    return {
        name: now
        for (name, file), now in zip(files.items(), found, strict=True)
        if now is None or file.racy or file.stamp != stamp_of(now)
    }


def _with_findings(folder: Folder, findings: Mapping[str, Finding]) -> Folder:
    files, skipped = dict(folder.files), dict(folder.skipped)
    for name, finding in findings.items():
        files.pop(name, None)
        if isinstance(finding, File):
            files[name] = finding
        elif finding is not None:
            skipped[name] = finding
    # Permissions may change without the directory showing it, so that it is listed until they do.
    stamp = None if UNREADABLE in skipped.values() else folder.stamp
    return replace(folder, stamp=stamp, files=files, skipped=skipped)


def _note_closed(found: dict[str, Folder], path: str, error: OSError) -> None:
    """A directory that was listed but cannot be entered is skipped, or forgotten when it is gone."""
    if not path:
        raise refusal(error, ()) from error
    above, _, name = path.rpartition("/")
    parent = found[above]
    skipped = dict(parent.skipped)
    if error.errno not in _VANISHED:
        skipped[name] = _reason(error)
    folders = tuple(folder for folder in parent.folders if folder != name)
    found[above] = replace(parent, stamp=None, folders=folders, skipped=skipped)


def _reason(error: OSError) -> str:
    if error.errno in _CLOSED:
        return _CLOSED[error.errno]
    raise error


def _stat(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _open_probe(root: int) -> int:
    if sys.platform == "linux":
        with suppress(OSError):  # some file systems have no unnamed files
            return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=root)
    name = temporary_name()
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=root)
    os.unlink(name, dir_fd=root)
    return fd
