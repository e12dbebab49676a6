"""The operator's rules: those that apply to a tool, and the first that matches the arguments of a call."""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import operator
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import IPv6Address
from typing import Any
from urllib.parse import unquote

from gateway.approval.arguments import ArgumentsTooLarge, CallArguments, fold
from gateway.calls import Call, to_json
from gateway.config.settings import ApprovalCondition, ApprovalRule, Settings
from gateway.discovery import CALLERS, DESCRIBE_NAME, RUN_NAME, SEARCH_NAME
from gateway.errors import Invalid
from gateway.names import SEPARATOR, did_you_mean, wire_name
from gateway.tools import READ_RENDER, READ_RESOURCE, REQUESTS, Tool
from gateway.value import Value

# Description of a text that cannot be read. It may mean anything, so it matches every pattern.
UNREADABLE = "cannot be determined"

MATCH_STEPS = 30
COMMAND_CHARACTERS = 64 * 1024
URL_CHARACTERS = 8192
HOST_CHARACTERS = 300
PREFIX_LIMIT = 16

# Beginnings of patterns over names that may be written before there are such tools: of any server, or administration's,
# which are off by default.
_FORESEEN = ("*", "?", "[", "toolgate:", f"toolgate{SEPARATOR}")

_LITERAL = re.compile(r"[^*?\[]*")
_URL = re.compile(r"://([^\s/?#]+)")
_HTTP_URL = re.compile(r"(?:https?|wss?|ftp):[/\\]*([^/?#]*)", re.IGNORECASE)
_SCHEMELESS_URL = re.compile(r"[/\\]{2}([^/?#]+)")
_BARE_HOST = re.compile(r"[\w.\u3002\uff0e\uff61-]+(?::\d+)?|\[?[0-9A-Fa-f:.]+\]?(?::\d+)?")
_HOST_SEPARATORS = re.compile(r"[@\\\"'<>(),;|^`]+")
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:]*)(?::\d*)?")
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_NUMERIC_HOST = re.compile(r"(?:0x[0-9a-f]*|\d+)(?:\.(?:0x[0-9a-f]*|\d+)){0,3}")
_DOTS = re.compile("[.\u3002\uff0e\uff61]")
_COMMAND_SEPARATORS = re.compile(r"[;&|\n\r`()]+")
_ASSIGNMENT = re.compile(r"\w+\+?=\S*|\d*[<>]+&?\S*")
_PREFIX_WORDS = frozenset(
    {"!", "{", "if", "then", "else", "elif", "while", "until", "do", "time", "exec", "command", "builtin", "eval"}
    | {"env", "nohup", "nice", "sudo", "doas", "xargs"}
)


class PathPatterns:
    """Patterns that match a path or an ending of it, so that `*.env` and `secrets/*` match at any depth; also the
    directories in a pattern, because moving `secrets` moves all that is in it."""

    def __init__(self, patterns: Sequence[str]) -> None:
        texts = dict.fromkeys(text for pattern in patterns for text in _with_directories(fold(pattern)))
        self._patterns = [(_literal_start(text), re.compile(fnmatch.translate(text))) for text in texts]

    async def match(self, arguments: CallArguments) -> str | None:
        paths = await arguments.paths()
        if paths is None:
            return f"path {UNREADABLE}"
        for path in paths:
            arguments.charge(MATCH_STEPS // 3 + len(path) // 8)
            text = f"/{fold(path)}"
            for start, pattern in self._patterns:
                if _matches_ending(text, start, pattern, arguments):
                    return f"path {path[:200]!r}"
        return None


class HostPatterns:
    """Patterns that match a host as the network resolves it, in whatever notation. A text that is a URL whose host
    cannot be read matches, too."""

    def __init__(self, patterns: Sequence[str]) -> None:
        # Imported here because the tables of international names take 10 ms: only rules by host need them.
        self._canonical_host = importlib.import_module("gateway.net.policy").canonical_host
        self._patterns = [self._canonical_pattern(pattern.strip()) for pattern in patterns]

    async def match(self, arguments: CallArguments) -> str | None:
        for host in arguments.read_once("hosts", lambda: self._read_hosts(arguments)):
            if host is None:
                return f"host {UNREADABLE}"
            arguments.charge((MATCH_STEPS + len(host)) * len(self._patterns))
            if any(fnmatch.fnmatchcase(host, pattern) for pattern in self._patterns):
                return f"host {host[:200]!r}"
        return None

    def _read_hosts(self, arguments: CallArguments) -> Iterator[str | None]:
        for text in arguments.texts():
            yield from self.hosts(text, arguments)

    def hosts(self, text: str, arguments: CallArguments) -> Iterator[str | None]:
        """Yield the hosts that a text names; None for one that cannot be read."""
        arguments.charge(MATCH_STEPS + len(text) // 64)
        for match in _URL.finditer(text):
            yield from self._parse_authority(match[1], arguments)
        word = text.strip()
        if not 0 < len(word) <= URL_CHARACTERS or len(word.split(maxsplit=1)) > 1:
            return
        if url := _HTTP_URL.match(word):
            yield from self._parse_authority(url[1], arguments, is_url=True)
        elif url := _SCHEMELESS_URL.match(word):
            yield from self._parse_authority(url[1], arguments)
        elif _BARE_HOST.fullmatch(word):
            yield from self._parse_authority(word, arguments)

    def _parse_authority(self, authority: str, arguments: CallArguments, is_url: bool = False) -> Iterator[str | None]:
        """Yield every host between `//` and the next `/`: URL parsers disagree which of several is meant."""
        arguments.charge(MATCH_STEPS + len(authority))
        pieces = [piece for piece in _HOST_SEPARATORS.split(authority) if piece]
        for number, piece in enumerate(pieces, 1):
            match = _HOST_AND_PORT.fullmatch(piece)
            try:
                yield self._canonical(match[1] if match else piece, arguments)
            except ValueError:
                if is_url and number == len(pieces):
                    yield None

    def _canonical(self, host: str, arguments: CallArguments | None = None) -> str:
        """Return the host as it is resolved; `ValueError` if it is not a host."""
        name = (unquote(host) if "%" in host else host).lower().removesuffix(".")
        if _NAME.fullmatch(name):
            return _canonical_address(name)
        if len(name) > HOST_CHARACTERS:
            raise ValueError("too long for a host")
        if arguments is not None:
            arguments.charge(MATCH_STEPS * (10 if name.isascii() else 100))
        return _canonical_address(str(self._canonical_host(name)))

    def _canonical_pattern(self, pattern: str) -> str:
        try:
            return self._canonical(pattern)
        except ValueError:
            return ".".join(map(self._canonical_label, _DOTS.split(pattern.lower())))

    def _canonical_label(self, label: str) -> str:
        try:
            return label if label.isascii() else str(self._canonical_host(label))
        except ValueError:  # it contains a `*`: compared as written
            return label


class CommandPatterns:
    """Patterns that match a line, or one command in it without prefixes such as `sudo`. They are a reminder and not a
    barrier: a shell can express the same command in too many ways."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [re.compile(fnmatch.translate(pattern)) for pattern in patterns]

    async def match(self, arguments: CallArguments) -> str | None:
        for text in arguments.texts():
            for command in split_commands(text):
                if command is None:
                    return f"command {UNREADABLE}"
                arguments.charge((MATCH_STEPS + len(command)) * len(self._patterns))
                if any(pattern.match(command) for pattern in self._patterns):
                    return f"command {command[:200]!r}"
        return None


def split_commands(text: str) -> Iterator[str | None]:
    """Yield a line and each command in it, with single spaces; None for one that is too long or too nested."""
    if len(text) > COMMAND_CHARACTERS:
        yield None
        return
    yield " ".join(text.split())
    for part in _COMMAND_SEPARATORS.split(text):
        yield from _strip_prefixes(part.split())


def _strip_prefixes(words: list[str]) -> Iterator[str | None]:
    """Yield the command as written, then without each prefix (`then`, `FOO=1`, `sudo -n`), quotes and directory."""
    start = 0
    for _ in range(PREFIX_LIMIT):
        if start == len(words):
            return
        yield " ".join(words[start:])
        first = re.sub(r"[\\\"']", "", words[start])
        program = first.rpartition("/")[2]
        if program != words[start]:
            yield " ".join([program, *words[start + 1 :]])
        if program not in _PREFIX_WORDS and not _ASSIGNMENT.fullmatch(first):
            return
        start += 1
        while start < len(words) and words[start].startswith("-"):
            start += 1
    yield None


def _with_directories(pattern: str) -> Iterator[str]:
    path = pattern.removeprefix("./").removeprefix("**/")
    parts = f"{path}*".split("/") if path.endswith("/") else path.split("/")
    yield "/".join(parts)
    for count in range(1, len(parts)):
        if parts[count - 1].strip("*"):
            yield "/".join(parts[:count])


def _literal_start(pattern: str) -> str | None:
    """Return the literal text at which the pattern can begin in a path; None for the start of the path alone, since a
    leading `*` matches anything before it."""
    return None if pattern.startswith("*") else f"/{_LITERAL.match(pattern)[0]}"  # type: ignore[index]


def _matches_ending(text: str, start: str | None, pattern: re.Pattern[str], arguments: CallArguments) -> bool:
    arguments.charge(MATCH_STEPS // 3 + len(text) // 64)
    position = 0 if start is None else text.find(start)
    while position >= 0:
        arguments.charge(MATCH_STEPS + len(text) - position)
        if pattern.match(text, position + 1):
            return True
        position = -1 if start is None else text.find(start, position + 1)
    return False


def _canonical_address(host: str) -> str:
    """Return an IPv4 address in dotted form if the host is one: as a number, in hexadecimal, or mapped to IPv6."""
    if _NUMERIC_HOST.fullmatch(host):
        try:
            return socket.inet_ntoa(socket.inet_aton(host))
        except OSError:
            return host
    mapped = IPv6Address(host).ipv4_mapped if ":" in host else None
    return host if mapped is None else str(mapped)


# `Tool.kind` of upstream servers' tools.
UPSTREAM = "mcp"

_COMPARISON = re.compile(r"(<=|>=|<|>)\s*(-?[0-9]+(?:\.[0-9]+)?)")
_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
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
            (not settings.tool or any(matches_any(tool_id, settings.tool) for tool_id in tool.ids))
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


class ToolPatterns(Value):
    """Patterns over tools at a place of the settings: over ids, over `names` too, or ids as they are if `exact`."""

    title: str
    patterns: Sequence[str]
    place: Sequence[str | int]
    names: bool = False
    exact: bool = False


def list_tool_patterns(settings: Settings) -> Iterator[ToolPatterns]:
    """Yield the patterns over tools that the settings have."""
    approval, tools = settings.approval, settings.tools
    for number, rule in enumerate(approval.rules, 1):
        yield ToolPatterns(f"rule {number} of approval.rules", rule.tool, ("approval", "rules", number - 1))
    yield ToolPatterns("approval.out_of_band", approval.out_of_band, ("approval", "out_of_band"))
    for name in settings.limits.calls_per_minute:
        yield ToolPatterns("limits.calls_per_minute", [name], ("limits", "calls_per_minute", name), exact=True)
    for name in tools.retry:
        yield ToolPatterns("tools.retry", [name], ("tools", "retry", name))
    named: list[tuple[tuple[str, ...], list[str]]] = [
        (("tools", "first"), tools.first),
        (("tools", "pinned"), tools.pinned),
        *((("profiles", name, "pinned"), profile.pinned) for name, profile in settings.profiles.items()),
    ]
    for section, views in (("profiles", settings.profiles), ("roles", settings.roles)):
        for name, view in views.items():
            named += [((section, name, "tools", key), getattr(view.tools, key)) for key in ("allow", "deny")]
    for place, patterns in named:
        yield ToolPatterns(".".join(place), patterns, place, names=True)


def check_tool_patterns(
    settings: Settings,
    known: Mapping[str, str | None],
    unlisted: Collection[str] | None,
    given: Collection[str] = (),
) -> Iterator[Invalid]:
    """Yield an error for each pattern of tools that matches none of the `known` ids, which are given with the prefixes
    of their names; `given` are further names. A pattern that may match a tool of one of the `unlisted` servers or
    toolsets, whose tools are not known yet, is passed over; None stands for any of them. So is a pattern over names
    that is meant for tools which come later, too."""
    owners = {tool_id.partition(":")[0] for tool_id in known if ":" in tool_id}
    ids = {*known, READ_RENDER.id, *(f"{owner}:{method}" for owner in owners for method in REQUESTS)}
    names: set[str] = set()
    for each in list_tool_patterns(settings):
        if each.names and each.patterns and not names:
            methods, begins = (
                [method.replace("/", "_") for method in REQUESTS],
                {*owners, *filter(None, known.values())},
            )
            requests = {f"{begin}{SEPARATOR}{method}" for begin in begins for method in methods}
            wishes = {wire_name(tool_id, prefix) for tool_id, prefix in known.items()}
            names = {*ids, *wishes, *requests, *given, *CALLERS, SEARCH_NAME, DESCRIBE_NAME, RUN_NAME}
        choices = names if each.names else ids
        for pattern in each.patterns:
            if each.names and (pattern.startswith(_FORESEEN) or _may_have_prefix(settings, pattern, unlisted)):
                continue
            never = each.exact and _LITERAL.fullmatch(pattern) is None
            found = pattern in choices if each.exact else any(matches_any(choice, [pattern]) for choice in choices)
            if not found and (never or not _may_match(pattern, unlisted)):
                kind = "name or id" if each.names else "id"
                text = f"{each.title}: no tool has the {kind} {pattern!r}{did_you_mean(pattern, choices)}"
                yield Invalid(text, code="NO_SUCH_TOOL", place=each.place)


def _may_have_prefix(settings: Settings, pattern: str, unlisted: Collection[str] | None) -> bool:
    """Return whether the pattern may match a name with the prefix of an unlisted server; an empty one fits all."""
    servers = settings.upstreams.items()
    prefixes = {server.prefix for name, server in servers if unlisted is None or name in unlisted}
    return "" in prefixes or _may_match(pattern, {prefix for prefix in prefixes if prefix})


def _may_match(pattern: str, owners: Collection[str] | None) -> bool:
    """Return whether the pattern may match a tool of one of the owners."""
    literal = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    has_wildcard = literal != pattern
    if owners is None:
        return has_wildcard or ":" in pattern or SEPARATOR in pattern
    starts = [f"{owner}{separator}" for owner in owners for separator in (":", SEPARATOR)]
    return any(literal.startswith(start) or (has_wildcard and start.startswith(literal)) for start in starts)


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
    """Describe the argument of that name if a pattern matches it. A number also matches a comparison such as `>100`. A
    rule that allows must match every value the name may mean, and its `*` matches neither `..` nor shell syntax that
    the pattern does not contain."""
    values = list(_find_values(arguments.call.arguments, name.split(".")))
    texts = [_text(value) for value in values]
    arguments.charge(sum(map(len, texts)) // 4 * len(patterns))
    matching = [
        text
        for text, value in zip(texts, values, strict=True)
        if _matches_argument(text, patterns, allows) or _compares(value, patterns)
    ]
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


def _compares(value: Any, patterns: Sequence[str]) -> bool:
    """Return whether a number fits a pattern that is a comparison."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    found = [match for pattern in patterns if (match := _COMPARISON.fullmatch(pattern.strip()))]
    return any(_COMPARISONS[match[1]](value, float(match[2])) for match in found)


def _exceeds(text: str, pattern: str) -> bool:
    """Return whether the text may do more than an operator who allowed the pattern had in mind."""
    return ".." in text.replace("\\", "/").split("/") or bool((_SHELL_CHARACTERS & set(text)) - set(pattern))
