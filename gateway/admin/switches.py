"""Switches: one tool on or off, and categories with their level and limit. Running gateways follow within a second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from gateway import names
from gateway.catalog import Catalog
from gateway.db.switches import CategoryRow
from gateway.errors import Forbidden, GatewayError, NotFound
from gateway.names import did_you_mean
from gateway.sources.builtin.source import as_declared
from gateway.tools import Category, Tool

if TYPE_CHECKING:
    from gateway.gateway import Gateway


async def enable_tool(gateway: Gateway, name: str, enabled: bool) -> str:
    """Turn one tool on or off; return its id."""
    tool_id = await find_tool_id(gateway, name)
    if ":" not in tool_id:
        if not await gateway.switches.enable_builtin(tool_id, enabled):
            raise Forbidden(
                f"{tool_id} belongs to the program that embeds the gateway; add or leave it out there",
                code="NOT_SWITCHABLE",
            )
    elif (toolset := await find_toolset(gateway, tool_id)) is not None:
        await gateway.toolsets.library.override(toolset, tool_id, {"enabled": enabled})
    else:
        await gateway.switches.enable_server_tool(tool_id, enabled)
    return tool_id


async def enable_tools(gateway: Gateway, tools: Sequence[str], enabled: bool) -> dict[str, GatewayError | None]:
    """Turn tools on or off; each by its id, with the reason why it could not be switched."""
    results: dict[str, GatewayError | None] = {}
    for name in tools:
        try:
            results[await enable_tool(gateway, name, enabled)] = None
        except GatewayError as refusal:
            results[name] = refusal
    await gateway.reload()
    return results


async def list_withheld(gateway: Gateway) -> list[tuple[Tool, str]]:
    """List the tools that exist and are not offered, each with the reason and the remedy."""
    return [
        (as_declared(tool), tool.withheld or gateway.catalog.refusal(tool.id).message)
        for tool in await _find_withheld(gateway)
    ]


async def count_withheld(gateway: Gateway) -> Counter[str]:
    """Count the tools that exist and are not offered by category. Modules of builtins that are off stay unloaded."""
    return Counter(tool.category for tool in await _find_withheld(gateway))


async def _find_withheld(gateway: Gateway) -> list[Tool]:
    known = [tool for source in gateway.sources for tool in await source.list_tools()]
    return [tool for tool in known if gateway.catalog.get(tool.id) is None]


def list_categories(gateway: Gateway) -> list[Category]:
    return [gateway.categories[name] for name in sorted(gateway.categories)]


def find_category(gateway: Gateway, name: str) -> Category:
    if name not in gateway.categories:
        near = did_you_mean(name, gateway.categories) or f"; there are {', '.join(sorted(gateway.categories))}"
        raise NotFound(f"there is no category {name!r}{near}", code="UNKNOWN_CATEGORY")
    return gateway.categories[name]


async def change_category(gateway: Gateway, name: str, changes: Mapping[str, Any]) -> Category:
    """Change a category for this data directory: `name`, `description`, `enabled`, `permission`, `calls_per_minute`
    (0 for no limit). Without changes, undo earlier ones. What is changed here wins over settings and flags."""
    find_category(gateway, name)
    if changes:
        stored = (await gateway.switches.load_categories()).get(name, CategoryRow(name))
        await gateway.switches.set_category(replace(stored, **changes))
    else:
        await gateway.switches.reset_category(name)
    await gateway.refresh()
    return gateway.categories[name]


def describe_category(category: Category, catalog: Catalog) -> dict[str, Any]:
    """A category for programs, with the number of its tools that are on."""
    values, tools = asdict(category), catalog.filter(category=category.name)
    label = {"id": values.pop("name"), "name": values.pop("title")}
    return {**label, **values, "permission": category.permission.value, "tools": len(tools)}


async def find_tool_id(gateway: Gateway, name: str) -> str:
    """The id of a tool by its id or public name, whether or not it is on."""
    entry = gateway.catalog.get(name)
    if entry is not None:
        return entry.tool.id
    known = {tool.id: tool.id for tool in await gateway.builtins.list_tools()}
    for toolset in await gateway.installed_toolsets():
        known |= {names.wire_name(tool.id, toolset.spec.prefix): tool.id for tool in toolset.tools}
    if name in known or name in known.values():
        return known.get(name, name)
    if ":" in name and gateway.catalog.refusal(name).code != "UNKNOWN_TOOL":  # of a server, and not offered
        return name
    near = did_you_mean(name, [*known, *(entry.name for entry in gateway.catalog)])
    raise NotFound(f"no tool is named {name!r}{near}", code="UNKNOWN_TOOL")


async def find_toolset(gateway: Gateway, tool_id: str) -> str | None:
    """The toolset that brings a tool, by itself or by one of its servers."""
    owner = tool_id.partition(":")[0]
    for toolset in await gateway.installed_toolsets():
        if owner == toolset.id or owner in {server.id for server in toolset.servers}:
            return toolset.id
    return None
