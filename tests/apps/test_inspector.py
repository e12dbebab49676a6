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
from urllib.parse import urlencode

import pytest
from browser import open_browser
from eventually import async_eventually
from journeys.test_node_clients import INSPECTOR, _node_22
from playwright.async_api import Browser, FrameLocator, Page, expect
from rest.conftest import Rest, serve

from .hosts import STUDIO

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
    with serve(tmp_path_factory.mktemp("inspected")) as rest:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for file in STUDIO.rglob("*"):
                archive.write(file, file.relative_to(STUDIO))
        rest.ok("POST", "/api/toolsets/import", files={"file": ("studio.zip", packed.getvalue(), "application/zip")})
        yield rest


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def inspector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_inspector(tmp_path_factory.mktemp("inspector")) as address:
        yield address


async def show(page: Page, inspector: str, gateway: Rest, tool: str, arguments: dict[str, str]) -> FrameLocator:
    """Call a tool in the Inspector's page for apps; returns the frame of its view."""

    async def is_up() -> bool:
        try:
            socket.create_connection(("127.0.0.1", int(inspector.rpartition(":")[2])), 1).close()
        except OSError:
            return False
        return True

    await async_eventually(is_up)
    packed = base64.urlsafe_b64encode(json.dumps(arguments).encode()).decode().rstrip("=")
    query = {"serverUrl": f"{gateway.gateway.url}?chat=inspected", "transport": "http", "autoConnect": TOKEN}
    await page.goto(f"{inspector}/?{urlencode({**query, 'openApp': tool, 'appArgs': packed, 'autoOpen': TOKEN})}")
    return page.frame_locator("iframe").first.frame_locator("iframe")  # the Inspector's sandbox is between


async def test_inspector_shows_views_and_saves_what_a_person_edits_in_them(
    browser: Browser, gateway: Rest, inspector: str
) -> None:
    gateway.ok("PUT", "/api/chats/inspected/files/a.py", 201, content=TEXT.encode())
    refused: list[str] = []
    context = await browser.new_context()
    page = await context.new_page()
    page.on("console", lambda message: refused.append(message.text) if "Content Security" in message.text else None)
    view = await show(page, inspector, gateway, "studio__edit", {"path": "a.py"})
    await expect(view.locator("body")).to_have_attribute("data-gw-ready", "true")
    await expect(view.locator("body")).to_contain_text(TEXT.strip())
    await view.get_by_test_id("view.edit").click()
    await view.get_by_test_id("view.text").fill("two = 2\n")
    await view.get_by_test_id("view.save").click()
    await expect(view.get_by_test_id("view.saved")).to_be_visible()
    assert gateway.get("/api/chats/inspected/files/a.py").text == "two = 2\n"
    assert refused == []
    await context.close()
