"""Debian's Chromium, driven by Playwright: pages whose errors, refused loads and requests elsewhere fail the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT  # type: ignore[import-untyped]
from playwright.async_api import Browser, CDPSession, ConsoleMessage, Page, async_playwright, expect

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
# Not a limit of the product: a busy machine starts a browser slowly.
PATIENCE = 120_000


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    if BINARY is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs Chromium")
        pytest.skip("needs Chromium")
    expect.set_options(timeout=PATIENCE)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=BINARY, args=FLAGS, timeout=PATIENCE)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_page(browser: Browser, origin: str, *, refused: int = 0, **options: Any) -> AsyncIterator[Page]:
    """A page in a context of its own (`options` are Playwright's). What goes wrong in it is raised at the end: an error
    in its console, a script that failed, a request to another origin than `origin`. Answers of the status `refused` are
    expected, although the browser reports them as errors."""
    context = await browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    page = await context.new_page()
    faults: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error" and not (refused and f"a status of {refused} " in message.text):
            faults.append(f"console: {message.text} ({message.location.get('url')})")

    page.on("console", hear)
    page.on("pageerror", lambda error: faults.append(f"script: {error}"))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((f"{origin}/", "data:", "blob:", "about:"))
            else faults.append(f"request to {request.url}")
        ),
    )
    try:
        yield page
    finally:
        await context.close()
    assert not faults, faults


async def find_violations(page: Page) -> list[str]:
    """What axe-core finds wrong for people who use a keyboard or a screen reader."""
    await page.evaluate(AXE_SCRIPT)  # evaluated, since a strict policy refuses added scripts
    found = await page.evaluate("axe.run()")
    return [f"{each['id']}: {node['html'][:200]}" for each in found["violations"] for node in each["nodes"]]


@asynccontextmanager
async def open_meter(page: Page) -> AsyncIterator[CDPSession]:
    """What Chromium counts of a page from now on, for `read_metrics`."""
    session = await page.context.new_cdp_session(page)
    # In CPU time of the thread: how busy the machine is does not count.
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    try:
        yield session
    finally:
        await session.detach()


async def read_metrics(meter: CDPSession) -> dict[str, float]:
    """`TaskDuration` is the seconds of the main thread, `JSHeapUsedSize` in bytes, `Nodes` those of the document."""
    return {each["name"]: each["value"] for each in (await meter.send("Performance.getMetrics"))["metrics"]}


async def measure_thread(page: Page, script: str, argument: Any = None) -> float:
    """Run a script and draw twice; return the seconds of the main thread, which a busy machine does not lengthen."""
    async with open_meter(page) as meter:
        before = await read_metrics(meter)
        await page.evaluate(script, argument)
        await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return (await read_metrics(meter))["TaskDuration"] - before["TaskDuration"]
