"""Removing contents that no version names any more, and what writers left behind."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from .blobs import TEMPORARY_DIRECTORY, FileBlobs
from .tree import is_digest


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
    removed = [_sweep_shard(blobs, shard, live, before) for shard in _shards(blobs)]
    leftovers = _remove(blobs, [entry for entry in _entries(blobs, TEMPORARY_DIRECTORY) if _older(entry, before)])
    return Swept(
        blobs=sum(map(len, removed)),
        temporary=len(leftovers),
        bytes=sum(map(sum, removed)) + sum(leftovers),
    )


def size(blobs: FileBlobs) -> Size:
    sizes = [entry.stat().st_size for shard in _shards(blobs) for entry in _entries(blobs, shard)]
    return Size(len(sizes), sum(sizes))


def _sweep_shard(blobs: FileBlobs, shard: str, live: Collection[str], before: float) -> list[int]:
    dead = [entry for entry in _entries(blobs, shard) if entry.name not in live]
    with blobs.held(fcntl.LOCK_EX):  # looked at again in here: a writer may have found it since
        return _remove(blobs, [entry for entry in dead if _older(entry, before)])
