"""Views in a real host: the official AppBridge in Chromium, with what real hosts leave out; and unmodified example
servers of MCP Apps behind the gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from amounts import NIGHTLY
from browser import open_browser
from journeys.servers import wild
from journeys.test_node_clients import _absent, _node
from mcp import Client
from playwright.async_api import expect

from gateway import Gateway
from gateway.admin import toolsets
from gateway.serve.mcp.handlers import Handlers, McpServer

from .hosts import APPS, COUNTER, SPY, STUDIO, Host, open_host

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.promise("G5")]

CODE = "def hello():\n    return '</script><b>x'\n"
STRIPPED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "_meta": {"stripMeta": True, "stripStructured": True},
    "_meta, and resources cannot be read": {"stripMeta": True, "noResources": True},
    "_meta and links": {"stripMeta": True, "stripLinks": True},
    "tool-input": {"noInput": True},
    "everything": {"silent": True},
}
VIA = {
    "nothing": "meta",
    "_meta": "resource",
    "_meta, and resources cannot be read": "tool",
    "_meta and links": "latest",
    "tool-input": "meta",
    "everything": "latest",
}


@pytest.fixture(scope="module", params=["auto", "legacy"] if NIGHTLY else ["auto"])
async def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    """A host whose client speaks one era, in front of a gateway with a toolset and a server of MCP Apps."""
    settings = {"data_dir": str(tmp_path_factory.mktemp("host")), "mcpServers": {"counter": COUNTER, "spy": SPY}}
    async with open_gateway(settings, request.param) as client, open_browser() as browser:
        await client.call_tool("write_file", {"path": "a.py", "content": CODE})
        await client.call_tool("write_file", {"path": "a.md", "content": "# Title\n\n*soft* <script>x</script>\n"})
        async with open_host(browser, client) as host:
            yield host


@asynccontextmanager
async def open_gateway(settings: dict[str, Any], era: str) -> AsyncIterator[Client]:
    async with Gateway.open(settings) as gateway:
        await toolsets.install_toolset(gateway, str(STUDIO))
        await gateway.reload()
        handlers = Handlers(
            gateway.executor, gateway.versions, "c", gateway.records, gateway.passthrough, gateway.approval_flow
        )
        async with Client(McpServer(handlers).sdk, mode=era, cache=None, extensions=APPS) as client:
            yield client


@pytest.mark.parametrize("left_out", STRIPPED)
async def test_view_shows_its_call_in_a_host_that_leaves_something_out(host: Host, left_out: str) -> None:
    await host.show("studio__edit", {"path": "a.py"}, **STRIPPED[left_out])
    body = host.view.locator("body")
    await expect(body).to_have_attribute("data-gw-ready", "true")
    await expect(body).to_have_attribute("data-gw-plan-via", VIA[left_out])
    await expect(body).to_contain_text("return '</script><b>x'")
    await host.page.wait_for_function("host.state.sizes.at(-1)?.height > 0")


async def test_each_renderer_shows_its_data_in_the_host(host: Host) -> None:
    await host.show("studio__document", {"path": "a.md"})
    await expect(host.view.locator("article h1")).to_have_text("Title")
    await expect(host.view.locator("article em")).to_have_text("soft")
    await host.show("studio__page", {"path": "."})
    await expect(host.view.frame_locator("iframe").locator("li")).to_have_text(["a.md", "a.py"])
    await host.show("studio__look", {"path": "a.py"})
    await expect(host.view.locator("body")).to_have_attribute("data-gw-ready", "true")
    await expect(host.view.locator("body")).to_contain_text("def hello")
    await host.show("counter__draw_chart")
    await expect(host.view.get_by_test_id("view.image")).to_have_js_property("width", 1)


async def test_person_edits_and_saves_the_shown_file_and_a_new_view_shows_it(host: Host) -> None:
    await host.client.call_tool("write_file", {"path": "edit.py", "content": "one = 1\n"})
    await host.show("studio__edit", {"path": "edit.py"})
    await host.view.get_by_test_id("view.edit").click()
    await host.view.get_by_test_id("view.text").fill("two = 2\n")
    await host.view.get_by_test_id("view.save").click()
    await expect(host.view.get_by_test_id("view.saved")).to_be_visible()
    read = await host.client.call_tool("read_file", {"path": "edit.py"})
    assert (read.structured_content or {})["content"] == "two = 2\n"
    await host.show("studio__edit", {"path": "edit.py"})
    await expect(host.view.locator("body")).to_contain_text("two = 2")


async def test_call_that_changes_files_shows_what_it_changed(host: Host) -> None:
    await host.show("write_file", {"path": "diff.txt", "content": "one\n"})
    await expect(host.view.locator(".diff__add")).to_contain_text("one")
    await host.show("edit_file", {"path": "diff.txt", "edits": [{"oldText": "one", "newText": "two"}]})
    await expect(host.view.locator(".diff__del")).to_contain_text("one")
    await expect(host.view.locator(".diff__add")).to_contain_text("two")
    await host.client.call_tool("delete_file", {"path": "diff.txt"})


async def test_view_as_a_page_shows_its_call_without_a_host(host: Host) -> None:
    for tool, path, text in (("studio__edit", "a.py", "return '</script><b>x'"), ("studio__document", "a.md", "soft")):
        result = await host.client.call_tool(tool, {"path": path})
        uri = f"{(result.meta or {})['dev.toolgate/render']['uri']}/view"
        [page] = (await host.client.read_resource(uri)).contents
        rights = (page.meta or {})["dev.toolgate/sandbox"]
        await host.page.evaluate(
            """([html, rights]) => {
                const frame = document.createElement("iframe");
                frame.setAttribute("sandbox", rights);
                frame.srcdoc = html;
                document.body.replaceChildren(frame);
            }""",
            [page.text, rights],  # type: ignore[union-attr]
        )
        await expect(host.view.locator("body")).to_have_attribute("data-gw-plan-via", "page")
        await expect(host.view.locator("body")).to_contain_text(text)
    await host.page.wait_for_timeout(3500)  # a view notices after three seconds that no host speaks
    await expect(host.view.locator("body")).to_contain_text(text)


async def test_view_of_an_upstream_uses_its_servers_own_names(host: Host) -> None:
    await host.show("counter__count")
    await expect(host.upstream_view.locator("#tool")).to_have_text("count")
    await expect(host.upstream_view.locator("#linked")).to_have_text("note://one")
    before = int(await host.upstream_view.locator("#count").inner_text())
    await host.upstream_view.get_by_role("button", name="More").click()
    await expect(host.upstream_view.locator("#count")).to_have_text(str(before + 1))
    await expect(host.upstream_view.locator("#text")).to_have_text("note://one a note")
    state = await host.state()
    assert state["calls"][-1] == "counter__more" and state["refused"] == []


async def test_view_of_an_upstream_reaches_its_own_server_alone(host: Host) -> None:
    before = await host.state()
    await host.show("spy__count")
    seen = host.upstream_view.locator("#seen")
    await expect(seen).not_to_be_empty()
    answers = json.loads(await seen.inner_text())
    tools = [tool["name"] for tool in answers.pop("tools/list").get("result", {}).get("tools", [])]
    assert set(tools) <= {"count", "draw_chart", "more", "plain"}
    for method in ("resources/list", "twice"):
        listed = [each["uri"] for each in answers.pop(method)["result"]["resources"]]
        assert listed == ["ui://counter/view.html"]
    assert {name: answer for name, answer in answers.items() if "error" not in answer and "silence" not in answer} == {}
    await expect(host.upstream_view.locator("#own")).to_contain_text("a note")
    state = await host.state()
    assert state["calls"][len(before["calls"]) :] == ["spy__more"]
    assert all(uri.startswith(("mcp+spy:", "ui://spy/")) for uri in state["reads"][len(before["reads"]) :])
    assert state["refused"] == before["refused"] and state["links"] == before["links"]


@pytest.fixture(scope="module")
async def example_host(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    """Official example servers behind one gateway, as npm has them."""
    if not wild.INSTALLED.exists():
        _absent("the servers are not installed: run tests/journeys/servers/wild/install")
    settings = {"data_dir": str(tmp_path_factory.mktemp("wild")), "mcpServers": wild.example_apps(_node())}
    async with (
        open_gateway(settings, "legacy") as client,
        open_browser() as browser,
        open_host(browser, client) as host,
    ):
        yield host


async def test_official_example_apps_work_unchanged_behind_the_gateway(example_host: Host) -> None:
    host = example_host
    await host.show("clock__get-time")
    shown = host.upstream_view.locator("#server-time")
    await expect(shown).to_contain_text("T")
    first = await shown.inner_text()
    await host.upstream_view.get_by_role("button", name="Get Server Time").click()
    await expect(shown).not_to_have_text(first)
    await host.upstream_view.get_by_role("button", name="Send Message").click()
    await host.upstream_view.get_by_role("button", name="Open Link").click()

    await host.show("budget__get-budget-data")
    await expect(host.upstream_view.locator("body")).to_contain_text("Marketing")
    total = host.upstream_view.locator("#budget-selector")
    await total.select_option(index=0)
    least = await host.upstream_view.locator("body").inner_text()
    await total.select_option(index=2)
    await expect(host.upstream_view.locator("body")).not_to_have_text(least)

    await host.show("cohorts__get-cohort-data")
    await expect(host.upstream_view.locator("body")).to_contain_text("Cohort Retention Analysis")
    await host.upstream_view.get_by_role("combobox").nth(1).select_option("weekly")  # the view calls its tool again
    await host.page.wait_for_function("host.state.calls.filter((name) => name.startsWith('cohorts__')).length > 1")

    state = await host.state()
    assert state["refused"] == []
    assert {"clock__get-time", "cohorts__get-cohort-data"} <= set(state["calls"])
    assert state["links"] == ["https://modelcontextprotocol.io/"] and len(state["messages"]) == 1
