"""Search over everything that has a name: tools, toolsets, upstream servers and categories."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gateway.access import AccessPolicy
from gateway.admin import switches
from gateway.catalog import CatalogEntry
from gateway.names import wire_name
from gateway.search import SearchableTool, ToolIndex
from gateway.tools import Tool
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.gateway import Gateway


@dataclass(frozen=True, order=True)
class Found:
    """Something with a name. `enabled` is false for a tool that is not offered."""

    kind: Literal["tool", "toolset", "upstream", "category"]
    id: str
    name: str
    description: str
    enabled: bool = True


class FoundTool(Value):
    """A tool by its public name, `tier` as `gateway.search` has it."""

    name: str
    tool: Tool
    enabled: bool
    tier: int


async def find_tools(
    gateway: Gateway, query: str, limit: int, access: AccessPolicy | None = None, include_disabled: bool = False
) -> list[FoundTool]:
    """Return the tools that somebody may call, best first; with `include_disabled`, also those that are not offered."""
    catalog = gateway.catalog.for_principal(access)
    if not include_disabled:
        found = await gateway.searches.catalog.find(gateway.catalog, query, limit, catalog)
        return [FoundTool(entry.name, entry.tool, True, tier) for tier, entry in found]
    tools: dict[str, Tool | CatalogEntry] = {entry.name: entry for entry in catalog.for_models}
    for tool, _ in await switches.list_withheld(gateway):
        name = wire_name(tool.id, tool.prefix)
        if not tool.app_only and (access is None or access.allows(name, tool)):
            tools.setdefault(name, tool)
    plain = {name: each.tool if isinstance(each, CatalogEntry) else each for name, each in tools.items()}
    matches = await gateway.searches.everything.find(plain, query, limit)
    return [
        FoundTool(match.key, plain[match.key], isinstance(tools[match.key], CatalogEntry), match.tier)
        for match in matches
    ]


async def search(
    gateway: Gateway, query: str, access: AccessPolicy | None, admin: bool, limit: int, include_disabled: bool = False
) -> list[Found]:
    """Return what matches, best first: the tools that somebody may call, for administrators also the other things. Of
    what matches alike, things of exactly that name come first, then tools."""
    tools = await find_tools(gateway, query, limit, access, include_disabled)
    ranked = [
        (match.tier, 1, Found("tool", match.tool.id, match.name, match.tool.description, match.enabled))
        for match in tools
    ]
    if admin:
        others = [each async for each in _list_others(gateway)]
        texts = {str(at): SearchableTool(each.id, each.name, "", each.description) for at, each in enumerate(others)}
        for match in ToolIndex(texts).rank(query, limit):
            other = others[int(match.key)]
            is_exact = query.lower() in (other.name.lower(), other.id.lower())
            ranked.append((match.tier, 0 if is_exact else 2, other))
    ranked.sort(key=lambda item: item[:2])
    return [each for *_, each in ranked][:limit]


async def _list_others(gateway: Gateway) -> AsyncIterator[Found]:
    # Imported here: a command that lists or finds tools needs nothing of upstreams.
    from gateway.admin import upstreams

    for toolset in await gateway.installed_toolsets():
        yield Found("toolset", toolset.id, toolset.spec.name, toolset.spec.description or "")
    for server in await upstreams.list_upstreams(gateway):
        yield Found("upstream", server.name, server.name, server.origin)
    for category in gateway.categories.values():
        yield Found("category", category.name, category.title, category.description)
