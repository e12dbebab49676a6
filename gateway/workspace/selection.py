"""Which of a chat's files are meant: paths and globs over a tree, and a tree with only those brought back."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import NotFound
from gateway.tools import Hides, hide_nothing
from gateway.workspace.globs import Glob
from gateway.workspace.paths import parse
from gateway.workspace.tree import Tree, directories, encode


class Selection:
    """A path means that file, or all that is in that directory; a glob means what it matches, and
    all that is in a directory it matches. No pattern at all means everything. Of what is meant, a file that is hidden
    is `left_out`."""

    def __init__(self, patterns: Sequence[str] = (), hides: Hides = hide_nothing) -> None:
        self.left_out: set[str] = set()
        self._hides = hides
        self._all = not patterns
        self._paths = {tuple(map(encode, parse(pattern))) for pattern in patterns}
        self._globs = [Glob(pattern) for pattern in patterns if any(sign in pattern for sign in "*?[{")]

    def __contains__(self, path: object) -> bool:
        """Whether a path of a tree is meant; one that ends in `/` is a directory."""
        text = str(path)
        if not (self._all or self._includes(tuple(text.rstrip("/").split("/")))):
            return False
        if self._hides(text):
            self.left_out.add(text)
            return False
        return True

    def _includes(self, parts: tuple[str, ...]) -> bool:
        return any(self._means(parts[:depth]) for depth in range(len(parts) + 1))

    def _means(self, parts: tuple[str, ...]) -> bool:
        return parts in self._paths or any(glob.matches(parts) for glob in self._globs)


def brought_back(current: Tree, earlier: Tree, selection: Selection) -> Tree:
    """`current`, but what is selected as it was in `earlier`: there as it was there, gone where it was
    not. Refused when neither has anything that is selected."""
    if not any(path in selection for tree in (current, earlier) for path in (*tree.files, *tree.meta)):
        raise NotFound("neither that version nor the files now have anything at these paths", code="FILE_NOT_FOUND")
    taken = Tree(
        {path: digest for path, digest in earlier.files.items() if path in selection},
        {path: kind for path, kind in earlier.meta.items() if path in selection},
    )
    above = directories(taken)  # a file that stands where one of these must be gives way
    files = {path: digest for path, digest in current.files.items() if path not in selection and path not in above}
    meta = {path: kind for path, kind in current.meta.items() if path not in selection and path not in above}
    return Tree({**files, **taken.files}, {**meta, **taken.meta})
