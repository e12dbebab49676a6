"""The files of a workspace as a value: a tree of paths and digests, and the patches between trees."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.errors import Invalid
from gateway.workspace.openat import Parts
from gateway.workspace.walk import TEMPORARY

# Kinds of entries in a tree; a path without `meta` is a plain file.
PLAIN, EXECUTABLE, LINK, EMPTY_DIRECTORY = "", "x", "l", "d"

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ESCAPED = re.compile("[\uef80-\uefff]")


@dataclass(frozen=True)
class Tree:
    """Paths and digests. `files` maps each file and link to the SHA-256 of its bytes (for a link, of its target);
    `meta` has the kind of paths that are not plain files. Immutable."""

    files: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, str] = field(default_factory=dict)


EMPTY = Tree()


@dataclass(frozen=True)
class Patch:
    """Two merge patches (RFC 7396): a value sets, `None` deletes."""

    files: Mapping[str, str | None] = field(default_factory=dict)
    meta: Mapping[str, str | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.files or self.meta)

    def then(self, later: Patch) -> Patch:
        """Return one patch with the effect of this one followed by `later`."""
        return Patch({**self.files, **later.files}, {**self.meta, **later.meta})


@dataclass(frozen=True)
class Changes:
    """Paths that a patch touches, sorted; an empty directory ends in `/`."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.deleted)


def diff(old: Tree, new: Tree) -> Patch:
    """Return the smallest patch that turns `old` into `new`."""
    if old is new:
        return Patch()
    return Patch(_diff(old.files, new.files), _diff(old.meta, new.meta))


def apply(tree: Tree, patch: Patch) -> Tree:
    return Tree(_apply(tree.files, patch.files), _apply(tree.meta, patch.meta)) if patch else tree


def changes(old: Tree, patch: Patch) -> Changes:
    """Return the paths that `patch` adds, changes and deletes in `old`."""
    before = {path: (old.files.get(path), old.meta.get(path)) for path in (*patch.files, *patch.meta)}
    after = {path: (patch.files.get(path, file), patch.meta.get(path, kind)) for path, (file, kind) in before.items()}
    added = {path for path in before if before[path][0] is None and after[path][0] is not None}
    deleted = {path for path in before if before[path][0] is not None and after[path][0] is None}
    changed = {path for path in before.keys() - added - deleted if before[path][0] and before[path] != after[path]}
    if any(EMPTY_DIRECTORY in (before[path][1], after[path][1]) for path in patch.meta):
        was, now = directories(old), directories(apply(old, patch))
        added |= {f"{path}/" for path in patch.meta if path in now - was}
        deleted |= {f"{path}/" for path in patch.meta if path in was - now}
    return Changes(*(tuple(sorted(paths)) for paths in (added, changed, deleted)))


def directories(tree: Tree) -> set[str]:
    """Return every directory of the tree, empty ones included."""
    found = {path for path, kind in tree.meta.items() if kind == EMPTY_DIRECTORY}
    for path in (*tree.files, *found):
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found


def encode(name: str) -> str:
    """Encode a name from the file system as text that JSON and every database accept.

    Bytes that are not UTF-8 become U+EF80 to U+EFFF; those characters themselves are encoded byte by byte in the same
    way, so that `decode` is exact.
    """
    if name.isascii():
        return name
    return "".join(map(_encode_character, name))


def decode(path: str) -> str:
    """Return the name on disk that `encode` encoded as `path`."""
    if path.isascii() or not _ESCAPED.search(path):
        return path
    return os.fsdecode(b"".join(map(_decode_character, path)))


def locate(path: str) -> Parts:
    """Return the location of a tree's path on disk; refused if it leads outside or is not in canonical form."""
    parts = tuple(path.split("/"))
    if "\0" in path or any(part in ("", ".", "..") or part.startswith(TEMPORARY) for part in parts):
        raise _invalid_tree(path, "is not a path inside a workspace")
    if path.isascii():
        return parts
    try:
        path.encode()
        on_disk = decode(path)
    except UnicodeEncodeError:
        on_disk = ""
    if encode(on_disk) != path:
        raise _invalid_tree(path, "is not a canonical encoding of a name")
    return tuple(on_disk.split("/"))


def require_sound(tree: Tree, paths: Iterable[str]) -> None:
    """Refuse a tree if `paths` cannot all exist on disk together."""
    for path in paths:
        kind, digest = tree.meta.get(path, PLAIN), tree.files.get(path)
        if (digest is None) != (kind == EMPTY_DIRECTORY) or kind not in (PLAIN, EXECUTABLE, LINK, EMPTY_DIRECTORY):
            raise _invalid_tree(path, f"cannot be of kind {kind!r}")
        if digest is not None and not is_digest(digest):
            raise _invalid_tree(path, f"has {digest!r} for the SHA-256 of its content")
        above = path
        while above := above.rpartition("/")[0]:
            if above in tree.files or above in tree.meta:
                raise _invalid_tree(path, f"is inside {above!r}, which is not a directory with content")


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def _diff(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str | None]:
    patch: dict[str, str | None] = {path: value for path, value in new.items() if old.get(path) != value}
    added = sum(path not in old for path in patch)
    if len(old) + added > len(new):
        patch.update((path, None) for path in old if path not in new)
    return patch


def _apply(values: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**values, **patch}
    return {path: value for path, value in merged.items() if value is not None}


def _encode_character(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as surrogateescape represents it
        return chr(code - 0xDC00 + 0xEF00)
    if 0xEF80 <= code <= 0xEFFF:
        return "".join(chr(0xEF00 | byte) for byte in character.encode())
    return character


def _decode_character(character: str) -> bytes:
    code = ord(character)
    return bytes([code & 0xFF]) if 0xEF80 <= code <= 0xEFFF else character.encode()


def _invalid_tree(path: str, fault: str) -> Invalid:
    named = path if len(path) <= 200 else f"{path[:200]}…"
    return Invalid(f"the version names {named!a}, which {fault}; it cannot be restored", code="INVALID_PATH")
