"""What of a call an operator's patterns are compared with: its texts and its paths, and only so much of them."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote

import anyio.to_thread

from gateway.calls import Call
from gateway.errors import GatewayError
from gateway.sources.builtin import patch as patches
from gateway.tools import Tool

T = TypeVar("T")

# How long all rules together may look at one call, in steps of about 30 ns: a character compared is one, a text some
# more. The event loop waits that long.
STEPS = 400_000

# Characters; a longer text is no path.
LONGEST_PATH = 4096

EACH_TEXT = 15
EACH_VALUE = 5

_FILE = re.compile(r"file:(?://(?:localhost(?=/))?)?", re.IGNORECASE)
_PATCHED = re.compile(
    r"\n(?:--- |\+\+\+ |(?:rename|copy) (?:from|to) |Index: |\*\*\* (?:(?:Add|Update|Delete) File: |Move to: )?)"
    r"([^\t\n]+)|\ndiff --git ([^\n]+)"
)
_BESIDE = re.compile(r'(?<=\S) (?="?[a-z]/)')
_ESCAPED = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}

# Whether a file of the call's chat is there under one of these paths.
Overwrites = Callable[[Call, Sequence[str]], Awaitable[bool]]


class TooMuch(Exception):
    """There is more to look at than a rule may take time for."""


class Look:
    """One call, as all rules see it: what was read of it is not read again, and what is spent is spent for all."""

    def __init__(self, call: Call, overwrites: Overwrites | None = None) -> None:
        self.call = call
        self.overwrites = overwrites
        self._left = STEPS
        self._read: dict[str, Any] = {}

    def spend(self, steps: int) -> None:
        """Refuses with `TooMuch` once there were too many."""
        self._left -= steps
        if self._left < 0:
            raise TooMuch

    def once(self, what: str, read: Callable[[], Iterator[T]]) -> Sequence[T]:
        """All that `read` finds, read by the first rule that asks."""
        found: Sequence[T] | None = self._read.get(what)
        if found is None:
            found = self._read[what] = list(read())
        return found

    def texts(self) -> Sequence[str]:
        """Every text, however deep, keys of inner objects included; a list of words also as the one line it may be."""
        return self.once("texts", self._texts)

    async def paths(self) -> Sequence[str] | None:
        """Every text that could be a path, and what patches name; None for a patch nobody can read. Of the tool that
        applies patches, what it will itself make of one."""
        tool = self.call.tool
        if tool is None or tool.patch_argument is None:
            return self.once("paths", self._paths)
        if "patched" not in self._read:
            raw = await patched(self.call.arguments.get(tool.patch_argument))
            self._read["patched"] = raw and [path for each in raw for path in _readings(each)]
        found: Sequence[str] | None = self._read["patched"]
        return found

    def _texts(self) -> Iterator[str]:
        waiting: list[Any] = list(self.call.arguments.values())
        while waiting:
            each = waiting.pop()
            if isinstance(each, str):
                yield each
            elif isinstance(each, list | tuple):
                self.spend(EACH_VALUE * len(each))
                waiting += each
                if each and all(isinstance(word, str) for word in each):
                    yield " ".join(each)
            elif isinstance(each, Mapping):
                self.spend(2 * EACH_VALUE * len(each))
                waiting += each
                waiting += each.values()

    def _paths(self) -> Iterator[str]:
        for text in self.texts():
            self.spend(EACH_TEXT)
            yield from self._paths_in(text.strip())

    def _paths_in(self, bare: str) -> Iterator[str]:
        if "\n" in bare:
            self.spend(bare.count("\n") + len(bare) // 64)
            for match in _PATCHED.finditer(f"\n{bare}"):
                self.spend(EACH_TEXT + len(match[0]))
                for name in [match[1]] if match[1] else _beside(match[2]):
                    yield from _spellings(name)
        elif 0 < len(bare) <= LONGEST_PATH:
            self.spend(len(bare) // 16)
            yield from _readings(bare)


async def named_paths(call: Call) -> frozenset[str]:
    """Every path that a call names; none where there is too much to look at."""
    try:
        return frozenset(await Look(call).paths() or ())
    except TooMuch:
        return frozenset()


def is_builtin(tool: Tool) -> bool:
    return tool.kind == "builtin" and tool.owner is None


async def patched(patch: Any) -> list[str] | None:
    """What the tool that applies patches would touch, before and after; None when it cannot read the patch."""
    return await anyio.to_thread.run_sync(_patched, str(patch))


def folded(text: str) -> str:
    """Without regard to case and to how accents are spelled, as some file systems have it."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFC", text.casefold())


def _patched(patch: str) -> list[str] | None:
    try:
        files = patches.parse(patch)
    except (GatewayError, ValueError):
        return None
    return [path for file in files for path in (file.old, file.new) if path is not None]


def _readings(path: str) -> Iterator[str]:
    """A path without detours; a backslash parts it on some systems, and belongs to a name on others."""
    if path[:5].lower() == "file:":
        path = unquote(_FILE.sub("", path, count=1))
    yield posixpath.normpath(path)
    if "\\" in path:
        yield posixpath.normpath(path.replace("\\", "/"))


def _beside(names: str) -> Iterator[str]:
    """The two names of a `diff --git` line, which nothing but a blank parts: in every way it may be meant."""
    yield from _BESIDE.split(names)
    if " " in names:
        yield from names.split(" ")


def _spellings(name: str) -> Iterator[str]:
    """What a line of a patch may mean: with and without git's `a/` or `b/`."""
    bare = _unquoted(name.strip())
    if not 0 < len(bare) <= LONGEST_PATH:
        return
    yield from _readings(bare)
    if bare[:2] in ("a/", "b/") and bare[2:]:
        yield from _readings(bare[2:])


def _unquoted(name: str) -> str:
    """A name as git quotes it: C escapes, bytes in octal."""
    if not (len(name) > 1 and name[0] == name[-1] == '"'):
        return name

    def plain(match: re.Match[bytes]) -> bytes:
        said = match[1]
        return bytes([int(said, 8) & 0xFF]) if said.isdigit() else _ESCAPES.get(said, said)

    return _ESCAPED.sub(plain, name[1:-1].encode("utf-8", "surrogatepass")).decode("utf-8", "surrogateescape")
