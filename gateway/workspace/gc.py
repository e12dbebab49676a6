"""Garbage collection: removes blobs that no version references and temporary files; reports the size of the rest."""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.workspace.blobs import FileBlobs
from gateway.workspace.openat import LISTING, Parts, PathOpener, choose_opener
from gateway.workspace.packs import read_index
from gateway.workspace.walk import TEMPORARY, WALK_LIMIT, remove_tree

_SHARD = re.compile("[0-9a-f]{2}")
_LEFTOVER = re.compile(re.escape(TEMPORARY) + "[0-9a-f]{16}")


@dataclass(frozen=True)
class SweepResult:
    """Counts of what a sweep removed."""

    blobs: int = 0
    temporary: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class BlobsSize:
    """Number and total size of stored blobs."""

    blobs: int = 0
    bytes: int = 0


def sweep(blobs: FileBlobs, live: Collection[str], older_than: float, now: float) -> SweepResult:
    """Remove blobs not in `live`, and temporary files, that nobody wrote or used for `older_than` seconds.

    A writer in another process may rely on any blob it finds: it renews the blob's age first, under the same lock.
    What it relies on must be in `live` before `older_than` seconds have passed.
    """
    before = now - older_than
    blobs.begin_epoch()
    removed = [_sweep_shard(shard, live, before, blobs) for shard in _shards(blobs)]
    removed += [_sweep_packs(live, before, blobs)]
    leftovers = _remove_older(blobs.temporary.iterdir(), before)
    return SweepResult(sum(map(len, removed)), len(leftovers), sum(map(sum, removed)) + sum(leftovers))


def remove_leftovers(folder: Path, before: float) -> int:
    """Remove temporary files that killed writers left in a workspace; return their number.

    Removes only names of our pattern that are older than `before`. Follows no link; searches at most `WALK_LIMIT`
    directories.
    """
    removed, pending, opener = 0, list[Parts]([()]), choose_opener()
    root = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC | os.O_RDONLY)
    try:
        for _ in range(WALK_LIMIT):
            if not pending:
                break
            gone, below = _remove_leftovers(opener, root, pending.pop(), before)
            pending += below
            removed += gone
    finally:
        os.close(root)
    return removed


def size(blobs: FileBlobs) -> BlobsSize:
    found = [_stat(path) for shard in _shards(blobs) for path in shard.iterdir()]
    sizes = [stat.st_size for stat in found if stat is not None]
    sizes += [place.size for path, _ in blobs.packs.by_pack() for place in read_index(str(path)).values()]
    return BlobsSize(len(sizes), sum(sizes))


def sizes(chats: Path, limit: int = WALK_LIMIT) -> tuple[dict[str, BlobsSize], bool]:
    """Return the size of each chat's blobs, and whether all were counted: at most `limit` files are."""
    found: dict[str, list[int]] = {}
    blobs = itertools.chain(chats.glob("*/blobs/packs/*.pack"), chats.glob("*/blobs/[0-9a-f][0-9a-f]/*"))
    for path in itertools.islice(blobs, limit):
        if path.suffix:
            found.setdefault(path.parts[-4], []).extend(place.size for place in read_index(str(path)).values())
        elif (stat_result := _stat(path)) is not None:
            found.setdefault(path.parts[-4], []).append(stat_result.st_size)
    return {chat: BlobsSize(len(counts), sum(counts)) for chat, counts in found.items()}, next(blobs, None) is None


def _remove_leftovers(opener: PathOpener, root: int, parts: Parts, before: float) -> tuple[int, list[Parts]]:
    """Remove the leftovers of one directory; return their number and its subdirectories."""
    try:
        directory = opener.open(root, parts, LISTING)
    except OSError:  # gone, not accessible, or on another file system
        return 0, []
    try:
        with os.scandir(directory) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        gone = [
            name for name, _ in found if _LEFTOVER.fullmatch(name) and _remove_leftover(opener, directory, name, before)
        ]
        return len(gone), [(*parts, name) for name, is_dir in found if is_dir and not _LEFTOVER.fullmatch(name)]
    finally:
        os.close(directory)


def _remove_leftover(opener: PathOpener, directory: int, name: str, before: float) -> bool:
    with suppress(OSError):  # somebody else removed it, or we have no permission
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if max(found.st_mtime, found.st_ctime) >= before:
            return False
        if stat.S_ISDIR(found.st_mode):  # part of a deleted tree that was too deep to delete at once
            deque(remove_tree(opener, directory, (name,)), maxlen=0)
        else:
            os.unlink(name, dir_fd=directory)
        return True
    return False


def _shards(blobs: FileBlobs) -> list[Path]:
    return sorted(path for path in blobs.directory.iterdir() if _SHARD.fullmatch(path.name))


def _sweep_shard(shard: Path, live: Collection[str], before: float, blobs: FileBlobs) -> list[int]:
    dead = [path for path in shard.iterdir() if path.name not in live]
    with blobs.held(shared=False):  # a writer that looks for one of them now waits, then does not find it
        return _remove_older(dead, before)


def _sweep_packs(live: Collection[str], before: float, blobs: FileBlobs) -> list[int]:
    """Remove packs of which nothing is used."""
    dead = [path for path, digests in blobs.packs.by_pack() if digests.isdisjoint(live)]
    with blobs.held(shared=False):
        return _remove_older(dead, before)


def _remove_older(paths: Iterable[Path], before: float) -> list[int]:
    """Remove the older files; return their sizes."""
    sizes = []
    for path in paths:
        found = _stat(path)
        if found is not None and found.st_mtime < before:
            path.unlink(missing_ok=True)
            sizes.append(found.st_size)
    return sizes


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:  # another sweep or its writer removed it
        return None
