"""The server the suite asks for, over stdio or HTTP, in both eras or one.

From the folder above: `python -m conformance.server --transport http|stdio [--port N] [--era modern|handshake|both]`.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections import deque
from functools import partial
from itertools import count
from typing import Any, Literal

import anyio
import mcp_types as types
import uvicorn
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import JSONRPCMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from . import catalog
from .asking import Call, Context, InputNeeded, ToolFailed, connection, is_modern
from .changes import CHANGES
from .tools import TOOLS, listed

# Known and fixed: a call made again may reach another process than the one that asked.
STATE_KEY = b"every process of this server opens what any other has sealed"

# Messages kept for clients that come back for them.
EVENTS = 1024

# Milliseconds after which a client whose stream was closed comes back.
RETRY = 100

Era = Literal["modern", "handshake", "both"]


class ConformanceServer(Server[Any]):
    """The SDK's server, announcing to handshake-era clients that its lists change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        announced = notification_options or NotificationOptions(prompts_changed=True, tools_changed=True)
        return super().create_initialization_options(announced, experimental_capabilities, extensions)


def build(era: Era = "both") -> ConformanceServer:
    server = ConformanceServer(
        "conformance",
        version="1.0.0",
        get_tool_input_schema=lambda name: TOOLS[name].tool.input_schema if name in TOOLS else None,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
        on_list_resources=catalog.list_resources,
        on_list_resource_templates=catalog.list_templates,
        on_read_resource=catalog.read_resource,
        on_subscribe_resource=catalog.subscribe,
        on_unsubscribe_resource=catalog.unsubscribe,
        on_list_prompts=catalog.list_prompts,
        on_get_prompt=_get_prompt,
        on_completion=catalog.complete,
        on_subscriptions_listen=ListenHandler(CHANGES.bus),
    )
    # Given to the constructor, it would warn that logging is deprecated.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _set_level)
    sealing = RequestStateBoundary(RequestStateSecurity(keys=[STATE_KEY]), default_audience=server.name)
    server.middleware.extend([partial(_only, era), CHANGES.remember, sealing])
    return server


async def _list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=listed())


async def _call_tool(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    entry = TOOLS.get(params.name)
    if entry is None:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    try:
        content = await entry.run(Call(ctx, params, params.arguments or {}))
    except InputNeeded as asked:
        return asked.result
    except ToolFailed as failure:
        return types.CallToolResult(content=[types.TextContent(text=str(failure))], is_error=True)
    return types.CallToolResult(content=[types.TextContent(text=content)] if isinstance(content, str) else content)


async def _get_prompt(
    ctx: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    try:
        return await catalog.get_prompt(Call(ctx, params, params.arguments or {}), params.name)
    except InputNeeded as asked:
        return asked.result
    except ToolFailed as failure:
        raise MCPError(types.INVALID_PARAMS, str(failure)) from None


async def _set_level(ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    connection(ctx).state["level"] = params.level
    return types.EmptyResult()


async def _only(era: Era, ctx: Context, call_next: CallNext) -> HandlerResult:
    """Middleware: answer as a server that never heard of the other era."""
    if era == "modern" and ctx.method == "initialize":
        asked = {"supported": list(MODERN_PROTOCOL_VERSIONS), "requested": (ctx.params or {}).get("protocolVersion")}
        raise MCPError(types.UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", asked)
    if era == "handshake" and is_modern(ctx):
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
    return await call_next(ctx)


class _Events(EventStore):
    """What was sent on each stream, for clients whose stream was closed on them."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._events: deque[tuple[int, str, JSONRPCMessage | None]] = deque(maxlen=EVENTS)

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        event = next(self._ids)
        self._events.append((event, stream_id, message))
        return str(event)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        last = int(last_event_id)
        stream = next((stream for event, stream, _ in self._events if event == last), None)
        for event, of, message in list(self._events):
            if event > last and of == stream and message is not None:
                await send_callback(EventMessage(message, str(event)))
        return stream


async def _over_http(server: ConformanceServer, port: int) -> None:
    listening = socket.create_server(("127.0.0.1", port))
    app = server.streamable_http_app(event_store=_Events(), retry_interval=RETRY)
    # h11 takes the spaces off a header's end, as it must; httptools leaves them.
    config = uvicorn.Config(app, http="h11", log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
    await uvicorn.Server(config).serve(sockets=[listening])


async def _over_stdio(server: ConformanceServer, era: Era) -> None:
    async with stdio_server() as (received, sent):
        options = server.create_initialization_options()
        if era == "handshake":  # `run` would let the first request choose the era
            await serve_loop(server, received, sent, lifespan_state={}, init_options=options)
        else:
            await server.run(received, sent, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=["http", "stdio"], required=True)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--era", choices=["modern", "handshake", "both"], default="both")
    given = parser.parse_args()
    server = build(given.era)
    if given.transport == "http":
        anyio.run(_over_http, server, given.port)
    else:
        anyio.run(_over_stdio, server, given.era)


if __name__ == "__main__":
    main()
