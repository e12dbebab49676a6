"""The Python SDK's client on the way to a gateway, in the era one asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from mcp import Client
from mcp.client.session import MessageHandlerFnT
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult, RequestParamsMeta, TextContent, Tool

from .processes import LOGS, PATIENCE, environment, serve_command
from .wire import MODERN

CALL_ID = "dev.toolgate/call_id"
ERROR = "dev.toolgate/error"


@asynccontextmanager
async def over_http(
    url: str, era: str, hear: MessageHandlerFnT | None = None, patience: float = PATIENCE
) -> AsyncIterator[Client]:
    async with Client(url, mode=_mode(era), read_timeout_seconds=patience, cache=None, message_handler=hear) as client:
        yield client


@asynccontextmanager
async def over_stdio(
    directory: Path, era: str, *options: str, hear: MessageHandlerFnT | None = None
) -> AsyncIterator[Client]:
    """The client starts the gateway itself, as a desktop client does, and ends it on leaving."""
    command, *arguments = serve_command(directory / "data", *options)
    log = directory / "stderr.log"
    LOGS.append(log)
    server = StdioServerParameters(command=command, args=arguments, env=environment(directory), cwd=directory)
    with log.open("a") as errlog:
        transport = stdio_client(server, errlog=errlog)
        async with Client(
            transport, mode=_mode(era), read_timeout_seconds=PATIENCE, cache=None, message_handler=hear
        ) as client:
            yield client


async def every_tool(client: Client) -> list[Tool]:
    """The whole list, however many pages it has."""
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor is not None:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


async def call(client: Client, name: str, arguments: dict[str, Any], chat: str | None = None) -> CallToolResult:
    meta = RequestParamsMeta() if chat is None else cast(RequestParamsMeta, {"dev.toolgate/chat": chat})
    return await client.call_tool(name, arguments, meta=meta)


async def value(client: Client, name: str, arguments: dict[str, Any], chat: str | None = None) -> dict[str, Any]:
    """What a call that must succeed gives to programs."""
    result = await call(client, name, arguments, chat)
    assert not result.is_error, text(result)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def refusal(client: Client, name: str, arguments: dict[str, Any], chat: str | None = None) -> dict[str, Any]:
    """The error of a call that must fail, after checking that the model reads the same thing a program does."""
    result = await call(client, name, arguments, chat)
    assert result.is_error, text(result)
    error = (result.meta or {})[ERROR]
    assert isinstance(error, dict)
    assert error.keys() == {"code", "message", "details"}
    assert text(result) == f"{error['code']}: {error['message']}"
    return error


def text(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def _mode(era: str) -> str:
    return "auto" if era == MODERN else "legacy"
