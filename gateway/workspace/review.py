"""What a call did to a person's files: changed and deleted ones, permissions, and what somebody else did meanwhile."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.workspace.index import Index
from gateway.workspace.tree import LINK, Changes, Patch, Tree, apply, diff, encode, locate

# Place of the mode in the stamp of a file.
MODE = 4


@dataclass(frozen=True)
class Review:
    """What was done to the files since a version: `old` and `new` are the trees, `modes` the permissions of files
    before and now where they differ, `before` is what was seen at first."""

    old: Tree
    new: Tree
    changes: Changes
    modes: Mapping[str, tuple[int, int]]
    before: Index

    @property
    def existing(self) -> tuple[str, ...]:
        """The files that were there before and are not as they were."""
        return tuple(sorted({*self.changes.changed, *self.changes.deleted, *self.modes}))


def mode_changes(before: Index, now: Index) -> dict[str, tuple[int, int]]:
    """The permissions before and now of each file and directory that was there before and has others now."""
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


def others(old: Tree, after: Tree, now: Index, until: float | None) -> list[str]:
    """The paths that somebody else than the call has changed."""
    patch = diff(old, now.tree)
    found = {
        path for path in (*patch.files, *patch.meta) if _at(now.tree, path) not in (_at(old, path), _at(after, path))
    }
    if until is not None:
        files = {path: now.find(locate(path)) for path in patch.files}
        found |= {path for path, file in files.items() if file is not None and file.stamp[1] > until * 1e9}
    # No directory is empty in which they have a file.
    return sorted({*found, *(above for path in found for above in _above(path) if above in old.meta)})


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _at(tree: Tree, path: str) -> tuple[str | None, str | None]:
    return tree.files.get(path), tree.meta.get(path)


def graft(tree: Tree, other: Tree, paths: Sequence[str]) -> Tree:
    """A tree that has at some paths what another has."""
    files = {path: other.files.get(path) for path in paths}
    return apply(tree, Patch(files, {path: other.meta.get(path) for path in paths}))
