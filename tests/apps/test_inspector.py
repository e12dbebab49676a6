"""Views in the web page of the MCP Inspector, as npm has it, against a gateway over HTTP."""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import subprocess
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from browser import open_browser
from eventually import async_eventually
from journeys.test_node_clients import INSPECTOR, _node_22
from playwright.async_api import FrameLocator, Page, expect
from rest.conftest import Rest, serve

from .hosts import COUNTER, STUDIO

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.promise("G5")]

TOKEN = "0123456789abcdef" * 3
TEXT = "one = 1  # </script><b>x\n"


@contextmanager
def start_inspector(home: Path) -> Iterator[str]:
    """The Inspector's server; yields the address of its page."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HOST": "127.0.0.1",
        "CLIENT_PORT": port,
        "MCP_SANDBOX_PORT": "0",
        "MCP_APP_ORIGIN_PORT": "0",
        "MCP_AUTO_OPEN_ENABLED": "false",
        "MCP_INSPECTOR_API_TOKEN": TOKEN,
    }
    log = home / "inspector.log"
    with log.open("wb") as output:
        command = [_node_22(), str(INSPECTOR), "--web"]
        process = subprocess.Popen(command, env=environment, cwd=home, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    lists = {"mode": "search", "pinned": ["studio__list", "write_file", "counter__draw_chart"]}
    settings = {"tools": lists, "mcpServers": {"counter": COUNTER}}
    with serve(tmp_path_factory.mktemp("inspected"), **settings) as rest:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for file in STUDIO.rglob("*"):
                archive.write(file, file.relative_to(STUDIO))
        rest.ok("POST", "/api/toolsets/import", files={"file": ("studio.zip", packed.getvalue(), "application/zip")})
        yield rest


class Inspector:
    """The Inspector's page for apps, where a tool is called and its view is shown."""

    def __init__(self, page: Page, address: str, gateway: Rest) -> None:
        self.page = page
        self.address = address
        self.gateway = gateway

    async def show(self, tool: str, arguments: dict[str, Any]) -> FrameLocator:
        """Call a tool; return the frame of its view when it is drawn."""
        packed = base64.urlsafe_b64encode(json.dumps(arguments).encode()).decode().rstrip("=")
        query = {"serverUrl": f"{self.gateway.gateway.url}?chat=inspected", "transport": "http", "autoConnect": TOKEN}
        query |= {"openApp": tool, "appArgs": packed, "autoOpen": TOKEN}
        await self.page.goto(f"{self.address}/?{urlencode(query)}")
        view = self.page.frame_locator("iframe").first.frame_locator("iframe")  # the Inspector's sandbox is between
        await expect(view.locator("body")).to_have_attribute("data-gw-ready", "true")
        return view


@pytest.fixture(scope="module")
async def inspector(tmp_path_factory: pytest.TempPathFactory, gateway: Rest) -> AsyncIterator[Inspector]:
    """One page for all tests. What the security policy of a view refuses fails them."""
    gateway.ok("PUT", "/api/chats/inspected/files/a.py", 201, content=TEXT.encode())
    gateway.ok("PUT", "/api/chats/inspected/files/a.md", 201, content=b"# Title\n\n*soft*\n")
    refused: list[str] = []
    with start_inspector(tmp_path_factory.mktemp("inspector")) as address:

        async def is_up() -> bool:
            try:
                socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 1).close()
            except OSError:
                return False
            return True

        await async_eventually(is_up)
        async with open_browser() as browser:
            page = await browser.new_page()
            page.on("console", lambda message: refused.append(message.text) if "Security" in message.text else None)
            yield Inspector(page, address, gateway)
    assert refused == []


async def test_inspector_shows_views_and_saves_what_a_person_edits_in_them(inspector: Inspector) -> None:
    view = await inspector.show("studio__edit", {"path": "a.py"})
    await expect(view.locator("body")).to_contain_text(TEXT.strip())
    await view.get_by_test_id("view.edit").click()
    await view.get_by_test_id("view.text").fill("two = 2\n")
    await view.get_by_test_id("view.save").click()
    await expect(view.get_by_test_id("view.saved")).to_be_visible()
    assert inspector.gateway.get("/api/chats/inspected/files/a.py").text == "two = 2\n"


async def test_inspector_shows_every_other_view(inspector: Inspector) -> None:
    view = await inspector.show("studio__document", {"path": "a.md"})
    await expect(view.locator("article h1")).to_have_text("Title")
    view = await inspector.show("studio__page", {"path": "."})
    await expect(view.frame_locator("iframe").locator("li")).to_have_text(["a.md", "a.py"])
    view = await inspector.show("studio__site", {"path": "."})
    await expect(view.locator("body")).to_contain_text("http://localhost:3123")
    view = await inspector.show("write_file", {"path": "new.txt", "content": "one\n"})
    await expect(view.locator(".diff__add")).to_contain_text("one")
    view = await inspector.show("studio__list", {"path": "."})
    await expect(view.locator("tbody tr").filter(has_text="a.py")).to_have_count(1)
    view = await inspector.show("counter__draw_chart", {})
    await expect(view.get_by_test_id("view.image")).to_have_js_property("width", 1)
    view = await inspector.show("call_read", {"tool": "studio__document", "arguments": {"path": "a.md"}})
    await expect(view.locator("body")).to_have_attribute("data-gw-view", "auto")
    await expect(view.locator("article em")).to_have_text("soft")
