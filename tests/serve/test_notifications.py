"""A changed catalog is announced, in both protocol eras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import mcp_types as types
import pytest
from eventually import TIMEOUT
from mcp import Client
from mcp.shared.subscriptions import ToolsListChanged

from gateway import Gateway
from gateway.calls import Call, Outcome, to_json
from gateway.catalog import Catalog, CatalogEntry, mcp_tool
from gateway.executor import Executor
from gateway.serve.mcp import tools
from gateway.serve.mcp.handlers import Handlers, McpServer
from gateway.tools import Tool

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G3")]


class Box:
    name = "box"

    async def list_tools(self) -> Sequence[Tool]:
        return []

    async def call_tool(self, call: Call) -> Outcome:
        await call.progress(1, 2, "half way")
        return Outcome(value={"chat": call.chat, "message": call.message, "client": call.caller.client})


def catalog(count: int) -> Catalog:
    return Catalog(CatalogEntry(f"t{n:04}", Tool(f"t{n:04}", ""), Box()) for n in range(count))


async def test_modern_client_that_listens_is_notified(gateway: Gateway) -> None:
    executor = Executor([], catalog(1))
    face = McpServer(Handlers(executor, gateway.versions))
    async with Client(face.sdk, mode="auto") as client:
        assert client.server_capabilities.tools is not None and client.server_capabilities.tools.list_changed
        async with client.listen(tools_list_changed=True) as changes:
            executor.swap(catalog(2))
            with anyio.fail_after(TIMEOUT):
                assert isinstance(await anext(aiter(changes)), ToolsListChanged)
        assert len((await client.list_tools()).tools) == 2


async def test_handshake_client_is_notified_once_of_simultaneous_changes(gateway: Gateway) -> None:
    executor = Executor([], catalog(1))
    face = McpServer(Handlers(executor, gateway.versions))
    received: list[Any] = []
    noticed = anyio.Event()

    async def hear(message: Any) -> None:
        received.append(message)
        noticed.set()

    async with Client(face.sdk, mode="legacy", message_handler=hear) as client:
        assert client.server_capabilities.tools is not None and client.server_capabilities.tools.list_changed
        await client.list_tools()
        executor.swap(catalog(2))
        executor.swap(catalog(3))
        with anyio.fail_after(TIMEOUT):
            await noticed.wait()
        assert len((await client.list_tools()).tools) == 3
    assert [type(message) for message in received] == [types.ToolListChangedNotification]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_long_list_is_paged_and_changes_do_not_shift_pages(
    gateway: Gateway, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2005
    monkeypatch.setattr(tools, "PAGE_BYTES", 900 * len(to_json(mcp_tool("t0000", Tool("t0000", "")))))
    executor = Executor([], catalog(count))
    async with Client(McpServer(Handlers(executor, gateway.versions)).sdk, mode=mode) as client:
        first = await client.list_tools()
        executor.swap(Catalog(entry for entry in catalog(count) if entry.name != "t0000"))
        second = await client.list_tools(cursor=first.next_cursor)
        third = await client.list_tools(cursor=second.next_cursor)
    names = [tool.name for page in (first, second, third) for tool in page.tools]
    assert names == [f"t{n:04}" for n in range(count)]
    assert [len(page.tools) for page in (first, second, third)] == [900, 900, 205]
    assert third.next_cursor is None


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_progress_reaches_the_client_and_meta_chooses_chat_and_message(gateway: Gateway, mode: Any) -> None:
    noticed: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        noticed.append((progress, total, message))

    async with Client(McpServer(Handlers(Executor([], catalog(1)), gateway.versions)).sdk, mode=mode) as client:
        meta: Any = {"dev.toolgate/chat": "c1", "dev.toolgate/message": "m1"}
        result = await client.call_tool("t0000", {}, meta=meta, progress_callback=hear)
    assert isinstance(result, types.CallToolResult)
    assert noticed == [(1, 2, "half way")]
    assert isinstance(result.content[0], types.TextContent)
    assert '"chat":"c1","message":"m1"' in result.content[0].text
