"""A small SDK server: the upstream of every gateway, and what a client without a gateway would call.

Over HTTP, `/mcp/tools/N` is a server with N more tools, `/mcp/tools/N/K` the K-th of such servers.
"""

from __future__ import annotations

import argparse
import socket
import sys
from functools import cache, partial
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

Context = ServerRequestContext[Any, Any]

ECHO = types.Tool(
    name="echo",
    description="Say a text back, and as many bytes more as are asked for.",
    input_schema={
        "type": "object",
        "properties": {"text": {"type": "string"}, "bytes": {"type": "integer", "minimum": 0}},
        "required": ["text"],
        "additionalProperties": False,
    },
    annotations=types.ToolAnnotations(read_only_hint=True),
)
NOISE = "0123456789abcdef" * 65_536


async def list_tools(context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    path = context.request.url.path if context.request is not None else ""
    more = path.partition("/tools/")[2]
    return types.ListToolsResult(tools=tools(*more.split("/")) if more else [ECHO])


@cache
def tools(count: str, server: str = "") -> list[types.Tool]:
    return [_filler(f"tool{server}_{number}") for number in range(int(count))]


def _filler(name: str) -> types.Tool:
    properties = {
        "path": {"type": "string", "description": "Where the file is, relative to the root of the project."},
        "encoding": {"enum": ["utf-8", "latin-1"], "default": "utf-8"},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 1}, "description": "Which lines to read."},
    }
    return types.Tool(
        name=name,
        description=f"Read lines of a file of the project, as {name} does it, and say how many there were.",
        input_schema={"type": "object", "properties": properties, "required": ["path"]},
    )


async def call_tool(_: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    arguments = params.arguments or {}
    text = arguments["text"] + NOISE[: arguments.get("bytes", 0)]
    return types.CallToolResult(content=[types.TextContent(text=text)])


async def only(era: str, context: Context, call_next: CallNext) -> HandlerResult:
    """Middleware: answer as a server that never heard of the other era."""
    modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    if era == "modern" and context.method == "initialize":
        raise MCPError(
            types.UNSUPPORTED_PROTOCOL_VERSION,
            "Unsupported protocol version",
            {"supported": list(MODERN_PROTOCOL_VERSIONS), "requested": (context.params or {}).get("protocolVersion")},
        )
    if era == "handshake" and modern:
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", context.method)
    return await call_next(context)


def build(era: str) -> Server[Any]:
    server = Server[Any](
        "upstream", on_list_tools=list_tools, on_call_tool=call_tool, get_tool_input_schema=lambda _: None
    )
    server.middleware.append(partial(only, era))
    return server


async def over_http(app: Any) -> None:
    """Serve on a free port, and say on stderr where."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=75)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
    await uvicorn.Server(config).serve(sockets=[listening])


async def over_stdio(server: Server[Any], era: str) -> None:
    async with stdio_server() as (received, sent):
        options = server.create_initialization_options()
        if era == "handshake":  # `run` would let the first request choose the era
            await serve_loop(server, received, sent, lifespan_state={}, init_options=options)
        else:
            await server.run(received, sent, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=["http", "stdio"], required=True)
    parser.add_argument("--era", choices=["modern", "handshake"], required=True)
    given = parser.parse_args()
    server = build(given.era)
    if given.transport == "stdio":
        anyio.run(over_stdio, server, given.era)
    else:
        app = server.streamable_http_app(streamable_http_path="/mcp{more:path}")
        anyio.run(over_http, app, backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main()
