"""Tools over MCP: listed in pages that are made once per catalog, and called."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from gateway.access import AccessPolicy
from gateway.calls import Call, Caller, Outcome, RawResult, check_chat, to_json
from gateway.catalog import Catalog, mcp_tool
from gateway.discovery import (
    AUTO_TOKENS,
    AUTO_TOOLS,
    CALLERS,
    count_tokens,
    is_caller,
    is_deferring,
    redirect,
    short_list,
    shorten,
)
from gateway.errors import GatewayError, NotFound, QuotaExceeded
from gateway.executor import Executor
from gateway.protocol import is_version_at_least, supports_apps
from gateway.serve.mcp.render_resources import link
from gateway.serve.mcp.request import CHAT, Request, Response, meta_text
from gateway.serve.mcp.results import OWN_PREFIX, shape, tool_result, unknown_cursor
from gateway.serve.mcp.view_tools import VIEW_TOOL_NAMES, VIEW_TOOLS, ViewTools, plan_meta
from gateway.serve.mcp.views import describe_views, result_view

MESSAGE = "dev.toolgate/message"
PARENT_MESSAGE = "dev.toolgate/parent_message"

# Bytes of tools on one page of `tools/list`. Many agent libraries read only the first page, and the Python SDK's client
# accepts no event above 1 MiB.
PAGE_BYTES = 768 * 1024

_CURSOR = re.compile(r"[0-3]:[~A-Za-z0-9_-]{1,64}")

# The first version whose clients accept links in a result; earlier ones refuse the whole result.
RESOURCE_LINKS = "2025-06-18"


class ToolCaller(Protocol):
    """Calls a tool, and asks a person first where one must agree."""

    async def call_tool(self, call: Call) -> Outcome: ...


class Tools:
    """The tools of the executor's catalog, as each access leaves them. With `link_plans`, a result links to its render
    plan."""

    def __init__(self, executor: Executor, caller: ToolCaller, link_plans: bool, view_tools: ViewTools) -> None:
        self._caller = caller
        self._link_plans = link_plans
        self._view_tools = view_tools
        self.set_catalog(executor.catalog)

    def set_catalog(self, catalog: Catalog) -> None:
        """List the tools of this catalog from now on."""
        self._catalog = catalog
        self._lists: dict[tuple[AccessPolicy | None, bool], _ToolList] = {}
        self._list = self._list_for(None, apps=False)

    def header_schema(self, name: str, access: AccessPolicy | None) -> Mapping[str, Any] | None:
        """Return the input schema of a tool with arguments that are sent as HTTP headers too; None for any other."""
        schema = self._list.header_schemas.get(name)
        is_hidden = schema is not None and self._catalog.for_principal(access).get(name) is None
        return None if is_hidden else schema

    def page(self, cursor: str | None, caller: Caller, apps: bool) -> dict[str, Any]:
        """Return a page for a client; with `apps` it shows views, and gets the tools that only these may call."""
        return self._choose_list(caller, apps).page(cursor)

    def page_json(self, cursor: str | None, modern: bool, caller: Caller, apps: bool) -> bytes:
        """Return a page as JSON, encoded once."""
        tools = self._choose_list(caller, apps)
        encoded = tools.encoded.get((cursor, modern))
        if encoded is None:
            encoded = to_json(shape(tools.page(cursor), modern))
            if cursor in tools.pages:  # a cursor of ours: their number is limited
                tools.encoded[cursor, modern] = encoded
        return encoded

    def _choose_list(self, caller: Caller, apps: bool) -> _ToolList:
        """Return the list for a caller: whole, or short if its mode says so."""
        tools = self._list_for(caller.access, apps)
        return tools.short if tools.is_short_for(caller.client) else tools

    def _list_for(self, access: AccessPolicy | None, apps: bool) -> _ToolList:
        tools = self._lists.get((access, apps))
        if tools is None:
            whole = None if access is None else self._list_for(None, apps)
            tools = self._lists[access, apps] = _ToolList(self._catalog.for_principal(access), apps, whole)
        return tools

    async def call(self, request: Request) -> Response:
        meta, params = request.client.meta, request.params
        name, arguments, refusal = params["name"], params.get("arguments") or {}, None
        if name in CALLERS and is_caller(catalog := self._catalog.for_principal(request.caller.access), name):
            name, arguments, refusal = redirect(catalog, name, arguments)
        elif name in VIEW_TOOL_NAMES and self._is_of_views(name, request):
            return Response(await self._view_tools.call(request))
        call = Call(
            name=name,
            arguments=arguments,
            refusal=refusal,
            chat=check_chat(meta_text(meta, CHAT) or request.chat),
            message=meta_text(meta, MESSAGE) if MESSAGE in meta else None,
            parent_message=meta_text(meta, PARENT_MESSAGE) if PARENT_MESSAGE in meta else None,
            caller=request.caller,
            client=request.client,
            reply_to=request.id if request.relayed else None,
            progress=request.progress,
        )
        outcome = await self._caller.call_tool(call)
        if outcome.call_id is not None:  # it continues an earlier call
            call = call.replace(id=outcome.call_id)
        if outcome.error is not None:
            if request.modern and isinstance(outcome.error, QuotaExceeded):
                raise outcome.error  # answered with status 429, at which clients of SDK 1 would lose their sessions
            if request.session is not None and call.chat == request.session.chat:
                outcome = replace(outcome, error=_name_chat(outcome.error))
        wire, plan = outcome.wire, outcome.render_plan
        if type(wire) is RawResult and plan is None and outcome.content is wire.get("content") and not _is_ours(wire):
            return Response(call_id=call.id, message=wire.message)
        access = call.caller.access
        structured = call.name in self._list.structured and (access is None or access.output_schemas)
        result = tool_result(call, outcome, structured=structured)
        if not is_version_at_least(request.version, RESOURCE_LINKS):
            result["content"] = [block for block in result.get("content", ()) if not _is_link(block)]
        elif plan is not None and self._link_plans:
            result["content"] = [*result["content"], link(call.id, plan)]
            if supports_apps(request.client.capabilities):
                result["_meta"] |= plan_meta(call.id, plan)
        return Response(result, call.id)

    def _is_of_views(self, name: str, request: Request) -> bool:
        """Return whether the name of a view's tool means that tool. Views trust its answers and send it files, so that
        no tool of others gets their calls: neither by its name without the prefix, nor where views are shown."""
        return name not in self._catalog.names or supports_apps(request.client.capabilities)


def _name_chat(error: GatewayError) -> GatewayError:
    """Add to an error about a missing file how a client that the gateway gave a chat can choose one itself."""
    if error.code != "FILE_NOT_FOUND":
        return error
    hint = "if another session wrote it, add ?chat=NAME to the gateway's URL in each, with the same name"
    return NotFound(f"{error.message}; {hint}", code=error.code, **error.details)


def _is_link(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "resource_link"


def _is_ours(wire: Mapping[str, Any]) -> bool:
    """Return whether an upstream's result has `_meta` keys that only the gateway may write."""
    meta = wire.get("_meta")
    if isinstance(meta, dict):
        for key in meta:  # faster than any(): most results have one key
            if key.startswith(OWN_PREFIX):
                return True
    return False


class _ToolList:
    """The tools of one catalog as MCP lists them, by their rank and name. A view takes them from the `whole`. A short
    list is given as it is, by `tools`. Clients that show views (`apps`) get the tools that only these may call."""

    def __init__(
        self, catalog: Catalog, apps: bool, whole: _ToolList | None = None, tools: list[dict[str, Any]] | None = None
    ) -> None:
        self._cursors: list[str]
        self._tools: list[dict[str, Any]]
        if tools is not None:
            self._tools = describe_views(tools, catalog, apps)
            self._cursors = [f"0:{number:03}" for number in range(len(self._tools))]
        else:
            entries = {f"{entry.rank}:{entry.name}": entry for entry in (catalog if apps else catalog.for_models)}
            if whole is None:
                listed = [mcp_tool(entry.name, entry.tool) for entry in entries.values()]
                known = dict(zip(entries, describe_views(listed, catalog, apps), strict=True))
            else:
                known = dict(zip(whole._cursors, whole._tools, strict=True))
            self._cursors = sorted(entries)
            self._tools = [shorten(known[cursor], catalog) for cursor in self._cursors]
        if apps and any(entry.tool.renderer is not None or result_view(entry.tool) for entry in catalog):
            self._cursors = [*self._cursors, *(f"3:~{name}" for name in sorted(VIEW_TOOLS))]
            self._tools = [*self._tools, *(VIEW_TOOLS[name] for name in sorted(VIEW_TOOLS))]
        self.encoded: dict[tuple[str | None, bool], bytes] = {}
        self._catalog = catalog
        self._apps = apps

    def is_short_for(self, client: str | None) -> bool:
        """Return whether a client gets the short list."""
        mode = self._catalog.lists.mode
        if mode == "full":
            return False
        return mode != "auto" or not (is_deferring(client) or self._fits)

    @cached_property
    def _fits(self) -> bool:
        """True if the list is short enough for every client."""
        return len(self._tools) <= AUTO_TOOLS and count_tokens(self._tools) <= AUTO_TOKENS

    @cached_property
    def short(self) -> _ToolList:
        return _ToolList(self._catalog, self._apps, tools=short_list(self._catalog))

    @cached_property
    def structured(self) -> frozenset[str]:
        """The names of tools whose results have structured content."""
        accepted = self._catalog.accepted.items() if self._catalog.output_schemas else ()
        return frozenset(name for name, entry in accepted if entry.tool.output_schema is not None)

    @cached_property
    def header_schemas(self) -> Mapping[str, Mapping[str, Any]]:
        """The input schemas, by name, of tools with arguments that are sent as HTTP headers too."""
        with_headers = {entry.name for entry in self._catalog if "x-mcp-header" in str(entry.tool.input_schema)}
        accepted = self._catalog.accepted.items() if with_headers else ()
        return {name: entry.tool.input_schema for name, entry in accepted if entry.name in with_headers}

    @cached_property
    def pages(self) -> dict[str | None, int]:
        """The end of each page by the cursor that leads to it."""
        end = self._end(0)
        pages: dict[str | None, int] = {None: end}
        while end < len(self._tools):
            pages[self._cursors[end - 1]] = end = self._end(end)
        return pages

    def page(self, cursor: str | None) -> dict[str, Any]:
        """Return the tools after the one named by the cursor, so that a changed catalog does not shift pages."""
        if cursor and not _CURSOR.fullmatch(cursor):
            raise unknown_cursor()
        start = bisect_right(self._cursors, cursor) if cursor else 0  # some clients send an empty cursor for none
        end = self.pages[cursor] if cursor in self.pages else self._end(start)
        page: dict[str, Any] = {
            "resultType": "complete",
            "tools": self._tools[start:end],
            "ttlMs": self._catalog.lists.fresh_seconds * 1000,
            "cacheScope": "private",  # what is listed depends on who asks
        }
        if end < len(self._tools):
            page["nextCursor"] = self._cursors[end - 1]
        return page

    def _end(self, start: int) -> int:
        """Return the end of the page that starts there. It has at least one tool."""
        room = PAGE_BYTES
        for end in range(start, len(self._tools)):
            room -= len(to_json(self._tools[end]))
            if room < 0 and end > start:
                return end
        return len(self._tools)
