"""Which files of a person's folder are none of our business: what `.gitignore` and `.toolgateignore` say."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import re
import stat
from dataclasses import dataclass

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from gateway.workspace.openat import READING, Way

# Read in this order in every directory; the later wins.
FILES = (".gitignore", ".toolgateignore")

# What matches, and whether that is ignored or brought back; the last line of a file first, since it wins.
Patterns = tuple[tuple[re.Pattern[str], bool], ...]

_ALWAYS = ".git"
_KEPT = 256
_ABSENT = {errno.ENOENT, errno.ELOOP, errno.EACCES}  # git does not follow a link here either


@dataclass(frozen=True)
class Rules:
    """What holds in a directory: its own patterns, then those of the directories above."""

    base: str
    patterns: Patterns
    above: Rules | None
    # Equal for equal rules, now and in another process.
    key: str

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
        inside = path[len(self.base) + 1 :] if self.base else path
        for expression, ignored in self.patterns:
            if _matches(expression, inside, is_directory):
                return ignored
        return None


_NONE = Rules("", (), None, "none")


class Ignore:
    """The rules of a folder, read from it as they are at the moment."""

    def __init__(self) -> None:
        self._compiled = functools.lru_cache(_KEPT)(_compiled)

    def inside(self, above: Rules | None, path: str, directory: int, way: Way) -> Rules:
        """The rules in the directory `path`, which is open, given those of the one above it."""
        above = above or _NONE
        text = "\n".join(_read(directory, name, way) for name in FILES)
        if not text.strip():
            return above
        content = "\0".join([above.key, path, text]).encode("utf-8", "surrogateescape")
        return Rules(path, self._compiled(text), above, hashlib.sha256(content).hexdigest())


def _matches(expression: re.Pattern[str], path: str, is_directory: bool) -> bool:
    """Whether a pattern means this path itself.

    pathspec's expressions also match what lies below the directory that is meant, and then end before
    the path does. Git asks for every directory on the way on its own, and so does the scan: else
    `!*.d` would bring back all that is in `conf.d`.
    """
    if not expression.groupindex:  # `*`, `dir/**`: all the way down
        return expression.search(path) is not None
    subject = f"{path}/" if is_directory else path
    return any(match.end() == len(subject) for match in expression.finditer(subject))


def _compiled(text: str) -> Patterns:
    found = [_pattern(line.removesuffix("\r")) for line in text.split("\n")]
    return tuple(pattern for pattern in reversed(found) if pattern)


def _pattern(line: str) -> tuple[re.Pattern[str], bool] | None:
    try:
        pattern = GitIgnoreSpecPattern(line)
    except ValueError:  # git passes over a pattern it cannot read; so do we
        return None
    if pattern.regex is None or pattern.include is None:  # a comment, or an empty line
        return None
    return pattern.regex, pattern.include


def _read(directory: int, name: str, way: Way) -> str:
    try:
        fd = way.open(directory, (name,), READING)
    except OSError as error:
        if error.errno in _ABSENT:
            return ""
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return ""
    with os.fdopen(fd, "rb") as file:
        return os.fsdecode(file.read().removeprefix(b"\xef\xbb\xbf"))
