"""Which files of a person's folder are none of our business: what `.gitignore` and `.toolgateignore` say."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from .beneath import READING, Way

FILES = (".gitignore", ".toolgateignore")
"""Read in this order in every directory; the later wins."""

_ALWAYS = ".git"
_ABSENT = {errno.ENOENT, errno.ELOOP, errno.EACCES, errno.EISDIR}  # git does not follow a link here either


@dataclass(frozen=True)
class Rules:
    """What holds in a directory: its own patterns, then those of the directories above."""

    base: str
    spec: GitIgnoreSpec | None
    above: Rules | None
    key: str
    """Equal for equal rules, now and in another process."""

    def ignores(self, path: str, is_directory: bool) -> bool:
        """Whether git would pass over `path`, given that it does not pass over the directory it is in."""
        if path.rpartition("/")[2].lower() == _ALWAYS:
            return True
        rules: Rules | None = self
        while rules is not None:
            verdict = rules._verdict(path, is_directory)
            if verdict is not None:
                return verdict
            rules = rules.above
        return False

    def _verdict(self, path: str, is_directory: bool) -> bool | None:
        if self.spec is None:
            return None
        inside = path[len(self.base) + 1 :] if self.base else path
        return self.spec.check_file(f"{inside}/" if is_directory else inside).include


_NONE = Rules("", None, None, "none")


class Ignore:
    """The rules of a folder, read from it as they are at the moment."""

    def __init__(self) -> None:
        self._specs: dict[str, GitIgnoreSpec] = {}

    def inside(self, above: Rules | None, path: str, directory: int, way: Way) -> Rules:
        """The rules in the directory `path`, which is open, given those of the one above it."""
        above = above or _NONE
        text = "\n".join(_read(directory, name, way) for name in FILES)
        if not text.strip():
            return above
        content = "\0".join([above.key, path, text]).encode("utf-8", "surrogateescape")
        return Rules(path, self._compiled(text), above, hashlib.sha256(content).hexdigest())

    def _compiled(self, text: str) -> GitIgnoreSpec:
        if text not in self._specs:
            lines = [line.removesuffix("\r") for line in text.split("\n")]
            self._specs[text] = GitIgnoreSpec.from_lines(filter(_is_valid, lines))
        return self._specs[text]


def _read(directory: int, name: str, way: Way) -> str:
    try:
        fd = way.open(directory, (name,), READING)
    except OSError as error:
        if error.errno in _ABSENT:
            return ""
        raise
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return os.fsdecode(file.read().removeprefix(b"\xef\xbb\xbf"))


def _is_valid(line: str) -> bool:
    """git passes over a pattern it cannot read; so do we."""
    try:
        GitIgnoreSpecPattern(line)
    except ValueError:
        return False
    return True
