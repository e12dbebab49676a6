"""Scanning a workspace: a stat of every file, a listing of every changed directory, a read of every changed file."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, Protocol

from gateway.workspace.blobs import BlobStore
from gateway.workspace.index import RACY_NANOSECONDS, File, Folder, Index, Stamp, change_times, stamp_of
from gateway.workspace.openat import (
    DIRECTORY,
    LISTING,
    READING,
    Parts,
    PathOpener,
    restore_access_below,
    restore_access_open,
)
from gateway.workspace.os_errors import to_gateway_error
from gateway.workspace.walk import TEMPORARY, temporary_name

ODD = "a pipe, socket or device"
UNREADABLE = "not readable by the gateway"
UNREACHABLE = "on another file system, or too deep"

# A file, why it was skipped, or None when it is gone.
ScanResult = File | str | None

_ATTEMPTS = 3
_UNKNOWN_CLOCK = 2_000_000_000
_VANISHED = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_INACCESSIBLE = {
    errno.EACCES: UNREADABLE,
    errno.EPERM: UNREADABLE,
    errno.EXDEV: UNREACHABLE,
    errno.ENAMETOOLONG: UNREACHABLE,
}

_OPEN_LIMIT = 16  # nested directories open at once

# Ignored files that are watched: settings and notes. Larger ones are data, logs and results of programs.
WATCHED_BYTES = 1024 * 1024
WATCHED_FILES, WATCHED_TOTAL = 2000, 32 * 1024 * 1024


class IgnoreRules(Protocol):
    """The ignore rules in a directory; equal rules have equal keys, also in other processes."""

    @property
    def key(self) -> str: ...

    def ignores(self, path: str, is_directory: bool) -> bool: ...


class IgnoreSource(Protocol):
    """Finds the ignore rules of each directory as it is now."""

    def inside(self, above: Any, path: str, directory: int, opener: PathOpener) -> IgnoreRules | None:
        """Return the rules in the open directory `path`, given those of the directory above."""
        ...


def scan(
    root: int,
    opener: PathOpener,
    blobs: BlobStore,
    known: Index,
    ignore: IgnoreSource | None = None,
    *,
    ours: bool = False,
) -> Index:
    """Scan the workspace and put every content into `blobs`.

    Follows no link and never blocks on a file. Unreadable files are recorded as skipped. `known` is the result of an
    earlier scan and saves reading unchanged files. With `ours`, inaccessible directories become accessible again.
    """
    folders = _Scan(root, opener, blobs, known, ignore, ours).folders()
    if len(folders) == len(known.folders) and all(known.folders.get(path) is folders[path] for path in folders):
        return known  # its tree is already computed
    return known.derive(folders)


def scan_ignored(
    root: int, opener: PathOpener, blobs: BlobStore, known: Index, names: Mapping[str, Iterable[str]], limited: bool
) -> Index | None:
    """Scan small files that an earlier scan of the workspace has ignored, by their directories, and put every content
    into `blobs`; directories are left out. With `limited`, None if there are too many files."""
    search = _Scan(root, opener, blobs, known, None, False)
    folders: dict[str, Folder] = {}
    files, size = 0, 0
    for path, inside in names.items():
        with suppress(OSError), search.open_folder(path) as directory:
            small = {name: found.st_size for name in inside if (found := _stat(directory, name)) and _is_watched(found)}
            files, size = files + len(small), size + sum(small.values())
            if limited and (files > WATCHED_FILES or size > WATCHED_TOTAL):
                return None
            folders[path] = search.look_at(directory, path, small)
    return known.derive(folders)


def _is_watched(found: os.stat_result) -> bool:
    return not stat.S_ISDIR(found.st_mode) and found.st_size <= WATCHED_BYTES


def file_clock(root: int) -> int:
    """Return the time stamp that the file system of `root` gives a file now; its clock may differ from ours."""
    try:
        probe = _open_probe(root)
    except OSError:  # read-only: only others can write, by an unknown clock
        return time.time_ns() - _UNKNOWN_CLOCK
    try:
        return os.fstat(probe).st_mtime_ns
    finally:
        os.close(probe)


class _Scan:
    def __init__(
        self, root: int, opener: PathOpener, blobs: BlobStore, known: Index, ignore: IgnoreSource | None, ours: bool
    ) -> None:
        self._root = root
        self._opener = opener
        self._blobs = blobs
        self._known = known.folders
        self._ignore = ignore
        self._ours = ours
        self._limit = file_clock(root) - RACY_NANOSECONDS

    def folders(self) -> dict[str, Folder]:
        """Return every directory, parents first."""
        found: dict[str, Folder] = {}
        pending: list[tuple[str, IgnoreRules | None]] = [("", None)]
        while pending:
            path, rules = pending.pop()
            self._enter(self._root, tuple(path.split("/")) if path else (), path, rules, found, pending)
        return found

    def _enter(
        self,
        above: int,
        parts: Parts,
        path: str,
        rules: IgnoreRules | None,
        found: dict[str, Folder],
        pending: list[tuple[str, IgnoreRules | None]],
        depth: int = 0,
    ) -> None:
        """Scan a directory and those below it, each opened from its parent; directories too deep for the number of open
        descriptors are added to `pending`."""
        try:
            directory = self._open(above, parts)
        except OSError as error:
            _record_inaccessible(found, path, error)
            return
        try:
            status = os.fstat(directory)
            if self._ignore is not None and (rules is None or not self._lacks_rules(path, status)):
                rules = self._ignore.inside(rules, path, directory, self._opener)
            folder = found[path] = self._visit(directory, path, status, rules)
            for name in folder.folders:
                if depth == _OPEN_LIMIT:
                    pending.append((folder.below(name), rules))
                else:
                    self._enter(directory, (name,), folder.below(name), rules, found, pending, depth + 1)
        except OSError as error:  # it can be listed but not entered, or is gone
            found.pop(path, None)
            _record_inaccessible(found, path, error)
        finally:
            os.close(directory)

    def _open(self, above: int, parts: Parts) -> int:
        try:
            directory = self._opener.open(above, parts, LISTING)
        except PermissionError:
            if not self._ours or not parts:
                raise
            self._restore(above, parts)
            directory = self._opener.open(above, parts, LISTING)
        if self._ours:
            restore_access_open(directory)
        return directory

    def _restore(self, above: int, parts: Parts) -> None:
        parent = self._opener.open(above, parts[:-1], DIRECTORY)
        try:
            restore_access_below(parent, parts[-1])
        finally:
            os.close(parent)

    def _lacks_rules(self, path: str, found: os.stat_result) -> bool:
        """Return whether a directory is known to have no ignore files: its names are unchanged."""
        known = self._known.get(path)
        return known is not None and known.stamp == _stamp(found) and not known.has_ignore_file

    def _visit(self, directory: int, path: str, found: os.stat_result, rules: IgnoreRules | None) -> Folder:
        known = self._known.get(path)
        stamp = _stamp(found)
        key, mode = rules.key if rules else "", stat.S_IMODE(found.st_mode)
        if known is not None and known.rules == key:
            if known.stamp == stamp:
                return self._recheck(directory, known)
            if known.names == _names(directory):
                trusted = replace(known, stamp=self._trusted_stamp(found, stamp), mode=mode)
                return self._reread(directory, trusted, known.files)
        return self._list(directory, Folder(path, self._trusted_stamp(found, stamp), rules=key, mode=mode), rules)

    def _trusted_stamp(self, found: os.stat_result, stamp: Stamp) -> Stamp | None:
        return None if max(found.st_mtime_ns, found.st_ctime_ns) >= self._limit else stamp

    def _recheck(self, directory: int, folder: Folder) -> Folder:
        """Compare the change times of a directory whose names are unchanged."""
        shown = change_times(directory, folder.encoded_names)
        if shown == folder.change_times:
            return folder
        if shown is None:  # one is gone
            return self._reread(directory, folder, folder.files)
        rows = zip(folder.files, *folder.change_times, *shown, strict=True)
        return self._reread(directory, folder, [name for name, *was, now, then in rows if was != [now, then]])

    def _reread(self, directory: int, folder: Folder, names: Iterable[str]) -> Folder:
        """Read again those of the named files that have changed."""
        changed = _find_changed(directory, {name: folder.files[name] for name in names})
        if not changed:
            return folder
        return _with_findings(folder, {name: self._read(directory, name, changed[name]) for name in changed})

    def _list(self, directory: int, folder: Folder, rules: IgnoreRules | None) -> Folder:
        known = self._known.get(folder.path, folder).files
        folders, ignored, findings = [], [], dict[str, ScanResult]()
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

    @contextmanager
    def open_folder(self, path: str) -> Iterator[int]:
        directory = self._open(self._root, tuple(path.split("/")) if path else ())
        try:
            yield directory
        finally:
            os.close(directory)

    def look_at(self, directory: int, path: str, names: Iterable[str]) -> Folder:
        """Look at the named files of a directory."""
        known = self._known.get(path, Folder(path)).files
        return _with_findings(Folder(path), {name: self._look(directory, name, known.get(name)) for name in names})

    def _look(self, directory: int, name: str, known: File | None) -> ScanResult:
        found = _stat(directory, name)
        if found is not None and known is not None and not known.racy and known.same(found):
            return known
        return self._read(directory, name, found)

    def _read(self, directory: int, name: str, found: os.stat_result | None) -> ScanResult:
        """Store the file's content as of one moment; mark it racy if it keeps changing."""
        file: File | None = None
        for _ in range(_ATTEMPTS):
            if found is None:
                return None
            if stat.S_ISLNK(found.st_mode):
                return self._read_link(directory, name, found)
            if not stat.S_ISREG(found.st_mode):
                return ODD
            try:
                opened = self._opener.open(directory, (name,), READING)
            except OSError as error:
                if error.errno not in _VANISHED:
                    return _reason(error)
                found = _stat(directory, name)
                continue
            file, found = self._keep(opened, name, found)
            if file.same(found):
                return file
        return file and file._replace(racy=True)

    def _read_link(self, directory: int, name: str, found: os.stat_result) -> ScanResult:
        try:
            target = os.readlink(name, dir_fd=directory)
        except OSError:  # replaced meanwhile; its directory has changed too and is listed next time
            return None
        return File.from_stat(found, self._put(io.BytesIO(os.fsencode(target)), name), self._limit)

    def _keep(self, opened: int, name: str, found: os.stat_result) -> tuple[File, os.stat_result]:
        """Store an open file; return it with the status before the read, and the status afterwards."""
        with io.FileIO(opened) as source:
            digest = self._put(source, name)
            return File.from_stat(found, digest, self._limit), os.fstat(opened)

    def _put(self, source: BinaryIO, name: str) -> str:
        try:
            return self._blobs.put(source)
        except OSError as error:
            raise to_gateway_error(error, (name,)) from error


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _names(directory: int) -> dict[str, bool]:
    """Return every name in a directory, and whether it is a directory."""
    with os.scandir(directory) as entries:
        return {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}


def _find_changed(directory: int, files: Mapping[str, File]) -> dict[str, os.stat_result | None]:
    """Return the files that changed, or were too recent to tell."""
    try:
        found: Iterable[os.stat_result | None] = list(map(partial(os.lstat, dir_fd=directory), files))
    except FileNotFoundError:  # one is gone, so stat each separately
        found = (_stat(directory, name) for name in files)
    return {
        name: now
        for (name, file), now in zip(files.items(), found, strict=True)
        if now is None or file.racy or file.stamp != stamp_of(now)
    }


def _with_findings(folder: Folder, findings: Mapping[str, ScanResult]) -> Folder:
    files, skipped = dict(folder.files), dict(folder.skipped)
    for name, finding in findings.items():
        files.pop(name, None)
        if isinstance(finding, File):
            files[name] = finding
        elif finding is not None:
            skipped[name] = finding
    # A change of permissions does not change the directory, so it is listed until the file is readable.
    stamp = None if UNREADABLE in skipped.values() else folder.stamp
    return replace(folder, stamp=stamp, files=files, skipped=skipped)


def _record_inaccessible(found: dict[str, Folder], path: str, error: OSError) -> None:
    """Record a listed directory that cannot be entered as skipped, or drop it if it is gone."""
    if not path:
        raise to_gateway_error(error, ()) from error
    above, _, name = path.rpartition("/")
    parent = found[above]
    skipped = dict(parent.skipped)
    if error.errno not in _VANISHED:
        skipped[name] = _reason(error)
    folders = tuple(folder for folder in parent.folders if folder != name)
    found[above] = replace(parent, stamp=None, folders=folders, skipped=skipped)


def _reason(error: OSError) -> str:
    if error.errno in _INACCESSIBLE:
        return _INACCESSIBLE[error.errno]
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
