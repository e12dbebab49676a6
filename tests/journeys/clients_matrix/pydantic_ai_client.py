"""Pydantic AI, which keeps its session."""

import json

from fastmcp.client.transports import StdioTransport
from journey import TARGET, run, travel
from pydantic_ai.mcp import MCPToolset


class PydanticAi:
    def __init__(self, server):
        self.server = server

    async def list_tools(self):
        return [tool.name for tool in await self.server.list_tools()]

    async def call(self, name, arguments):
        try:
            result = await self.server.direct_call_tool(name, arguments)
        except Exception as error:
            return str(error)
        return result if isinstance(result, str) else json.dumps(result)

    async def list_resources(self):
        return [str(resource.uri) for resource in await self.server.list_resources()]

    async def read_resource(self, uri):
        return await self.server.read_resource(uri)


async def main():
    async with MCPToolset(TARGET["url"] if "url" in TARGET else StdioTransport(**TARGET)) as server:
        await travel(PydanticAi(server))


run(main)
