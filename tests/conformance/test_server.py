"""The conformance server as the Python SDK's client meets it, where the suite does not look: over stdio, and asking
in the era each of its tools was not named for."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import StdioServerParameters, stdio_client

from .processes import conformance_server, server_command, server_environment
from .suite import HANDSHAKE, MODERN

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

ASKED = {
    "test_elicitation": "What is it?",
    "test_input_required_result_elicitation": "What is your name?",
    "test_input_required_result_multi_round": "Step 1: What is your name?",
}


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize(
    ("era", "mode", "version"),
    [
        ("both", "auto", MODERN),
        ("both", "legacy", HANDSHAKE),
        ("modern", "auto", MODERN),
        ("handshake", "auto", HANDSHAKE),
    ],
)
async def test_every_tool_asks_in_the_version_of_its_client(
    transport: str, era: str, mode: str, version: str, tmp_path: Path
) -> None:
    messages: list[str] = []

    async def answer(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        messages.append(params.message)
        return types.ElicitResult(action="accept", content={"name": "Ada", "color": "blue"})

    with anyio.fail_after(30):
        async with (
            _connected(transport, era, tmp_path) as server,
            Client(server, mode=mode, elicitation_callback=answer) as client,
        ):
            assert client.protocol_version == version
            for tool, first in ASKED.items():
                messages.clear()
                result = await client.call_tool(tool, {"message": "What is it?"})
                assert not result.is_error
                assert messages[0] == first
            assert messages == ["Step 1: What is your name?", "Step 2: What is your favorite color?"]


async def test_client_that_cannot_be_asked_gets_an_error(tmp_path: Path) -> None:
    async with _connected("http", "both", tmp_path) as server, Client(server, mode="legacy") as client:
        result = await client.call_tool("test_elicitation", {"message": "What is it?"})

        assert result.is_error
        assert result.content == [types.TextContent(text="the client did not declare: elicitation")]


@asynccontextmanager
async def _connected(transport: str, era: str, directory: Path) -> AsyncIterator[Any]:
    """What the SDK's client takes to reach a server of this era."""
    if transport == "http":
        with conformance_server(directory, era) as url:
            yield url
        return
    command, *arguments = server_command("--transport", "stdio", "--era", era)
    with (directory / "stderr.log").open("w") as errlog:
        environment = {"PATH": os.environ.get("PATH", os.defpath), **server_environment()}
        yield stdio_client(StdioServerParameters(command=command, args=arguments, env=environment), errlog=errlog)
