"""Ignored files, which no version has: find those that a call may change, keep their content beside the versions, and
restore it."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import GatewayError
from gateway.tools import Hides, hide_nothing
from gateway.workspace.blobs import BlobStore
from gateway.workspace.checkout import NAMES, PackageDirectories
from gateway.workspace.openat import Parts
from gateway.workspace.paths import Root
from gateway.workspace.snapshot import IgnoreSource
from gateway.workspace.tree import EXECUTABLE, Patch, Tree, apply, diff, encode, locate
from gateway.workspace.walk import Entry

# Source of a version with the ignored files as they were before the call of its `source_ref`. It is beside the head.
KEPT = "kept"

FILE_LIMIT = 1000
BYTE_LIMIT = 64 * 1024 * 1024

_NAMED = 3


@dataclass(frozen=True)
class UnversionedFiles:
    """Existing files that a call may change and no version has. With `kept` they are few and small enough to be copied;
    without it `files` has only the first of them."""

    files: tuple[Parts, ...] = ()
    kept: bool = True

    def __str__(self) -> str:
        names = ", ".join(repr("/".join(parts)) for parts in self.files[:_NAMED])
        more = len(self.files) - _NAMED
        others = f" and {more if self.kept else 'many'} more" if more > 0 else ""
        are, them = ("is", "it") if len(self.files) == 1 else ("are", "them")
        text = f"{names}{others} {are} ignored by .gitignore, so no version has {them}"
        if self.kept:
            return f"{text}; a copy is kept for `toolgate workspace undo`"
        return f"{text}, and there is too much to keep a copy: this cannot be undone"


@dataclass(frozen=True)
class RestoredCopies:
    """Ignored files that are as they were before a call; `replaced` is the version with what they contained."""

    paths: tuple[str, ...]
    call: str | None
    replaced: str | None


def make_ignore_source(attached: bool) -> IgnoreSource:
    # pathspec is slow to import, and only attached folders need .gitignore rules
    return importlib.import_module(".ignore", __package__).GitIgnore() if attached else PackageDirectories()


def find_unversioned(root: Root, attached: bool, paths: Iterable[Parts]) -> UnversionedFiles:
    """Return the ignored files at and below these paths."""
    ignore = make_ignore_source(attached)
    wanted = dict.fromkeys(parts for parts in paths if parts and (attached or parts[0] in NAMES))
    files: dict[Parts, int] = {}
    for parts in wanted:
        for entry in _find_ignored(root, ignore, parts):
            files[entry.parts] = entry.stat.st_size if entry.kind == "file" else BYTE_LIMIT + 1
            if len(files) > FILE_LIMIT or sum(files.values()) > BYTE_LIMIT:
                return UnversionedFiles(tuple(files), kept=False)
    return UnversionedFiles(tuple(files))


def store(root: Root, blobs: BlobStore, head: Tree, files: Sequence[Parts]) -> Tree:
    """Put the files into the blob store; return the tree of the head with them."""
    digests, kinds = dict[str, str | None](), dict[str, str | None]()
    for parts in files:
        path = "/".join(map(encode, parts))
        with root.open(parts) as content:
            digests[path] = blobs.put(content)
        entry = root.find(parts)
        if entry is not None and entry.stat.st_mode & 0o100:
            kinds[path] = EXECUTABLE
    blobs.sync()
    return apply(head, Patch(digests, kinds))


def find_changed(root: Root, old: Tree, kept: Tree, hides: Hides = hide_nothing) -> tuple[list[Parts], list[Parts]]:
    """Return the files that `kept` has and `old` lacks, if their content on disk differs or is gone; and those of them
    that exist. Hidden files are left out."""
    changed, existing = [], []
    for path, digest in diff(old, kept).files.items():
        parts = locate(path)
        if hides(path):
            continue
        try:
            with root.open(parts) as content:
                if hashlib.sha256(content.read()).hexdigest() == digest:
                    continue
            existing.append(parts)
        except GatewayError:  # gone, or something else has its name
            if root.find(parts) is not None:
                continue
        changed.append(parts)
    return changed, existing


def put_back(root: Root, blobs: BlobStore, kept: Tree, files: Sequence[Parts]) -> None:
    """Write the kept content. A missing file is made readable by its owner only: versions have no permissions."""
    for parts in files:
        path = "/".join(map(encode, parts))
        with blobs.open(kept.files[path]) as content:
            data = content.read()
        mode = None if root.find(parts) is not None else 0o700 if kept.meta.get(path) == EXECUTABLE else 0o600
        root.make_directories(parts[:-1])
        root.replace(parts, data, mode=mode)


def _find_ignored(root: Root, ignore: IgnoreSource, parts: Parts) -> Iterator[Entry]:
    rules: Any = None
    entry: Entry | None = None
    for depth in range(len(parts)):
        above, here = parts[:depth], parts[: depth + 1]
        try:
            with root.opened(above) as directory:
                rules = ignore.inside(rules, "/".join(above), directory, root.opener)
            entry = root.find(here)
        except GatewayError:  # a link or no directory: the tool refuses it
            return
        if entry is None:
            return
        if rules is not None and rules.ignores("/".join(here), entry.kind == "directory"):
            yield from _below(root, parts)
            return
    if entry is not None and entry.kind == "directory":
        yield from _find_ignored_inside(root, ignore, rules, parts)


def _find_ignored_inside(root: Root, ignore: IgnoreSource, rules: Any, parts: Parts) -> Iterator[Entry]:
    with root.opened(parts) as directory:
        rules = ignore.inside(rules, "/".join(parts), directory, root.opener)
    with root.walk(parts, 1) as entries:
        for entry in list(entries):
            if rules is not None and rules.ignores("/".join(entry.parts), entry.kind == "directory"):
                yield from _below(root, entry.parts)
            elif entry.kind == "directory":
                yield from _find_ignored_inside(root, ignore, rules, entry.parts)


def _below(root: Root, parts: Parts) -> Iterator[Entry]:
    """Yield the file at a path, or every one below it."""
    entry = root.find(parts)
    if entry is not None and entry.kind != "directory":
        yield entry
    elif entry is not None:
        with root.walk(parts) as entries:
            yield from (inner for inner in entries if inner.kind != "directory")
