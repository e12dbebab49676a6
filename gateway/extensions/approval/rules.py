"""The operator's rules: which speak about a tool, found once per tool, and what they say about its arguments."""

from __future__ import annotations

import fnmatch
import hashlib
import posixpath
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from ...calls import Call, to_json
from ...config.approval import ApprovalCondition, ApprovalRule
from ...tools import Tool

UPSTREAM = "mcp"
"""The kind of tools that come from servers."""

LOOKS = 50_000
"""Texts, and readings of them, that are compared; a call with more fits any rule that asks or denies."""

LONGEST_COMMAND = 64 * 1024
LONGEST_PATH = 4096
"""Characters; a longer text is no path, but may well be a command: one that fits any pattern."""

_ADDRESS = re.compile(r"://(?:[^\s/?#@]*@)?(\[[^\]\s/]+\]|[^\s/?#:]+)")
_HOST = re.compile(r"(?:[A-Za-z0-9_-]+\.)*[A-Za-z0-9_-]+(?::\d+)?|\[[0-9A-Fa-f:.]+\](?::\d+)?")
_COMMANDS = re.compile(r"[;&|\n\r`]+|\$\(")
_PATCHED = re.compile(r"^(?:--- |\+\+\+ |rename (?:from|to) |copy (?:from|to) )(?:[ab]/)?([^\t\r\n]+)", re.MULTILINE)
_STEERING = frozenset(";&|$`<>(){}\n\r\\\0")

Candidates = Callable[[str], Iterator[str | None]]
"""The readings of a text that a pattern may fit; None for one that cannot be read and must not pass."""

Overwrites = Callable[[Call, Sequence[str]], Awaitable[bool]]
"""Whether a file of the call's chat is there under one of these paths."""


@dataclass(frozen=True)
class Rule:
    """One rule of the file, with its place in it."""

    said: ApprovalRule
    number: int

    @cached_property
    def grounds(self) -> str:
        """By which an answer is remembered: a rule that is changed has been agreed to by nobody."""
        return f"rule {hashlib.sha256(self.said.model_dump_json().encode()).hexdigest()[:16]}"

    def speaks_of(self, tool: Tool) -> bool:
        said = self.said
        owner, server = tool.owner or "", tool.kind == UPSTREAM
        return (
            (not said.tool or fits(tool.id, said.tool))
            and (not said.category or fits(tool.category, said.category))
            and (not said.server or (server and fits(owner, said.server)))
            and (not said.toolset or (not server and tool.owner is not None and fits(owner, said.toolset)))
        )

    async def found(self, call: Call, overwrites: Overwrites | None) -> str | None:
        """What about this call it speaks of, in words; None when it does not."""
        when, trusting = self.said.when, self.said.then == "allow"
        found = [f"rule {self.number} of approval.rules"]
        for name, patterns in when.arguments.items():
            hit = _named(call.arguments, name, patterns, trusting)
            if hit is None:
                return None
            found.append(f"{name} is {hit}")
        for what, wanted, candidates in _looks(when):
            hit = _hit(call.arguments, wanted, candidates)
            if hit is None:
                return None
            found.append(f"{what} {hit}")
        if when.overwrites is not None:
            there = await overwrites(call, paths_in(call.arguments)) if overwrites else True
            if there is not when.overwrites:
                return None
            found.append("a file is overwritten" if there else "no file is overwritten")
        return ", ".join(found)


def rules_for(tool: Tool, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Those that may speak about a tool; none after one that always does."""
    found: list[Rule] = []
    for rule in rules:
        if rule.speaks_of(tool):
            found.append(rule)
            if rule.said.when == ApprovalCondition():
                break
    return tuple(found)


def fits(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


def paths_in(arguments: Mapping[str, Any]) -> list[str]:
    """Every text that could be a path, those a patch names among them; of very many, the first."""
    return list(islice((path for text in _texts(arguments) for path in _paths(text)), LOOKS))


def _looks(when: ApprovalCondition) -> Iterator[tuple[str, Sequence[str], Candidates]]:
    if when.path:  # without regard to case, as some file systems have it
        yield "path", [pattern.lower() for pattern in when.path], _endings
    if when.host:
        yield "host", [pattern.lower() for pattern in when.host], _hosts
    if when.command:
        yield "command", when.command, _commands


def _hit(arguments: Mapping[str, Any], patterns: Sequence[str], candidates: Candidates) -> str | None:
    looks = 0
    for text in _texts(arguments):
        for candidate in candidates(text):
            looks += 1
            if looks > LOOKS:
                return "cannot be told: there is too much to look at"
            if candidate is None or fits(candidate, patterns):
                return "cannot be told" if candidate is None else repr(candidate[:200])
    return None


def _named(arguments: Any, name: str, patterns: Sequence[str], trusting: bool) -> str | None:
    """The argument of that name where one pattern fits it. A rule that allows is held to the letter: its `*` covers
    no `..`, and nothing by which a shell would do more than was allowed."""
    value: Any = arguments
    for part in [name] if isinstance(arguments, Mapping) and name in arguments else name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    text = value if isinstance(value, str) else to_json(value).decode()
    for pattern in patterns:
        if fnmatch.fnmatchcase(text, pattern) and not (trusting and _exceeds(text, pattern)):
            return repr(text[:200])
    return None


def _exceeds(text: str, pattern: str) -> bool:
    return ".." in text.replace("\\", "/").split("/") or bool((_STEERING & set(text)) - set(pattern))


def _texts(value: Mapping[str, Any]) -> Iterator[str]:
    """Every text, however deep, keys of inner objects included; a list of words also as the one line it may be."""
    waiting: list[Any] = list(value.values())
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            waiting += each
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
            if each and all(isinstance(word, str) for word in each):
                yield " ".join(each)


def _paths(text: str) -> Iterator[str]:
    bare = text.strip()
    if "\n" in bare:
        for match in _PATCHED.finditer(bare):
            yield _normal(match[1])
    elif 0 < len(bare) <= LONGEST_PATH:
        yield _normal(bare)


def _endings(text: str) -> Iterator[str]:
    """A path, and what it ends in, so that `*.env` and `secrets/*` fit at any depth."""
    for path in _paths(text):
        whole = path.lower()
        yield whole
        at = whole.find("/")
        while at >= 0:
            yield whole[at + 1 :]
            at = whole.find("/", at + 1)


def _normal(path: str) -> str:
    bare = path.removeprefix("file://").replace("\\", "/")
    return posixpath.normpath(bare)


def _hosts(text: str) -> Iterator[str]:
    for match in _ADDRESS.finditer(text):
        yield match[1].strip("[]").rstrip(".").lower()
    if len(text) <= 300 and _HOST.fullmatch(text):
        yield re.sub(r":\d+$", "", text).strip("[]").rstrip(".").lower()


def _commands(text: str) -> Iterator[str | None]:
    """A line, and each command on it, with single spaces."""
    if len(text) > LONGEST_COMMAND:
        yield None
        return
    yield " ".join(text.split())
    for part in _COMMANDS.split(text):
        yield " ".join(part.split())
