"""Calls and Workspace in a browser, against a real gateway whose calls are made by real MCP clients of both eras."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from browser import find_violations, open_page
from journeys.clients import call, over_http, value
from journeys.wire import HANDSHAKE, MODERN
from playwright.async_api import Browser, Locator, Page, expect
from rest.conftest import Rest, serve

from gateway.config import Settings
from gateway.serve.web.inline import read_editor
from gateway.workspace.workspaces import attached_folders

from .payloads import PAYLOADS, assert_inert

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T8")]

# What a page of a toolset can reach, shown as text; then the data of the call.
ARTIFACT = """<!doctype html><html><head><title>T</title></head><body><script>
const looks = {parent: () => parent.document.title, storage: () => localStorage.length, cookie: () => document.cookie};
const seen = {origin: self.origin};
for (const [name, look] of Object.entries(looks)) {
  try { look(); seen[name] = "open"; } catch (e) { seen[name] = e.name; }
}
document.body.textContent = JSON.stringify({...seen, data: window.__TOOL_DATA__});
</script></body></html>"""
TOOLSET = """
id: lab
name: Lab
version: 1.0.0
tools:
  - id: show
    type: shell
    description: Show a text
    command: ["echo", "${text}"]
    input_schema: {type: object, properties: {text: {type: string}}, required: [text]}
    renderer: {type: html, artifact: artifacts/page.html, data: $return}
  - id: list_all_the_files
    type: builtin
    tool: list_directory
  - id: wait
    type: shell
    description: Wait for a long time
    command: ["sleep", "600"]
    input_schema: {type: object, properties: {}}
"""
SCRIPT = "<script>window.hacked = 1</script>"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    with serve(tmp_path_factory.mktemp("console-files")) as rest:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("toolset.yaml", TOOLSET)
            archive.writestr("artifacts/page.html", ARTIFACT)
        rest.ok("POST", "/api/toolsets/import", files={"file": ("lab.zip", packed.getvalue(), "application/zip")})
        yield rest


@asynccontextmanager
async def open_console(browser: Browser, gateway: Rest, path: str, **options: Any) -> AsyncIterator[Page]:
    origin = str(gateway.base_url).rstrip("/")
    async with open_page(browser, origin, base_url=origin, **options) as page:
        await page.goto(path)
        yield page


def row(page: Page, key: str, testid: str = "workspace.tree.row") -> Locator:
    return page.locator(f"[data-testid='{testid}'][data-key={json.dumps(key)}]")


def edit(old: str, new: str) -> dict[str, Any]:
    return {"path": "a.txt", "edits": [{"oldText": old, "newText": new}]}


async def check_access(page: Page) -> None:
    assert await find_violations(page) == []


async def test_calls_page_follows_calls_of_clients_and_can_be_paused(browser: Browser, gateway: Rest) -> None:
    async with open_console(browser, gateway, "/console/calls?chat=live") as page:
        rows = page.get_by_test_id("calls.row")
        await expect(page.get_by_test_id("calls.live")).to_have_text("Live")
        async with over_http(gateway.gateway.url, MODERN) as client:
            await value(client, "write_file", {"path": "a.txt", "content": "one\n"}, "live")
            await expect(rows).to_have_count(1)
            await expect(rows.first).to_contain_text("write_file")
            await page.get_by_test_id("calls.pause").click()
            assert (await call(client, "read_file", {"path": "missing"}, "live")).is_error
        async with over_http(gateway.gateway.url, HANDSHAKE) as client:
            await value(client, "read_file", {"path": "a.txt"}, "live")
        await expect(page.get_by_test_id("calls.news")).to_have_text("2 new calls")
        await expect(rows).to_have_count(1)
        await page.get_by_test_id("calls.pause").click()
        await expect(rows).to_have_count(3)
        await check_access(page)
        await page.get_by_test_id("calls.state").select_option("failed")
        await expect(rows).to_have_count(1)
        assert page.url.endswith("/console/calls?chat=live&state=failed")
        await page.reload()
        await expect(rows).to_have_count(1)
        await expect(rows.first).to_contain_text("FILE_NOT_FOUND")
        await page.get_by_test_id("calls.state").select_option("")
        await page.get_by_test_id("calls.filter").fill("WRITE")
        await expect(rows).to_have_count(1)
        await page.get_by_test_id("calls.filter").fill("nothing like it")
        await expect(page.get_by_text("No calls")).to_be_visible()


async def test_call_page_shows_files_timeline_and_what_to_do_next(browser: Browser, gateway: Rest) -> None:
    async with open_console(browser, gateway, "/console/calls?chat=one") as page:
        await expect(page.get_by_test_id("calls.live")).to_have_text("Live")
        async with over_http(gateway.gateway.url, MODERN) as client:
            await value(client, "write_file", {"path": "a.txt", "content": "one\n"}, "one")
            await value(client, "edit_file", edit("one", "two"), "one")
        await expect(page.get_by_test_id("calls.row")).to_have_count(2)
        await page.get_by_test_id("calls.row").first.focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_test_id("call.state")).to_have_text("Done")
        steps = page.locator(".timeline__step")
        await expect(steps.filter(has_text="Approval")).to_contain_text("ms")
        await expect(steps.filter(has_text="edit_file")).to_contain_text("ms")
        await expect(page.get_by_test_id("call.version")).to_have_count(2)
        await page.get_by_test_id("call.steps").get_by_text("What these steps do").click()
        await expect(page.get_by_text("asks a person before a dangerous call")).to_be_visible()
        again = await page.get_by_test_id("call.again").get_attribute("href")
        assert again is not None
        assert re.fullmatch(r"/console/tools/edit_file\?tab=try&from=[0-9a-f-]{36}", again)
        await check_access(page)
        await row(page, "files", "call.tab").click()
        await expect(page.locator(".diff__add")).to_contain_text("two")
        await page.get_by_test_id("call.file").click()
        await expect(page.get_by_test_id("workspace.sum")).to_have_text("1 file +1 −1")
        await page.go_back()
        await expect(page.locator(".diff__del")).to_contain_text("one")
        assert page.url.endswith("?tab=files")
        await page.get_by_test_id("call.version").first.click()
        await expect(page.locator(".files-head h2")).to_have_text("Change")
        await expect(page.locator(".diff__add")).to_contain_text("one")


async def test_call_view_is_a_page_of_an_origin_of_its_own(browser: Browser, gateway: Rest) -> None:
    async with over_http(gateway.gateway.url, MODERN) as client:
        assert not (await call(client, "lab__show", {"text": "</script>" + SCRIPT}, "view")).is_error
    [record] = gateway.ok("GET", "/api/calls?chat=view&kind=tools")["items"]
    policy = gateway.get(f"/api/calls/{record['id']}/view").headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none';")
    assert "frame-ancestors 'self'" in policy
    async with open_console(browser, gateway, f"/console/calls/{record['id']}") as page:
        body = page.frame_locator("[data-testid='call.view']").locator("body")
        await expect(body).to_contain_text("hacked")
        seen = json.loads(await body.inner_text())
        assert seen.pop("data")["stdout"] == f"</script>{SCRIPT}\n"
        assert seen == dict.fromkeys(["parent", "storage", "cookie"], "SecurityError") | {"origin": "null"}
        assert await page.evaluate("window.hacked") is None


async def test_call_that_runs_is_cancelled_in_the_browser(browser: Browser, gateway: Rest) -> None:
    async with (
        open_console(browser, gateway, "/console/calls?chat=slow&state=running") as page,
        anyio.create_task_group() as tasks,
    ):

        async def wait() -> None:
            async with over_http(gateway.gateway.url, MODERN) as client:
                assert (await call(client, "lab__wait", {}, "slow")).is_error

        tasks.start_soon(wait)
        await page.get_by_test_id("calls.row").click()
        await page.get_by_test_id("call.cancel").click()
        await expect(page.get_by_test_id("call.state")).to_have_text("Cancelled")
        await expect(page.get_by_test_id("call.cancel")).to_have_count(0)


@pytest.mark.parametrize("is_plain", [False, True], ids=["editor", "text-area"])
async def test_workspace_edit_shows_a_conflict_and_overwrites_nothing(
    browser: Browser, gateway: Rest, is_plain: bool
) -> None:
    if not is_plain and read_editor() is None:
        pytest.skip("needs the editor that npm builds")
    gateway.put("/api/chats/edit/files/src/a.py", content=b"x = 1\n")
    async with open_console(browser, gateway, "/console/chats", refused=412) as page:
        if is_plain:  # the script fails to load, with the status that is expected on this page
            await page.route("**/editor.js", lambda route: route.fulfill(status=412))
        await page.get_by_test_id("chats.filter").fill("edit")
        await row(page, "edit", "chats.row").click()
        await row(page, "src/a.py").click()
        await expect(page.locator(".code__line")).to_have_text("x = 1\n")
        await check_access(page)
        await page.get_by_test_id("workspace.edit").click()
        assert page.url.endswith("/files/src/a.py?edit=1")
        editor = page.get_by_test_id("workspace.editor")
        await expect(editor).to_be_focused()
        await page.keyboard.press("Escape")  # leaves what is unchanged
        await page.get_by_test_id("workspace.edit").click()
        await expect(editor).to_be_focused()
        await expect(editor.locator(".cm-line span[class]")).to_have_count(0 if is_plain else 1)  # the number
        await editor.fill("x = 2")
        await page.keyboard.press("Control+End")
        await page.keyboard.type("\ngt/")  # no shortcuts here
        await page.keyboard.press("Escape")
        await page.get_by_test_id("workspace.versions").evaluate("link => link.click()")
        await expect(editor).to_have_count(0)
        await page.go_back()
        await expect(page.locator(".files-head .meta")).to_have_text("not saved yet")
        await editor.press("Control+End")
        for _ in "gt/":
            await page.keyboard.press("Backspace")
        gateway.ok("PUT", "/api/chats/edit/files/src/a.py", content=b"x = 3\n")
        await editor.press("Control+s")
        await expect(page.get_by_test_id("workspace.conflict")).to_contain_text("x = 3")
        assert gateway.get("/api/chats/edit/files/src/a.py").text == "x = 3\n"
        await (expect(editor).to_have_value("x = 2\n") if is_plain else expect(editor).to_have_text("x = 2"))
        await check_access(page)
        await page.get_by_test_id("workspace.mine").click()
        await expect(page.locator(".code__line")).to_have_text("x = 2\n")
        await page.get_by_test_id("toast.undo").click()
        await expect(page.locator(".diff__add")).to_contain_text("x = 3")
        assert gateway.get("/api/chats/edit/files/src/a.py").text == "x = 3\n"


async def test_workspace_history_is_compared_restored_undone_and_branched(browser: Browser, gateway: Rest) -> None:
    async with over_http(gateway.gateway.url, HANDSHAKE) as client:
        await value(client, "write_file", {"path": "a.txt", "content": "one\n"}, "past")
        await value(client, "edit_file", edit("one", "two"), "past")
        await value(client, "edit_file", edit("two", "three"), "past")
    async with open_console(browser, gateway, "/console/chats/past") as page:
        versions = page.get_by_test_id("workspace.version")
        await expect(versions).to_have_count(3)
        await expect(page.locator(".diff__add")).to_contain_text("three")  # what the last call changed
        await versions.last.click(modifiers=["Shift"])
        await expect(page.get_by_test_id("workspace.sum")).to_have_text("1 file +1 −1")
        await expect(page.locator(".diff__del")).to_contain_text("one")
        assert re.search(r"/compare/[0-9a-f-]{36}\.\.\.[0-9a-f-]{36}$", page.url)
        await check_access(page)
        await page.get_by_test_id("workspace.restore").click()
        await expect(page.locator("dialog")).to_contain_text("1 file will change")
        await page.get_by_test_id("dialog.accept").click()
        await expect(page.get_by_test_id("toast")).to_contain_text("Restored: 1 file changed")
        assert gateway.get("/api/chats/past/files/a.txt").text == "one\n"
        await page.get_by_test_id("toast.undo").click()
        await expect(versions.first.get_by_text("current")).to_be_visible()
        assert gateway.get("/api/chats/past/files/a.txt").text == "three\n"
        await page.get_by_test_id("workspace.undo").click()
        await expect(versions.nth(1).get_by_text("current")).to_be_visible()
        assert gateway.get("/api/chats/past/files/a.txt").text == "two\n"
        await versions.last.click()
        await page.get_by_test_id("workspace.branch").click()
        await page.get_by_test_id("workspace.branch-name").fill("other")
        await page.get_by_test_id("dialog.accept").click()
        await expect(page.get_by_test_id("workspace.about")).to_have_text("4 versions, 2 branches")
        await expect(page.locator(".graph__node--1")).to_have_count(2)  # the branch that was left
        assert gateway.get("/api/chats/past/files/a.txt").text == "one\n"


async def test_workspace_takes_uploads_and_dropped_files_and_offers_downloads(browser: Browser, gateway: Rest) -> None:
    gateway.ok("PUT", "/api/chats/load/files/docs/a.md", 201, content=b"# Title\n\n[b](b.txt)\n")
    async with open_console(browser, gateway, "/console/chats/load/files/docs/a.md") as page:
        await expect(page.locator("article h1")).to_have_text("Title")
        files: list[Any] = [{"name": "b.txt", "mimeType": "text/plain", "buffer": b"hello\n"}]
        await page.get_by_test_id("workspace.picker").set_input_files(files)
        await expect(row(page, "docs/b.txt")).to_be_visible()
        await page.get_by_role("link", name="b", exact=True).click()
        await expect(page.locator(".code__line")).to_have_text("hello\n")
        drop = "() => { const data = new DataTransfer(); data.items.add(new File(['dropped'], 'c.txt')); return data; }"
        await page.get_by_test_id("workspace.content").dispatch_event(
            "drop", {"dataTransfer": await page.evaluate_handle(drop)}
        )
        await expect(row(page, "docs/c.txt")).to_be_visible()
        async with page.expect_download() as downloaded:
            await page.get_by_test_id("workspace.save-as").click()
        assert (await (await downloaded.value).path()).read_bytes() == b"hello\n"
        async with page.expect_download() as downloaded:
            await page.get_by_test_id("workspace.download").click()
        with zipfile.ZipFile(await (await downloaded.value).path()) as archive:
            assert sorted(archive.namelist()) == ["docs/a.md", "docs/b.txt", "docs/c.txt"]


async def test_workspace_edits_what_is_text(browser: Browser, gateway: Rest) -> None:
    drawing = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
    for name, content in (("a.bin", b"\0\1"), ("a.svg", drawing)):
        gateway.ok("PUT", f"/api/chats/kinds/files/{name}", 201, content=content)
    async with open_console(browser, gateway, "/console/chats/kinds/files/a.bin") as page:
        await expect(page.get_by_text("Not text")).to_be_visible()
        await expect(page.get_by_test_id("workspace.edit")).to_have_count(0)
        await row(page, "a.svg").click()
        await expect(page.get_by_role("img", name="a.svg")).to_have_js_property("naturalWidth", 9)
        await expect(page.get_by_test_id("workspace.edit")).to_be_visible()
        await page.locator("[data-testid='workspace.show'][data-key='source']").click()
        await expect(page.locator(".code__body")).to_contain_text("<svg")


async def test_hostile_chats_names_and_arguments_are_shown_as_text(browser: Browser, gateway: Rest) -> None:
    hostile = [text for text in PAYLOADS if text.isprintable()][::25]
    async with over_http(gateway.gateway.url, MODERN) as client:
        for text in hostile:
            await call(client, "write_file", {"path": f"{text.replace('/', '∕')}.txt", "content": text}, text)
            await call(client, text, {text: text}, text)
    async with open_console(browser, gateway, "/console/chats") as page:
        for text in hostile:
            await page.goto(f"/console/calls?chat={quote(text, safe='')}&kind=all")
            await expect(page.get_by_test_id("calls.chip")).to_contain_text("Chat: ")
            await page.get_by_test_id("calls.row").last.click()
            await expect(page.locator(".call-arguments")).to_contain_text(json.dumps(text)[-20:-1])
            await page.get_by_test_id("call.chat").click()
            await page.get_by_test_id("workspace.tree.row").click()
            await expect(page.locator(".code__body")).to_contain_text(text)
            await assert_inert(page, text)


async def test_hostile_corpus_is_inert_as_names_document_and_arguments(browser: Browser, gateway: Rest) -> None:
    async with over_http(gateway.gateway.url, MODERN) as client:
        await call(client, "write_file", {"path": "all.md", "content": "\n\n".join(PAYLOADS)}, "corpus")
        await call(client, "nothing", {text: [text, {text: text}] for text in PAYLOADS}, "corpus")
    [folder] = [path.parent for path in (gateway.data / "chats").rglob("all.md")]
    names = {text.replace("/", "∕").replace("\0", "")[:60] for text in PAYLOADS}
    for name in names:
        (folder / f"x{name}").write_bytes(name.encode())
    # Pictures of the document are looked for beside it, and nowhere else.
    async with open_console(browser, gateway, "/console/chats/corpus/files/all.md", refused=404) as page:
        await expect(page.locator("article")).to_contain_text("window.hacked")
        tree = page.get_by_test_id("workspace.tree")
        await tree.focus()
        for key in ("End", "Home"):
            await page.keyboard.press(key)
            await expect(page.get_by_test_id("workspace.tree.row").filter(has_text="hacked").first).to_be_visible()
        await expect(tree.locator("[aria-posinset='1']")).to_have_attribute("aria-setsize", str(len(names) + 1))
        await page.goto("/console/chats/corpus/files/all.md?show=source")
        await expect(page.locator(".code__body")).to_contain_text("window.hacked")
        await assert_inert(page, "source")
        await page.goto("/console/calls?chat=corpus")
        await page.get_by_test_id("calls.row").first.click()
        await expect(page.locator(".call-arguments")).to_contain_text("window.hacked")
        await assert_inert(page, "arguments")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (360, "light")])
async def test_files_pages_are_accessible_when_narrow_and_dark(
    browser: Browser, gateway: Rest, width: int, scheme: str
) -> None:
    gateway.put("/api/chats/small/files/a.py", content=b"x = 1\n")
    gateway.ok("POST", "/api/tools/read_file/invoke", json={"args": {"path": "a.py"}, "chat": "small"})
    [record, *_] = gateway.ok("GET", "/api/calls?chat=small&kind=tools")["items"]
    gateway.ok("POST", "/api/tools/lab__list_all_the_files/invoke", json={"args": {}, "chat": "small"})
    ready = {
        "/console/calls?chat=small": "calls.row",
        f"/console/calls/{record['id']}": "call.state",
        "/console/chats/small/files/a.py": "workspace.edit",
        "/console/chats/small?show=versions": "workspace.version",
    }
    options: Any = {"viewport": {"width": width, "height": 740}, "color_scheme": scheme}
    async with open_console(browser, gateway, "/console/chats", **options) as page:
        for path, testid in ready.items():
            await page.goto(path)
            await expect(page.get_by_test_id(testid).first).to_be_visible()
            await check_access(page)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            if testid == "calls.row":
                name = "lab__lis…he_files" if width == 360 else "lab__list_all_the_files"
                await expect(page.get_by_test_id(testid).filter(has_text=name)).not_to_have_count(0)
                cut = "rows => rows.filter((each) => each.scrollWidth > each.clientWidth).length"
                assert await page.locator("[data-testid='calls.row'] .name").evaluate_all(cut) == 0


async def test_chat_of_an_attached_folder_is_named_by_its_path(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "my-project"
    folder.mkdir()
    [chat] = attached_folders(Settings(workspace=folder, data_dir=tmp_path / "data"))
    with serve(tmp_path, workspace=str(folder)) as gateway:
        body = {"args": {"path": "ask-me.txt", "content": "text"}, "chat": chat}
        answer = gateway.request("POST", "/api/tools/write_file/invoke", json=body).json()
        assert answer["error"]["code"] == "CONFIRMATION_REQUIRED"
        async with open_console(browser, gateway, "/console/approvals") as page:
            await expect(page.get_by_test_id("approvals.row")).to_contain_text("my-project")
            await expect(page.get_by_test_id("approval")).to_contain_text(f"in the folder {folder.resolve()}")
            await page.goto("/console/calls")
            await expect(page.get_by_test_id("calls.row").first).to_contain_text("my-project")
            await expect(page.get_by_test_id("calls.row").first).to_contain_text("waiting")
            await page.goto("/console/chats")
            await expect(page.get_by_test_id("chats.row")).to_contain_text(str(folder.resolve()))
            await page.goto("/")
            await expect(page.get_by_test_id("home.need")).to_contain_text("Folder my-project")
            await expect(page.get_by_test_id("home.call")).to_contain_text("my-project")


async def test_results_are_drawn_as_pictures_differences_and_texts(browser: Browser, gateway: Rest) -> None:
    picture = {"type": "image", "data": "R0lGODlhAQABAAAAACw=", "mimeType": "image/gif"}
    diff = "--- a/a.md\n+++ b/a.md\n@@ -1 +1 @@\n-old\n+new\n"
    values = [[{"type": "text", "text": "two"}, picture], {"path": "a.md", "diff": diff}, [{"type": "other"}]]
    async with open_console(browser, gateway, "/console/calls") as page:
        await expect(page.get_by_test_id("calls.live")).to_be_visible()
        drawn = await page.evaluate(
            """async (values) => {
              const loaded = [...document.scripts].find((each) => each.src.endsWith("/console/main.js")).src;
              const {drawValue} = await import(new URL("../core/values.js", loaded));
              return values.map((value) => {
                const place = document.createElement("div");
                place.append(...[drawValue(value, "Result")].flat());
                return [...place.querySelectorAll("img, .diff, dd > code, .code__body")].map((each) => each.className);
              });
            }""",
            values,
        )
    assert drawn == [["code__body", "picture"], ["prose-text", "diff"], ["code__body"]]
