"""The operator's rules: which speak about a tool, found once per tool, and what they say about its arguments."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gateway.calls import Call, to_json
from gateway.config.settings import ApprovalCondition, ApprovalRule, ApprovalSettings
from gateway.errors import Invalid
from gateway.extensions.approval.arguments import Look, TooMuch
from gateway.extensions.approval.patterns import UNTOLD, CommandPatterns, HostPatterns, PathPatterns
from gateway.names import SEPARATOR, did_you_mean
from gateway.tools import READ_RESOURCE, REQUESTS, Tool

# The kind of tools that come from servers.
UPSTREAM = "mcp"

_STEERING = frozenset(";&|$`<>(){}\n\r\\\0")

# What of a call fits, in words; None when nothing does.
Condition = Callable[[Look], Awaitable[str | None]]


class Rule:
    """One rule of the file, with its place in it."""

    def __init__(self, said: ApprovalRule, number: int) -> None:
        self.said = said
        self.place = f"rule {number} of approval.rules"
        self._conditions = list(_conditions(said.when, said.then == "allow"))
        # By which an answer is remembered: a rule that is changed has been agreed to by nobody.
        self.grounds = f"rule {hashlib.sha256(said.model_dump_json().encode()).hexdigest()[:16]}"

    def speaks_of(self, tool: Tool) -> bool:
        said = self.said
        owner, server = tool.owner or "", tool.kind == UPSTREAM
        return (
            (not said.tool or fits(tool.id, said.tool))
            and (not said.category or fits(tool.category, said.category))
            and (not said.server or (server and fits(owner, said.server)))
            and (not said.toolset or (not server and tool.owner is not None and fits(owner, said.toolset)))
        )

    @property
    def hides_paths(self) -> bool:
        """True if it denies or asks about some calls by the path they name, and does not speak of the tool itself."""
        when = self.said.when
        return self.said.then != "allow" and bool(when.path or "path" in when.arguments)

    def fits_at_once(self, look: Look) -> bool:
        """True if it speaks of a call that is no builtin's but `read_file`. It takes no event loop: with `overwrites`
        left out of the look, nothing about such a call is waited for."""
        finding = self.found(look)
        try:
            finding.send(None)
        except StopIteration as done:
            return done.value is not None
        raise RuntimeError(f"{self.place} waits for something")

    async def found(self, look: Look) -> str | None:
        """What about this call it speaks of, in words; None when it does not. Of a call with too much to look at
        every rule speaks but one that allows."""
        found = [self.place]
        try:
            for condition in self._conditions:
                fitting = await condition(look)
                if fitting is None:
                    return None
                found.append(fitting)
        except TooMuch:
            return None if self.said.then == "allow" else f"{self.place}: there is too much to look at"
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


def hidden(choices: Collection[Sequence[Rule]], path: str, agreed: frozenset[str] = frozenset()) -> str | None:
    """Return the place of a rule that keeps a path from who is not asked: by one of the choices it is the first that
    fits, and denies it, or asks about it unless the path is `agreed`."""
    for rules in choices:
        rule = deciding(rules, READ_RESOURCE, {"path": path})
        if rule is not None and rule.hides_paths and (rule.said.then == "deny" or path not in agreed):
            return rule.place
    return None


def deciding(rules: Sequence[Rule], tool: Tool, arguments: Mapping[str, Any]) -> Rule | None:
    """Return the first rule that fits a request nobody is asked about, None if none does."""
    look = Look(Call(name=tool.id, arguments=arguments, tool=tool, id="", started_at=0))
    return next((rule for rule in rules if rule.fits_at_once(look)), None)


def unknown_tools(
    settings: ApprovalSettings, known: Collection[str], unlisted: Collection[str] | None
) -> Iterator[Invalid]:
    """Report each pattern of tools that fits none of the `known` ids. A pattern that may fit a tool of one of the
    `unlisted` servers or toolsets, whose tools are not known yet, is not reported; None stands for any of them."""
    owners = {tool_id.partition(":")[0] for tool_id in known if ":" in tool_id}
    known = {*known, *(f"{owner}:{method}" for owner in owners for method in REQUESTS)}
    places = [(f"rule {number} of approval.rules", rule.tool) for number, rule in enumerate(settings.rules, 1)]
    for place, patterns in [*places, ("approval.out_of_band", settings.out_of_band)]:
        for pattern in patterns:
            if not any(fits(tool_id, [pattern]) for tool_id in known) and not _may_fit(pattern, unlisted):
                hint = did_you_mean(pattern, known)
                yield Invalid(f"{place}: no tool has the id {pattern!r}{hint}", code="NO_SUCH_TOOL")


def _may_fit(pattern: str, owners: Collection[str] | None) -> bool:
    head = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    is_open = head != pattern
    if owners is None:
        return is_open or ":" in pattern or SEPARATOR in pattern
    return any(
        head.startswith((f"{owner}:", f"{owner}{SEPARATOR}")) or (is_open and f"{owner}:".startswith(head))
        for owner in owners
    )


def fits(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


def _conditions(when: ApprovalCondition, trusting: bool) -> Iterator[Condition]:
    for name, patterns in when.arguments.items():
        yield partial(_named, name=name, patterns=patterns, trusting=trusting)
    if when.path:
        yield PathPatterns(when.path).found
    if when.host:
        yield HostPatterns(when.host).found
    if when.command:
        yield CommandPatterns(when.command).found
    if when.overwrites is not None:
        yield partial(_overwritten, wanted=when.overwrites)


async def _overwritten(look: Look, wanted: bool) -> str | None:
    paths = await look.paths()
    if paths is None:
        return f"what is overwritten {UNTOLD}"
    there = await look.overwrites(look.call, paths) if look.overwrites else True
    if there is not wanted:
        return None
    return "a file is overwritten" if there else "no file is overwritten"


async def _named(look: Look, name: str, patterns: Sequence[str], trusting: bool) -> str | None:
    """The argument of that name where one pattern fits it. A rule that allows wants every argument that may be meant
    to fit, and is held to the letter: its `*` covers no `..`, and nothing by which a shell would do more than was
    allowed."""
    values = [_text(value) for value in _meant(look.call.arguments, name.split("."))]
    look.spend(sum(map(len, values)) // 4 * len(patterns))
    fitting = [text for text in values if _fits_argument(text, patterns, trusting)]
    if not fitting or (trusting and len(fitting) < len(values)):
        return None
    return f"{name} is {fitting[0][:200]!r}"


def _meant(value: Any, parts: Sequence[str]) -> Iterator[Any]:
    """What `a.b` may mean: the `b` of `a`, and what is itself called `a.b`."""
    if not parts:
        yield value
    elif isinstance(value, Mapping):
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[:count])
            if name in value:
                yield from _meant(value[name], parts[count:])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value).decode()


def _fits_argument(text: str, patterns: Sequence[str], trusting: bool) -> bool:
    return any(fnmatch.fnmatchcase(text, each) and not (trusting and _exceeds(text, each)) for each in patterns)


def _exceeds(text: str, pattern: str) -> bool:
    return ".." in text.replace("\\", "/").split("/") or bool((_STEERING & set(text)) - set(pattern))
