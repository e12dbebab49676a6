"""A workspace's folder: snapshots of its files as a tree, and restoring an earlier tree into it."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import Conflict, GatewayError, NotFound
from gateway.tools import Hides, hide_nothing
from gateway.workspace import index as indexes
from gateway.workspace.blobs import BlobStore, blob_missing
from gateway.workspace.index import IGNORE_FILES, RACY_NANOSECONDS, File, Index
from gateway.workspace.openat import (
    DIRECTORY,
    READING,
    Parts,
    PathOpener,
    choose_opener,
    inaccessible_error,
    restore_access,
)
from gateway.workspace.os_errors import show_path
from gateway.workspace.protected_copies import rename_aside
from gateway.workspace.restore import Plan, Restore, plan
from gateway.workspace.snapshot import ODD, UNREADABLE, IgnoreSource, file_clock, scan, scan_ignored
from gateway.workspace.tree import LINK, Changes, Patch, Tree, apply, changes, diff, encode, locate

NAMES = (".venv", "node_modules")
MARK = ".gitignore"
# The whole `.gitignore` of a directory that ignores itself, as uv and Python write it.
EVERYTHING = b"*"

_KEY = "environment"


class IgnoreAll:
    """The rule inside a package directory: everything is ignored."""

    key = _KEY

    def ignores(self, path: str, is_directory: bool) -> bool:
        return True


class PackageDirectories:
    """The ignore rules of a chat's own workspace."""

    _rule = IgnoreAll()

    def inside(self, above: IgnoreAll | None, path: str, directory: int, opener: PathOpener) -> IgnoreAll | None:
        """Return the rule in the open directory `path`: none except in a package directory."""
        return self._rule if path in NAMES and _ignores_itself(directory, opener) else above


def without_packages(index: Index, target: Tree) -> Tree:
    """Return a tree without files in today's package directories; older versions may contain some."""
    below = tuple(f"{place}/" for place in NAMES if place in index.folders and index.folders[place].rules == _KEY)
    if not below or not any(path.startswith(below) for path in (*target.files, *target.meta)):
        return target
    files, meta = (
        {path: value for path, value in part.items() if not path.startswith(below)}
        for part in (target.files, target.meta)
    )
    return Tree(files, meta)


def _ignores_itself(directory: int, opener: PathOpener) -> bool:
    try:
        fd = opener.open(directory, (MARK,), READING)
    except OSError:
        return False
    with os.fdopen(fd, "rb") as file:
        return stat.S_ISREG(os.fstat(fd).st_mode) and file.read(64).strip() == EVERYTHING


# Place of the mode in the stamp of a file.
MODE = 4


@dataclass(frozen=True)
class Review:
    """The changes to the files since a version: `old` and `new` trees, `modes` with the permissions before and now of
    files where they differ, and `before`, the index at that version."""

    old: Tree
    new: Tree
    changes: Changes
    modes: Mapping[str, tuple[int, int]]
    before: Index

    @property
    def existing(self) -> tuple[str, ...]:
        """The files that existed before and have changed or are deleted."""
        return tuple(sorted({*self.changes.changed, *self.changes.deleted, *self.modes}))

    def join(self, other: Review) -> Review:
        """Return the changes of both as one review."""
        old, new = (
            Tree({**ours.files, **theirs.files}, {**ours.meta, **theirs.meta})
            for ours, theirs in ((self.old, other.old), (self.new, other.new))
        )
        return Review(old, new, changes(old, diff(old, new)), {**self.modes, **other.modes}, self.before)


def mode_changes(before: Index, now: Index) -> dict[str, tuple[int, int]]:
    """Return the permissions before and now of each existing file and directory whose mode changed."""
    found = {}
    for path, folder in now.folders.items():
        was = before.folders.get(path)
        if was is None or was is folder:
            continue
        if path and was.mode != folder.mode:
            found[encode(path)] = was.mode, folder.mode
        for name, file in folder.files.items():
            known = was.files.get(name)
            if known is not None and known.kind != LINK != file.kind and known.stamp[MODE] != file.stamp[MODE]:
                modes = stat.S_IMODE(known.stamp[MODE]), stat.S_IMODE(file.stamp[MODE])
                found[encode(folder.below(name))] = modes
    return found


def find_changes_by_others(old: Tree, after: Tree, now: Index, until: float | None) -> list[str]:
    """Return the paths that somebody other than the call has changed."""
    patch = diff(old, now.tree)
    found = {
        path for path in (*patch.files, *patch.meta) if _at(now.tree, path) not in (_at(old, path), _at(after, path))
    }
    if until is not None:
        files = {path: now.find(locate(path)) for path in patch.files}
        found |= {path for path, file in files.items() if file is not None and file.stamp[1] > until * 1e9}
    # A directory that contains one of these files is no longer empty.
    return sorted({*found, *(above for path in found for above in _above(path) if above in old.meta)})


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _at(tree: Tree, path: str) -> tuple[str | None, str | None]:
    return tree.files.get(path), tree.meta.get(path)


def graft(tree: Tree, other: Tree, paths: Sequence[str]) -> Tree:
    """Return `tree` with some paths taken from `other`."""
    files = {path: other.files.get(path) for path in paths}
    return apply(tree, Patch(files, {path: other.meta.get(path) for path in paths}))


def keep_hidden(current: Tree, target: Tree, hides: Hides) -> tuple[Tree, list[str]]:
    """Return `target` with the files that `hides` names as they are in `current`, and the paths that differ."""
    if hides is hide_nothing:
        return target, []
    patch = diff(current, target)
    left = {path for path in (*patch.files, *patch.meta) if hides(path)}
    # Entries of the target that would replace their directories are left out, too.
    above = {parent for path in left & current.files.keys() for parent in _above(path)}
    left |= above & (target.files.keys() | target.meta.keys())
    return graft(target, current, sorted(left)), sorted(left)


_MANY = 64  # for more files, waiting until their times can be trusted is faster than reading them again
_TICK_SECONDS = 0.005
_CLOCK_ATTEMPTS = 20
_ATTEMPTS = 10
_CLOCK_LAG = 0.1  # seconds that a file system's clock may be behind ours


class Checkout:
    """One folder. Its methods block: call them in a worker thread, one at a time per folder.

    The index file is a cache and may be deleted, stale or damaged at any time. In a folder of `ours`,
    directories that a program made inaccessible become accessible again; an attached folder is not changed.
    """

    def __init__(
        self,
        directory: Path,
        blobs: BlobStore,
        index_file: Path | None = None,
        ignore: IgnoreSource | None = None,
        opener: PathOpener | None = None,
        *,
        ours: bool = False,
    ) -> None:
        self._directory = directory
        self._blobs = blobs
        self._index_file = index_file
        self._ignore = ignore
        self._opener = opener or choose_opener()
        self._ours = ours
        self._index: Index | None = None
        self._ignored = Index()

    @property
    def skipped(self) -> Mapping[str, str]:
        """The paths that the last snapshot could not read, each with the reason."""
        return self._index.skipped if self._index else {}

    @property
    def index(self) -> Index:
        """The index of the last snapshot."""
        return self._index or Index()

    def snapshot(self) -> Tree:
        """Return the folder's files as a tree, with every content durably in the blob store."""
        with self._opened() as root:
            return self._scan(root).tree

    def materialize(self, target: Tree, seen: Tree | None = None) -> Changes:
        """Make the folder hold `target`, touching only what differs; doing it again finishes what a crash cut short.

        Refused before anything is touched when a content is missing, when an ignored file is in the
        opener, or, with `seen`, when the folder no longer holds exactly that. What no tree holds is
        never removed. When `seen` is the very tree the last snapshot returned, the folder is not
        looked through again: each path is, just before it is touched. Environments stay as they are.
        """
        with self._opened() as root:
            index = self._index if self._index is not None and self._index.tree is seen else self._scan(root)
            if seen is not None and diff(index.tree, seen):
                raise Conflict("the workspace was changed by someone else meanwhile; take a snapshot of it first")
            steps = plan(index, without_packages(index, target))
            self._require_contents(steps)
            written = Restore(root, self._opener, self._blobs, index).run(steps)
            self._index = index.after(steps.removed, _await_trusted_times(root, written))
        return changes(index.tree, steps.patch)

    def restore_ignore_files(self, old: Tree, before: Index, since: float) -> Tree:
        """Restore the ignore files of `old` and rename new ignore files that ignore themselves, so that a call since
        then cannot hide its changes. Return the tree with everything visible."""
        for _ in range(_ATTEMPTS):
            now = self._scan_readable(before)
            if self._rename_self_ignoring(now, since):
                continue
            hiding = [path for path in diff(now.tree, old).files if path.rpartition("/")[2] in IGNORE_FILES]
            if not hiding:
                return now.tree
            with suppress(Conflict):  # changed meanwhile: scan again
                self.materialize(graft(now.tree, old, hiding), now.tree)
        raise Conflict(
            "ignore files keep changing while they are restored; stop the program that writes them and try again"
        )

    def undo_changes(self, old: Tree, after: Tree, before: Index, until: float | None = None) -> list[str]:
        """Restore `old`, with the modes of `before`, wherever the folder contains what `after` has. Anything else was
        changed by somebody else, as was anything changed later than `until`, and stays. Return those paths."""
        for attempt in range(1, _ATTEMPTS + 1):
            now = self._scan_readable(before)
            theirs = find_changes_by_others(old, after, now, until)
            target = graft(old, now.tree, theirs)
            if not diff(now.tree, target):
                break
            try:
                self.materialize(target, now.tree)
            except Conflict:
                if attempt == _ATTEMPTS:
                    raise  # changed meanwhile, or something is in the way that is in no version
        with self._opened() as root:
            for path, (mode, _) in mode_changes(before, self._scan(root)).items():
                if path not in theirs:
                    _set_mode(self._opener, root, locate(path), mode)
        return theirs

    def watch_ignored(self, alone: bool) -> Index | str:
        """Return the small files that the last snapshot ignored; or why changes to them, or if not `alone` to others
        that no version has, cannot be undone."""
        lost = () if alone else self.skipped.items()
        for path, reason in lost:
            if reason != ODD:
                return f"{path!r} is {reason}"
        return self.snapshot_ignored() or ".gitignore names too many of them"

    def snapshot_ignored(self, before: Index | None = None) -> Index | None:
        """Return the small files that the last snapshot ignored, with every content durably in the blob store; or
        those of `before` that exist in directories of the last snapshot: one that is ignored now hides what happens in
        it. None if there are too many."""
        with self._opened() as root:
            return self._scan_ignored(root, before, self.index.folders if before is not None else None)

    def undo_ignored(self, review: Review) -> None:
        """Restore the ignored files of a review, with their modes, wherever the folder contains what the review has."""
        with self._opened() as root:
            now = self._scan_ignored(root, review.before) or Index()
            theirs = find_changes_by_others(review.old, review.new, now, None)
            target = graft(review.old, now.tree, theirs)
            steps = plan(now, target)
            for parts in steps.written.keys() - {locate(path) for path in now.tree.files}:
                with suppress(OSError):  # no such directory: it is made, or refused, below
                    parent = self._opener.open(root, parts[:-1], DIRECTORY)
                    try:
                        rename_aside(parent, parts[-1], parts[-1])  # a directory, say, or a larger file
                    finally:
                        os.close(parent)
            Restore(root, self._opener, self._blobs, now).run(steps)
            restored = self._scan_ignored(root, review.before) or Index()
            for path, (mode, _) in mode_changes(review.before, restored).items():
                if path not in theirs:
                    _set_mode(self._opener, root, locate(path), mode)

    def _scan_ignored(self, root: int, before: Index | None, visible: Collection[str] | None = None) -> Index | None:
        names: dict[str, Iterable[str]] = (
            {path: folder.ignored for path, folder in self.index.folders.items() if folder.ignored}
            if before is None
            else {path: each.files for path, each in before.folders.items() if visible is None or path in visible}
        )
        found = scan_ignored(root, self._opener, self._blobs, self._for_epoch(self._ignored), names, before is None)
        self._blobs.sync()
        self._ignored = found or Index()
        return found

    def _rename_self_ignoring(self, now: Index, since: float) -> bool:
        """Rename new ignore files that ignore themselves; return whether there were any."""
        found = False
        with self._opened() as root:
            for folder in now.folders.values():
                for name in folder.ignored.intersection(IGNORE_FILES):
                    parent = self._opener.open(root, tuple(folder.path.split("/")) if folder.path else (), DIRECTORY)
                    try:
                        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
                        if status.st_ctime > since - _CLOCK_LAG:
                            found = rename_aside(parent, name, name) is not None or found
                    finally:
                        os.close(parent)
        return found

    def _scan_readable(self, before: Index) -> Index:
        """Scan the folder after making files and directories readable again that were readable before."""
        with self._opened() as root:
            now = self._scan(root)
            closed = [
                (*(folder.path.split("/") if folder.path else ()), name)
                for folder in now.folders.values()
                for name, reason in folder.skipped.items()
                if reason == UNREADABLE
            ]
            for parts in closed:
                was = before.find(parts)
                if was is not None or "/".join(parts) in before.folders:
                    mode = was.stamp[MODE] if was is not None else before.folders["/".join(parts)].mode
                    _set_mode(self._opener, root, parts, mode)
            return self._scan(root) if closed else now

    def save(self) -> None:
        """Save the index for the next process, which otherwise reads every file once."""
        if self._index_file is None or self._index is None:
            return
        with suppress(OSError, GatewayError), self._opened() as root:  # failing to write the cache costs only time
            indexes.save(self._index, self._index_file, os.fstat(root))

    def _scan(self, root: int) -> Index:
        found = scan(root, self._opener, self._blobs, self._load_index(root), self._ignore, ours=self._ours)
        self._blobs.sync()
        self._index = found
        return found

    def _load_index(self, root: int) -> Index:
        """Return the index of the last scan, without files whose blobs a sweep has removed since."""
        known = self._index
        if known is None:
            known = indexes.load(self._index_file, os.fstat(root)) if self._index_file else Index()
        return self._for_epoch(known)

    def _for_epoch(self, known: Index) -> Index:
        epoch = self._blobs.epoch()
        if known.epoch == epoch:
            return known
        return known.for_epoch(epoch, self._blobs.missing(set(known.tree.files.values())))

    def _require_contents(self, steps: Plan) -> None:
        missing = self._blobs.missing({content.digest for content in steps.written.values()})
        for parts, content in steps.written.items():
            if content.digest in missing:
                raise blob_missing(content.digest, show_path(parts))

    @contextmanager
    def _opened(self) -> Iterator[int]:
        if self._ours:
            restore_access(self._directory)
        try:
            root = os.open(self._directory, os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError) as error:
            message = f"the folder {str(self._directory)!r} does not exist; create it or attach another one"
            raise NotFound(message, code="WORKSPACE_NOT_FOUND") from error
        except PermissionError as error:
            raise inaccessible_error(self._directory) from error
        try:
            yield root
        finally:
            os.close(root)


def _set_mode(opener: PathOpener, root: int, parts: Parts, mode: int) -> None:
    """Set the permissions of a file or directory without following a link."""
    with suppress(OSError):
        parent = opener.open(root, parts[:-1], DIRECTORY)
        try:
            if not hasattr(os, "O_PATH"):
                os.chmod(parts[-1], stat.S_IMODE(mode), dir_fd=parent, follow_symlinks=False)
                return
            fd = os.open(parts[-1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                Path(f"/proc/self/fd/{fd}").chmod(stat.S_IMODE(mode))
            finally:
                os.close(fd)
        finally:
            os.close(parent)


def _await_trusted_times(root: int, written: Mapping[Parts, File]) -> Mapping[Parts, File]:
    """Return the files with times that can be trusted. For many files, wait until the clock has moved past them."""
    if len(written) <= _MANY:
        return written
    newest = max(file.newest for file in written.values())
    for _ in range(_CLOCK_ATTEMPTS):
        if file_clock(root) - RACY_NANOSECONDS > newest:
            return {parts: file._replace(racy=False) for parts, file in written.items()}
        time.sleep(_TICK_SECONDS)
    return written
