"""The MCP server: tools listed and called in both protocol eras, over any transport."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError
from starlette.requests import Request

from .. import __version__
from ..calls import DEFAULT_CHAT, Call, Caller, Outcome, check_chat, text_content
from ..catalog import Catalog
from ..errors import GatewayError, Invalid
from ..executor import Executor
from .changes import Changes

CHAT = "dev.toolgate/chat"
MESSAGE = "dev.toolgate/message"
PARENT_MESSAGE = "dev.toolgate/parent_message"
CALL_ID = "dev.toolgate/call_id"
ERROR = "dev.toolgate/error"

PAGE = 200
"""Tools on one page of `tools/list`: small enough for any client, large enough to be one page for most."""

INSTRUCTIONS = (
    "Files are kept in a workspace of their own for each chat; every path is relative to its root. "
    "A failed call answers 'CODE: message', and the message says how to mend it."
)

Context = ServerRequestContext[Any, Any]
log = logging.getLogger(__name__)


class GatewayServer(Server[Any]):
    """The SDK's server, announcing to handshake-era clients that lists change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        # The SDK's HTTP manager passes none, and would announce tools.listChanged=false.
        announced = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(announced, experimental_capabilities, extensions)


class McpFace:
    """One executor, spoken to in MCP. `chat` is where calls go that name none themselves."""

    def __init__(self, executor: Executor, chat: str | None = None) -> None:
        self._executor = executor
        self._chat = chat
        self._changes = Changes()
        self._view = _View(executor.catalog)
        executor.watch(self._catalog_changed)
        self.server = self._build()

    def _build(self) -> GatewayServer:
        server = GatewayServer(
            "toolgate",
            version=__version__,
            title="Toolgate",
            instructions=INSTRUCTIONS,
            # Without a lookup the SDK runs the whole tools/list handler before every call.
            get_tool_input_schema=lambda name: self._view.header_schemas.get(name),
            on_subscriptions_listen=self._changes.listen,
        )
        server.add_request_handler("tools/list", types.PaginatedRequestParams, self._list_tools)
        server.add_request_handler("tools/call", types.CallToolRequestParams, self._call_tool)
        server.middleware.extend([_contain, self._changes.middleware])
        return server

    def _catalog_changed(self, catalog: Catalog) -> None:
        self._view = _View(catalog)
        self._changes.tools_changed()

    def close(self) -> None:
        """End the streams on which clients wait for changes."""
        self._changes.close()

    async def _list_tools(self, _: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        return self._view.page(params.cursor)

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        try:
            call = self._translate(context, params)
        except GatewayError as refusal:
            raise MCPError(types.INVALID_PARAMS, str(refusal), refusal.to_dict()) from None
        outcome = await self._executor.call_tool(call)
        return result(call, outcome, structured=params.name in self._view.structured)

    def _translate(self, context: Context, params: types.CallToolRequestParams) -> Call:
        meta: Mapping[str, Any] = context.meta or {}
        return Call(
            name=params.name,
            arguments=params.arguments or {},
            chat=check_chat(_text(meta, CHAT) or self._connection_chat(context)),
            message=_text(meta, MESSAGE),
            parent_message=_text(meta, PARENT_MESSAGE),
            caller=Caller(surface="mcp", client=_client(context.session)),
            progress=context.session.report_progress,
        )

    def _connection_chat(self, context: Context) -> str:
        """The chat of a call that names none: the URL's, the command line's, the session's."""
        request = context.request
        if not isinstance(request, Request):
            return self._chat or DEFAULT_CHAT
        return (
            request.query_params.get("chat")
            or self._chat
            or request.headers.get("mcp-session-id")  # only the handshake era has sessions
            or DEFAULT_CHAT
        )


class _View:
    """What a catalog looks like on this wire, made once per catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.tools = catalog.to_mcp_tools()
        self.structured = frozenset(tool["name"] for tool in self.tools if "outputSchema" in tool)
        self.header_schemas = {
            tool["name"]: tool["inputSchema"] for tool in self.tools if "x-mcp-header" in str(tool["inputSchema"])
        }

    def page(self, cursor: str | None) -> dict[str, Any]:
        """The tools after the one the cursor names, so that a changed catalog shifts no page."""
        names = [tool["name"] for tool in self.tools]
        start = 0 if cursor is None else sum(name <= cursor for name in names)
        listed = self.tools[start : start + PAGE]
        page: dict[str, Any] = {"resultType": "complete", "tools": listed, "ttlMs": 0, "cacheScope": "private"}
        if start + PAGE < len(self.tools):
            page["nextCursor"] = listed[-1]["name"]
        return page


async def _contain(ctx: Context, call_next: CallNext) -> HandlerResult:
    """The one place a bug is caught on this surface: in the handshake era the SDK would put its text on the wire."""
    try:
        return await call_next(ctx)
    except (MCPError, ValidationError):
        raise
    except Exception:
        log.exception("%s failed unexpectedly", ctx.method)
        raise MCPError(types.INTERNAL_ERROR, "the gateway failed; its log has the reason") from None


def result(call: Call, outcome: Outcome, structured: bool) -> dict[str, Any]:
    """An outcome as an MCP tool result."""
    if outcome.error is not None:
        return {
            "resultType": "complete",
            "isError": True,
            "content": text_content(str(outcome.error)),
            "_meta": {CALL_ID: call.id, ERROR: outcome.error.to_dict()},
        }
    shape: dict[str, Any] = {
        "resultType": "complete",
        "isError": False,
        "content": outcome.content or text_content(outcome.value_json.decode()),
        "_meta": {CALL_ID: call.id},
    }
    if structured:
        shape["structuredContent"] = outcome.value
    return shape


def _text(meta: Mapping[str, Any], key: str) -> str | None:
    value = meta.get(key)
    if value is not None and not isinstance(value, str):
        raise Invalid(f"_meta {key!r} must be a string")
    return value


def _client(session: ServerSession) -> str | None:
    """Who says to be calling: for the record, never for a decision."""
    parameters = session.client_params
    if parameters is None:
        return None
    return f"{parameters.client_info.name} {parameters.client_info.version}"[:200]
