"""langchain-mcp-adapters, which opens a session for every call."""

from journey import TARGET, run, travel
from langchain_core.tools import ToolException
from langchain_mcp_adapters.client import MultiServerMCPClient


class LangChain:
    def __init__(self, client):
        self.client = client
        self.tools = {}

    async def list_tools(self):
        self.tools = {tool.name: tool for tool in await self.client.get_tools()}
        return list(self.tools)

    async def call(self, name, arguments):
        try:
            result = await self.tools[name].ainvoke(arguments)
        except ToolException as error:
            return str(error)
        return result if isinstance(result, str) else result[0]["text"]

    async def list_resources(self):
        blobs = await self.client.get_resources("toolgate")
        self.blobs = {str(blob.metadata["uri"]): blob for blob in blobs}
        return list(self.blobs)

    async def read_resource(self, uri):
        return self.blobs[uri].as_string()


async def main():
    transport = "http" if "url" in TARGET else "stdio"
    await travel(LangChain(MultiServerMCPClient({"toolgate": {"transport": transport, **TARGET}})))


run(main)
