"""A host of MCP Apps in Chromium: the official AppBridge, with the Python SDK's client behind it; and the gateway with
the toolset and the server that it shows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio
from browser import open_page
from journeys.test_node_clients import NODE, _absent
from mcp import Client
from mcp.client import advertise
from playwright.async_api import Browser, FrameLocator, Page

HERE = Path(__file__).parent
STUDIO = HERE / "studio"
ORIGIN = "http://host.test"
SHOW_SECONDS = 120.0
EXTENSION, MIME_TYPE = "io.modelcontextprotocol/ui", "text/html;profile=mcp-app"
APPS = [advertise(EXTENSION, {"mimeTypes": [MIME_TYPE]})]
COUNTER: dict[str, Any] = {
    "command": sys.executable,
    "args": [str(HERE / "app_server.py")],
    "requires_confirmation": False,
}
# The same server with a view that tries to reach other servers and the gateway's own tools.
SPY: dict[str, Any] = {**COUNTER, "args": [*COUNTER["args"], "spy"]}
_HTML = '<!doctype html><html lang="en"><title>host</title><body><script type="module" src="/host.js"></script>'


@cache
def bundle_host() -> str:
    """The host's script with AppBridge in it; skips where npm's packages are not installed."""
    esbuild = NODE / "node_modules/.bin/esbuild"
    if not esbuild.exists() or shutil.which("node") is None:
        _absent("the packages of the host are not installed: run tests/journeys/node/install")
    options = ["--bundle", "--format=esm", f"--alias:@modelcontextprotocol/ext-apps/app-bridge={_bridge()}"]
    done = subprocess.run([esbuild, HERE / "host.mjs", *options], capture_output=True, text=True, cwd=NODE, check=True)
    return done.stdout


def _bridge() -> Path:
    return (NODE / "node_modules/@modelcontextprotocol/ext-apps/dist/src/app-bridge.js").resolve()


class Host:
    """One page with a host in it. `view` is the frame that shows a call."""

    def __init__(self, page: Page, client: Client) -> None:
        self.page = page
        self.client = client

    @property
    def view(self) -> FrameLocator:
        return self.page.frame_locator("iframe").first

    @property
    def upstream_view(self) -> FrameLocator:
        """The view of an upstream, inside the gateway's page."""
        return self.view.frame_locator("iframe")

    async def show(self, tool: str, arguments: Mapping[str, Any] | None = None, **behaviour: Any) -> dict[str, Any]:
        """Call a tool and show its view; returns the result as the host got it. Once in many hundred times the page
        answers nothing any more: it is loaded again then."""
        try:
            with anyio.fail_after(SHOW_SECONDS):
                return await self._show(tool, arguments or {}, behaviour)
        except TimeoutError:
            await self.page.goto(f"{ORIGIN}/")
            await self.page.wait_for_function("window.host")
            return await self._show(tool, arguments or {}, behaviour)

    async def _show(self, tool: str, arguments: Mapping[str, Any], behaviour: Mapping[str, Any]) -> dict[str, Any]:
        await self.page.evaluate("host.listTools()")
        shown = await self.page.evaluate(
            "([name, args, how]) => host.show(name, args, how)", [tool, arguments, behaviour]
        )
        assert isinstance(shown, dict)
        return shown

    async def state(self) -> dict[str, Any]:
        state = await self.page.evaluate("host.state")
        assert isinstance(state, dict)
        return state

    async def _answer(self, method: str, params: dict[str, Any]) -> Any:
        result: Any
        if method == "tools/list":
            result = await self.client.list_tools()
        elif method == "resources/list":
            result = await self.client.list_resources()
        elif method == "tools/call":
            result = await self.client.call_tool(params["name"], params["arguments"])
        else:
            result = await self.client.read_resource(params["uri"])
        return json.loads(result.model_dump_json(by_alias=True, exclude_none=True))


@asynccontextmanager
async def open_host(browser: Browser, client: Client, **options: Any) -> AsyncIterator[Host]:
    script = bundle_host()
    async with open_page(browser, ORIGIN, **options) as page:
        host = Host(page, client)
        await page.expose_function("mcp", host._answer)

        async def serve(route: Any) -> None:
            is_script = route.request.url.endswith(".js")
            kind, body = ("text/javascript", script) if is_script else ("text/html", _HTML)
            await route.fulfill(content_type=kind, body=body)

        await page.route(f"{ORIGIN}/**", serve)
        await page.goto(f"{ORIGIN}/")
        await page.wait_for_function("window.host")
        yield host
