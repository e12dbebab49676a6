"""openai-agents, which keeps its session."""

from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from journey import TARGET, run, travel


class OpenAiAgents:
    def __init__(self, server):
        self.server = server

    async def list_tools(self):
        return [tool.name for tool in await self.server.list_tools()]

    async def call(self, name, arguments):
        return (await self.server.call_tool(name, arguments)).content[0].text

    async def list_resources(self):
        return [str(resource.uri) for resource in (await self.server.list_resources()).resources]

    async def read_resource(self, uri):
        return (await self.server.read_resource(uri)).contents[0].text


async def main():
    kind = MCPServerStreamableHttp if "url" in TARGET else MCPServerStdio
    async with kind(params=TARGET, client_session_timeout_seconds=60) as server:
        await travel(OpenAiAgents(server))


run(main)
