"""A workspace's folder and its versions: what is in it as a tree, and any earlier tree back in it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import Conflict, NotFound
from . import access
from . import index as indexes
from .beneath import Parts, Way, best_way
from .blobs import BlobStore, blob_missing
from .environments import without
from .index import RACY_NANOSECONDS, File, Index
from .plan import Plan, plan
from .refusals import shown
from .restore import Restore
from .snapshot import Ignore, file_clock, scan
from .tree import Changes, Tree, changes, diff

_MANY = 64  # from here on waiting until a file's times can be trusted costs less than reading it again
_TICK_SECONDS = 0.005
_PATIENCE = 20


class Checkout:
    """One folder. Its methods block: call them in a worker thread, one at a time for a folder.

    The index file is a cache and may be deleted, stale or damaged at any time. In a folder of `ours`,
    directories that a program locked are opened to their owner again; a person's stay as they are.
    """

    def __init__(
        self,
        directory: Path,
        blobs: BlobStore,
        index_file: Path | None = None,
        ignore: Ignore | None = None,
        way: Way | None = None,
        *,
        ours: bool = False,
    ) -> None:
        self._directory = directory
        self._blobs = blobs
        self._index_file = index_file
        self._ignore = ignore
        self._way = way or best_way()
        self._ours = ours
        self._index: Index | None = None

    @property
    def skipped(self) -> Mapping[str, str]:
        """What the last snapshot could not take into the tree, and why."""
        return self._index.skipped if self._index else {}

    def snapshot(self) -> Tree:
        """What is in the folder, every content of it durably in the blob store."""
        with self._opened() as root:
            return self._scan(root).tree

    def materialize(self, target: Tree, seen: Tree | None = None) -> Changes:
        """Make the folder hold `target`, touching only what differs; doing it again finishes what a crash cut short.

        Refused before anything is touched when a content is missing, when an ignored file is in the
        way, or, with `seen`, when the folder no longer holds exactly that. What no tree holds is
        never removed. When `seen` is the very tree the last snapshot returned, the folder is not
        looked through again: each path is, just before it is touched. Environments stay as they are.
        """
        with self._opened() as root:
            index = self._index if self._index is not None and self._index.tree is seen else self._scan(root)
            if seen is not None and diff(index.tree, seen):
                raise Conflict("the workspace was changed by someone else meanwhile; take a snapshot of it first")
            steps = plan(index, without(index, target))
            self._require_contents(steps)
            written = Restore(root, self._way, self._blobs, index).run(steps)
            self._index = index.after(steps.removed, _settled(root, written))
        return changes(index.tree, steps.patch)

    def save(self) -> None:
        """Keep the index for the next process; without it that one reads every file once."""
        if self._index_file is None or self._index is None:
            return
        with self._opened() as root, suppress(OSError):  # a cache that cannot be written costs time, nothing else
            indexes.save(self._index, self._index_file, os.fstat(root))

    def _scan(self, root: int) -> Index:
        found = scan(root, self._way, self._blobs, self._known(root), self._ignore, ours=self._ours)
        self._blobs.sync()
        self._index = found
        return found

    def _known(self, root: int) -> Index:
        """What was seen before, less the files whose contents a sweep has removed since."""
        known = self._index
        if known is None:
            known = indexes.load(self._index_file, os.fstat(root)) if self._index_file else Index()
        epoch = self._blobs.epoch()
        if known.epoch == epoch:
            return known
        return known.under(epoch, self._blobs.missing(set(known.tree.files.values())))

    def _require_contents(self, steps: Plan) -> None:
        missing = self._blobs.missing({content.digest for content in steps.written.values()})
        for parts, content in steps.written.items():
            if content.digest in missing:
                raise blob_missing(content.digest, shown(parts))

    @contextmanager
    def _opened(self) -> Iterator[int]:
        if self._ours:
            access.restore(self._directory)
        try:
            root = os.open(self._directory, os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError) as error:
            message = f"the folder {str(self._directory)!r} does not exist; create it or attach another one"
            raise NotFound(message, code="WORKSPACE_NOT_FOUND") from error
        except PermissionError as error:
            raise access.locked(self._directory) from error
        try:
            yield root
        finally:
            os.close(root)


def _settled(root: int, written: Mapping[Parts, File]) -> Mapping[Parts, File]:
    """The files with times that can be trusted; a moment is waited for that when they are many."""
    if len(written) <= _MANY:
        return written
    newest = max(file.newest for file in written.values())
    for _ in range(_PATIENCE):
        if file_clock(root) - RACY_NANOSECONDS > newest:
            return {parts: file._replace(racy=False) for parts, file in written.items()}
        time.sleep(_TICK_SECONDS)
    return written
