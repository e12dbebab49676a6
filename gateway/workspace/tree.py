"""What a workspace holds, as a value: a tree of names and contents, and the patches between trees."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.errors import Invalid
from gateway.workspace.openat import Parts
from gateway.workspace.walk import TEMPORARY

# The kinds of things in a tree; a plain file is what `meta` does not mention.
PLAIN, EXECUTABLE, LINK, EMPTY_DIRECTORY = "", "x", "l", "d"

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ESCAPED = re.compile("[\uef80-\uefff]")


@dataclass(frozen=True)
class Tree:
    """`files` maps the path of each file and link to the SHA-256 of its bytes (a link's are its target);
    `meta` says of some paths what kind they are. Never changed once made."""

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
        """The one patch that does what this one and then `later` do."""
        return Patch({**self.files, **later.files}, {**self.meta, **later.meta})


@dataclass(frozen=True)
class Changes:
    """Which paths a patch touches, sorted; a directory that is or was empty ends in `/`."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.deleted)


def diff(old: Tree, new: Tree) -> Patch:
    """The smallest patch that turns `old` into `new`."""
    if old is new:
        return Patch()
    return Patch(_diff(old.files, new.files), _diff(old.meta, new.meta))


def apply(tree: Tree, patch: Patch) -> Tree:
    return Tree(_apply(tree.files, patch.files), _apply(tree.meta, patch.meta)) if patch else tree


def changes(old: Tree, patch: Patch) -> Changes:
    """What `patch` does to `old`, for a person to read."""
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
    """Every directory of the tree, the empty ones and those above a file."""
    found = {path for path, kind in tree.meta.items() if kind == EMPTY_DIRECTORY}
    for path in (*tree.files, *found):
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return found


def encode(name: str) -> str:
    """A name as the file system gave it, as text that JSON and every database take.

    Bytes that are not UTF-8 become U+EF80 to U+EFFF; those characters themselves are written byte by
    byte in the same way, so that `decode` brings every name back.
    """
    if name.isascii():
        return name
    return "".join(map(_encoded, name))


def decode(path: str) -> str:
    """The name on disk that `encode` made `path` of."""
    if path.isascii() or not _ESCAPED.search(path):
        return path
    return os.fsdecode(b"".join(map(_decoded, path)))


def locate(path: str) -> Parts:
    """Where on disk a path of a tree lies; refused when it could lie outside, or have a second spelling."""
    parts = tuple(path.split("/"))
    if "\0" in path or any(part in ("", ".", "..") or part.startswith(TEMPORARY) for part in parts):
        raise _unsound(path, "is no path inside a workspace")
    if path.isascii():
        return parts
    try:
        path.encode()
        on_disk = decode(path)
    except UnicodeEncodeError:
        on_disk = ""
    if encode(on_disk) != path:
        raise _unsound(path, "is not how a name on disk is written in a tree")
    return tuple(on_disk.split("/"))


def require_sound(tree: Tree, paths: Iterable[str]) -> None:
    """Refuse a tree of which `paths` could not all be on disk at once."""
    for path in paths:
        kind, digest = tree.meta.get(path, PLAIN), tree.files.get(path)
        if (digest is None) != (kind == EMPTY_DIRECTORY) or kind not in (PLAIN, EXECUTABLE, LINK, EMPTY_DIRECTORY):
            raise _unsound(path, f"cannot be of kind {kind!r}")
        if digest is not None and not is_digest(digest):
            raise _unsound(path, f"has {digest!r} for the SHA-256 of its content")
        above = path
        while above := above.rpartition("/")[0]:
            if above in tree.files or above in tree.meta:
                raise _unsound(path, f"lies in {above!r}, which is no directory with something in it")


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


def _encoded(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as Python hands it out
        return chr(code - 0xDC00 + 0xEF00)
    if 0xEF80 <= code <= 0xEFFF:
        return "".join(chr(0xEF00 | byte) for byte in character.encode())
    return character


def _decoded(character: str) -> bytes:
    code = ord(character)
    return bytes([code & 0xFF]) if 0xEF80 <= code <= 0xEFFF else character.encode()


def _unsound(path: str, fault: str) -> Invalid:
    named = path if len(path) <= 200 else f"{path[:200]}…"
    return Invalid(f"the version names {named!a}, which {fault}; it cannot be restored", code="INVALID_PATH")
