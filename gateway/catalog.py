"""Every enabled tool under one public name: immutable, and swapped whole when anything changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from gateway import names
from gateway.access import FULL_LIST, AccessPolicy, ListMode, ListPolicy, ToolGroup, group_of
from gateway.errors import Forbidden, GatewayError, Invalid, NotFound
from gateway.sources import Source
from gateway.tools import Category, Permission, Tool
from gateway.value import Value

# In the `_meta` of a tool and of what links to a plan: the renderer that shows the outcome.
RENDERER = "dev.toolgate/renderer"
# Names listed in the refusal of a name that several tools have.
_CANDIDATES = 20


def mcp_tool(name: str, tool: Tool) -> dict[str, Any]:
    """Return a tool as MCP lists it. The hints follow from what the tool declares; they grant nothing. An upstream's
    tool is listed as that upstream lists it."""
    if tool.wire is not None:
        return _rename(name, tool, tool.wire)
    read_only = tool.permission is Permission.READ_ONLY
    shape: dict[str, Any] = {
        "name": name,
        "description": tool.description,
        "inputSchema": dict(tool.input_schema),
        "annotations": {
            "readOnlyHint": read_only,
            "destructiveHint": tool.destructive and not read_only,
            "idempotentHint": tool.idempotent or read_only,
            "openWorldHint": tool.open_world,
        },
    }
    if tool.title is not None:
        shape["title"] = tool.title
    if tool.output_schema is not None:
        shape["outputSchema"] = dict(tool.output_schema)
    meta = dict(tool.meta) if tool.renderer is None else {**tool.meta, RENDERER: tool.renderer.kind}
    if meta:
        shape["_meta"] = meta
    return shape


def _rename(name: str, tool: Tool, wire: Mapping[str, Any]) -> dict[str, Any]:
    shape = {"name": name, **wire}
    if tool.renderer is not None:
        shape["_meta"] = {**shape.get("_meta", {}), RENDERER: tool.renderer.kind}
    return shape


def openai_tool(name: str, tool: Tool) -> dict[str, Any]:
    """Return a tool in the format of OpenAI's chat completions API."""
    function = {"name": name, "description": tool.description, "parameters": dict(tool.input_schema)}
    return {"type": "function", "function": function}


def anthropic_tool(name: str, tool: Tool) -> dict[str, Any]:
    """Return a tool in the format of Anthropic's messages API."""
    return {"name": name, "description": tool.description, "input_schema": dict(tool.input_schema)}


class CatalogEntry(Value):
    """A tool as it is offered: its public name, the source that runs it, and its place in lists, lower ones first:
    clients with a limit use the first tools."""

    name: str
    tool: Tool
    source: Source
    rank: int = 0


class CatalogPolicy(Value):
    """The limits of a catalog: its categories, the highest permission, and the number of tools. `first` are patterns
    over the names and ids of tools that are listed before all others. `access` is what the profile of this process
    leaves; None for everything. `lists` is how tools are listed, `discovery` are the tools of short lists, `about` says
    what servers, toolsets and categories are for."""

    categories: Mapping[str, Category]
    permission: Permission = Permission.EXECUTE
    limit: int = 5000
    first: Sequence[str] = ()
    access: AccessPolicy | None = None
    lists: ListPolicy = FULL_LIST
    discovery: Sequence[CatalogEntry] = ()
    about: Mapping[str, str] = field(default_factory=dict)


class Catalog:
    """The merged view. Tools are found by public name, id or alias; iteration is by name.

    `aliases` are other names with the ids they may mean: names that a tool had before, and names without the prefix,
    which models and apps leave out. One that may mean several tools finds none of them. `withheld` says of each tool
    that exists but is not offered why; `problems` is what an operator should fix: bad schemas, tools above their
    category's level, names that had to be changed. Without `output_schemas`, lists leave those out. `discovery` are
    tools that find and run others: no part of the catalog, but callable by everybody whose list may be short.
    """

    def __init__(
        self,
        entries: Iterable[CatalogEntry] = (),
        withheld: Mapping[str, GatewayError] | None = None,
        problems: Sequence[GatewayError] = (),
        aliases: Mapping[str, Sequence[str]] | None = None,
        output_schemas: bool = True,
        lists: ListPolicy = FULL_LIST,
        discovery: Sequence[CatalogEntry] = (),
        about: Mapping[str, str] | None = None,
        access: AccessPolicy | None = None,
    ) -> None:
        self._access = access
        self.output_schemas = output_schemas
        self.lists = lists
        self.about: Mapping[str, str] = about or {}
        self.discovery = {entry.name: entry for entry in discovery}
        self._own = {entry.name: entry for entry in discovery if _is_offered(entry, lists.mode)}
        self._entries = {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}
        self._by_id = {entry.tool.id: entry for entry in self._entries.values()}
        self._withheld = dict(withheld or {})
        self._aliases: Mapping[str, Sequence[str]] = dict(aliases or {})
        self._views: dict[AccessPolicy, CatalogView] = {}
        self.problems = tuple({str(problem): problem for problem in problems}.values())

    @cached_property
    def groups(self) -> Mapping[ToolGroup, Sequence[tuple[CatalogEntry, str]]]:
        """Tools that differ only by their names, for access policies: each with its name and id on a line each."""
        groups: dict[ToolGroup, list[tuple[CatalogEntry, str]]] = {}
        for name, entry in self._entries.items():
            groups.setdefault(group_of(entry.tool), []).append((entry, f"{name}\n{entry.tool.id}"))
        return groups

    @cached_property
    def accepted(self) -> Mapping[str, CatalogEntry]:
        """Every name by which a tool can be called."""
        unique = {name: ids[0] for name, ids in self._aliases.items() if len(ids) == 1}
        aliased = {name: self._by_id[tool_id] for name, tool_id in unique.items() if tool_id in self._by_id}
        return {**aliased, **self._by_id, **self._entries, **self._own}

    @property
    def offered_discovery(self) -> Collection[CatalogEntry]:
        """The tools of discovery that the mode of lists has."""
        return self._own.values()

    def denies(self, name: str) -> bool:
        """Return whether a rule denies this name. A name under which other tools are called is denied like a tool."""
        return self._access is not None and self._access.denies(name)

    @property
    def names(self) -> Collection[str]:
        return self._entries.keys()

    def __iter__(self) -> Iterator[CatalogEntry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Catalog) and self.accepted == other.accepted

    __hash__ = None  # type: ignore[assignment]  # compared by content, so it is no key

    def for_principal(self, access: AccessPolicy | None) -> Catalog:
        """Return what a principal may see and call: made once, and the same object for the same access. For anything
        else it has no name, no reason and no hint, so that it cannot be told from what does not exist."""
        if access is None:
            return self
        view = self._views.get(access)
        if view is None:
            view = self._views[access] = CatalogView(self, access)
        return view

    def get(self, name: str) -> CatalogEntry | None:
        return self.accepted.get(name)

    def find(self, name: str) -> CatalogEntry:
        """The entry of that name, id or alias; refused with the reason it is not offered, or the nearest name."""
        entry = self.get(name)
        if entry is None:
            raise self.refusal(name)
        return entry

    def refusal(self, name: str) -> GatewayError:
        """The error for a name that has no entry."""
        ids = self._aliases.get(name, ())
        offered = [self._by_id[tool_id].name for tool_id in ids if tool_id in self._by_id]
        if offered and name not in self._withheld:
            return _ambiguous_name(name, len(ids), offered)
        for known in (name, *ids):
            if known in self._withheld:
                return self._withheld[known]
        return self._unknown_name(name)

    def _unknown_name(self, name: str) -> NotFound:
        shown = name if len(name) <= 100 else f"{name[:100]}…"
        offered = [entry.name for entry in self.for_models]
        hint = names.did_you_mean(name, offered) if len(name) <= 2 * names.WIRE_NAME_LIMIT else ""
        listed = (
            "search_tools finds tools by what they do"
            if self._own
            else "`toolgate tool list` and tools/list have all names"
        )
        advice = hint or f"; {listed}"
        return NotFound(f"no tool is named {shown!r}{advice}", code="UNKNOWN_TOOL")

    def filter(self, *, kind: str | None = None, category: str | None = None, tag: str | None = None) -> Catalog:
        """The part of the catalog that fits all that is given."""
        return Catalog(
            entry
            for entry in self
            if (kind is None or entry.tool.kind == kind)
            and (category is None or entry.tool.category == category)
            and (tag is None or tag in entry.tool.tags)
        )

    @cached_property
    def for_models(self) -> Sequence[CatalogEntry]:
        """The tools that a model may see: all but those that an upstream offers to its own views alone."""
        return [entry for entry in self if not entry.tool.app_only]

    def to_mcp_tools(self) -> list[dict[str, Any]]:
        return [mcp_tool(entry.name, entry.tool) for entry in self.for_models]

    def to_openai_tools(self) -> list[dict[str, Any]]:
        return [openai_tool(entry.name, entry.tool) for entry in self.for_models]

    def to_anthropic_tools(self) -> list[dict[str, Any]]:
        return [anthropic_tool(entry.name, entry.tool) for entry in self.for_models]


class CatalogView(Catalog):
    """The part of a catalog that an access policy allows."""

    def __init__(self, whole: Catalog, access: AccessPolicy) -> None:
        allows = access.allows_name
        groups = [entries for group, entries in whole.groups.items() if access.allows_group(group)]
        found = {entry.name for entries in groups for entry, names in entries if allows(names)}
        schemas, lists = whole.output_schemas and access.output_schemas, whole.lists.override(access.lists)
        own = [entry for name, entry in whole.discovery.items() if not access.denies(name)]
        super().__init__(output_schemas=schemas, lists=lists, discovery=own, about=whole.about, access=access)
        self._entries = {name: entry for name, entry in whole._entries.items() if name in found}
        self._whole = whole

    def get(self, name: str) -> CatalogEntry | None:
        if name in self._own:
            return self._own[name]
        entry = self._whole.get(name)
        if entry is None or entry.name not in self._entries:
            visible = self._find_visible(name)
            entry = visible[0] if len(visible) == 1 else None
        return entry

    def denies(self, name: str) -> bool:
        return super().denies(name) or self._whole.denies(name)

    def refusal(self, name: str) -> GatewayError:
        visible = [entry.name for entry in self._find_visible(name)]
        return _ambiguous_name(name, len(visible), visible) if visible else self._unknown_name(name)

    def _find_visible(self, name: str) -> list[CatalogEntry]:
        """The tools that an alias may mean, of those that are visible."""
        found = (self._whole._by_id.get(tool_id) for tool_id in self._whole._aliases.get(name, ()))
        return [entry for entry in found if entry is not None and entry.name in self._entries]


def _is_offered(entry: CatalogEntry, mode: ListMode | None) -> bool:
    """Return whether a tool of discovery is offered; the one that runs programs only in code mode."""
    return mode != "full" and (mode == "code" or entry.tool.kind != "steps")


def _ambiguous_name(name: str, count: int, offered: Sequence[str]) -> NotFound:
    listed = ", ".join(offered[:_CANDIDATES])
    return NotFound(f"{count} tools are named {name!r}; call one of: {listed}", code="AMBIGUOUS_TOOL")


@dataclass
class Draft:
    """A catalog in the making: consider tools, have their names assigned, finish."""

    policy: CatalogPolicy
    offered: dict[str, tuple[Source, Tool]] = field(default_factory=dict)
    withheld: dict[str, GatewayError] = field(default_factory=dict)
    known: dict[str, str | None] = field(default_factory=dict)
    problems: list[GatewayError] = field(default_factory=list)

    def consider(self, source: Source, tool: Tool) -> None:
        """Take the tool in, or leave it out with the reason: one bad tool spoils no other. Its id is `known`,
        with the prefix of its name."""
        self.known[tool.id] = tool.prefix
        try:
            self._admit(tool)
            tool.compile()
        except Forbidden as refusal:
            self._withhold(tool, refusal)
        except Invalid as problem:
            self._withhold(tool, problem)
            self.problems.append(problem)
        else:
            self.offered[tool.id] = (source, tool)

    def _withhold(self, tool: Tool, reason: GatewayError) -> None:
        self.withheld[tool.id] = self.withheld[names.wire_name(tool.id, tool.prefix)] = reason

    def _admit(self, tool: Tool) -> None:
        if tool.id in self.offered:
            raise Invalid(f"two tools have the id {tool.id!r}; the second is left out", code="DUPLICATE_TOOL")
        if tool.withheld is not None:
            raise Forbidden(f"{tool.id}: {tool.withheld}", code="TOOL_DISABLED")
        category = self.policy.categories.get(tool.category)
        if category is None:
            hint = names.did_you_mean(tool.category, self.policy.categories)
            raise Invalid(f"{tool.id}: there is no category {tool.category!r}{hint}", code="UNKNOWN_CATEGORY")
        if not category.enabled:
            raise Forbidden(
                f"{tool.id} is in category {category.name!r}, which is off; turn it on with: "
                f"toolgate category enable {category.name}",
                code="TOOL_DISABLED",
            )
        if not category.permission.allows(tool.permission):
            raise Invalid(
                f"{tool.id} needs {tool.permission.value}, but its category {category.name!r} allows only "
                f"{category.permission.value}; give the tool another category, or raise this one's level with: "
                f"toolgate category set {category.name} --level {tool.permission.value}",
                code="CATEGORY_TOO_LOW",
            )
        if not self.policy.permission.allows(tool.permission):
            raise Forbidden(
                f"{tool.id} needs {tool.permission.value}; this profile allows {self.policy.permission.value}"
            )
        access = self.policy.access
        if access is not None and not access.allows(names.wire_name(tool.id, tool.prefix), tool):
            raise Forbidden(f"{tool.id} is not among the tools of this profile", code="TOOL_DISABLED")
        if len(self.offered) >= self.policy.limit:
            raise Invalid(f"{tool.id}: more than {self.policy.limit} tools (limits.tools)", code="TOO_MANY_TOOLS")

    @property
    def wishes(self) -> dict[str, str]:
        """The name each tool would have if it were alone: `{id: name}`."""
        return {tool_id: names.wire_name(tool_id, tool.prefix) for tool_id, (_, tool) in self.offered.items()}

    def finish(self, given: Mapping[str, str], owners: Mapping[str, str]) -> Catalog:
        """The catalog, with the names given (`{id: name}`). `owners` are all names ever handed out (`{name: id}`)."""
        for tool_id, wish in sorted(self.wishes.items()):
            if given[tool_id] != wish:
                taken = f"{wish!r} belongs to {owners[wish]}"
                self.problems.append(Invalid(f"{tool_id} is offered as {given[tool_id]!r}: {taken}", code="NAME_TAKEN"))
        entries = (
            CatalogEntry(given[tool_id], tool, source, self._rank(given[tool_id], tool))
            for tool_id, (source, tool) in self.offered.items()
        )
        aliases = self._find_aliases(owners)
        schemas = self.policy.access is None or self.policy.access.output_schemas
        lists, access = self.policy.lists, self.policy.access
        own = [entry for entry in self.policy.discovery if access is None or not access.denies(entry.name)]
        about = self.policy.about
        return Catalog(entries, self.withheld, self.problems, aliases, schemas, lists, own, about, access)

    def _rank(self, name: str, tool: Tool) -> int:
        if any(fnmatchcase(text, pattern) for pattern in self.policy.first for text in (name, tool.id)):
            return 0
        return 3 if tool.wire is not None else 1 if tool.owner is None else 2

    def _find_aliases(self, owners: Mapping[str, str]) -> dict[str, list[str]]:
        """Other names of the known tools, with the ids they may mean. A withheld tool counts: a call that means it must
        not reach another. A name that was handed out never means a tool that it was not given to."""
        aliases: dict[str, list[str]] = {}
        for tool_id in sorted(self.known):
            aliases.setdefault(tool_id.partition(":")[2] or tool_id, []).append(tool_id)
        return aliases | {name: [tool_id] for name, tool_id in owners.items()}
