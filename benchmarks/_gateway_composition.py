"""A gateway as the SDK alone makes one: its server in front, a client of its own behind each name. The anchor.

`python -m benchmarks._gateway_composition FILE` takes the `mcpServers` of a JSON file; it checks nothing and
records nothing.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from benchmarks._gateway_upstream import over_http

Context = ServerRequestContext[Any, Any]


def client(said: dict[str, Any]) -> Client:
    if "url" in said:
        return Client(said["url"], mode="auto", cache=None)
    child = StdioServerParameters(command=said["command"], args=said["args"], env={**os.environ, **said.get("env", {})})
    return Client(stdio_client(child), mode="auto", cache=None)


async def main(servers: dict[str, dict[str, Any]]) -> None:
    clients: dict[str, Client] = {}

    async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        found: list[types.Tool] = []

        async def ask(name: str) -> None:
            listed = await clients[name].list_tools()
            found.extend(tool.model_copy(update={"name": f"{name}__{tool.name}"}) for tool in listed.tools)

        async with anyio.create_task_group() as tasks:
            for name in clients:
                tasks.start_soon(ask, name)
        return types.ListToolsResult(tools=found)

    async def call_tool(_: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        name, tool = params.name.split("__")
        return await clients[name].call_tool(tool, params.arguments)

    server = Server[Any](
        "composition", on_list_tools=list_tools, on_call_tool=call_tool, get_tool_input_schema=lambda _: None
    )
    async with AsyncExitStack() as stack:
        for name, said in servers.items():
            clients[name] = await stack.enter_async_context(client(said))
        await over_http(server.streamable_http_app())


if __name__ == "__main__":
    settings = json.loads(Path(sys.argv[1]).read_text())
    anyio.run(main, settings["mcpServers"], backend_options={"use_uvloop": True})
