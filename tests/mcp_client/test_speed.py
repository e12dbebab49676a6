"""What one small call costs us, against the SDK's own client in the same run; the server is another process."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from gateway.mcp_client import HttpEndpoint, open_client

from .conftest import CLIENT_IDENTITY, HANDSHAKE, MODERN, HttpServer, server

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS, CALLS = 4, 100
Calling = Callable[[], Awaitable[Any]]


async def cost(call: Calling) -> float:
    """Microseconds of this process's CPU per call."""
    started = time.process_time()
    for _ in range(CALLS):
        await call()
    return (time.process_time() - started) / CALLS * 1e6


@pytest.mark.parametrize(
    ("transport", "era"), [("stdio", MODERN), ("stdio", HANDSHAKE), ("http", MODERN), ("http", HANDSHAKE)]
)
async def test_a_call_costs_less_than_half_of_the_sdks_client(
    http_server: HttpServer, transport: str, era: str
) -> None:
    child = server("everything.py", "stdio")
    endpoint = child if transport == "stdio" else HttpEndpoint(f"{http_server.url}/mcp")
    parameters = StdioServerParameters(command=child.command, args=list(child.args))
    theirs = stdio_client(parameters) if transport == "stdio" else streamable_http_client(f"{http_server.url}/mcp")
    client = await open_client(endpoint, identity=CLIENT_IDENTITY, version=era)
    async with Client(theirs, mode="auto" if era == MODERN else "legacy") as sdk_client:
        await sdk_client.list_tools()

        async def ours() -> None:
            await client.request("tools/call", {"name": "echo", "arguments": {"text": "x"}})

        async def sdk() -> None:
            await sdk_client.call_tool("echo", {"text": "x"})

        costs = [(await cost(ours), await cost(sdk)) for _ in range(ROUNDS)]
    await client.close()
    mine, other = min(pair[0] for pair in costs), min(pair[1] for pair in costs)
    print(f"\n{transport} {era}: {mine:.0f} µs, the SDK's client {other:.0f} µs")
    assert mine < other / 2
