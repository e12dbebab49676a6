"""Files that approval rules hide from programs, found in a chat's folder before a program starts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from gateway.errors import Unavailable
from gateway.tools import Hides

# Files and directories to hide: path, reason, device and inode (to notice a replacement).
Hidden = tuple[tuple[str, str, int, int], ...]

# Files and directories examined before a program starts.
ENTRIES = 200_000

DEPTH = 200
# Mounts in one sandbox: hidden files and the directories above them. So many take about a second.
MOUNTS_LIMIT = 250


def find_hidden(folder: Path, hides: Hides) -> Hidden:
    """Find every file under `folder` that `hides` selects, under all its names; blocks. A directory with nothing but
    hidden files is returned in their place. Refused if there is more to examine or to hide than the limits allow."""
    search = _Search(folder, hides)
    found = dict(search.search("", 0)[0])
    found |= _find_links(folder, search.files)
    above = {path[:index] for path in found for index, letter in enumerate(path) if letter == "/"}
    if len(found) + len(above) > MOUNTS_LIMIT:
        counted = f"{len(found)} files in {len(above)} directories"
        raise _refuse(f"the rules hide {counted} from programs, and at most {MOUNTS_LIMIT} together can be hidden")
    return tuple(sorted(_identify(folder, found)))


def hidden_paths(hidden: Hidden) -> tuple[tuple[str, str], ...]:
    """Return only paths and reasons."""
    return tuple((path, reason) for path, reason, *_ in hidden)


class _Search:
    """A walk over a folder. `files` are the files to hide, each with the reason."""

    def __init__(self, folder: Path, hides: Hides) -> None:
        self.files: dict[str, str] = {}
        self._folder = folder
        self._hides = hides
        self._left = ENTRIES

    def search(self, directory: str, depth: int) -> tuple[list[tuple[str, str]], bool]:
        """Return what to hide under a directory, and True if it contains nothing else. A directory that cannot be
        listed is hidden whole: a program of the same user could make it readable."""
        try:
            entries = self._list(directory, depth)
        except (FileNotFoundError, NotADirectoryError):
            return [], True
        except OSError:
            return [(directory, "a rule of approval.rules")], False
        found: list[tuple[str, str]] = []
        only = True
        for entry in entries:
            path = f"{directory}/{entry.name}" if directory else entry.name
            if entry.is_dir(follow_symlinks=False):
                inner, whole = self.search(path, depth + 1)
                if whole and inner and (reason := self._hides(path)):
                    inner = [(path, reason)]
                found += inner
                only &= whole
            elif reason := self._hides(path):
                if not entry.is_symlink():  # its target is found under its own name
                    self.files[path] = reason
                    found.append((path, reason))
            else:
                only = False
        return found, only

    def _list(self, directory: str, depth: int) -> list[os.DirEntry[str]]:
        if depth > DEPTH:
            raise OSError("nested too deeply")
        with os.scandir(self._folder / directory) as entries:
            listed = list(islice(entries, self._left + 1))
        self._left -= len(listed)
        if self._left < 0:
            raise _refuse(
                f"the rules hide files from programs, and there are more than {ENTRIES} files to search for them"
            )
        return listed


def _find_links(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """Find hard links to these files."""
    linked = {(found.st_dev, found.st_ino): files[path] for path, found in _stats(folder, files) if found.st_nlink > 1}
    if not linked:
        return {}
    paths = (os.path.relpath(f"{top}/{name}", folder) for top, _, names in os.walk(folder) for name in names)
    found = ((path, linked.get((each.st_dev, each.st_ino))) for path, each in _stats(folder, paths))
    return {path: reason for path, reason in found if reason is not None and path not in files}


def _identify(folder: Path, found: dict[str, str]) -> Iterator[tuple[str, str, int, int]]:
    for path, each in _stats(folder, found):
        if stat.S_ISREG(each.st_mode) or stat.S_ISDIR(each.st_mode):
            yield path, found[path], each.st_dev, each.st_ino


def _stats(folder: Path, paths: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the status of each path that still exists."""
    for path in paths:
        try:
            yield path, os.stat(folder / path, follow_symlinks=False)  # noqa: PTH116 - thousands of them
        except OSError:
            continue


def _refuse(why: str) -> Unavailable:
    advice = "name whole directories in the rule, or move the files out of the workspace"
    return Unavailable(f"{why}; {advice}", code="FILES_NOT_HIDDEN")
