"""The console with many tools, files and calls: what it takes of the browser's main thread and memory. Seconds are CPU
time of that thread, which a busy machine does not lengthen."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from amounts import amount
from browser import measure_thread, open_meter, open_page, read_metrics
from playwright.async_api import Browser, Page, expect
from rest.conftest import Rest, serve

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T8"), pytest.mark.timeout(amount(600, nightly=1800))]

LISTED = Path(__file__).parents[1] / "journeys" / "servers" / "listed.py"
SERVERS = amount(1, nightly=5)
TOOLS = amount(300, nightly=1000)  # of each server
FILES = CALLS = amount(300, nightly=10_000)

DRAWN_SECONDS = 1.0
FILTER_SECONDS = 0.1
KEPT_BYTES = 32_000_000
KEPT_NODES = 5000

# Type into a field, and wait until a list has drawn something else.
FILTER = """async ([field, text, list]) => {
  const input = document.querySelector(`[data-testid="${field}"]`);
  const shown = () => document.querySelector(list).innerText;
  const before = shown();
  input.value = text;
  input.dispatchEvent(new Event("input"));
  while (shown() === before) await new Promise((done) => setTimeout(done, 20));
}"""
TABLE, TREE = ".table tbody", "[data-testid='workspace.tree']"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    place = tmp_path_factory.mktemp("large")
    servers: dict[str, Any] = {}
    for server in range(SERVERS):
        definitions = place / f"many{server}.json"
        tools = [
            {"name": f"tool_{index}", "description": f"Tool number {index}.", "inputSchema": {"type": "object"}}
            for index in range(TOOLS)
        ]
        definitions.write_text(json.dumps({"tools": tools}))
        arguments = [str(LISTED), str(definitions)]
        servers[f"many{server}"] = {"command": sys.executable, "args": arguments, "sandbox": False}
    with serve(place, mcpServers=servers) as rest:
        rest.ok("PUT", "/api/chats/large/files/first.txt", 201, content=b"x")
        [folder] = [path.parent for path in (rest.data / "chats").rglob("first.txt")]
        for _ in range(CALLS):
            rest.ok("GET", "/api/chats/large/files?limit=1")
        for number in range(FILES):
            (folder / f"file-{number:05}.txt").write_bytes(b"x")
        yield rest


@asynccontextmanager
async def open_drawn(browser: Browser, gateway: Rest, path: str, ready: str) -> AsyncIterator[Page]:
    """A page that has to draw `ready` in time, and to keep little of what it showed."""
    origin = str(gateway.base_url).rstrip("/")
    async with open_page(browser, origin, base_url=origin) as page, open_meter(page) as meter:
        await page.goto(path)
        await expect(page.get_by_test_id(ready).first).to_be_visible()
        await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert 0.01 < (await read_metrics(meter))["TaskDuration"] < DRAWN_SECONDS, path
        yield page
        await meter.send("HeapProfiler.collectGarbage")
        kept = await read_metrics(meter)
        assert kept["JSHeapUsedSize"] < KEPT_BYTES and kept["Nodes"] < KEPT_NODES, (path, kept)


async def test_home_is_drawn_in_time_with_many_calls_and_tools(browser: Browser, gateway: Rest) -> None:
    async with open_drawn(browser, gateway, "/", "home.guide") as page:
        count = "More than 1,000 tools" if SERVERS * TOOLS > 1000 else r"[0-9]{3} tools"
        await expect(page.get_by_test_id("home.guide")).to_contain_text(re.compile(f"{count} are here already"))
    for _ in range(100):
        gateway.ok("POST", "/api/tools/list_directory/invoke", json={"args": {}, "chat": "large"})
    async with open_drawn(browser, gateway, "/", "home.call"):
        pass


async def test_tools_page_draws_and_filters_many_tools_in_time(browser: Browser, gateway: Rest) -> None:
    async with open_drawn(browser, gateway, "/console/tools", "tools.row") as page:
        for text in ("tool_1", "tool_12", "number 12"):
            spent = await measure_thread(page, FILTER, ["tools.filter", text, TABLE])
            assert spent < FILTER_SECONDS, f"{SERVERS * TOOLS} tools, filter {text!r}"
        await page.get_by_test_id("tools.filter").fill("tool_123")
        await expect(page.locator("[data-testid='tools.row'][data-key='many0__tool_123']")).to_be_visible()
        assert await page.get_by_test_id("tools.row").count() < 100  # drawn in a window


async def test_workspace_draws_and_filters_many_files_in_time(browser: Browser, gateway: Rest) -> None:
    async with open_drawn(browser, gateway, "/console/chats/large", "workspace.tree.row") as page:
        rows = page.get_by_test_id("workspace.tree.row")
        assert await rows.count() < 100
        await page.get_by_test_id("workspace.tree").focus()
        await page.keyboard.press("End")
        await expect(rows.filter(has_text="first.txt")).to_be_visible()
        await page.get_by_test_id("workspace.filter").fill(f"{FILES - 1:05}")  # loads the names of all files
        await expect(rows).to_have_count(1)
        for text in ("file", "29", "first"):
            spent = await measure_thread(page, FILTER, ["workspace.filter", text, TREE])
            assert spent < FILTER_SECONDS, f"{FILES} files, filter {text!r}"


async def test_calls_page_draws_and_filters_many_calls_in_time(browser: Browser, gateway: Rest) -> None:
    async with open_drawn(browser, gateway, "/console/calls?kind=all", "calls.row") as page:
        for _ in range(max(1, (CALLS - 100) // 999)):
            shown = await page.get_by_test_id("calls.count").inner_text()
            await page.get_by_test_id("calls.older").click()
            await expect(page.get_by_test_id("calls.count")).not_to_have_text(shown)
        assert await page.get_by_test_id("calls.row").count() < 100
        for text in ("nothing like it", "list"):
            spent = await measure_thread(page, FILTER, ["calls.filter", text, TABLE])
            assert spent < FILTER_SECONDS, f"{CALLS} calls, filter {text!r}"
