"""Environments of packages in a chat's own workspace: fetched again when they are missing, so that no version has them.

All else in such a workspace is versioned, whatever its `.gitignore` files say: whoever wrote them is not the person who
wants files back. Only the two places where packages are installed are left out, and only while they say so themselves.
"""

from __future__ import annotations

import os
import stat

from gateway.workspace.index import Index
from gateway.workspace.openat import READING, Way
from gateway.workspace.tree import Tree

PLACES = (".venv", "node_modules")
MARK = ".gitignore"
# The whole of a `.gitignore` by which a directory takes itself out, as uv and Python write it.
EVERYTHING = b"*"

_KEY = "environment"


class Nothing:
    """The rule of an environment: nothing in it is versioned."""

    key = _KEY

    def ignores(self, path: str, is_directory: bool) -> bool:
        return True


class Environments:
    """The rules of a chat's own workspace."""

    _rule = Nothing()

    def inside(self, above: Nothing | None, path: str, directory: int, way: Way) -> Nothing | None:
        """The rule in the directory `path`, which is open: none but in an environment."""
        return self._rule if path in PLACES and _takes_itself_out(directory, way) else above


def without(index: Index, target: Tree) -> Tree:
    """A tree less what it has where an environment is, from before they were left out: that one stays as it is."""
    below = tuple(f"{place}/" for place in PLACES if place in index.folders and index.folders[place].rules == _KEY)
    if not below or not any(path.startswith(below) for path in (*target.files, *target.meta)):
        return target
    files, meta = (
        {path: said for path, said in part.items() if not path.startswith(below)}
        for part in (target.files, target.meta)
    )
    return Tree(files, meta)


def _takes_itself_out(directory: int, way: Way) -> bool:
    try:
        fd = way.open(directory, (MARK,), READING)
    except OSError:
        return False
    with os.fdopen(fd, "rb") as file:
        return stat.S_ISREG(os.fstat(fd).st_mode) and file.read(64).strip() == EVERYTHING
