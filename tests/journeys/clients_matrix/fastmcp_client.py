"""FastMCP's client, which keeps its session and asks its user."""

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from journey import TARGET, run, travel


async def agree(_message, _response_type, _params, _context):
    return {"decision": "approve once"}


class FastMcp:
    def __init__(self, client):
        self.client = client

    async def list_tools(self):
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, name, arguments):
        return (await self.client.call_tool(name, arguments, raise_on_error=False)).content[0].text

    async def list_resources(self):
        return [str(resource.uri) for resource in await self.client.list_resources()]

    async def read_resource(self, uri):
        return (await self.client.read_resource(uri))[0].text


async def main():
    transport = StreamableHttpTransport(TARGET["url"]) if "url" in TARGET else StdioTransport(**TARGET)
    async with Client(transport, elicitation_handler=agree) as client:
        await travel(FastMcp(client))


run(main)
