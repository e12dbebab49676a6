"""The views in a browser, inside a host on the official AppBridge: what they show, how they are used, what is inert."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from browser import find_violations, open_browser, open_meter, open_page, read_metrics
from eventually import async_eventually
from playwright.async_api import Browser, Frame, Route

from gateway.render.highlight import highlight
from gateway.render.pages import to_html
from gateway.render.renderers import embed
from gateway.serve.web.inline import read_editor, read_view
from web.hosts import EVERYTHING, HostPage, content_frame, open_host, require_editor

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G5")]

URI = "render://call-1"
LINK = {"type": "resource_link", "uri": URI, "name": "tool"}
TEXT = {"type": "text", "text": "done"}
# Would end its script, or run, if any part of a view took data for markup.
HOSTILE = "</script><script>parent.postMessage('out', '*')</script><img src=x onerror=alert(1)>\u2028"
CODE = f'"""Limits."""\n\nRATE = 60\nTEXT = "{HOSTILE}"\n' + "".join(
    f"line_{number} = {number}\n" for number in range(60)
)
VARIABLES = {
    "--color-background-primary": "light-dark(#ffffff, #262624)",
    "--color-background-secondary": "light-dark(#f5f4ed, #30302e)",
    "--color-text-primary": "light-dark(#141413, #faf9f5)",
    "--color-text-secondary": "light-dark(#b0b0b0, #555555)",  # too faint: the view keeps its own
    "--color-border-tertiary": "light-dark(#dddddd, #444444)",
}


class Server:
    """The gateway as views see it: plans, their text, and a file that can be saved on top of its revision."""

    def __init__(self, renderer: str = "code", text: str = CODE, **config: Any) -> None:
        self.text, self.revision, self.has_editor = text, 1, False
        self.calls: list[str] = []
        file = {"file": "src/limits.py", "uri": "workspace://chat/src/limits.py", "editable": True, "language": "auto"}
        self.plan: dict[str, Any] = {
            "version": 1,
            "renderer": renderer,
            "config": config or file,
            "tool": {"id": "app-builder:write_file", "name": "app-builder__write_file", "title": "Write file"},
            "call": {"id": "call-1", "chat": "chat", "startedAt": "2026-11-18T12:00:00.000+00:00"},
            "input": {"path": "src/limits.py"},
            "status": "success",
        }

    def described(self) -> dict[str, Any]:
        if self.plan["renderer"] not in ("code", "document"):
            return {"uri": URI, "plan": self.plan}
        marked = highlight(self.text, "auto", "src/limits.py")
        is_document = self.plan["renderer"] == "document"
        content = {
            "text": self.text,
            "html": to_html(self.text) if is_document else marked.html,
            "language": "markdown" if is_document else marked.language,
            "size": len(self.text.encode()),
            "truncated": False,
            "binary": False,
            "revision": str(self.revision),
            "editable": True,
        }
        return {"uri": URI, "plan": self.plan, "content": content}

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(name)
        if name == "render_plan":
            return answer(self.described())
        if name == "view_read_file":
            return answer({"path": "src/limits.py", "content": self.described()["content"]})
        if arguments["base_revision"] != str(self.revision):
            return refusal("CONFLICT", "'src/limits.py' has changed since it was read")
        self.text, self.revision = arguments["text"], self.revision + 1
        return answer({"path": "src/limits.py", "revision": str(self.revision), "manifest": "m_8f2c1e77", "size": 1})

    async def read_resource(self, uri: str) -> dict[str, Any]:
        self.calls.append(uri)
        if uri.startswith("ui://toolgate/editor"):
            editor = read_editor() if self.has_editor else None
            assert editor is not None, "no editor here"
            return {"contents": [{"uri": uri, "mimeType": "text/javascript", "text": editor[1]}]}
        assert uri == URI
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": json.dumps(self.plan)}]}


def answer(value: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}


def refusal(code: str, message: str) -> dict[str, Any]:
    meta = {"dev.toolgate/error": {"code": code, "message": message, "details": {}}}
    return {"isError": True, "content": [{"type": "text", "text": f"{code}: {message}"}], "_meta": meta}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


class Served:
    """The server behind the host of a test; the host stays open for all of them."""

    def __init__(self) -> None:
        self.server = Server()

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self.server.call_tool(name, arguments)

    async def read_resource(self, uri: str) -> dict[str, Any]:
        return await self.server.read_resource(uri)


@pytest.fixture(scope="module")
def served() -> Served:
    return Served()


@pytest.fixture(scope="module")
async def host(browser: Browser, served: Served) -> AsyncIterator[HostPage]:
    async with open_host(browser, served.call_tool, served.read_resource) as host:
        yield host


@pytest.fixture(params=["text area", "CodeMirror"])
def editor(request: pytest.FixtureRequest) -> bool:
    """Whether the view gets the editor that highlights."""
    if request.param == "CodeMirror":
        require_editor()
    return bool(request.param == "CodeMirror")


def text_of(frame: Frame) -> Any:
    return frame.evaluate("document.getElementById('root').innerText")


def part(name: str) -> str:
    return f"[data-testid='view.{name}']"


@pytest.mark.parametrize(
    ("via", "result", "can", "send"),
    [
        ("meta", {"content": [TEXT], "_meta": {"dev.toolgate/render": {"uri": URI}}}, EVERYTHING, ("input", "result")),
        ("resource", {"content": [TEXT, LINK]}, EVERYTHING, ("input", "result")),
        ("tool", {"content": [TEXT, LINK]}, {"serverTools": {}}, ("result",)),
        ("latest", {"content": [TEXT]}, {"serverTools": {}}, ("result",)),
        ("latest", {}, {"serverTools": {}}, ()),
    ],
    ids=["meta", "resource", "tool", "latest", "silent"],
)
async def test_view_finds_its_plan_whatever_the_host_leaves_out(
    host: HostPage, served: Served, via: str, result: dict[str, Any], can: dict[str, Any], send: tuple[str, ...]
) -> None:
    served.server = Server()
    if via == "meta":
        result["_meta"]["dev.toolgate/render"]["plan"] = served.server.plan
    frame = await host.open("code", result=result, can=can, send=send)
    assert await frame.evaluate("document.body.dataset.gwPlanVia") == via
    assert "RATE = 60" in await text_of(frame)
    assert "src/limits.py" in await text_of(frame)


async def test_view_of_a_host_that_offers_nothing_shows_the_text_result(host: HostPage) -> None:
    frame = await host.open("code", result={"content": [TEXT, LINK]}, can={})
    assert "done" in await text_of(frame)
    assert await frame.query_selector(part("edit")) is None


async def test_code_view_saves_by_keyboard_alone_and_tells_the_model(
    host: HostPage, served: Served, editor: bool
) -> None:
    served.server = Server()
    served.server.has_editor = editor
    frame = await host.open("code", result={"content": [LINK]})
    await frame.focus(part("edit"))
    await host.page.keyboard.press("Enter")
    await frame.wait_for_selector(f"{part('text')}:focus")
    assert (await frame.locator(".cm-line span[class]").count() > 0) is editor  # highlighted
    await host.page.keyboard.type("# first\n")
    update = await host.next_asked("updatemodelcontext", host.page.keyboard.press("Control+s"))
    assert "m_8f2c1e77" in str(update)
    await frame.wait_for_selector(part("saved"))
    assert served.server.text == f"# first\n{CODE}"
    assert "# first" in await text_of(frame) and "m_8f2c1e77" in await text_of(frame)
    assert await frame.evaluate("document.activeElement.dataset.testid") == "view.edit"


async def test_code_view_shows_a_conflict_and_overwrites_nothing(host: HostPage, served: Served, editor: bool) -> None:
    server = served.server = Server(text="one\ntwo\nthree\n")
    served.server.has_editor = editor
    frame = await host.open("code", result={"content": [LINK]})
    await frame.click(part("edit"))
    await frame.fill(part("text"), "one\nmine\nthree\n")
    server.text, server.revision = "one\ntheirs\nthree\n", 7
    await frame.click(part("save"))
    await frame.wait_for_selector(part("conflict"))
    assert server.text == "one\ntheirs\nthree\n"
    await frame.click(part("compare"))
    await frame.wait_for_selector(".diff__add")
    assert await frame.locator(".diff__del").inner_text() == "2\t\t-\ttheirs"
    assert await frame.locator(".diff__add").inner_text() == "\t2\t+\tmine"
    await frame.click(part("rebase"))
    await frame.click(part("save"))
    await frame.wait_for_selector(part("saved"))
    assert server.text == "one\nmine\nthree\n"


async def test_code_view_reloads_what_somebody_else_saved(host: HostPage, served: Served) -> None:
    server = served.server = Server(text="one\n")
    frame = await host.open("code", result={"content": [LINK]})
    await frame.click(part("edit"))
    await frame.fill(part("text"), "mine\n")
    server.text, server.revision = "theirs\n", 7
    await frame.click(part("save"))
    await frame.click(part("reload"))
    await frame.wait_for_selector(part("edit"))
    assert "theirs" in await text_of(frame) and server.text == "theirs\n"


async def test_document_view_reads_edits_and_opens_links_through_the_host(
    host: HostPage, served: Served, editor: bool
) -> None:
    served.server = Server(
        "document", f"# Plan\n\n[the site](https://example.test/a) ![far](https://far.test/)\n\n{HOSTILE}\n"
    )
    served.server.has_editor = editor
    frame = await host.open("document", result={"content": [LINK]})
    assert await frame.locator(".prose h1").inner_text() == "Plan"
    assert await frame.locator("img").count() == 0
    assert await frame.get_by_text("far").get_attribute("href") == "https://far.test/"
    opened = await host.next_asked("openlink", frame.click("text=the site"))
    assert opened == {"url": "https://example.test/a"}
    await frame.click(part("edit"))
    await frame.fill(part("text"), "# New plan\n")
    await frame.click(part("save"))
    await frame.wait_for_selector(part("saved"))
    assert await frame.locator(".prose h1").inner_text() == "New plan"


ARTIFACT = (
    "<!doctype html><html><head><title>Chart</title></head><body><p id='out'></p><div style='height:900px'></div>"
    "<script>document.getElementById('out').textContent = window.__TOOL_DATA__.label + ' ' + window.origin;"
    "try { parent.document.title } catch (error) { document.body.dataset.refused = error.name }</script></body></html>"
)


async def test_html_view_shows_a_page_without_an_origin_and_with_its_data(host: HostPage, served: Served) -> None:
    served.server = Server("html", artifact="chart.html", data={"label": HOSTILE, "__proto__": 1})
    page = json.dumps(ARTIFACT).replace("<", "\\u003c")
    element = f'<script type="application/json" id="toolgate-artifact">{page}</script>'
    html = read_view("html").replace("</head>", f"{element}</head>")
    frame = await host.open(html=html, result={"content": [LINK]})
    inner = await content_frame(frame, part("artifact"))
    await inner.wait_for_selector("body[data-refused]")
    assert await inner.locator("#out").text_content() == f"{HOSTILE} null"
    await host.page.wait_for_function("document.querySelector('iframe').clientHeight >= 900")


async def test_frame_view_shows_a_card_where_the_host_forbids_frames(host: HostPage, served: Served) -> None:
    served.server = Server("frame", url="https://dashboard.test/x", origin="https://dashboard.test")
    frame = await host.open(
        "frame", result={"content": [LINK]}, can={**EVERYTHING, "sandbox": {"csp": {"frameDomains": []}}}
    )
    assert "https://dashboard.test/x" in await frame.locator(part("blocked")).inner_text()
    opened = await host.next_asked("openlink", frame.click(part("open")))
    assert opened == {"url": "https://dashboard.test/x"}


DIFF = (
    "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -3,2 +3,2 @@\n-rate = 1\n+rate = 2\n kept\n"
    "diff --git a/new.txt b/new.txt\nnew file mode 100644\n--- /dev/null\n+++ b/new.txt\n"
    f"@@ -0,0 +1 @@\n+{HOSTILE[:-1]}\n"
)
ROWS = [{"city": f"city {number}", "people": number * 7 % 1000, "note": HOSTILE} for number in range(2000)]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
PIXEL_COLOUR = (0, 0, 255, 127)


async def test_diff_view_shows_what_a_call_changed(host: HostPage) -> None:
    frame = await host.open("diff", result={"content": [], "structuredContent": {"diff": DIFF}})
    text = await text_of(frame)
    assert "2 files changed" in text and "a.py" in text and "new" in text and HOSTILE[:-1] in text
    assert await frame.locator(".diff ins").all_inner_texts() == ["2"]
    assert await frame.locator(".diff del").all_inner_texts() == ["1"]


async def test_table_view_draws_a_window_sorts_and_moves_by_keyboard(host: HostPage) -> None:
    frame = await host.open("table", result={"content": [], "structuredContent": {"rows": ROWS}})
    assert "2,000 rows" in await text_of(frame)
    assert await frame.locator("tbody tr").count() < 60
    await frame.click("[data-testid='view.sort'][data-key='people']")
    await frame.click("[data-testid='view.sort'][data-key='people']")
    assert (await frame.locator("tbody td:nth-child(2)").nth(1).inner_text()) == "999"
    await frame.focus("[data-testid='view.row'][tabindex='0']")
    await host.page.keyboard.press("End")
    await frame.wait_for_selector("tr[aria-rowindex='2001']:focus")


async def test_image_view_shows_and_saves_images(host: HostPage) -> None:
    result = {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}, {"type": "text", "text": "A dot"}]}
    frame = await host.open("image", result=result)
    drawn = "image => [image.ariaLabel, ...image.getContext('2d').getImageData(0, 0, 1, 1).data]"
    assert await frame.locator(part("image")).evaluate(drawn) == ["A dot", *PIXEL_COLOUR]
    assert PIXEL in str(await host.next_asked("downloadfile", frame.click(part("download"))))
    for kind, data in (
        ("image/gif", "R0lGODlhAQABAAAAACw="),
        ("image/png", "no image"),
    ):  # drawn by the browser's element
        frame = await host.open("image", result={"content": [{"type": "image", "data": data, "mimeType": kind}]})
        assert await frame.locator(part("image")).evaluate("image => image.tagName") == "IMG"  # drawn by the browser


@pytest.mark.parametrize(
    ("server", "result", "selector"),
    [
        (Server(), {"content": [LINK]}, ".code"),
        (Server("document", "# Title"), {"content": [LINK]}, ".prose h1"),
        (Server("frame", url="https://a.test/", origin="https://a.test"), {"content": [LINK]}, part("blocked")),
        (None, {"content": [], "structuredContent": {"diff": DIFF}}, ".diff"),
        (None, {"content": [], "structuredContent": ROWS[:3]}, ".table"),
        (None, {"content": [TEXT]}, ".code"),
        (None, refusal("FILE_NOT_FOUND", "there is no file"), part("error")),
    ],
    ids=["code", "document", "frame", "diff", "table", "text", "error"],
)
async def test_auto_view_chooses_by_the_plan_or_the_result(
    host: HostPage, served: Served, server: Server | None, result: dict[str, Any], selector: str
) -> None:
    served.server = server or Server()
    can = {**EVERYTHING, "sandbox": {"csp": {"frameDomains": []}}} if server else {"openLinks": {}}
    frame = await host.open("auto", result=result, can=can)
    await frame.wait_for_selector(selector)


async def test_view_takes_theme_and_readable_colours_from_the_host(host: HostPage, served: Served) -> None:
    served.server = Server()
    context = {"styles": {"variables": VARIABLES}}
    frame = await host.open("code", result={"content": [LINK]}, theme="dark", context=context)
    colour = "selector => getComputedStyle(document.querySelector(selector)).color"
    assert await frame.evaluate(colour, "h1") == "rgb(250, 249, 245)"  # the host's
    assert await frame.evaluate(colour, ".meta") == "rgb(152, 162, 179)"  # ours: the host's is too faint
    await host.page.evaluate("bridge.setHostContext({theme: 'light'})")
    await frame.wait_for_selector("html[data-theme='light']")
    assert await frame.evaluate(colour, ".meta") == "rgb(93, 104, 121)"
    background = "getComputedStyle(document.documentElement).backgroundColor"
    assert await frame.evaluate(background) == "rgb(255, 255, 255)"  # the host's; a host may be of another behind us
    await host.page.evaluate("bridge.setHostContext({theme: 'dark'})")
    await frame.wait_for_selector("html[data-theme='dark']")
    assert await frame.evaluate(background) == "rgb(38, 38, 36)"


async def test_view_answers_its_teardown_and_reports_no_size_after_it(host: HostPage, served: Served) -> None:
    served.server = Server()
    frame = await host.open("code", result={"content": [LINK]})
    await host.page.wait_for_function("window.sizes.at(-1) > 300")
    assert await host.page.evaluate("bridge.teardownResource({})") == {}
    before = await host.page.evaluate("window.sizes.length")
    await frame.click("[data-testid='code.more']")
    await frame.wait_for_selector("#L64")
    await frame.evaluate("new Promise(resolve => setTimeout(resolve, 200))")
    assert await host.page.evaluate("window.sizes.length") == before


async def test_views_have_no_violation_in_either_theme_at_any_width(host: HostPage, served: Served) -> None:
    shown: list[tuple[str, Server | None, dict[str, Any]]] = [
        ("code", Server(), {"content": [LINK]}),
        ("document", Server("document", "# Title\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n`x`"), {"content": [LINK]}),
        ("frame", Server("frame", url="https://a.test/", origin="https://a.test"), {"content": [LINK]}),
        ("diff", None, {"content": [], "structuredContent": {"diff": DIFF}}),
        ("table", None, {"content": [], "structuredContent": ROWS[:20]}),
        ("image", None, {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]}),
        ("code", None, refusal("FILE_NOT_FOUND", "there is no file")),
        ("html", Server("html", artifact="chart.html", data={"label": "x"}), {"content": [LINK]}),
        ("auto", Server(), {"content": [LINK]}),
        ("auto", None, {"content": [], "structuredContent": ROWS[:20]}),
    ]
    shown[0][1].has_editor = read_editor() is not None  # type: ignore[union-attr]
    for theme, width, views in (("light", 752, shown), ("dark", 312, [shown[0], *shown[3:5], shown[8]])):
        await host.page.set_viewport_size({"width": width, "height": 700})
        for view, server, result in views:
            served.server = server or Server()
            can = {**EVERYTHING, "sandbox": {"csp": {"frameDomains": []}}}
            html = embed(read_view(view), "toolgate-artifact", ARTIFACT) if view == "html" else read_view(view)
            frame = await host.open(html=html, result=result, theme=theme, can=can if server else {})
            assert await find_violations(frame) == [], (view, theme, width)  # type: ignore[arg-type]
            assert await frame.evaluate("document.documentElement.scrollWidth <= innerWidth"), (view, theme, width)
            if view == "code" and server:
                await frame.click(part("edit"))
                await frame.wait_for_selector(part("text"))
                assert await find_violations(frame) == [], ("edit", theme, width)  # type: ignore[arg-type]
    await host.page.set_viewport_size({"width": 1280, "height": 720})


async def test_code_view_draws_2000_lines_when_asked_for_all(host: HostPage, served: Served) -> None:
    text = "".join(f"def function_{number}(argument: int) -> str:\n" for number in range(2000))
    served.server = Server(text=text)
    frame = await host.open("code", result={"content": [LINK]})
    assert await frame.locator(".code__line").count() == 22
    await frame.click("text=Show 1,978 more lines")
    assert await frame.locator(".code__line").count() == 2000


async def test_code_view_of_2000_lines_takes_little_of_the_main_thread(browser: Browser) -> None:
    text = "".join(f"def function_{number}(argument: int) -> str:\n" for number in range(2000))
    page_html = embed(read_view("code"), "toolgate-plan", Server(text=text).described())

    async def serve(route: Route) -> None:
        await route.fulfill(body=page_html, content_type="text/html")

    spent: list[float] = []
    async with open_page(browser, "http://view.test") as page, open_meter(page) as meter:
        await page.route("**/*", serve)
        await page.goto("http://view.test/")
        for _ in range(3):
            await page.reload()
            await page.wait_for_selector("body[data-gw-ready]")
            await page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            spent.append((await read_metrics(meter))["TaskDuration"])  # of this document alone
        assert await page.locator("*").count() < 400
    assert 0.005 < min(spent) < 0.1


CONTROLS = "button, summary, a[href], input, select, textarea, iframe, [contenteditable='true'], [tabindex='0']"


class Keyboard:
    """A person without a pointer."""

    def __init__(self, host: HostPage, frame: Frame) -> None:
        self.host = host
        self.frame = frame

    async def reach_all(self) -> None:
        """Tab through the view from its beginning: no visible control is left out."""
        wanted = await self.frame.evaluate(
            """selector => {
                const usable = (each) => each.checkVisibility() && !each.closest("[inert]");
                window.left = new Set([...document.querySelectorAll(selector)].filter(usable));
                document.activeElement.blur();
                window.focus();
                getSelection().setPosition(document.body, 0);
                return window.left.size;
            }""",
            CONTROLS,
        )
        for _ in range(wanted + 1):
            await self.host.page.keyboard.press("Tab")
            await self.frame.evaluate("window.left.delete(document.activeElement)")
        assert await self.frame.evaluate("[...window.left].map((each) => each.outerHTML.slice(0, 120))") == []

    async def use(self, name: str, key: str = "Enter") -> None:
        """Tab to a control and press a key on it."""
        await self.frame.wait_for_selector(f"[data-testid='{name}']")
        await self.frame.evaluate("window.focus()")
        for _ in range(60):
            if await self.frame.evaluate("document.hasFocus() && document.activeElement.dataset.testid") == name:
                await self.host.page.keyboard.press(key)
                return
            await self.host.page.keyboard.press("Tab")
        pytest.fail(f"{name} is not reached by Tab")


LINKED_PLAN = "# Plan\n\n[the site](https://example.test/a)\n\n" + "word " * 900


async def test_every_action_of_every_view_works_by_keyboard_alone(host: HostPage, served: Served) -> None:
    modes = {"availableDisplayModes": ["inline", "fullscreen"], "displayMode": "inline"}

    async def show(view: str, server: Server | None = None, result: dict[str, Any] | None = None) -> Keyboard:
        served.server = server or Server()
        served.server.has_editor = read_editor() is not None
        html = embed(read_view(view), "toolgate-artifact", ARTIFACT) if view == "html" else read_view(view)
        can = {**EVERYTHING, "sandbox": {"csp": {"frameDomains": []}}}
        frame = await host.open(html=html, result=result or {"content": [LINK]}, context=modes, can=can)
        keyboard = Keyboard(host, frame)
        await keyboard.reach_all()
        return keyboard

    async def count(name: str) -> int:
        return len(await host.asked(name))

    async def expect_asked(name: str, times: int) -> None:
        async def is_reached() -> bool:
            return await count(name) == times

        await async_eventually(is_reached)

    for view in ("code", "auto"):
        code = await show(view)
        opened, downloads = await count("requestdisplaymode"), await count("downloadfile")
        await code.use("view.download")
        await code.use("view.fill")
        await expect_asked("downloadfile", downloads + 1)
        await expect_asked("requestdisplaymode", opened + 1)
        await code.use("code.copy")
        await code.frame.wait_for_selector("[data-testid='code.copy'][aria-label^='Cop'], [aria-label^='The browser']")
        await code.use("code.more", "Space")
        await code.frame.wait_for_selector("#L64")
        await code.use("view.edit")
        await code.frame.wait_for_selector(f"{part('text')}:focus")
        await host.page.keyboard.type("# mine ")
        served.server.text, served.server.revision = "theirs\n", 7
        await code.use("view.save")
        await code.use("view.compare")
        await code.use("view.rebase")
        await code.frame.wait_for_selector(f"{part('text')}:focus")
        await code.use("view.save")
        await code.frame.wait_for_selector(part("saved"))
        assert served.server.text.startswith("# mine ")
        await code.use("view.edit")
        await code.use("view.cancel")
        await code.frame.wait_for_selector(part("edit"))

    document = await show("document", Server("document", LINKED_PLAN))
    links = await count("openlink")
    await document.use("code.more")
    await document.reach_all()
    await document.frame.evaluate("document.querySelector('.prose a').dataset.testid = 'link'")
    await document.use("link")
    await expect_asked("openlink", links + 1)
    card = await show("frame", Server("frame", url="https://a.test/", origin="https://a.test"))
    await card.use("view.open")
    await expect_asked("openlink", links + 2)
    await show("html", Server("html", artifact="chart.html", data={"label": "x"}))
    await show("diff", None, {"content": [], "structuredContent": {"diff": DIFF}})
    table = await show("table", None, {"content": [], "structuredContent": ROWS[:20]})
    await table.use("view.sort")
    await table.frame.wait_for_selector("th[aria-sort='ascending'], th[aria-sort='descending']")
    picture = await show("image", None, {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]})
    downloads = await count("downloadfile")
    await picture.use("view.download")
    await expect_asked("downloadfile", downloads + 1)
