"""Texts and paths in the arguments of a call, for comparison with an operator's patterns, within a limit of work."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import anyio.to_thread

from gateway.calls import Call
from gateway.errors import GatewayError, Unavailable
from gateway.sources.builtin import patch as patches
from gateway.tools import Access, Tool
from gateway.workspace.protected import PROTECTED_NAMES, reason_to_ask

T = TypeVar("T")

# Limit of the work of all rules on one call, in steps of about 30 ns, for which the event loop waits. Comparing one
# character is one step, reading a text some more.
STEP_LIMIT = 400_000

# Characters; a longer text is not a path.
PATH_CHARACTERS = 4096

TEXT_STEPS = 15
VALUE_STEPS = 5

_FILE_URL = re.compile(r"file:(?://(?:localhost(?=/))?)?", re.IGNORECASE)
_PATCH_HEADER = re.compile(
    r"\n(?:--- |\+\+\+ |(?:rename|copy) (?:from|to) |Index: |\*\*\* (?:(?:Add|Update|Delete) File: |Move to: )?)"
    r"([^\t\n]+)|\ndiff --git ([^\n]+)"
)
_BETWEEN_NAMES = re.compile(r'(?<=\S) (?="?[a-z]/)')
_ESCAPED = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}

# True if a file of the call's chat exists under one of these paths.
Overwrites = Callable[[Call, Sequence[str]], Awaitable[bool]]


class ArgumentsTooLarge(Exception):
    """Comparing the arguments takes more steps than allowed."""


class CallArguments:
    """The arguments of one call as rules see them. Texts and paths are read once, and all rules share one limit."""

    def __init__(self, call: Call, overwrites: Overwrites | None = None) -> None:
        self.call = call
        self.overwrites = overwrites
        self._steps = STEP_LIMIT
        self._cache: dict[str, Any] = {}

    def charge(self, steps: int) -> None:
        """Count work; raise `ArgumentsTooLarge` above the limit."""
        self._steps -= steps
        if self._steps < 0:
            raise ArgumentsTooLarge

    def read_once(self, key: str, read: Callable[[], Iterator[T]]) -> Sequence[T]:
        """Return what `read` yields; only the first call of a key reads."""
        values: Sequence[T] | None = self._cache.get(key)
        if values is None:
            values = self._cache[key] = list(read())
        return values

    def texts(self) -> Sequence[str]:
        """Return every text at any depth, keys of inner objects included; a list of words also joined to one line."""
        return self.read_once("texts", self._read_texts)

    async def paths(self) -> Sequence[str] | None:
        """Return every text that could be a path, and the paths in patches. Of a tool with a `patch_argument`, return
        the paths of that patch alone; None if the patch cannot be parsed."""
        tool = self.call.tool
        if tool is None or tool.patch_argument is None:
            return self.read_once("paths", self._read_paths)
        if "patched" not in self._cache:
            patch = str(self.call.arguments.get(tool.patch_argument))
            paths = await anyio.to_thread.run_sync(_parse_patch, patch)
            self._cache["patched"] = paths and [form for path in paths for form in _normal_forms(path)]
        patched: Sequence[str] | None = self._cache["patched"]
        return patched

    def _read_texts(self) -> Iterator[str]:
        values: list[Any] = list(self.call.arguments.values())
        while values:
            value = values.pop()
            if isinstance(value, str):
                yield value
            elif isinstance(value, list | tuple):
                self.charge(VALUE_STEPS * len(value))
                values += value
                if value and all(isinstance(word, str) for word in value):
                    yield " ".join(value)
            elif isinstance(value, Mapping):
                self.charge(2 * VALUE_STEPS * len(value))
                values += value
                values += value.values()

    def _read_paths(self) -> Iterator[str]:
        for text in self.texts():
            self.charge(TEXT_STEPS)
            yield from self._paths_in(text.strip())

    def _paths_in(self, text: str) -> Iterator[str]:
        if "\n" in text:
            self.charge(text.count("\n") + len(text) // 64)
            for match in _PATCH_HEADER.finditer(f"\n{text}"):
                self.charge(TEXT_STEPS + len(match[0]))
                for name in [match[1]] if match[1] else _split_names(match[2]):
                    yield from _patch_forms(name)
        elif 0 < len(text) <= PATH_CHARACTERS:
            self.charge(len(text) // 16)
            yield from _normal_forms(text)


async def find_paths(call: Call) -> frozenset[str]:
    """Return every path that a call names; none if its arguments are too large."""
    try:
        return frozenset(await CallArguments(call).paths() or ())
    except ArgumentsTooLarge:
        return frozenset()


def fold(text: str) -> str:
    """Return the text without differences of case and of Unicode form, which some file systems ignore."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFC", text.casefold())


def _parse_patch(patch: str) -> list[str] | None:
    """Return the paths that a patch names, before and after; None if it cannot be parsed."""
    try:
        files = patches.parse(patch)
    except (GatewayError, ValueError):
        return None
    return [path for file in files for path in (file.old, file.new) if path is not None]


def _normal_forms(path: str) -> Iterator[str]:
    """Yield the normalized path. A backslash separates on some systems and is part of a name on others."""
    if path[:5].lower() == "file:":
        path = unquote(_FILE_URL.sub("", path, count=1))
    yield posixpath.normpath(path)
    if "\\" in path:
        yield posixpath.normpath(path.replace("\\", "/"))


def _split_names(names: str) -> Iterator[str]:
    """Yield the names of a `diff --git` line, split at its spaces in every possible way: names may contain spaces."""
    yield from _BETWEEN_NAMES.split(names)
    if " " in names:
        yield from names.split(" ")


def _patch_forms(name: str) -> Iterator[str]:
    """Yield the paths that a name in a patch may mean: with and without git's `a/` or `b/`."""
    path = _unquote_git(name.strip())
    if not 0 < len(path) <= PATH_CHARACTERS:
        return
    yield from _normal_forms(path)
    if path[:2] in ("a/", "b/") and path[2:]:
        yield from _normal_forms(path[2:])


def _unquote_git(name: str) -> str:
    """Undo git's quoting of a name: C escapes, and bytes in octal."""
    if not (len(name) > 1 and name[0] == name[-1] == '"'):
        return name

    def unescape(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        return bytes([int(escape, 8) & 0xFF]) if escape.isdigit() else _ESCAPES.get(escape, escape)

    return _ESCAPED.sub(unescape, name[1:-1].encode("utf-8", "surrogatepass")).decode("utf-8", "surrogateescape")


# Returns the protected files in those of the paths that are directories, and the paths that are hooks.
ProtectedInside = Callable[[Call, Sequence[str]], Awaitable[Sequence[str]]]


class ProtectedArguments(NamedTuple):
    """The protected paths that a call names, and the reason to ask a person about them."""

    reason: str
    paths: tuple[str, ...]


def names_changed_files(tool: Tool) -> bool:
    """Return whether arguments of the tool can name files that it changes."""
    if tool.path_arguments is None and tool.patch_argument is None:
        return tool.access is Access.WRITE
    return bool(tool.path_arguments or tool.patch_argument)


async def find_protected_arguments(call: Call, inside: ProtectedInside | None = None) -> ProtectedArguments | None:
    """Return the protected files that the call names; None if there are none. If the tool does not declare its path
    arguments, every text that could be a path counts. A destructive tool also touches the files in a directory."""
    tool = call.target
    found: Sequence[str] = ()
    try:
        paths = await _read_paths(call)
        if inside is not None and tool.destructive and (tool.path_arguments or tool.patch_argument):
            found = await inside(call, paths)
    except ArgumentsTooLarge:
        return ProtectedArguments(f"{tool.id} may touch protected files: its arguments are too large to check", ())
    except Unavailable as error:
        return ProtectedArguments(f"{tool.id} may touch protected files: {error.message}", ())
    named = (path for path in paths if PROTECTED_NAMES.intersection(fold(path).split("/")))
    protected = tuple(dict.fromkeys((*named, *found)))
    if not protected:
        return None
    return ProtectedArguments(reason_to_ask(tool.id, protected), protected)


async def _read_paths(call: Call) -> Sequence[str]:
    tool = call.target
    if tool.path_arguments is None or tool.patch_argument is not None:
        # A patch that cannot be parsed changes nothing: its tool refuses it.
        return await CallArguments(call).paths() or []
    values = [call.arguments.get(name) for name in tool.path_arguments]
    return [str(path) for value in values for path in (value if isinstance(value, list) else [value])]
