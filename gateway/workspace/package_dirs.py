"""Package directories of a chat's own workspace, which are in no version: they can be installed again.

Everything else in such a workspace is versioned, whatever its `.gitignore` files say, because the model may have
written them. Only `.venv` and `node_modules` are left out, and only if their own `.gitignore` ignores everything.
"""

from __future__ import annotations

import os
import stat

from gateway.workspace.index import Index
from gateway.workspace.openat import READING, PathOpener
from gateway.workspace.tree import Tree

NAMES = (".venv", "node_modules")
MARK = ".gitignore"
# The whole `.gitignore` of a directory that ignores itself, as uv and Python write it.
EVERYTHING = b"*"

_KEY = "environment"


class IgnoreAll:
    """The rule inside a package directory: everything is ignored."""

    key = _KEY

    def ignores(self, path: str, is_directory: bool) -> bool:
        return True


class PackageDirectories:
    """The ignore rules of a chat's own workspace."""

    _rule = IgnoreAll()

    def inside(self, above: IgnoreAll | None, path: str, directory: int, opener: PathOpener) -> IgnoreAll | None:
        """Return the rule in the open directory `path`: none except in a package directory."""
        return self._rule if path in NAMES and _ignores_itself(directory, opener) else above


def without_packages(index: Index, target: Tree) -> Tree:
    """Return a tree without files in today's package directories; older versions may contain some."""
    below = tuple(f"{place}/" for place in NAMES if place in index.folders and index.folders[place].rules == _KEY)
    if not below or not any(path.startswith(below) for path in (*target.files, *target.meta)):
        return target
    files, meta = (
        {path: value for path, value in part.items() if not path.startswith(below)}
        for part in (target.files, target.meta)
    )
    return Tree(files, meta)


def _ignores_itself(directory: int, opener: PathOpener) -> bool:
    try:
        fd = opener.open(directory, (MARK,), READING)
    except OSError:
        return False
    with os.fdopen(fd, "rb") as file:
        return stat.S_ISREG(os.fstat(fd).st_mode) and file.read(64).strip() == EVERYTHING
