"""A page in Chromium that shows views as a host does: the official AppBridge, the specification's security policy."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from browser import open_page
from eventually import async_eventually
from playwright.async_api import Browser, Frame, Page, Route

from gateway.serve.web.inline import read_editor, read_view

ORIGIN = "http://host.test"
PAGES = Path(__file__).parent / "host"
MODULES = Path(__file__).parents[1] / "journeys/node/node_modules"
TYPES = {".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript"}
# What a host offers that leaves nothing out.
EVERYTHING: dict[str, Any] = {
    "serverTools": {},
    "serverResources": {},
    "openLinks": {},
    "downloadFile": {},
    "updateModelContext": {"text": {}},
}


def require_bridge() -> None:
    """Skip, or fail where Node must be there, without the npm packages."""
    if (MODULES / "@modelcontextprotocol/ext-apps").is_dir():
        return
    reason = "the Node packages are not installed: run tests/journeys/node/install"
    if os.environ.get("TOOLGATE_REQUIRE_NODE") == "1":
        pytest.fail(f"{reason}, and TOOLGATE_REQUIRE_NODE=1 says it must be there")
    pytest.skip(reason)


def require_editor() -> None:
    """Skip, or fail where Node must be there, without the built editor."""
    if read_editor() is not None:
        return
    reason = "the editor of views is not built: run make editor"
    if os.environ.get("TOOLGATE_REQUIRE_NODE") == "1":
        pytest.fail(f"{reason}, and TOOLGATE_REQUIRE_NODE=1 says it must be there")
    pytest.skip(reason)


async def _serve(route: Route) -> None:
    path = route.request.url.removeprefix(ORIGIN).partition("?")[0]
    file = MODULES / path.removeprefix("/node_modules/") if path.startswith("/node_modules/") else PAGES / path[1:]
    if path == "/":
        file = PAGES / "index.html"
    if file.suffix not in TYPES or not file.is_file():
        await route.fulfill(status=404 if path != "/favicon.ico" else 204)
        return
    await route.fulfill(body=file.read_bytes(), content_type=TYPES[file.suffix])


class HostPage:
    """One view in a host. `call_tool` and `read_resource` are the server behind it."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def open(
        self,
        view: str | None = None,
        *,
        html: str = "",
        result: dict[str, Any] | None = None,
        arguments: dict[str, Any] | None = None,
        tool: str = "tool",
        theme: str = "light",
        can: dict[str, Any] | None = None,
        send: tuple[str, ...] = ("input", "result"),
        frames: str = "",
        context: dict[str, Any] | None = None,
    ) -> Frame:
        """Show a view and return its frame when it is drawn."""
        info = {"tool": {"name": tool, "inputSchema": {"type": "object"}}}
        options = {
            "html": html or read_view(view or ""),
            "context": {"theme": theme, "toolInfo": info, **(context or {})},
            "can": EVERYTHING if can is None else can,
            "send": send,
            "input": arguments or {},
            "result": result or {},
            "frames": frames,
        }
        await self.page.evaluate("options => openView(options)", options)
        frame = await content_frame(self.page, "main iframe")
        await frame.wait_for_selector("body[data-gw-ready]")
        return frame

    async def asked(self, name: str) -> list[Any]:
        """What the view asked of the host by this method."""
        return [params for method, params in await self.page.evaluate("window.asked") if method == name]

    async def next_asked(self, name: str, action: Awaitable[object]) -> Any:
        """Act in the view; return what it then asks of the host by this method, which arrives after the action."""
        before = len(await self.asked(name))
        await action

        async def list_new() -> list[Any]:
            return (await self.asked(name))[before:]

        return (await async_eventually(list_new))[0]


async def content_frame(within: Page | Frame, selector: str) -> Frame:
    """The document of a frame element, when there is one."""
    element = await within.wait_for_selector(selector)
    frame = None if element is None else await element.content_frame()
    assert frame is not None
    return frame


@asynccontextmanager
async def open_host(
    browser: Browser,
    call_tool: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]],
    read_resource: Callable[[str], Awaitable[dict[str, Any]]],
    **options: Any,
) -> AsyncIterator[HostPage]:
    require_bridge()
    async with open_page(browser, ORIGIN, **options) as page:
        await page.expose_function("callTool", call_tool)
        await page.expose_function("readResource", read_resource)
        await page.route("**/*", _serve)
        await page.goto(f"{ORIGIN}/")
        await page.wait_for_function("window.isReady")  # the modules of the bridge are loaded
        yield HostPage(page)
