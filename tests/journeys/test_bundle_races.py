"""Several gateways on one data directory, and MCP clients beside REST clients: what one changes, the others see."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import mcp_types as types
import pytest
from amounts import amount
from eventually import TIMEOUT, async_eventually
from mcp import Client

from gateway.names import new_id

from .bundle_api import SHELL, BundleClient, row, serve_bundles, tool_path
from .clients import call, every_tool, over_http, text
from .wire import ERAS, MODERN

ROUNDS = amount(15, nightly=200)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BundleClient, BundleClient]]:
    """Clients of two processes that share their data."""
    directory = tmp_path_factory.mktemp("pair")
    with ExitStack() as stack:
        first = stack.enter_context(serve_bundles(directory))
        yield first, stack.enter_context(serve_bundles(directory))


def race(pair: tuple[BundleClient, BundleClient], request: Callable[[BundleClient], httpx.Response]) -> list[int]:
    """The statuses that both got who sent the request at the same time."""
    with ThreadPoolExecutor(2) as threads:
        return sorted(response.status_code for response in threads.map(request, pair))


@row("other-processes")
@pytest.mark.promise("B3")
def test_of_two_processes_that_put_one_tool_exactly_one_succeeds(pair: tuple[BundleClient, BundleClient]) -> None:
    bundle = pair[0].put_bundle()["id"]
    statuses = Counter(
        tuple(race(pair, lambda api, number=number: api.put(tool_path(bundle, f"t{number}"), json=SHELL)))  # type: ignore[misc]
        for number in range(ROUNDS)
    )
    assert statuses == {(201, 409): ROUNDS}
    for api in pair:
        assert len(api.every("/tools/tools", bundleIDs=bundle, recommendedPageSize=100)) == ROUNDS


@row("other-processes")
@pytest.mark.promise("B3")
def test_of_two_processes_that_put_one_bundle_one_creates_it(pair: tuple[BundleClient, BundleClient]) -> None:
    body = {"slug": "race", "displayName": "Race"}
    for _ in range(max(3, ROUNDS // 10)):
        assert race(pair, partial(httpx.Client.put, url=f"/tools/bundles/{new_id()}", json=body)) == [200, 201]


def test_different_tools_put_at_the_same_time_are_all_kept(pair: tuple[BundleClient, BundleClient]) -> None:
    bundle = pair[0].put_bundle()["id"]

    def put(number: int) -> int:
        return pair[number % 2].put(tool_path(bundle, f"t{number}"), json=SHELL).status_code

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(put, range(10))) == [201] * 10
    assert len(pair[1].every("/tools/tools", bundleIDs=bundle)) == 10


@pytest.mark.anyio
@pytest.mark.promise("B2")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("process", ["same", "other"])
async def test_mcp_client_is_told_of_a_tool_put_over_rest_and_calls_it(
    pair: tuple[BundleClient, BundleClient], era: str, process: str
) -> None:
    changed = anyio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    writer = pair[0] if process == "same" else pair[1]
    bundle = (await anyio.to_thread.run_sync(writer.put_bundle))["id"]
    async with over_http(pair[0].gateway.url, era, hear) as client:
        await every_tool(client)
        async with _listening(client, era):
            put = await anyio.to_thread.run_sync(writer.put_tool, bundle)
            with anyio.fail_after(TIMEOUT):
                await changed.wait()

        async def is_listed() -> bool:
            return put["name"] in {tool.name for tool in await every_tool(client)}

        if process == "same":  # there at once
            assert await is_listed()
        await async_eventually(is_listed)
        result = await call(client, put["name"], {"text": "hello"})
        assert "hello" in text(result)
        await anyio.to_thread.run_sync(writer.delete, tool_path(bundle))

        async def is_gone() -> bool:
            return not await is_listed()

        await async_eventually(is_gone)


@asynccontextmanager
async def _listening(client: Client, era: str) -> AsyncIterator[None]:
    if era != MODERN:
        yield
        return
    async with client.listen(tools_list_changed=True):
        yield


def test_a_rest_call_and_a_call_of_the_command_are_recorded_alike(tmp_path: Path) -> None:
    with serve_bundles(tmp_path) as api:
        builtin = api.builtin("list-directory")
        path = tool_path(builtin["bundleID"], "list-directory", builtin["version"])
        assert api.post(f"{path}/invoke", json={"args": {}}, params={"chat": "one"}).status_code == 200
        (record,) = api.get("/api/calls").json()["items"]
    assert record["surface"] == "rest"
    assert record["chat_id"] == "one"
    assert record["tool_id"] == "list_directory"
