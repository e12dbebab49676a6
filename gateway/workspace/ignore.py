"""GitIgnore rules of an attached folder, from its `.gitignore` and `.toolgateignore` files."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import re
import stat
from dataclasses import dataclass

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from gateway.workspace.index import IGNORE_FILES
from gateway.workspace.openat import READING, PathOpener

# Expression, and whether it ignores or includes; the last line of a file first, since it takes precedence.
Patterns = tuple[tuple[re.Pattern[str], bool], ...]

_ALWAYS_IGNORED = ".git"
_CACHE_SIZE = 256
_ABSENT = {errno.ENOENT, errno.ELOOP, errno.EACCES}  # git does not follow a link here either


@dataclass(frozen=True)
class GitIgnoreRules:
    """The rules in a directory: its own patterns, then those of the directories above."""

    base: str
    patterns: Patterns
    above: GitIgnoreRules | None
    # Equal for equal rules, now and in another process.
    key: str

    def ignores(self, path: str, is_directory: bool) -> bool:
        """Return whether git ignores `path`, given that it does not ignore the directory it is in."""
        if path.rpartition("/")[2].lower() == _ALWAYS_IGNORED:
            return True
        rules: GitIgnoreRules | None = self
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


_NO_RULES = GitIgnoreRules("", (), None, "none")


class GitIgnore:
    """Reads the rules of a folder as they are now."""

    def __init__(self) -> None:
        self._compile = functools.lru_cache(_CACHE_SIZE)(_compile)

    def inside(self, above: GitIgnoreRules | None, path: str, directory: int, opener: PathOpener) -> GitIgnoreRules:
        """Return the rules in the open directory `path`, given those of the directory above."""
        above = above or _NO_RULES
        text = "\n".join(_read(directory, name, opener) for name in IGNORE_FILES)
        if not text.strip():
            return above
        content = "\0".join([above.key, path, text]).encode("utf-8", "surrogateescape")
        return GitIgnoreRules(path, self._compile(text), above, hashlib.sha256(content).hexdigest())


def _matches(expression: re.Pattern[str], path: str, is_directory: bool) -> bool:
    """Return whether a pattern matches this path itself.

    pathspec's expressions also match paths below a matched directory; the match then ends before the path does.
    Git checks every directory on the way separately, and so does the scan: otherwise `!*.d` would include
    everything in `conf.d`.
    """
    if not expression.groupindex:  # `*`, `dir/**`: all the way down
        return expression.search(path) is not None
    subject = f"{path}/" if is_directory else path
    return any(match.end() == len(subject) for match in expression.finditer(subject))


def _compile(text: str) -> Patterns:
    found = [_pattern(line.removesuffix("\r")) for line in text.split("\n")]
    return tuple(pattern for pattern in reversed(found) if pattern)


def _pattern(line: str) -> tuple[re.Pattern[str], bool] | None:
    try:
        pattern = GitIgnoreSpecPattern(line)
    except ValueError:  # git skips a pattern it cannot parse; so do we
        return None
    if pattern.regex is None or pattern.include is None:  # a comment, or an empty line
        return None
    return pattern.regex, pattern.include


def _read(directory: int, name: str, opener: PathOpener) -> str:
    try:
        fd = opener.open(directory, (name,), READING)
    except OSError as error:
        if error.errno in _ABSENT:
            return ""
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return ""
    with os.fdopen(fd, "rb") as file:
        return os.fsdecode(file.read().removeprefix(b"\xef\xbb\xbf"))
