"""Removing contents that no version names any more, and what writers left behind."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from .blobs import FileBlobs

_SHARD = re.compile("[0-9a-f]{2}")


@dataclass(frozen=True)
class Swept:
    """What a sweep removed."""

    blobs: int = 0
    temporary: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Size:
    """What is kept."""

    blobs: int = 0
    bytes: int = 0


def sweep(blobs: FileBlobs, live: Collection[str], older_than: float, now: float) -> Swept:
    """Remove blobs not in `live`, and temporary files, that nobody wrote or found for `older_than` seconds.

    A writer in another process may rely on any blob it finds: it makes it young first, and both do so
    under one lock. What it relies on must be in `live` before `older_than` seconds have passed.
    """
    before = now - older_than
    blobs.begin_epoch()
    removed = [_sweep_shard(shard, live, before, blobs) for shard in _shards(blobs)]
    leftovers = _remove_older(blobs.temporary.iterdir(), before)
    return Swept(sum(map(len, removed)), len(leftovers), sum(map(sum, removed)) + sum(leftovers))


def size(blobs: FileBlobs) -> Size:
    found = [_stat(path) for shard in _shards(blobs) for path in shard.iterdir()]
    sizes = [stat.st_size for stat in found if stat is not None]
    return Size(len(sizes), sum(sizes))


def _shards(blobs: FileBlobs) -> list[Path]:
    return sorted(path for path in blobs.directory.iterdir() if _SHARD.fullmatch(path.name))


def _sweep_shard(shard: Path, live: Collection[str], before: float, blobs: FileBlobs) -> list[int]:
    dead = [path for path in shard.iterdir() if path.name not in live]
    with blobs.held(fcntl.LOCK_EX):  # a writer that finds one of them now waits, and then finds nothing
        return _remove_older(dead, before)


def _remove_older(paths: Iterable[Path], before: float) -> list[int]:
    """Sizes of the files that were older, and are gone."""
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
    except FileNotFoundError:  # another sweep, or its writer, was first
        return None
