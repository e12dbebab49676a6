"""What turns one tree on disk into another, decided and checked before anything is touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from gateway.errors import Conflict, Invalid
from gateway.workspace.index import Index
from gateway.workspace.openat import Parts
from gateway.workspace.os_errors import shown
from gateway.workspace.snapshot import ODD
from gateway.workspace.tree import EMPTY_DIRECTORY, PLAIN, Patch, Tree, diff, directories, locate, require_sound


class Content(NamedTuple):
    """What is to be at a path."""

    digest: str
    kind: str


@dataclass(frozen=True)
class Plan:
    """Steps in their order; a step that a crash has already taken is taken again without harm."""

    # All of it, as a change of the tree.
    patch: Patch
    # Files and links that go.
    removed: tuple[Parts, ...]
    # Pipes, sockets and devices where something else is to be.
    obstacles: tuple[Parts, ...]
    # Directories that may go when nothing is left in them, deepest first.
    emptied: tuple[Parts, ...]
    # Those of them in whose place a file comes.
    cleared: frozenset[Parts]
    # Directories something is going to be in.
    kept: frozenset[Parts]
    written: Mapping[Parts, Content]
    # Directories with nothing in them.
    made: tuple[Parts, ...]


def plan(index: Index, target: Tree) -> Plan:
    """How to get from what `index` saw to `target`.

    Refused as INVALID_PATH when the target cannot be a directory, and as a conflict when something
    that is in no version, an ignored file for one, is where the target has something else.
    """
    current = index.tree
    patch = diff(current, target)
    named = {path: locate(path) for path in (*patch.files, *patch.meta) if path in target.files or path in target.meta}
    require_sound(target, named)
    made = [path for path in named if target.meta.get(path) == EMPTY_DIRECTORY]
    _require_empty(target, made)
    removed = [locate(path) for path, digest in patch.files.items() if digest is None]
    dropped = [locate(path) for path in patch.meta if current.meta.get(path) == EMPTY_DIRECTORY]
    written = {
        parts: Content(target.files[path], target.meta.get(path, PLAIN))
        for path, parts in named.items()
        if path in target.files
    }
    cleared = _cleared(index, written, set(removed))
    wanted = {above for parts in named.values() for above in _above(parts)} | {named[path] for path in made}
    emptied = {*(parts[:-1] for parts in removed), *dropped, *cleared} - wanted - {()}
    return Plan(
        patch=patch,
        removed=tuple(removed),
        obstacles=tuple(_obstacles(index, named.values())),
        emptied=tuple(sorted(emptied, key=len, reverse=True)),
        kept=frozenset(wanted),
        cleared=frozenset(cleared),
        written=written,
        made=tuple(named[path] for path in made),
    )


def _require_empty(target: Tree, paths: list[str]) -> None:
    if not paths:
        return
    above = directories(Tree(target.files))
    for path in paths:
        if path in above:
            raise Invalid(f"the version has {path!a} as an empty directory with something in it", code="INVALID_PATH")


def _cleared(index: Index, written: Iterable[Parts], removed: AbstractSet[Parts]) -> set[Parts]:
    """Every directory at or below a path where a file is to be; all that is in them must be going."""
    tops = {"/".join(parts) for parts in written} & index.folders.keys()
    folders = [folder for folder in index.folders.values() if tops and _is_at_or_below(folder.path, tops)]
    for folder in folders:
        parts = tuple(folder.path.split("/"))
        staying = [*folder.ignored, *(name for name, reason in folder.skipped.items() if reason != ODD)]
        if staying:
            raise _occupied((*parts, staying[0]))
        for name in folder.files:
            if (*parts, name) not in removed:
                raise Invalid(f"the version has a file {shown(parts)!r} and something in it", code="INVALID_PATH")
    return {tuple(folder.path.split("/")) for folder in folders}


def _is_at_or_below(path: str, tops: AbstractSet[str]) -> bool:
    return path in tops or any("/".join(parts) in tops for parts in _above(tuple(path.split("/"))))


def _obstacles(index: Index, paths: Iterable[Parts]) -> Iterator[Parts]:
    """What is on the way to a path and is in no version: removed when it holds nothing, else a conflict."""
    for place in {parts[:depth] for parts in paths for depth in range(1, len(parts) + 1)}:
        folder = index.folders.get("/".join(place[:-1]))
        if folder is None:
            continue
        reason = folder.skipped.get(place[-1])
        if place[-1] in folder.ignored or reason not in (None, ODD):
            raise _occupied(place)
        if reason is not None:
            yield place


def _above(parts: Parts) -> Iterator[Parts]:
    return (parts[:depth] for depth in range(1, len(parts)))


def _occupied(parts: Parts) -> Conflict:
    return Conflict(
        f"{shown(parts)!r} is in the way of the version to restore, and in no version itself (it is ignored or "
        "not readable); move it away first",
        code="UNVERSIONED_FILE",
        path=shown(parts),
    )
