"""A server of a public library that asks its client in the middle of a call: `asking.py LIBRARY TRANSPORT`.

`mcp` is the Python SDK, `fastmcp` is FastMCP. Both speak both protocol eras; their questions exist by handshake only.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import warnings
from typing import Any

import uvicorn
from mcp_types import SamplingMessage, TextContent
from pydantic import BaseModel

warnings.simplefilter("ignore")  # sampling is deprecated, and asked for all the same


class Name(BaseModel):
    name: str


async def greet(ctx: Any) -> str:
    """Greet somebody whose name is asked for."""
    reply = await ctx.elicit("Who?", Name)
    return f"{reply.action} {reply.data.name}"


async def think(ctx: Any) -> str:
    """Let the client's model think."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="Think"))
    reply = await ctx.session.create_message([message], max_tokens=7)
    return f"{reply.model} {reply.content.text}"


async def grow(ctx: Any) -> str:
    """Add a tool."""
    server.add_tool(added)
    if LIBRARY == "mcp":  # each notifies the clients of one era
        await ctx.session.send_tool_list_changed()
        await ctx.notify_tools_changed()
    return "grown"


def added() -> str:
    """A tool that was not there at first."""
    return "added"


def era(ctx: Any) -> str:
    """The protocol version of this connection."""
    return str(ctx.session.protocol_version)


def build() -> Any:
    if LIBRARY == "mcp":
        module = importlib.import_module("mcp.server.mcpserver")
        made = module.MCPServer("asking")
    else:
        module = importlib.import_module("fastmcp")
        made = module.FastMCP("asking")
    for function in (greet, think, grow, era):
        function.__annotations__["ctx"] = module.Context
        made.tool()(function)
    return made


LIBRARY, TRANSPORT = sys.argv[1:3]
if file := os.environ.get("ASKING_FILE"):
    with open(file, "a") as starts:
        starts.write("started\n")
server = build()

if TRANSPORT == "stdio":
    server.run("stdio")
else:
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    app = server.streamable_http_app() if LIBRARY == "mcp" else server.http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
