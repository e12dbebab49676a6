"""llama-index-tools-mcp, which opens a session for every call."""

from journey import TARGET, run, travel
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec


class LlamaIndex:
    def __init__(self, client):
        self.client = client

    async def list_tools(self):
        self.tools = {tool.metadata.name: tool for tool in await McpToolSpec(client=self.client).to_tool_list_async()}
        return list(self.tools)

    async def call(self, name, arguments):
        return (await self.client.call_tool(name, arguments)).content[0].text

    async def list_resources(self):
        return [str(resource.uri) for resource in (await self.client.list_resources()).resources]

    async def read_resource(self, uri):
        return (await self.client.read_resource(uri)).contents[0].text


async def main():
    if "url" in TARGET:
        client = BasicMCPClient(TARGET["url"])
    else:
        client = BasicMCPClient(TARGET["command"], args=TARGET["args"], env=TARGET["env"])
    await travel(LlamaIndex(client))


run(main)
