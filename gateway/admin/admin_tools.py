"""Administration as MCP tools, `toolgate__*`: off by default, for roles with `admin: true`, and only after a person's
consent where they change something. Deciding an approval is no tool: whoever is asked must not answer for the person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from gateway.admin import approvals, calls, health, switches, toolsets, upstreams
from gateway.calls import Call, Outcome
from gateway.secrets import KNOWN
from gateway.sources.builtin.decorator import Builtin, Shape, builtin
from gateway.tools import ADMIN_CATEGORY, Access, Permission, Tool

if TYPE_CHECKING:
    from gateway.gateway import Gateway

# The owner of the tools, which no toolset or server can be.
OWNER = "toolgate"
Limit = Annotated[int, Field(ge=1, le=200)]


class AdminResult(Shape):
    """The answer of an administration tool: what was found, or what is now the case."""

    result: Any


def _reads(title: str) -> Callable[[Callable[..., Any]], Builtin]:
    return builtin(title=title, category=ADMIN_CATEGORY, permission=Permission.READ_ONLY, access=Access.NONE)


def _changes(title: str, destructive: bool = False) -> Callable[[Callable[..., Any]], Builtin]:
    return builtin(
        title=title,
        category=ADMIN_CATEGORY,
        permission=Permission.EXECUTE,
        access=Access.NONE,
        requires_confirmation=True,
        destructive=destructive,
    )


@_reads("List toolsets")
async def list_toolsets(gateway: Any) -> AdminResult:
    """List the installed toolsets with their tools."""
    return AdminResult(result=[info.to_dict() for info in await toolsets.list_toolsets(gateway)])


@_changes("Install a toolset")
async def install_toolset(gateway: Any, source: str) -> AdminResult:
    """Install a toolset from a folder, a ZIP file or a URL, or update it. MCP servers it brings wait for consent."""
    info = await toolsets.install_toolset(gateway, source, copy=True)
    await gateway.reload()
    return AdminResult(result={**info.to_dict(), "hints": list(info.hints)})


@_changes("Switch a toolset")
async def enable_toolset(gateway: Any, toolset_id: str, enabled: bool) -> AdminResult:
    """Turn a toolset and all its tools on or off."""
    await toolsets.enable_toolset(gateway, toolset_id, enabled)
    await gateway.reload()
    return AdminResult(result={"id": toolset_id, "enabled": enabled})


@_changes("Uninstall a toolset", destructive=True)
async def uninstall_toolset(gateway: Any, toolset_id: str) -> AdminResult:
    """Remove a toolset, its files and what was changed about its tools."""
    await toolsets.uninstall_toolset(gateway, toolset_id)
    await gateway.reload()
    return AdminResult(result={"id": toolset_id, "installed": False})


@_changes("Switch a tool")
async def enable_tool(gateway: Any, name: str, enabled: bool) -> AdminResult:
    """Turn one tool on or off, by its name or id."""
    tool_id = await switches.enable_tool(gateway, name, enabled)
    await gateway.reload()
    return AdminResult(result={"id": tool_id, "enabled": enabled})


@_reads("List categories")
async def list_categories(gateway: Any) -> AdminResult:
    """List the categories of tools: whether each is on, its level, its limit and how many tools it has."""
    found = switches.list_categories(gateway)
    return AdminResult(result=[switches.describe_category(category, gateway.catalog) for category in found])


@_changes("Change a category")
async def change_category(
    gateway: Any,
    name: str,
    enabled: bool | None = None,
    permission: Literal["read-only", "read-write", "execute"] | None = None,
    calls_per_minute: Annotated[int, Field(ge=0, description="0 for no limit.")] | None = None,
) -> AdminResult:
    """Turn a category on or off, or change its level or limit."""
    given = {"enabled": enabled, "permission": permission, "calls_per_minute": calls_per_minute}
    changes = {key: value for key, value in given.items() if value is not None}
    category = switches.find_category(gateway, name)
    if changes:
        category = await switches.change_category(gateway, name, changes)
    return AdminResult(result=switches.describe_category(category, gateway.catalog))


@_reads("List upstream servers")
async def list_upstreams(gateway: Any) -> AdminResult:
    """List the MCP servers behind this gateway, with their state and tools."""
    return AdminResult(result=[info.to_dict() for info in await upstreams.list_upstreams(gateway)])


@_changes("Switch an upstream server")
async def enable_upstream(gateway: Any, name: str, enabled: bool) -> AdminResult:
    """Turn an MCP server that was added by hand on or off."""
    await upstreams.enable_upstream(gateway, name, enabled)
    await gateway.reload()
    return AdminResult(result={"name": name, "enabled": enabled})


@_changes("Remove an upstream server", destructive=True)
async def remove_upstream(gateway: Any, name: str) -> AdminResult:
    """Remove an MCP server that was added by hand, with its login and its folder."""
    await upstreams.remove_upstream(gateway, name)
    await gateway.reload()
    return AdminResult(result={"name": name, "added": False})


@_reads("List calls")
async def list_calls(
    gateway: Any,
    tool: str | None = None,
    status: Literal["pending", "running", "success", "error"] | None = None,
    before: Annotated[str | None, Field(description="The id of the last call already seen.")] = None,
    limit: Limit = 20,
) -> AdminResult:
    """List recorded tool calls of everybody, newest first."""
    found = await calls.list_calls(gateway, tool=tool, status=status, before=before, limit=limit)
    return AdminResult(result=found)


@_reads("List approvals")
async def list_approvals(gateway: Any, limit: Limit = 20) -> AdminResult:
    """List calls that wait for a person. A person decides with `toolgate approval`, over REST or in the console."""
    records = await approvals.list_approvals(gateway, waiting=True, limit=limit)
    return AdminResult(result=[record.to_dict() for record in records])


@_reads("Check the gateway")
async def check_health(gateway: Any) -> AdminResult:
    """Report what works and what an operator should repair."""
    checks = [*await health.check_gateway(gateway), health.check_storage(gateway.settings)]
    return AdminResult(result=[asdict(check) for check in checks])


ADMIN_TOOLS: Mapping[str, Builtin] = {
    tool.function.__name__: tool
    for tool in (
        *(list_toolsets, install_toolset, enable_toolset, uninstall_toolset, enable_tool),
        *(list_categories, change_category, list_upstreams, enable_upstream, remove_upstream),
        *(list_calls, list_approvals, check_health),
    )
}


class AdminSource:
    """The source of the administration tools of one gateway."""

    name = "admin"

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list_tools(self) -> Sequence[Tool]:
        return [replace(tool.tool, id=f"{OWNER}:{name}", owner=OWNER) for name, tool in ADMIN_TOOLS.items()]

    async def call_tool(self, call: Call) -> Outcome:
        name = call.target.id.partition(":")[2]
        outcome = await ADMIN_TOOLS[name].run_async(self._gateway, call.arguments)
        return Outcome(value=KNOWN.mask_value(outcome.value))
