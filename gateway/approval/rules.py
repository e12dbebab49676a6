"""The operator's rules: those that apply to a tool, and the first that matches the arguments of a call."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gateway.approval.arguments import ArgumentsTooLarge, CallArguments
from gateway.approval.patterns import UNREADABLE, CommandPatterns, HostPatterns, PathPatterns
from gateway.calls import Call, to_json
from gateway.config.settings import ApprovalCondition, ApprovalRule, ApprovalSettings
from gateway.errors import Invalid
from gateway.names import SEPARATOR, did_you_mean
from gateway.tools import READ_RESOURCE, REQUESTS, Tool

# `Tool.kind` of upstream servers' tools.
UPSTREAM = "mcp"

_SHELL_CHARACTERS = frozenset(";&|$`<>(){}\n\r\\\0")

# Describes what of a call matches; None if nothing does.
Condition = Callable[[CallArguments], Awaitable[str | None]]


class Rule:
    """One rule of the settings, and its place there."""

    def __init__(self, settings: ApprovalRule, number: int) -> None:
        self.settings = settings
        self.place = f"rule {number} of approval.rules"
        self._conditions = list(_conditions(settings.when, settings.then == "allow"))
        # The key of remembered answers: nobody has agreed to a rule that was changed since.
        self.grounds = f"rule {hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:16]}"

    def matches_tool(self, tool: Tool) -> bool:
        settings = self.settings
        owner, is_upstream = tool.owner or "", tool.kind == UPSTREAM
        return (
            (not settings.tool or matches_any(tool.id, settings.tool))
            and (not settings.category or matches_any(tool.category, settings.category))
            and (not settings.server or (is_upstream and matches_any(owner, settings.server)))
            and (
                not settings.toolset
                or (not is_upstream and tool.owner is not None and matches_any(owner, settings.toolset))
            )
        )

    @property
    def hides_paths(self) -> bool:
        """True if it denies, or asks about, some calls because of a path they name."""
        when = self.settings.when
        return self.settings.then != "allow" and bool(when.path or "path" in when.arguments)

    def matches_now(self, arguments: CallArguments) -> bool:
        """Return whether it matches, without an event loop. Only for calls about which nothing is awaited: those with
        no `overwrites` and no patch."""
        matching = self.match(arguments)
        try:
            matching.send(None)
        except StopIteration as done:
            return done.value is not None
        raise RuntimeError(f"{self.place} waits for something")

    async def match(self, arguments: CallArguments) -> str | None:
        """Describe what of the call it matches; None if it does not match. Arguments that are too large match every
        rule but one that allows."""
        matches = [self.place]
        try:
            for condition in self._conditions:
                match = await condition(arguments)
                if match is None:
                    return None
                matches.append(match)
        except ArgumentsTooLarge:
            return None if self.settings.then == "allow" else f"{self.place}: the arguments are too large to compare"
        return ", ".join(matches)


def rules_for(tool: Tool, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return the rules that may match calls of a tool, up to the first that always does."""
    selected: list[Rule] = []
    for rule in rules:
        if rule.matches_tool(tool):
            selected.append(rule)
            if rule.settings.when == ApprovalCondition():
                break
    return tuple(selected)


def find_hiding_rule(
    choices: Collection[Sequence[Rule]], path: str, agreed: frozenset[str] = frozenset()
) -> str | None:
    """Return the place of a rule that hides a path from a tool whose caller is not asked. It is the first match of one
    of the `choices`, and denies the path, or asks about it and the path is not `agreed`."""
    for rules in choices:
        rule = find_rule(rules, READ_RESOURCE, {"path": path})
        if rule is not None and rule.hides_paths and (rule.settings.then == "deny" or path not in agreed):
            return rule.place
    return None


def find_rule(rules: Sequence[Rule], tool: Tool, arguments: Mapping[str, Any]) -> Rule | None:
    """Return the first rule that matches a request nobody can be asked about, None if none does."""
    call_arguments = CallArguments(Call(name=tool.id, arguments=arguments, tool=tool, id="", started_at=0))
    return next((rule for rule in rules if rule.matches_now(call_arguments)), None)


def check_tool_patterns(
    settings: ApprovalSettings, tool_ids: Collection[str], unlisted: Collection[str] | None
) -> Iterator[Invalid]:
    """Yield an error for each pattern of tools that matches none of the ids. A pattern that may match a tool of one of
    the `unlisted` servers or toolsets, whose tools are not known yet, is passed over; None stands for any of them."""
    owners = {tool_id.partition(":")[0] for tool_id in tool_ids if ":" in tool_id}
    ids = {*tool_ids, *(f"{owner}:{method}" for owner in owners for method in REQUESTS)}
    places = [(f"rule {number} of approval.rules", rule.tool) for number, rule in enumerate(settings.rules, 1)]
    for place, patterns in [*places, ("approval.out_of_band", settings.out_of_band)]:
        for pattern in patterns:
            if not any(matches_any(tool_id, [pattern]) for tool_id in ids) and not _may_match(pattern, unlisted):
                hint = did_you_mean(pattern, ids)
                yield Invalid(f"{place}: no tool has the id {pattern!r}{hint}", code="NO_SUCH_TOOL")


def _may_match(pattern: str, owners: Collection[str] | None) -> bool:
    """Return whether the pattern may match a tool of one of the owners."""
    literal = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    has_wildcard = literal != pattern
    if owners is None:
        return has_wildcard or ":" in pattern or SEPARATOR in pattern
    return any(
        literal.startswith((f"{owner}:", f"{owner}{SEPARATOR}")) or (has_wildcard and f"{owner}:".startswith(literal))
        for owner in owners
    )


def matches_any(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)


def _conditions(when: ApprovalCondition, allows: bool) -> Iterator[Condition]:
    for name, patterns in when.arguments.items():
        yield partial(_match_argument, name=name, patterns=patterns, allows=allows)
    if when.path:
        yield PathPatterns(when.path).match
    if when.host:
        yield HostPatterns(when.host).match
    if when.command:
        yield CommandPatterns(when.command).match
    if when.overwrites is not None:
        yield partial(_match_overwrites, expected=when.overwrites)


async def _match_overwrites(arguments: CallArguments, expected: bool) -> str | None:
    paths = await arguments.paths()
    if paths is None:
        return f"what is overwritten {UNREADABLE}"
    overwrites = await arguments.overwrites(arguments.call, paths) if arguments.overwrites else True
    if overwrites is not expected:
        return None
    return "a file is overwritten" if overwrites else "no file is overwritten"


async def _match_argument(arguments: CallArguments, name: str, patterns: Sequence[str], allows: bool) -> str | None:
    """Describe the argument of that name if a pattern matches it. A rule that allows must match every value the name
    may mean, and its `*` matches neither `..` nor shell syntax that the pattern does not contain."""
    texts = [_text(value) for value in _find_values(arguments.call.arguments, name.split("."))]
    arguments.charge(sum(map(len, texts)) // 4 * len(patterns))
    matching = [text for text in texts if _matches_argument(text, patterns, allows)]
    if not matching or (allows and len(matching) < len(texts)):
        return None
    return f"{name} is {matching[0][:200]!r}"


def _find_values(value: Any, parts: Sequence[str]) -> Iterator[Any]:
    """Yield all that `a.b` may mean: the `b` inside `a`, and an argument with the name `a.b`."""
    if not parts:
        yield value
    elif isinstance(value, Mapping):
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[:count])
            if name in value:
                yield from _find_values(value[name], parts[count:])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value).decode()


def _matches_argument(text: str, patterns: Sequence[str], allows: bool) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) and not (allows and _exceeds(text, pattern)) for pattern in patterns)


def _exceeds(text: str, pattern: str) -> bool:
    """Return whether the text may do more than an operator who allowed the pattern had in mind."""
    return ".." in text.replace("\\", "/").split("/") or bool((_SHELL_CHARACTERS & set(text)) - set(pattern))
