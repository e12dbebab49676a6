"""Access: the tools that a role, a profile or both of them leave, as rules that a catalog is filtered by."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import translate
from functools import reduce
from typing import Literal

from gateway.tools import ADMIN_CATEGORY, Permission, Tool
from gateway.value import Value

# Permission, category and upstream server of a tool; None for one that comes from no server.
ToolGroup = tuple[Permission, str, str | None]


class AccessLimits(Value):
    """Limits of one principal; None for no limit. Bytes are those of arguments and results."""

    calls_per_minute: int | None = None
    concurrent_calls: int | None = None
    bytes_per_minute: int | None = None


# How tools are listed: all of them, a few that find and call the others, these and one that runs programs, or what fits
# the client. A later one lists less.
ListMode = Literal["full", "auto", "search", "code"]
_MODES: Sequence[ListMode] = ("full", "auto", "search", "code")


class ListPolicy(Value):
    """The way tools are listed; without a mode, as another policy says. `pinned` are patterns over names and ids of
    tools that a short list has, too; of longer descriptions, the first `description_limit` characters are listed. A
    client may keep a list for `fresh_seconds`."""

    mode: ListMode | None = None
    pinned: tuple[str, ...] = ()
    description_limit: int | None = None
    fresh_seconds: int = 0

    def combine(self, other: ListPolicy) -> ListPolicy:
        """Return the policy of both that lists least."""
        limits = [limit for limit in (self.description_limit, other.description_limit) if limit is not None]
        modes = [mode for mode in (self.mode, other.mode) if mode is not None]
        mode = max(modes, key=_MODES.index, default=None)
        fresh_seconds = max(self.fresh_seconds, other.fresh_seconds)
        return ListPolicy(mode, (*self.pinned, *other.pinned), min(limits, default=None), fresh_seconds)

    def override(self, other: ListPolicy | None) -> ListPolicy:
        """Return the policy of both, with the mode of the other one if it has one."""
        return self if other is None else replace(self.combine(other), mode=other.mode or self.mode)


FULL_LIST = ListPolicy("full")


class AccessRule(Value):
    """One condition on a tool. `tools` and `denied` are patterns over its name and id, `servers` over the upstream it
    comes from; None leaves the choice open. Without `admin`, tools that change the gateway itself are left out."""

    permission: Permission = Permission.EXECUTE
    categories: frozenset[str] | None = None
    tools: Sequence[str] | None = None
    denied: Sequence[str] = ()
    servers: Sequence[str] | None = None
    output_schemas: bool = True
    admin: bool = True
    lists: ListPolicy | None = None


class AccessPolicy:
    """The tools that a principal may see and call: those that every rule allows. Compared by identity: one is made per
    role and profile, and a catalog keeps one view for each."""

    def __init__(self, rules: Sequence[AccessRule], limits: AccessLimits | None = None) -> None:
        self.permission = min((rule.permission for rule in rules), key=list(Permission).index)
        self.output_schemas = all(rule.output_schemas for rule in rules)
        lists = [rule.lists for rule in rules if rule.lists is not None]
        self.lists = reduce(ListPolicy.combine, lists) if lists else None
        self.limits = limits
        self._levels = frozenset(level for level in Permission if self.permission.allows(level))
        categories = [rule.categories for rule in rules if rule.categories is not None]
        self._admin = all(rule.admin for rule in rules)
        self._categories = frozenset.intersection(*categories) if categories else None
        self._servers = [_compile(rule.servers) for rule in rules if _is_choice(rule.servers)]
        self._allowed = [_compile(rule.tools) for rule in rules if _is_choice(rule.tools)]
        denied = [pattern for rule in rules for pattern in rule.denied]
        self._denied = _compile(denied) if denied else None

    def allows(self, name: str, tool: Tool) -> bool:
        """Return whether a tool may be listed and called. `name` is its public name. A request to an upstream that is
        no tool call, such as for a resource, is named like a tool of that server: `server__resources_read`."""
        return self.allows_group(group_of(tool)) and self.allows_name(f"{name}\n{tool.id}")

    def allows_group(self, group: ToolGroup) -> bool:
        """Return whether tools of this permission, category and server are allowed, as far as their names allow it."""
        permission, category, server = group
        if permission not in self._levels or (self._categories is not None and category not in self._categories):
            return False
        if category == ADMIN_CATEGORY and not self._admin:
            return False
        return server is None or all(matches(f"{server}\n") for matches in self._servers)

    def allows_name(self, names: str) -> bool:
        """Return whether a tool with this name and id, on a line each, is allowed."""
        for matches in self._allowed:
            if not matches(names):
                return False
        return self._denied is None or not self._denied(names)

    def denies(self, name: str) -> bool:
        """Return whether a pattern denies this name. Tools of discovery need not be allowed by name: they only find and
        call what is."""
        return self._denied is not None and bool(self._denied(f"{name}\n"))


def group_of(tool: Tool) -> ToolGroup:
    return tool.permission, tool.category, tool.owner or "" if tool.kind == "mcp" else None


def _is_choice(patterns: Sequence[str] | None) -> bool:
    return patterns is not None and "*" not in patterns


def _compile(patterns: Sequence[str] | None) -> Callable[[str], object]:
    """Return a function that tells whether any of the patterns matches one of two lines."""
    choices = "|".join(_translate(pattern) for pattern in patterns or ()) or "(?!)"
    return re.compile(f"(?:.*\\n)?(?:{choices})(?:\\n|\\Z)").match


def _translate(pattern: str) -> str:
    """Return a shell pattern as a regular expression in which no wildcard matches the end of a line."""
    expression = translate(pattern.replace("\n", ""))
    return expression[len("(?s:") : -len(r")\Z")]  # or \z, since Python 3.14
