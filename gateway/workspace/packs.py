"""Packs: many small contents in one file. Creating a file waits for the journal of the file system, thousands of them
for seconds while others write; appending to one file does not."""

# ruff: noqa: PTH104, PTH208 - called for every file of an import, where creating a Path each time is measurable

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import orjson

from gateway.files import sync_directory

# A full pack is finished: only a pack of which nothing is used any more can be removed.
PACK_BYTES = 64 * 1024 * 1024

_FOOTER = struct.Struct(">Q8s")  # the size of the index before it, which is JSON: {digest: [offset, size]}
_MAGIC = b"tgpack01"


class Place(NamedTuple):
    """A content inside a pack."""

    pack: str
    offset: int
    size: int


class Packs:
    """The packs of a directory. Written by one thread at a time, and complete on disk before they are visible."""

    def __init__(self, directory: Path, temporary: Path) -> None:
        self._directory = str(directory)
        self._temporary = temporary
        self._listed: frozenset[str] = frozenset()
        self._places: Mapping[str, Place] = {}
        self._writing: tuple[int, str] | None = None
        self._new: dict[str, Place] = {}
        self._size = 0

    def add(self, digest: str, content: bytes) -> None:
        """Append a content to the pack that is being written."""
        if self._writing is None:
            path = f"{self._temporary}/{secrets.token_hex(8)}"
            self._writing = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444), path
        descriptor, path = self._writing
        _write(descriptor, content, self._size)
        self._new[digest] = Place(path, self._size, len(content))
        self._size += len(content)
        if self._size >= PACK_BYTES:
            self.finish()

    def finish(self) -> None:
        """Make the pack that is being written durable, then visible. If that fails, its contents are forgotten and have
        to be put again."""
        if self._writing is None:
            return
        (descriptor, temporary), new, size = self._writing, self._new, self._size
        self._writing, self._new, self._size = None, {}, 0
        try:
            os.makedirs(self._directory, 0o700, exist_ok=True)  # noqa: PTH103
            index = orjson.dumps({digest: place[1:] for digest, place in new.items()})
            end = _write(descriptor, index + _FOOTER.pack(len(index), _MAGIC), size)
            os.ftruncate(descriptor, end)  # a write that failed may have left something behind it
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        name = f"{secrets.token_hex(8)}.pack"
        path = f"{self._directory}/{name}"
        os.rename(temporary, path)
        sync_directory(self._directory)
        self._places = {**self._places, **{digest: place._replace(pack=path) for digest, place in new.items()}}
        self._listed |= {name}

    def find(self, digest: str) -> Place | None:
        """Return the place of a content, as far as the packs listed last have it."""
        return self._new.get(digest) or self._places.get(digest)

    def read(self, digest: str) -> bytes | None:
        """Return a content, None if no pack has it; other processes may have added and removed some."""
        for attempt in range(2):
            place = self.find(digest)
            if place is not None:
                with suppress(FileNotFoundError):
                    return _read(place)
            if attempt == 0:
                self.list()
        return None

    def list(self) -> None:
        """Read the indexes of new packs, and forget those that are gone."""
        try:
            names = frozenset(name for name in os.listdir(self._directory) if name.endswith(".pack"))
        except FileNotFoundError:
            names = frozenset()
        if names == self._listed:
            return
        gone = {f"{self._directory}/{name}" for name in self._listed - names}
        places = {digest: place for digest, place in self._places.items() if place.pack not in gone}
        for name in names - self._listed:
            places.update(read_index(f"{self._directory}/{name}"))
        self._places, self._listed = places, names

    def by_pack(self) -> Iterator[tuple[Path, set[str]]]:
        """Yield every pack with the digests of its contents."""
        self.list()
        for name in sorted(self._listed):
            path = f"{self._directory}/{name}"
            yield Path(path), {digest for digest, place in self._places.items() if place.pack == path}


def read_index(path: str) -> dict[str, Place]:
    """Return the places of a pack's contents; none if the pack is gone or damaged."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - _FOOTER.size, 0))
            size, magic = _FOOTER.unpack(file.read(_FOOTER.size))
            file.seek(end - _FOOTER.size - size)
            index = orjson.loads(file.read(size)) if magic == _MAGIC else {}
    except (OSError, ValueError, struct.error):
        return {}
    return {digest: Place(path, offset, length) for digest, (offset, length) in index.items()}


def _read(place: Place) -> bytes:
    descriptor = os.open(place.pack, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, place.size, place.offset)
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: bytes, offset: int) -> int:
    """Write at the offset, over what a failed write may have left there; return the offset after it."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written
    return offset
