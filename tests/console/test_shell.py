"""The console's frame, sign-in, Home, Approvals, Access and search in a browser, against a gateway with keys."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from amounts import amount
from authorization.served import Served, serve
from browser import find_violations, open_page
from eventually import TIMEOUT, async_eventually
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult, TextContent
from playwright.async_api import Browser, Page, Route, StorageState, expect

from gateway.db import timestamp
from gateway.db.approvals import ApprovalRecord
from gateway.names import new_id

from .payloads import PAYLOADS, assert_inert

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T8")]

SETTINGS: dict[str, Any] = {
    "approval": {"without_elicitation": "queue", "queue_wait": 600, "pending": 1000, "elicitation": "url"},
    "profiles": {"reader": {"permission": "read-only", "tools": {"allow": ["read_*"]}}},
}
PHONE = {"width": 360, "height": 740}
MODES = {"2026-07-28": "auto", "2025-11-25": "legacy"}


@dataclass
class Console:
    """A gateway with keys, and the browser of an administrator who has signed in."""

    served: Served
    browser: Browser
    ann: str
    bob: str
    state: StorageState

    @property
    def base(self) -> str:
        return self.served.base

    @asynccontextmanager
    async def open(self, path: str, **options: Any) -> AsyncIterator[Page]:
        """A page of somebody signed in, after it has drawn itself."""
        chosen = {"storage_state": self.state, "base_url": self.base, "reduced_motion": "reduce", **options}
        async with open_page(self.browser, self.base, **chosen) as page:
            await page.goto(path)
            yield page

    async def send(self, method: str, path: str, headers: dict[str, str], **content: Any) -> httpx2.Response:
        """Send a request with no cookie but what the headers say."""
        async with httpx2.AsyncClient(timeout=TIMEOUT) as http:
            return await http.request(method, f"{self.base}{path}", headers=headers, **content)

    async def get(self, path: str, cookie: str | None = None, **headers: str) -> httpx2.Response:
        return await self.send("GET", path, headers | ({} if cookie is None else {"cookie": cookie}))


async def sign_in(page: Page, key: str) -> None:
    await page.get_by_test_id("consent.key").fill(key)
    await page.get_by_test_id("consent.sign-in").click()


@pytest.fixture(scope="module")
async def console(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    async with serve(tmp_path_factory.mktemp("console"), **SETTINGS) as served:
        ann, bob = await served.make_key("ann", "admin"), await served.make_key("bob")
        context = await browser.new_context(base_url=served.base)
        page = await context.new_page()
        await page.goto("/sign-in")
        await sign_in(page, ann)
        await expect(page.get_by_test_id("page.home")).to_be_visible()
        state = await context.storage_state()
        await context.close()
        yield Console(served, browser, ann, bob, state)


async def call(
    console: Console, era: str, key: str, tool: str, arguments: dict[str, Any], chat: str, **options: Any
) -> tuple[bool, str]:
    """Call a tool with the SDK's client; return whether it failed, and its text."""
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=TIMEOUT) as http:
        transport = streamable_http_client(f"{console.served.url}?chat={quote(chat)}", http_client=http)
        async with Client(transport, mode=MODES[era], read_timeout_seconds=TIMEOUT, **options) as client:
            result = await client.call_tool(tool, arguments)
    return result.is_error, "\n".join(block.text for block in result.content if isinstance(block, TextContent))


async def read_file(console: Console, path: str, chat: str) -> str:
    answer = await console.get(f"/api/chats/{chat}/files/{path}", authorization=f"Bearer {console.ann}")
    assert answer.status_code == 200, answer.text
    return answer.text


def find_cookie(state: StorageState) -> str:
    [cookie] = [each for each in state["cookies"] if each["name"].startswith("toolgate_session")]
    return f"{cookie['name']}={cookie['value']}"


async def test_sign_in_opens_a_session_that_no_script_can_read_and_sign_out_ends_it(console: Console) -> None:
    async with console.open("/console/access/sessions?x=1", storage_state=None) as page:
        await expect(page).to_have_url(f"{console.base}/sign-in?next=%2Fconsole%2Faccess%2Fsessions%3Fx%3D1")
        assert await find_violations(page) == []
        await sign_in(page, console.ann)
        await expect(page).to_have_url(f"{console.base}/console/access/sessions?x=1")
        await expect(page.get_by_test_id("access.session").filter(has_text="this one")).to_have_count(1)
        [cookie] = await page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
        assert (
            await page.evaluate("document.cookie + JSON.stringify([{...localStorage}, {...sessionStorage}])")
            == "[{},{}]"
        )
        sent = f"{cookie['name']}={cookie['value']}"
        assert (await console.get("/api/me", sent)).json()["principal"]["id"] == "ann"
        await page.get_by_test_id("shell.sign-out").first.click()
        await expect(page).to_have_url(f"{console.base}/sign-in")
        assert (await console.get("/api/me", sent)).status_code == 401


async def test_sign_in_refuses_wrong_keys_and_leads_nowhere_else(console: Console) -> None:
    own = {"origin": console.base}
    for key in ("", "tg_wrong", "ключ", "x" * 9000, console.ann + "x"):
        answer = await console.send("POST", "/sign-in", own, data={"key": key, "next": "/"})
        assert answer.status_code == 401, key
        assert "set-cookie" not in answer.headers
    for target in (
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "/\t/evil.example",
        "javascript:1",
        "x",
    ):
        form = {"key": console.ann, "next": target}
        answer = await console.send("POST", "/sign-in", own, data=form)
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), target
    for origin in ({}, {"origin": "http://127.0.0.1:1"}, {"origin": "null"}):
        answer = await console.send("POST", "/sign-in", origin, data={"key": console.ann})
        assert answer.status_code == 403, origin


async def test_session_cookie_counts_for_the_console_alone_and_for_its_own_pages(console: Console) -> None:
    cookie = find_cookie(console.state)
    assert (await console.get("/api/me", cookie)).status_code == 200
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    for path in ("/mcp", "/mcp/reader"):
        assert (await console.send("POST", path, {"cookie": cookie}, json=message)).status_code == 401
    value = cookie.partition("=")[2]
    for token in (value, f"session\0{value}".encode().decode("latin-1").replace("\0", "")):
        assert (await console.get("/api/me", authorization=f"Bearer {token}")).status_code == 401
    port = console.base.rpartition(":")[2]
    forged = [
        {},
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": f"http://localhost:{port}"},
        {"origin": "null"},
        {"origin": console.base, "sec-fetch-site": "cross-site"},
        {"origin": console.base, "sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ]
    for headers in forged:
        for method, path in (("POST", "/api/keys"), ("DELETE", "/api/sessions/x"), ("POST", "/sign-out")):
            answer = await console.send(method, path, {**headers, "cookie": cookie}, json={"name": "eve"})
            assert answer.status_code == 403, (method, path, headers, answer.text)
    own = {"cookie": cookie, "origin": console.base, "sec-fetch-site": "same-origin"}
    assert (await console.send("POST", "/api/keys", own, json={"name": "dora"})).status_code == 201


async def test_every_page_refuses_frames_and_code_from_elsewhere(console: Console) -> None:
    for path in ("/", "/console/tools", "/sign-in", "/approve/none", "/api/docs"):
        answer = await console.get(path, find_cookie(console.state) if path != "/sign-in" else None, accept="text/html")
        policy = answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"] == "DENY", path
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy, path
        assert "unsafe" not in policy and "http" not in policy, path
    anonymous = await console.get("/approve/none?x=1", accept="text/html")
    assert (anonymous.status_code, anonymous.headers["location"]) == (303, "/sign-in?next=%2Fapprove%2Fnone%3Fx%3D1")
    # A browser leaves a strict cookie out of a link on another site; it comes with the next request.
    linked = await console.get("/approve/none", **{"accept": "text/html", "sec-fetch-site": "cross-site"})
    assert (linked.status_code, 'http-equiv="refresh"' in linked.text) == (200, True)


async def test_session_ends_with_its_key_and_when_it_is_revoked(console: Console) -> None:
    key = await console.served.make_key("carl")

    async def open_session() -> str:
        form = {"key": key, "next": "/"}
        answer = await console.send("POST", "/sign-in", {"origin": console.base}, data=form)
        return answer.headers["set-cookie"].partition(";")[0]

    cookies = [await open_session(), await open_session()]
    assert [(await console.get("/api/me", each)).status_code for each in cookies] == [200, 200]
    listed = (await console.get("/api/sessions", cookies[0])).json()["items"]
    assert {row["principal"] for row in listed} == {"carl"}  # nobody else's
    other = next(row["id"] for row in listed if not row["current"])
    own = {"cookie": cookies[0], "origin": console.base}
    theirs = await console.served.gateway.sessions.list_live()
    ann = next(row.id for row in theirs if row.principal == "ann")
    assert (await console.send("DELETE", f"/api/sessions/{ann}", own)).status_code == 404
    assert (await console.send("DELETE", f"/api/sessions/{other}", own)).status_code == 204
    assert [(await console.get("/api/me", each)).status_code for each in cookies] == [200, 401]
    bearer = {"authorization": f"Bearer {console.ann}"}
    assert (await console.send("DELETE", "/api/keys/carl", bearer)).status_code == 204
    assert (await console.get("/api/me", cookies[0])).status_code == 401


@pytest.mark.promise("C5")
@pytest.mark.parametrize("era", MODES)
async def test_approval_is_decided_in_the_browser_with_edited_arguments_while_the_client_waits(
    console: Console, era: str
) -> None:
    chat, path = f"edit-{era}", {"path": "deploy.yml"}
    assert await call(console, era, console.ann, "write_file", {**path, "content": "env: staging\n"}, chat)
    async with console.open("/console/approvals") as page:
        await expect(page.get_by_test_id("shell.live").first).to_have_text("Live")
        asked = {**path, "content": "env: production\n"}
        waiting = asyncio.create_task(call(console, era, console.ann, "write_file", asked, chat))
        row = page.get_by_test_id("approvals.row").filter(has_text=chat)
        await row.click()  # it appears by itself
        approval = page.get_by_test_id("approval")
        await expect(approval).to_contain_text("overwrites 'deploy.yml'")
        await expect(page.get_by_text("sha256").first).to_be_hidden()
        await page.get_by_test_id("approval.details").get_by_text("Details").click()
        await expect(page.get_by_text("sha256").first).to_be_visible()
        await expect(page.get_by_test_id("approval.changes")).to_contain_text("env: production")
        await expect(page.get_by_test_id("approval.arguments")).to_contain_text('"content": "env: production\\n"')
        assert not waiting.done()
        await page.get_by_test_id("approval.edit").click()
        await page.get_by_test_id("approval.editor").fill('{"path": "deploy.yml"')
        await page.get_by_test_id("approval.approve").click()
        await expect(page.get_by_test_id("error")).to_contain_text("not JSON")
        await page.get_by_test_id("approval.editor").fill(json.dumps({**path, "content": "env: canary\n"}))
        await page.get_by_test_id("approval.approve").click()
        failed, text = await asyncio.wait_for(waiting, TIMEOUT)
        assert not failed
        assert "A person changed these arguments before the call ran" in text
        await expect(page.get_by_test_id("approval.bar")).to_contain_text("Approved by ann")
        await expect(
            page.get_by_test_id("approvals.row").filter(has_text="with edited arguments").first
        ).to_be_visible()
    assert await read_file(console, "deploy.yml", chat) == "env: canary\n"


@pytest.mark.promise("C5")
async def test_approval_page_works_alone_on_a_phone_without_scripts(console: Console) -> None:
    async def ask() -> tuple[asyncio.Task[tuple[bool, str]], str]:
        arguments = {"path": "notes.txt"}
        task = asyncio.create_task(call(console, "2026-07-28", console.ann, "delete_file", arguments, "phone"))
        records = console.served.gateway.approvals.records
        found = await async_eventually(lambda: records.entries(principal="ann"))
        return task, found[0].id

    await call(console, "2026-07-28", console.ann, "write_file", {"path": "notes.txt", "content": "x"}, "phone")
    task, approval = await ask()
    phone = {"viewport": PHONE, "java_script_enabled": False}
    async with console.open(f"/approve/{approval}", **phone) as page:
        await expect(page.get_by_role("heading", level=1)).to_have_text("Run delete_file?")
        sizes = "all => [...new Set(all.map((each) => getComputedStyle(each).fontSize))]"
        assert await page.locator(".decide button, .decide summary").evaluate_all(sizes) == ["15px"]
        await page.get_by_test_id("approve.deny").click()
        await page.get_by_test_id("approve.reason").fill("keep the fixtures")
        await page.get_by_test_id("approve.deny-now").click()
        await expect(page.get_by_text("Denied. You can close this page.")).to_be_visible()
    failed, text = await asyncio.wait_for(task, TIMEOUT)
    assert failed and "Their reason: keep the fixtures" in text
    async with console.open(f"/approve/{approval}", storage_state=None, refused=404) as page:
        await expect(page).to_have_url(f"{console.base}/sign-in?next=%2Fapprove%2F{approval}")
        await sign_in(page, console.bob)  # who did not make the call
        await expect(page.get_by_role("heading", level=1)).to_have_text("This approval cannot be shown")


@pytest.mark.promise("C5")
@pytest.mark.parametrize("era", MODES)
async def test_approval_page_is_what_a_client_is_asked_to_open(console: Console, era: str) -> None:
    chat, path = f"link-{era}", {"path": "deploy.yml"}
    await call(console, era, console.ann, "write_file", {**path, "content": "old"}, chat)
    seen: list[Any] = []

    async def decide(_: Any, params: Any) -> ElicitResult:
        """The person opens the address and approves with other arguments there; the client learns nothing of it."""
        seen.append(params)
        async with console.open(params.url) as page:
            await expect(page.get_by_role("heading", level=1)).to_have_text("Run write_file?")
            await page.get_by_test_id("approve.more").click()
            await page.get_by_test_id("approve.arguments").fill(json.dumps({**path, "content": "edited"}))
            await page.get_by_test_id("approve.with").click()
            await expect(page.get_by_text("Approved. You can close this page.")).to_be_visible()
        return ElicitResult(action="accept")

    asked = {**path, "content": "new"}
    failed, text = await call(console, era, console.ann, "write_file", asked, chat, elicitation_callback=decide)
    assert not failed, text
    assert await read_file(console, "deploy.yml", chat) == "edited"
    [params] = seen
    assert (params.mode, params.url.rpartition("/")[0]) == ("url", f"{console.base}/approve")
    assert "overwrites 'deploy.yml'" in params.message

    async def refuse(_: Any, params: Any) -> ElicitResult:
        seen.append(params)
        return ElicitResult(action="decline")

    failed, text = await call(console, era, console.ann, "delete_file", path, chat, elicitation_callback=refuse)
    assert failed and text.startswith("DECLINED"), text
    assert len(seen) == 2
    assert await read_file(console, "deploy.yml", chat) == "edited"


async def test_denial_in_the_browser_tells_the_model_the_reason_and_a_chat_is_remembered(console: Console) -> None:
    async with console.open("/console/approvals") as page:
        for index, decision in enumerate(("deny", "chat")):
            chat = "reasons"
            await call(console, "2026-07-28", console.ann, "write_file", {"path": f"{index}.txt", "content": "x"}, chat)
            arguments = {"path": f"{index}.txt", "content": "y"}
            task = asyncio.create_task(call(console, "2026-07-28", console.ann, "write_file", arguments, chat))
            await page.get_by_test_id("approvals.row").filter(has_text=chat).first.click()
            await expect(page.get_by_test_id("approval.arguments")).to_contain_text(f'"{index}.txt"')
            if decision == "deny":
                await page.get_by_test_id("approval.deny").click()
                await page.get_by_test_id("approval.reason-field").fill("not today")
                await page.get_by_test_id("dialog.accept").click()
                failed, text = await asyncio.wait_for(task, TIMEOUT)
                assert failed and "Their reason: not today" in text
                await expect(page.get_by_test_id("approval.bar")).to_contain_text("Denied by ann")
            else:
                await page.get_by_test_id("approval.scope.chat").click()
                await page.get_by_role("button", name="Approve for this chat").click()
                assert not (await asyncio.wait_for(task, TIMEOUT))[0]
        failed, _ = await call(
            console, "2026-07-28", console.ann, "write_file", {"path": "1.txt", "content": "z"}, chat
        )
        assert not failed  # without a question


async def test_access_makes_and_revokes_keys_and_shows_a_secret_once(console: Console) -> None:
    async with console.open("/console/access/keys", refused=400) as page:
        await page.get_by_test_id("access.make").click()
        await page.get_by_test_id("access.name").fill("no spaces allowed")
        await page.get_by_test_id("dialog.accept").click()
        await expect(page.get_by_test_id("error")).to_contain_text("cannot be the name of a key")
        await page.get_by_test_id("access.name").fill("erik")
        await page.get_by_test_id("access.role").select_option("user")
        await page.get_by_test_id("dialog.accept").click()
        secret = await page.get_by_test_id("access.secret-text").inner_text()
        await page.keyboard.press("Escape")  # it must be closed by hand
        await page.get_by_test_id("access.secret-close").click()
        await expect(page.get_by_test_id("access.secret")).to_have_count(0)
        assert secret not in await page.content()
        bearer = {"authorization": f"Bearer {secret}"}
        assert (await console.get("/api/me", **bearer)).json()["principal"]["role"] == "user"
        await page.get_by_test_id("access.key").filter(has_text="erik").get_by_test_id("access.revoke").click()
        await page.get_by_test_id("dialog.accept").click()
        await expect(page.get_by_test_id("access.key").filter(has_text="erik")).to_contain_text("revoked")
        assert (await console.get("/api/me", **bearer)).status_code == 401
        await page.get_by_test_id("access.roles").click()
        await expect(page.get_by_test_id("access.role-row").filter(has_text="admin")).to_contain_text(
            "changes the gateway"
        )
        await page.get_by_test_id("access.profiles").click()
        await expect(page.get_by_test_id("access.profile-row").filter(has_text="/mcp/reader")).to_contain_text("tokens")


async def test_principal_without_the_role_sees_neither_pages_nor_data(console: Console) -> None:
    await call(console, "2026-07-28", console.ann, "write_file", {"path": "secret.txt", "content": "x"}, "of-ann")
    async with console.open("/console/access/keys", storage_state=None, refused=403) as page:
        await sign_in(page, console.bob)
        await expect(page.get_by_test_id("page.missing")).to_contain_text("your role does not allow it")
        names = await page.get_by_test_id("shell.page").evaluate_all("links => links.map((link) => link.dataset.key)")
        assert not {"access", "servers", "toolsets"} & {*names}
        await page.goto("/")
        await expect(page.get_by_test_id("home.connect")).to_contain_text("Claude Code")
        await expect(page.get_by_test_id("home.calls")).not_to_contain_text("of-ann")
        await page.keyboard.press("Control+k")
        await page.get_by_test_id("palette.input").fill("a")
        await expect(page.get_by_test_id("palette.row").first).to_be_visible()
        assert "Access" not in await page.get_by_test_id("palette.list").inner_text()
        for path in ("keys", "roles", "profiles", "health", "upstreams", "toolsets"):
            assert await page.evaluate(f"fetch('/api/{path}').then((answer) => answer.status)") == 403, path
        assert (
            await page.evaluate("fetch('/api/approvals?status=all').then((a) => a.json()).then((a) => a.items.length)")
            == 0
        )


async def test_search_finds_tools_as_models_do_and_opens_them_by_keyboard(console: Console) -> None:
    async with console.open("/", refused=404) as page:
        await expect(page.get_by_test_id("home.needs")).to_be_visible()
        await page.keyboard.press("Control+k")
        await page.get_by_test_id("palette.input").fill("file")
        first = page.get_by_test_id("palette.row").first
        await expect(first).to_contain_text("_file")
        assert await find_violations(page) == []
        bearer = {"authorization": f"Bearer {console.ann}"}
        ranked = (await console.get("/api/search?q=file&limit=12", **bearer)).json()["items"]
        shown = await page.get_by_test_id("palette.row").evaluate_all("rows => rows.map((row) => row.dataset.key)")
        tools = [f"/console/tools/{match['name']}" for match in ranked if match["kind"] == "tool"]
        assert shown[: len(tools[:10])] == tools[:10]
        await page.keyboard.press("ArrowDown")
        await expect(page.get_by_test_id("palette.row").nth(1)).to_have_attribute("aria-selected", "true")
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(console.base + tools[0])
        await page.goto("/console/approvals?find=%3Ekey")
        await expect(page.get_by_test_id("palette.row")).to_have_text(["Make a key"])
        await page.keyboard.press("Escape")
        await expect(page.get_by_test_id("palette")).to_have_count(0)
        await page.locator("body").press("g")
        await page.locator("body").press("h")
        await expect(page).to_have_url(f"{console.base}/")


async def test_home_connects_clients_and_shows_calls_as_they_happen(console: Console) -> None:
    async with console.open("/") as page:
        await expect(page.get_by_test_id("home.store")).to_contain_text("Healthy")
        await expect(page.get_by_test_id("shell.live").first).to_have_text("Live")
        await page.get_by_test_id("home.client").filter(has_text="VS Code").click()
        await expect(page.get_by_test_id("home.connect")).to_contain_text(f"{console.base}/mcp")
        link = await page.get_by_test_id("home.link").get_attribute("href")
        assert link is not None and link.startswith("vscode:mcp/install?")
        await call(console, "2026-07-28", console.bob, "write_file", {"path": "a.txt", "content": "x"}, "just-now")
        await expect(page.get_by_test_id("home.call").filter(has_text="just-now")).to_have_count(1)
        failed, _ = await call(
            console, "2026-07-28", console.bob, "write_file", {"path": 7, "content": "x"}, "just-now"
        )
        assert failed
        await expect(page.get_by_test_id("home.count")).to_contain_text("refused or cancelled")
        tabs = page.get_by_role("tablist", name="Clients")
        assert await tabs.evaluate("(each) => each.scrollWidth <= each.clientWidth"), "no client is beyond the edge"
        await page.get_by_test_id("shell.theme").first.click()
        dark = await page.evaluate("document.documentElement.dataset.theme")
        await page.reload()  # the server writes it, before a script runs
        assert dark == "dark" and f'data-theme="{dark}"' in (
            await (await page.request.get("/", headers={"accept": "text/html"})).text()
        )


async def test_pages_guide_a_newcomer_and_claim_nothing_while_they_load(console: Console) -> None:
    answers = asyncio.Event()

    async def hold(route: Route) -> None:
        await answers.wait()
        await route.continue_()

    dora = await console.served.make_key("dora")
    async with console.open("/", storage_state=None) as page:
        await sign_in(page, dora)
        steps = page.get_by_test_id("home.guide").get_by_role("listitem")
        await expect(steps.locator(".count")).to_have_text(["1", "2", "3"])  # builtins are no tools that she added
        await page.route(re.compile(r"/api/(calls|approvals|chats)\?"), hold)
        loading = page.get_by_role("status", name="Loading")
        for path, drawn in {
            "/": page.get_by_test_id("home.guide"),
            "/console/calls": page.get_by_text("No calls"),
            "/console/approvals": page.get_by_text("Nothing was decided yet."),
        }.items():
            answers.clear()
            await page.goto(path)
            await expect(loading).to_be_visible()
            await expect(drawn).to_be_hidden()
            answers.set()
            await expect(drawn).to_be_visible()
            await expect(loading).to_have_count(0)


PAGES = ["/", "/console/approvals", "/console/access/keys", "/console/access/profiles", "/api/docs", "/console/nothing"]
LOOKS = [
    ("light", {"width": 1280, "height": 800}),
    ("dark", PHONE),
    ("light", PHONE),
    ("dark", {"width": 1280, "height": 800}),
]


@pytest.mark.parametrize(("scheme", "viewport"), LOOKS[: amount(2, nightly=4)], ids=lambda value: str(value)[:5])
async def test_pages_are_accessible_and_fit_in_both_themes(console: Console, scheme: Any, viewport: Any) -> None:
    async with console.open("/", color_scheme=scheme, viewport=viewport) as page:
        for path in PAGES:
            await page.goto(path)
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
            await expect(page.locator(".page-skeleton")).to_have_count(0)
            assert await find_violations(page) == [], path
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        if viewport == PHONE:
            await page.get_by_test_id("shell.more").click()
            await page.get_by_role("dialog").get_by_text("Access").click()
            await expect(page).to_have_url(f"{console.base}/console/access/keys")


async def add_hostile_approvals(console: Console, status: str) -> list[str]:
    """Store an approval per payload, with the payload in every field that a caller or a tool can choose."""
    records, ids = console.served.gateway.approvals.records, []
    for text in PAYLOADS:
        record = ApprovalRecord(
            id=new_id(), call_id=new_id(), chat_id=f"chat {text}", principal=text, tool_id=text, via="queue",
            question="0" * 64, grounds=text, tool_digest="0" * 64, remember=True, reason=text, message=text,
            args=json.dumps({text: text, "list": [text]}), created_at=timestamp(1e9), expires_at=timestamp(9e9),
            nonce=new_id(), changes=f"--- {text}\n+++ {text}\n@@ -1 +1 @@\n-{text}\n+{text}\u202e",
        )  # fmt: skip
        await records.ask(record, 10_000)
        if status == "denied":
            await records.decide(record, "denied", text, note=text)
        ids.append(record.id)
    return ids


async def follow(page: Page, path: str) -> None:
    """Go to another page of the console without loading everything again, as a click on a link does."""
    await page.evaluate(
        """(path) => {
          const link = Object.assign(document.createElement("a"), {href: path});
          document.querySelector("main").append(link);
          link.click();
          link.remove();
        }""",
        path,
    )


# How often each element stands in a page as the browser parses it, and what a payload would add to it.
PARSE = """(texts) => texts.map((text) => {
  const page = new DOMParser().parseFromString(text, "text/html");
  const elements = [...page.querySelectorAll(":not(span, pre, div)")];
  const attributes = elements.flatMap((each) => [...each.attributes]);
  const counts = {};
  for (const {localName} of elements) counts[localName] = (counts[localName] ?? 0) + 1;
  const choose = (names) => attributes.filter(({name}) => names.test(name)).map(({value}) => value);
  return {counts, handlers: choose(/^on/), addresses: choose(/href|src|action/)};
})"""


@pytest.mark.timeout(amount(600, nightly=1800))
async def test_hostile_texts_are_shown_as_texts_wherever_a_caller_can_put_them(console: Console) -> None:
    denied = await add_hostile_approvals(console, "denied")
    waiting = await add_hostile_approvals(console, "waiting")
    few = len(PAYLOADS) // 5
    step = amount(few, nightly=1)
    dialogs: list[str] = []
    async with console.open("/console/approvals", refused=404) as page:
        page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        parser = await page.context.new_page()  # the policy of the console would refuse what is only parsed
        await expect(
            page.get_by_test_id("approvals.row").filter(has_text="<script>window.hacked=1</script>").first
        ).to_be_visible()
        await assert_inert(page, "the queue")
        for each in [*waiting[::step], *denied[::step]]:
            await follow(page, f"/console/approvals/{each}")
            await expect(page.locator(f"[data-testid=approval][data-key='{each}']")).to_be_visible()
            await assert_inert(page, each)
            assert "\u202e" not in await page.get_by_test_id("approval.changes").inner_text()
        await page.goto("/")
        await expect(page.get_by_test_id("home.need").first).to_be_visible()
        await assert_inert(page, "home")
        for ids in (waiting, denied):
            cookie = find_cookie(console.state)
            texts = [(await console.get(f"/approve/{each}", cookie, accept="text/html")).text for each in ids]
            texts = [text.replace(each, "ID") for text, each in zip(texts, ids, strict=True)]
            pages = await parser.evaluate(PARSE, texts)
            assert [each for each in pages if each != pages[0]] == [] and pages[0]["handlers"] == []
            for each in ids[::few]:
                await page.goto(f"/approve/{each}")
                await expect(page.get_by_role("heading", level=1)).to_be_visible()
                assert await page.evaluate("window.hacked") is None
        for text in PAYLOADS[::few]:
            await page.goto(f"/console/nothing?find={quote(text)}")
            await expect(page.get_by_test_id("palette.input")).to_have_value(text.replace("\n", ""))
            await assert_inert(page, text)
        for text in PAYLOADS[::step]:
            await page.get_by_test_id("palette.input").fill(text)
            await assert_inert(page, text)
    assert dialogs == []
