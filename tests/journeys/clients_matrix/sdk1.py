"""The Python SDK 1.x, which keeps its session and asks its user."""

import sys
from contextlib import asynccontextmanager

from anyio import BrokenResourceError
from journey import TARGET, run, travel
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from mcp.types import ElicitResult


@asynccontextmanager
async def connect():
    if "url" in TARGET:
        async with streamablehttp_client(TARGET["url"]) as (read, write, _):
            yield read, write
    else:
        async with stdio_client(StdioServerParameters(**TARGET)) as streams:
            yield streams


async def agree(_context, _params):
    return ElicitResult(action="accept", content={"decision": "approve once"})


class Sdk:
    def __init__(self, session):
        self.session = session

    async def list_tools(self):
        return [tool.name for tool in (await self.session.list_tools()).tools]

    async def call(self, name, arguments):
        return (await self.session.call_tool(name, arguments)).content[0].text

    async def list_resources(self):
        return [str(resource.uri) for resource in (await self.session.list_resources()).resources]

    async def read_resource(self, uri):
        return (await self.session.read_resource(uri)).contents[0].text


async def main():
    finished = False
    try:
        async with connect() as (read, write), ClientSession(read, write, elicitation_callback=agree) as session:
            await session.initialize()
            await travel(Sdk(session))
            finished = True
    except* BrokenResourceError:
        # This library fails if a message arrives while it closes, and mcp-remote passes messages on until it has ended.
        if not finished:
            raise
        if not any("mcp-remote" in argument for argument in TARGET.get("args", ())):
            sys.exit(MESSAGE_WHILE_CLOSING)


MESSAGE_WHILE_CLOSING = 75
run(main)
