"""`--open`: pages of files and calls in a browser's own tab, readable in both colour schemes."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from browser import find_violations, open_browser, open_page
from playwright.async_api import Browser, Frame, Page

from gateway import Gateway
from gateway.cli.browser import frame_page
from gateway.errors import GatewayError
from gateway.render.pages import SCRIPTS
from gateway.render.pages import Page as RenderedPage

pytestmark = pytest.mark.anyio

CODE = "".join(f"def function_{number}(argument: int) -> str:\n    return 'text'\n" for number in range(40))
DOCUMENT = "# Title\n\nText with `code` and a [link](https://example.com).\n\n" + "A paragraph of many words.\n\n" * 200

# The colour of every text in sight, as painted, and where it stands.
TEXTS = """() => {
  const painter = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const nodes = [...element.childNodes].filter((each) => each.nodeType === Node.TEXT_NODE);
    const text = nodes.map((each) => each.data.trim()).join("");
    const box = element.getBoundingClientRect();
    if (!text || ["SCRIPT", "STYLE"].includes(element.tagName) || !element.checkVisibility()) continue;
    if (Math.min(box.width, box.height) < 4 || box.bottom > innerHeight || box.right > innerWidth) continue;
    painter.fillStyle = getComputedStyle(element).color;
    painter.fillRect(0, 0, 1, 1);
    const colour = [...painter.getImageData(0, 0, 1, 1).data].slice(0, 3);
    found.push({ text: text.slice(0, 40), colour, box: [box.x, box.y, box.width, box.height] });
  }
  return found;
}"""

# The contrast of each text with the colour that most pixels behind it have in the picture, and that colour's luminance.
CONTRASTS = """async ([picture, texts]) => {
  const image = new Image();
  image.src = `data:image/png;base64,${picture}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
  const painter = canvas.getContext("2d", { willReadFrequently: true });
  painter.drawImage(image, 0, 0);
  const luminance = (colour) => {
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = colour.map((part) => linear(part / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  return texts.map(({ text, colour, box }) => {
    const pixels = painter.getImageData(...box.map(Math.floor)).data;
    const counts = new Map();
    for (let at = 0; at < pixels.length; at += 4) {
      const key = pixels.slice(at, at + 3).join();
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
    const behind = luminance([...counts].sort((a, b) => b[1] - a[1])[0][0].split(",").map(Number));
    const [light, dark] = [luminance(colour), behind].sort((a, b) => b - a);
    return { text, behind, contrast: (light + 0.05) / (dark + 0.05) };
  });
}"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@asynccontextmanager
async def open_tab(browser: Browser, file: Path, **options: Any) -> AsyncIterator[tuple[Page, Frame]]:
    """A page as a local file in a tab of its own, and the frame in it."""
    async with open_page(browser, "file://", **options) as page:
        await page.goto(file.as_uri())
        handle = await page.wait_for_selector("iframe")
        assert handle is not None
        frame = await handle.content_frame()
        assert frame is not None
        await frame.wait_for_selector("body")
        yield page, frame


async def measure(page: Page, frame: Frame) -> list[dict[str, Any]]:
    texts = await frame.evaluate(TEXTS)
    picture = base64.b64encode(await page.screenshot()).decode()
    result: list[dict[str, Any]] = await page.evaluate(CONTRASTS, [picture, texts])
    return result


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The pages that the commands open, by what they show."""
    place = tmp_path_factory.mktemp("pages")
    (place / "work").mkdir()
    (place / "work/README.md").write_text(DOCUMENT)
    (place / "work/code.py").write_text(CODE)
    settings = {"data_dir": str(place / "data"), "workspace": str(place / "work")}
    calls: dict[str, str] = {}

    async def record() -> None:
        async with Gateway.open(settings) as gateway:
            for name, tool, arguments in (
                ("written", "write_file", {"path": "notes.txt", "content": CODE}),
                ("listed", "list_directory", {}),
                ("refused", "write_file", {"path": "../secret/" + "x" * 300, "content": "text"}),
            ):
                with suppress(GatewayError):  # one is refused
                    await gateway.call(tool, arguments, confirmed=True)
                [latest] = await gateway.records.list_calls(limit=1)
                calls[name] = latest.id

    asyncio.run(record())
    browser = place / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {place / "address"}\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "BROWSER": str(browser), "TMPDIR": str(place)}

    def open_with(*command: str) -> Path:
        options = ["--open", "--data-dir", settings["data_dir"], "--workspace", settings["workspace"]]
        subprocess.run([sys.executable, "-m", "gateway", *command, *options], env=environment, check=True)
        return Path((place / "address").read_text().strip().removeprefix("file://"))

    pages = {
        "document": open_with("workspace", "cat", "README.md"),
        "code": open_with("workspace", "cat", "code.py"),
        **{name: open_with("call", "show", call) for name, call in calls.items()},
    }
    # A toolset's own page that sets no colours.
    plain = place / "plain.html"
    plain.write_text(frame_page(RenderedPage("<!doctype html><p>Plain text</p>", SCRIPTS), "plain"))
    return {**pages, "plain": plain}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_texts_of_opened_pages_contrast_with_what_is_painted_behind_them(
    browser: Browser, opened: Mapping[str, Path], scheme: str
) -> None:
    for name, file in opened.items():
        for width in (1280, 360):
            options = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
            async with open_tab(browser, file, **options) as (page, frame):
                if name != "plain":
                    await frame.wait_for_selector("body[data-gw-ready]")
                texts = await measure(page, frame)
                assert len(texts) > (0 if name == "plain" else 5), (name, width)
                assert [text for text in texts if text["contrast"] < 4.5] == [], (name, width)
                if name != "plain":
                    assert all((text["behind"] < 0.2) == (scheme == "dark") for text in texts), (name, width)
                    assert await frame.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)


async def test_opened_pages_of_files_fold_nothing(browser: Browser, opened: Mapping[str, Path]) -> None:
    async with open_tab(browser, opened["code"]) as (_, frame):
        await frame.wait_for_selector("body[data-gw-ready]")
        assert await frame.locator(".code__line").count() == 80
        assert await frame.get_by_test_id("code.more").count() == 0
    async with open_tab(browser, opened["document"]) as (_, frame):
        await frame.wait_for_selector("body[data-gw-ready]")
        assert await frame.locator(".fold").count() == await frame.get_by_test_id("code.more").count() == 0


async def test_opened_page_of_a_call_shows_what_came_of_it(browser: Browser, opened: Mapping[str, Path]) -> None:
    async with open_tab(browser, opened["written"]) as (_, frame):
        await frame.wait_for_selector("body[data-gw-ready]")
        assert "Done" in await frame.locator(".view__head").first.inner_text()
        assert await frame.locator("h2").all_inner_texts() == ["Arguments", "Changed files", "Result", "Record"]
        assert "80" in await frame.locator(".diff__counts").first.inner_text()
        text = await frame.locator("body").inner_text()
        assert "null" not in text and "notes.txt" in text
        assert await find_violations(frame) == []  # type: ignore[arg-type]
    async with open_tab(browser, opened["refused"]) as (_, frame):
        await frame.wait_for_selector("body[data-gw-ready]")
        assert "Failed" in await frame.locator(".view__head").first.inner_text()
        assert "INVALID_PATH" in await frame.get_by_test_id("view.error").inner_text()
    async with open_tab(browser, opened["listed"]) as (_, frame):
        await frame.wait_for_selector("body[data-gw-ready]")
        assert await frame.locator("tbody tr").count() >= 3
