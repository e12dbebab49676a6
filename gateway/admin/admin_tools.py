"""Administration as MCP tools, `toolgate__*`: off by default, for roles with `admin: true`, and only after a person's
consent where they change something. What a person decides by looking is no tool: approvals, changed definitions of
servers, the servers of a toolset. Nor is what takes or makes a secret: it would be in the model's context and in the
record of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anyio import to_thread
from pydantic import Field

from gateway.admin import (
    approvals,
    calls,
    chat_files,
    health,
    keys,
    switches,
    toolsets,
    upstreams,
    usage,
)
from gateway.admin.chat_files import ChatFiles
from gateway.admin.tool_details import describe_tool, summarize_tool
from gateway.calls import Call, Outcome
from gateway.catalog import Catalog
from gateway.config import describe
from gateway.db.usage import Dimension
from gateway.errors import GatewayError
from gateway.secrets import KNOWN
from gateway.sources.builtin.decorator import Builtin, Shape, builtin
from gateway.tools import ADMIN_CATEGORY, Access, Permission, Tool
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.gateway import Gateway

# The owner of the tools, which no toolset or server can be.
OWNER = "toolgate"
READ_BYTES = 256 * 1024
Limit = Annotated[int, Field(ge=1, le=200)]
ChatId = Annotated[str | None, Field(min_length=1, max_length=200, description="By default the chat of this call.")]
Version = Annotated[str | None, Field(min_length=3, max_length=64, description="The id of a version.")]


class AdminContext(Value):
    """The gateway that a tool administers, and its call."""

    gateway: Gateway
    call: Call

    @property
    def catalog(self) -> Catalog:
        """The tools of the caller."""
        return self.gateway.catalog.for_principal(self.call.caller.access)

    def open_files(self, chat: str | None) -> ChatFiles:
        """Return the files of a chat of the caller's, by default of the chat of the call."""
        return ChatFiles(self.gateway, chat or self.call.chat, self.call.caller, admin=True, by_model=True)


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
async def list_toolsets(context: AdminContext) -> AdminResult:
    """List the installed toolsets with their tools."""
    return AdminResult(result=[info.to_dict() for info in await toolsets.list_toolsets(context.gateway)])


@_reads("Get a toolset")
async def get_toolset(context: AdminContext, toolset_id: str) -> AdminResult:
    """Show an installed toolset: its tools, MCP servers, origin and what a person must still do."""
    info = await toolsets.show_toolset(context.gateway, toolset_id)
    return AdminResult(result={**info.to_dict(), "hints": list(info.hints)})


@_changes("Export a toolset")
async def export_toolset(
    context: AdminContext,
    toolset_id: str,
    path: Annotated[str | None, Field(description="By default ID-VERSION.zip.")] = None,
    chat: ChatId = None,
) -> AdminResult:
    """Write a toolset as a ZIP file, without secret values, into the files of a chat of yours."""
    info = await toolsets.show_toolset(context.gateway, toolset_id)
    output = BytesIO()
    await toolsets.export_toolset(context.gateway, toolset_id, output)
    path = path or f"{info.id}-{info.installed.spec.version}.zip"
    written = await context.open_files(chat).write_file(path, output.getvalue(), lambda _: None)
    return AdminResult(result=asdict(written))


@_changes("Install a toolset")
async def install_toolset(context: AdminContext, source: str) -> AdminResult:
    """Install a toolset from a folder, a ZIP file or a URL, or update it. MCP servers it brings wait for consent."""
    info = await toolsets.install_toolset(context.gateway, source, copy=True)
    await context.gateway.reload()
    return AdminResult(result={**info.to_dict(), "hints": list(info.hints)})


@_changes("Update a toolset")
async def update_toolset(context: AdminContext, toolset_id: str) -> AdminResult:
    """Install a toolset again from the folder or URL it came from; the result is what changed."""
    difference = await toolsets.update_toolset(context.gateway, toolset_id, dry_run=False)
    await context.gateway.reload()
    return AdminResult(result=asdict(difference))


@_changes("Switch a toolset")
async def enable_toolset(context: AdminContext, toolset_id: str, enabled: bool) -> AdminResult:
    """Turn a toolset and all its tools on or off."""
    await toolsets.enable_toolset(context.gateway, toolset_id, enabled)
    await context.gateway.reload()
    return AdminResult(result={"id": toolset_id, "enabled": enabled})


@_changes("Uninstall a toolset", destructive=True)
async def uninstall_toolset(context: AdminContext, toolset_id: str) -> AdminResult:
    """Remove a toolset, its files and what was changed about its tools."""
    await toolsets.uninstall_toolset(context.gateway, toolset_id)
    await context.gateway.reload()
    return AdminResult(result={"id": toolset_id, "installed": False})


@_reads("List tools")
async def list_tools(
    context: AdminContext,
    category: str | None = None,
    kind: str | None = None,
    tag: str | None = None,
    after: Annotated[str, Field(description="The name of the last tool already seen.")] = "",
    limit: Limit = 50,
) -> AdminResult:
    """List the tools that you may call, by name, with their level, owner and renderer."""
    entries = context.catalog.filter(kind=kind, category=category, tag=tag)
    chosen = sorted((entry for entry in entries if entry.name > after), key=lambda entry: entry.name)[:limit]
    return AdminResult(result=[summarize_tool(entry.name, entry.tool) for entry in chosen])


@_reads("Get a tool")
async def get_tool(context: AdminContext, name: str) -> AdminResult:
    """Show a tool, by its name or id, with its schemas, how its outcomes are shown, and what a person changed."""
    entry = context.catalog.find(name)
    original = await toolsets.describe_original(context.gateway, entry.tool)
    return AdminResult(result={**describe_tool(entry), "original": original})


@_changes("Switch a tool")
async def enable_tool(context: AdminContext, name: str, enabled: bool) -> AdminResult:
    """Turn one tool on or off, by its name or id."""
    tool_id = await switches.enable_tool(context.gateway, name, enabled)
    await context.gateway.reload()
    return AdminResult(result={"id": tool_id, "enabled": enabled})


@_reads("List categories")
async def list_categories(context: AdminContext) -> AdminResult:
    """List the categories of tools: whether each is on, its level, its limit and how many tools it has."""
    found = switches.list_categories(context.gateway)
    return AdminResult(result=[switches.describe_category(category, context.gateway.catalog) for category in found])


@_changes("Change a category")
async def change_category(
    context: AdminContext,
    name: str,
    enabled: bool | None = None,
    permission: Literal["read-only", "read-write", "execute"] | None = None,
    calls_per_minute: Annotated[int, Field(ge=0, description="0 for no limit.")] | None = None,
) -> AdminResult:
    """Turn a category on or off, or change its level or limit."""
    given = {"enabled": enabled, "permission": permission, "calls_per_minute": calls_per_minute}
    changes = {key: value for key, value in given.items() if value is not None}
    category = switches.find_category(context.gateway, name)
    if changes:
        category = await switches.change_category(context.gateway, name, changes)
    return AdminResult(result=switches.describe_category(category, context.gateway.catalog))


@_reads("List upstream servers")
async def list_upstreams(context: AdminContext) -> AdminResult:
    """List the MCP servers behind this gateway, with their state and how many tools they have."""
    found = [info.to_dict() for info in await upstreams.list_upstreams(context.gateway)]
    return AdminResult(result=[{key: value for key, value in info.items() if key != "tools"} for info in found])


@_reads("Get an upstream server")
async def get_upstream(context: AdminContext, name: str) -> AdminResult:
    """Show an MCP server: its state, its settings without secrets, and its tools."""
    return AdminResult(result=await _describe_upstream(context, name))


async def _describe_upstream(context: AdminContext, name: str) -> dict[str, Any]:
    """Return a server as `get_upstream` shows it. The description of a tool that is held back may be an attack on the
    model that would read it here."""
    found = (await upstreams.show_upstream(context.gateway, name)).to_dict()
    tools = [tool if tool["state"] == "offered" else {**tool, "description": ""} for tool in found["tools"]]
    return {**found, "tools": tools}


@_changes("Add an upstream server")
async def add_upstream(
    context: AdminContext,
    name: str,
    settings: Annotated[
        dict[str, Any],
        Field(description="As in `mcpServers`: `command` and `args`, or `url`. Write secrets as `${VARIABLE}`."),
    ],
) -> AdminResult:
    """Add an MCP server, which must answer once or want a login."""
    await upstreams.add_upstream(context.gateway, name, settings)
    await context.gateway.reload()
    return AdminResult(result=await _describe_upstream(context, name))


@_changes("Test an upstream server")
async def test_upstream(context: AdminContext, name: str) -> AdminResult:
    """Connect to an MCP server and list what it has; refused with the reason if it does not answer."""
    [(_, found)] = await upstreams.probe_upstreams(context.gateway, name)
    await context.gateway.reload()
    if isinstance(found, GatewayError):
        raise found
    return AdminResult(result=await _describe_upstream(context, name))


@_changes("Restart an upstream server")
async def restart_upstream(context: AdminContext, name: str) -> AdminResult:
    """End the connections and the program of an MCP server, and start it again."""
    await upstreams.restart_upstream(context.gateway, name)
    await context.gateway.reload()
    return AdminResult(result={"name": name, "restarted": True})


@_reads("Get the log of an upstream server")
async def get_upstream_log(context: AdminContext, name: str, lines: Limit = 50) -> AdminResult:
    """Return the last lines that the program of an MCP server wrote to its stderr."""
    log = await upstreams.find_log(context.gateway, name)
    return AdminResult(result=await to_thread.run_sync(upstreams.read_log, log, lines))


@_changes("Switch an upstream server")
async def enable_upstream(context: AdminContext, name: str, enabled: bool) -> AdminResult:
    """Turn an MCP server that was added by hand on or off."""
    await upstreams.enable_upstream(context.gateway, name, enabled)
    await context.gateway.reload()
    return AdminResult(result={"name": name, "enabled": enabled})


@_changes("Remove an upstream server", destructive=True)
async def remove_upstream(context: AdminContext, name: str) -> AdminResult:
    """Remove an MCP server that was added by hand, with its login and its folder."""
    await upstreams.remove_upstream(context.gateway, name)
    await context.gateway.reload()
    return AdminResult(result={"name": name, "added": False})


@_reads("List calls")
async def list_calls(
    context: AdminContext,
    tool: str | None = None,
    status: Literal["pending", "running", "success", "error"] | None = None,
    before: Annotated[str | None, Field(description="The id of the last call already seen.")] = None,
    limit: Limit = 20,
) -> AdminResult:
    """List recorded tool calls of everybody, newest first."""
    found = await calls.list_calls(context.gateway, tool=tool, status=status, before=before, limit=limit)
    return AdminResult(result=found)


@_reads("Get a call")
async def get_call(context: AdminContext, call_id: str) -> AdminResult:
    """Show a recorded call of yours with its arguments, its result and how that is shown."""
    return AdminResult(result=await calls.show_call(context.gateway, call_id, context.call.caller.principal))


@_changes("Cancel a call")
async def cancel_call(context: AdminContext, call_id: str) -> AdminResult:
    """Cancel a call of anybody that runs or waits for a person."""
    return AdminResult(result=await calls.cancel_call(context.gateway, call_id, context.call.caller.principal))


@_reads("Report usage")
async def report_usage(
    context: AdminContext,
    by: Annotated[tuple[Dimension, ...], Field(max_length=4)] = ("tool",),
    since: date | None = None,
    until: date | None = None,
    limit: Limit = 50,
) -> AdminResult:
    """Count calls, errors, durations and bytes, by default of the last seven days."""
    found = await usage.report_usage(context.gateway, by, since=since, until=until, limit=limit)
    return AdminResult(result=asdict(found))


@_reads("List remembered approvals")
async def list_remembered_approvals(context: AdminContext) -> AdminResult:
    """List the consents that last: for a chat, or for a tool as it is defined."""
    return AdminResult(result=[asdict(each) for each in await approvals.list_remembered(context.gateway)])


@_changes("Revoke a remembered approval")
async def revoke_remembered_approval(context: AdminContext, remembered_id: str) -> AdminResult:
    """Forget a consent that lasts; from the next call on a person is asked again."""
    revoked = await approvals.revoke(context.gateway, remembered_id, context.call.caller.principal)
    return AdminResult(result=asdict(revoked))


@_reads("List settings")
async def list_settings(context: AdminContext) -> AdminResult:
    """List the settings in effect, with secrets masked."""
    return AdminResult(result={each.key: each.value for each in describe(context.gateway.settings)})


@_reads("List approvals")
async def list_approvals(context: AdminContext, limit: Limit = 20) -> AdminResult:
    """List calls that wait for a person. A person decides with `toolgate approval`, over REST or in the console."""
    records = await approvals.list_approvals(context.gateway, waiting=True, limit=limit)
    return AdminResult(result=[record.to_dict() for record in records])


@_reads("Check the gateway")
async def check_health(context: AdminContext) -> AdminResult:
    """Report what works and what an operator should repair."""
    checks = [*await health.check_gateway(context.gateway), health.check_storage(context.gateway.settings)]
    return AdminResult(result=[asdict(check) for check in checks])


@_reads("List chats")
async def list_chats(
    context: AdminContext,
    before: Annotated[str | None, Field(description="The `place` of the last chat already seen.")] = None,
    limit: Limit = 20,
) -> AdminResult:
    """List the chats of everybody, newest first."""
    found = await chat_files.list_chats(context.gateway, None, before, limit)
    return AdminResult(result=[{**asdict(chat), "place": chat.place} for chat in found])


@_reads("List files of a chat")
async def list_workspace_files(
    context: AdminContext,
    chat: ChatId = None,
    path: str = ".",
    manifest: Version = None,
    after: Annotated[str, Field(description="The last path already seen.")] = "",
    limit: Limit = 100,
) -> AdminResult:
    """List the files of a chat of yours, as they are now or in a version."""
    files = context.open_files(chat)
    found = await files.list_files(path, manifest=manifest, after=after, limit=limit)
    return AdminResult(result=[asdict(file) for file in found])


@_reads("Read a file of a chat")
async def read_workspace_file(
    context: AdminContext, path: str, chat: ChatId = None, manifest: Version = None
) -> AdminResult:
    """Read a text file of a chat of yours, as it is now or was in a version; at most 256 KiB of it."""
    content = await context.open_files(chat).open_file(path, manifest)
    with content.file as file:
        beginning = await to_thread.run_sync(file.read, READ_BYTES)
    text = beginning.decode("utf-8", "replace")
    truncated = len(beginning) < content.size
    return AdminResult(result={"path": path, "size": content.size, "content": text, "truncated": truncated})


@_changes("Write a file of a chat")
async def write_workspace_file(context: AdminContext, path: str, content: str, chat: ChatId = None) -> AdminResult:
    """Write a whole text file of a chat of yours, and save a version."""
    written = await context.open_files(chat).write_file(path, content.encode(), lambda _: None)
    return AdminResult(result=asdict(written))


@_reads("List versions of a chat's files")
async def list_workspace_versions(
    context: AdminContext, chat: ChatId = None, before: Version = None, limit: Limit = 20
) -> AdminResult:
    """List the versions of the files of a chat of yours, newest first, with what each changed."""
    found = await context.open_files(chat).list_versions(before, limit)
    return AdminResult(result=[asdict(version) for version in found])


@_reads("Get a version of a chat's files")
async def get_workspace_version(
    context: AdminContext,
    chat: ChatId = None,
    message: Annotated[str | None, Field(description="The id of a message: its version.")] = None,
    manifest: Version = None,
) -> AdminResult:
    """Get a version of the files of a chat of yours, with the digest of each file: that of a message, or the current
    one."""
    return AdminResult(result=await context.open_files(chat).get_manifest(message, manifest))


@_reads("Compare versions of a chat's files")
async def compare_workspace_versions(
    context: AdminContext, chat: ChatId = None, since: Version = None, until: Version = None
) -> AdminResult:
    """Compare two versions of the files of a chat of yours; `until` may be `now`."""
    found = await context.open_files(chat).compare(since, until, ())
    answer = {"from": found.from_version, "to": found.to_version, "diff": found.text, "truncated": found.truncated}
    return AdminResult(result=answer)


@_changes("Restore a chat's files", destructive=True)
async def restore_workspace(context: AdminContext, manifest: str, chat: ChatId = None) -> AdminResult:
    """Restore the files of a chat of yours to a version; the current ones are saved as a version first."""
    return AdminResult(result=(await context.open_files(chat).restore(manifest)).to_dict())


@_changes("Undo the last change of a chat's files", destructive=True)
async def undo_workspace(context: AdminContext, chat: ChatId = None) -> AdminResult:
    """Restore the version before the current one of the files of a chat of yours."""
    return AdminResult(result=(await context.open_files(chat).undo()).to_dict())


@_changes("Branch a chat's files", destructive=True)
async def branch_workspace(context: AdminContext, manifest: str, message: str, chat: ChatId = None) -> AdminResult:
    """Restore a version of a chat of yours as the files of a new message, from which later changes branch off."""
    return AdminResult(result=(await context.open_files(chat).branch(manifest, message)).to_dict())


@_reads("List keys")
async def list_keys(context: AdminContext) -> AdminResult:
    """List the API keys, without their secrets. A person makes one: nobody else may see its secret."""
    found = await keys.list_keys(context.gateway)
    return AdminResult(result=[keys.describe_key(key) for key in found])


@_changes("Revoke a key", destructive=True)
async def revoke_key(context: AdminContext, key_id: str) -> AdminResult:
    """Revoke an API key, by its id, or by its name if only one active key has it. Its next request is refused."""
    key = await keys.revoke_key(context.gateway, key_id)
    return AdminResult(result=keys.describe_key(key) | {"status": "revoked"})


@_reads("List connected clients")
async def list_connected_clients(context: AdminContext) -> AdminResult:
    """List the clients that act for somebody who logged in with a key."""
    found = await keys.list_clients(context.gateway)
    return AdminResult(result=[keys.describe_client(grant) for grant in found])


@_changes("Disconnect a client", destructive=True)
async def disconnect_client(context: AdminContext, client_id: str) -> AdminResult:
    """End what somebody allowed a connected client. Its next request is refused."""
    await keys.disconnect_client(context.gateway, client_id)
    return AdminResult(result={"id": client_id, "connected": False})


ADMIN_TOOLS: Mapping[str, Builtin] = {
    tool.function.__name__: tool
    for tool in (
        *(list_toolsets, get_toolset, export_toolset),
        *(install_toolset, update_toolset, enable_toolset, uninstall_toolset),
        *(list_tools, get_tool, enable_tool, list_categories, change_category),
        *(list_upstreams, get_upstream, get_upstream_log),
        *(add_upstream, test_upstream, restart_upstream, enable_upstream, remove_upstream),
        *(list_calls, get_call, cancel_call, report_usage),
        *(list_approvals, list_remembered_approvals, revoke_remembered_approval),
        *(check_health, list_settings),
        *(list_chats, list_workspace_files, read_workspace_file, write_workspace_file),
        *(list_workspace_versions, get_workspace_version, compare_workspace_versions),
        *(restore_workspace, undo_workspace, branch_workspace),
        *(list_keys, revoke_key, list_connected_clients, disconnect_client),
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
        outcome = await ADMIN_TOOLS[name].run_async(AdminContext(self._gateway, call), call.arguments)
        return Outcome(value=KNOWN.mask_value(outcome.value))
