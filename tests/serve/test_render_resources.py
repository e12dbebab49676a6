"""What a call made to be shown: linked from its result, read as a plan and as a page, in both protocol eras."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from eventually import TIMEOUT
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp.shared.uri_template import UriTemplate

from gateway import Gateway
from gateway.calls import Call, Caller, Outcome
from gateway.errors import ToolFailed
from gateway.render import declare
from gateway.serve.mcp.handlers import Handlers, McpServer
from gateway.serve.mcp.render_resources import ARTIFACT_LIMIT, FILE_LIMIT, LISTED, PLAN, SANDBOX, VIEW
from gateway.serve.mcp.resources import PAGE
from gateway.serve.mcp.uris import SPAN_LIMIT
from gateway.tools import Access, Permission, Tool

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T5")]

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
BREAKOUT = "</script><script>alert(1)</script><!--\u2028"
RENDERERS = {
    "code": {"content": "$return.code", "language": "python"},
    "file": {"file": "$args.path"},
    "document": {"content": "$return.text"},
    "html": {"artifact": "artifacts/a.html"},
    "frame": {"url": "$return.url"},
    "plain": None,
}


class Studio:
    """A toolset with a tool for every renderer; each gives back what it is told to."""

    name = "studio"

    def __init__(self, place: Path) -> None:
        self.home = place / "studio"
        self.files = place / "data" / "chats" / "c" / "workspace"
        (self.home / "artifacts").mkdir(parents=True)
        (self.home / "artifacts" / "a.html").write_text("<html><head></head><body><p>Mine</p></body></html>")
        self.installed = True

    async def list_tools(self) -> Sequence[Tool]:
        return [self._tool(name, config) for name, config in RENDERERS.items()] if self.installed else []

    def _tool(self, name: str, config: dict[str, Any] | None) -> Tool:
        kind = "code" if name == "file" else name
        return Tool(
            f"studio:{name}",
            "Shows.",
            title=f"Show {name}",
            owner="studio",
            permission=Permission.READ_WRITE,
            access=Access.WRITE if name == "file" else Access.NONE,
            output_schema={"type": "object"} if name == "code" else None,
            renderer=declare(kind, config) if config else None,
            home=self.home,
        )

    async def call_tool(self, call: Call) -> Outcome:
        if "fail" in call.arguments:
            raise ToolFailed(call.arguments["fail"])
        if "write" in call.arguments:
            await anyio.Path(self.files / call.arguments["path"]).write_bytes(call.arguments["write"].encode())
        return Outcome(call.arguments.get("give"))


class Stage:
    """A connected client and what it stands in front of."""

    def __init__(self, client: Client, gateway: Gateway, studio: Studio) -> None:
        self.client, self.gateway, self.studio = client, gateway, studio

    async def call(self, name: str, **arguments: Any) -> types.CallToolResult:
        result = await self.client.call_tool(f"studio__{name}", arguments)
        assert isinstance(result, types.CallToolResult)
        return result

    async def uri(self, name: str, **arguments: Any) -> str:
        link = (await self.call(name, **arguments)).content[-1]
        assert isinstance(link, types.ResourceLink)
        return link.uri

    async def read(self, uri: str) -> types.TextResourceContents:
        [read] = (await self.client.read_resource(uri)).contents
        assert isinstance(read, types.TextResourceContents) and read.uri == uri
        return read

    async def plan(self, uri: str) -> dict[str, Any]:
        read = await self.read(uri)
        assert read.mime_type == "application/json"
        plan = json.loads(read.text)
        assert isinstance(plan, dict)
        return plan

    async def view(self, uri: str) -> tuple[str, str]:
        """The page, and what the frame around it may allow."""
        read = await self.read(f"{uri}/view")
        assert read.mime_type == "text/html" and read.meta is not None
        return read.text, read.meta[SANDBOX]

    async def refusal(self, uri: str) -> types.ErrorData:
        with pytest.raises(MCPError) as refused:
            await self.client.read_resource(uri)
        return refused.value.error


@pytest.fixture(params=["auto", "legacy"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path, request.param) as stage:
        yield stage


@asynccontextmanager
async def staged(place: Path, era: Any, **settings: Any) -> AsyncIterator[Stage]:
    studio = Studio(place)
    async with Gateway.open({"data_dir": str(place / "data"), **settings}, sources=[studio]) as gateway:
        face = McpServer(Handlers(gateway.executor, gateway.versions, "c", gateway.records))
        async with Client(face.sdk, mode=era, cache=None) as client:
            yield Stage(client, gateway, studio)


class Outline(HTMLParser):
    """The tags of a page in order, with their attributes, its scripts, and the plan and content that a view shows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.shown: dict[str, Any] = json.loads(self.scripts[0]) if "toolgate-plan" in page else {}
        self.content: dict[str, Any] = self.shown.get("content", {})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data

    @property
    def policy(self) -> str:
        return next(str(one["content"]) for tag, one in self.tags if tag == "meta" and "http-equiv" in one)

    @property
    def loads_nothing(self) -> bool:
        return len(self.scripts) == 2 and self.policy.startswith("default-src 'none'")


async def test_a_result_links_to_its_plan_and_keeps_all_it_had(stage: Stage) -> None:
    result = await stage.call("code", give={"code": "x = 1"})
    text, link = result.content
    call_id = (result.meta or {})["dev.toolgate/call_id"]
    assert isinstance(text, types.TextContent) and json.loads(text.text) == {"code": "x = 1"}
    assert result.structured_content == {"code": "x = 1"}
    assert isinstance(link, types.ResourceLink)
    assert link.model_dump(by_alias=True, exclude_none=True, mode="json") == {
        "type": "resource_link",
        "uri": f"render://{call_id}",
        "name": "studio__code",
        "title": "Show code",
        "description": f"How to show this outcome; as a page at render://{call_id}/view",
        "mimeType": "application/json",
        "annotations": {"audience": ["user"]},
        "_meta": {"dev.toolgate/renderer": "code"},
    }
    plan = await stage.plan(link.uri)
    assert (plan["renderer"], plan["status"]) == ("code", "success")
    assert plan["config"] == {"content": "x = 1", "language": "python", "editable": False}
    record = await stage.gateway.records.get(call_id)
    assert json.loads(record.render_plan or "") == plan


async def test_an_error_links_to_its_plan_and_is_shown_plainly(stage: Stage) -> None:
    result = await stage.call("html", fail="the <b>data</b> is gone")
    assert result.is_error and len(result.content) == 2
    link = result.content[1]
    assert isinstance(link, types.ResourceLink)
    assert (await stage.plan(link.uri))["error"]["message"] == "the <b>data</b> is gone"
    page, sandbox = await stage.view(link.uri)
    outline = Outline(page)
    assert outline.shown["plan"]["error"]["message"] == "the <b>data</b> is gone"
    assert (sandbox, outline.loads_nothing) == ("allow-scripts", True)


async def test_tool_without_a_renderer_has_no_link_and_no_renderer_in_its_definition(stage: Stage) -> None:
    result = await stage.call("plain", give={"a": 1})
    assert [type(block) for block in result.content] == [types.TextContent]
    call_id = (result.meta or {})["dev.toolgate/call_id"]
    assert call_id in (await stage.refusal(f"render://{call_id}")).message
    tools = {
        tool.name: (tool.meta or {}).get("dev.toolgate/renderer") for tool in (await stage.client.list_tools()).tools
    }
    assert {name: kind for name, kind in tools.items() if kind} == {
        "studio__code": "code",
        "studio__file": "code",
        "studio__document": "document",
        "studio__html": "html",
        "studio__frame": "frame",
    }


async def test_code_is_highlighted(stage: Stage) -> None:
    uri = await stage.uri("code", give={"code": f"x = '{BREAKOUT}'"})
    page, sandbox = await stage.view(uri)
    outline = Outline(page)
    assert outline.content["text"] == f"x = '{BREAKOUT}'"
    assert '<span class="hl-n">x</span>' in outline.content["html"] and "<script" not in outline.content["html"]
    assert (sandbox, outline.loads_nothing) == ("allow-scripts", True)


async def test_a_file_is_shown_as_the_call_left_it(stage: Stage) -> None:
    first = await stage.uri("file", path="a.py", write="def first(): ...")
    second = await stage.uri("file", path="a.py", write="def second(): ...")
    (stage.studio.files / "a.py").write_text("def by_hand(): ...")
    shown = [Outline((await stage.view(uri))[0]) for uri in (first, second)]
    assert [one.content["text"] for one in shown] == ["def first(): ...", "def second(): ..."]
    assert [one.shown["plan"]["config"]["file"] for one in shown] == ["a.py", "a.py"]


async def test_a_large_or_binary_file_is_shown_as_far_as_it_can_be(stage: Stage) -> None:
    large = Outline((await stage.view(await stage.uri("file", path="big.py", write="öx = [1]\n" * SPAN_LIMIT)))[0])
    assert (large.content["size"], large.content["truncated"]) == (10 * SPAN_LIMIT, True)
    assert large.content["text"].count("öx = [1]") == FILE_LIMIT // 10 and "\ufffd" not in large.content["text"]
    binary = Outline((await stage.view(await stage.uri("file", path="a.bin", write="\0\1\2")))[0])
    assert (binary.content["binary"], binary.content["size"], binary.content["text"]) == (True, 3, "")


async def test_a_document_is_shown_as_html_that_runs_nothing(stage: Stage) -> None:
    text = f"# Title\n\n*soft* <img src=x onerror=alert(1)> [link](javascript:alert(1))\n\n{BREAKOUT}\n"
    page, sandbox = await stage.view(await stage.uri("document", give={"text": text}))
    outline = Outline(page)
    shown = Outline(outline.content["html"])
    assert ("em", {}) in shown.tags and ("h1", {}) in shown.tags and not shown.scripts
    assert sandbox == "allow-scripts allow-popups allow-popups-to-escape-sandbox" and outline.loads_nothing
    assert not [attributes for _, attributes in shown.tags if {"onerror", "href"} & attributes.keys()]


async def test_data_reaches_its_artifact_and_cannot_break_out(stage: Stage) -> None:
    data = {"rows": [BREAKOUT, None, 1.5], "__proto__": {"x": 1}}
    page, sandbox = await stage.view(await stage.uri("html", give=data))
    outline = Outline(page)
    [script] = outline.scripts
    assert [tag for tag, _ in outline.tags] == ["html", "head", "script", "body", "p"]
    assert script.startswith("window.__TOOL_DATA__ = JSON.parse(")
    literal = script.removeprefix("window.__TOOL_DATA__ = JSON.parse(").removesuffix(");")
    assert json.loads(json.loads(literal)) == data
    assert sandbox == "allow-scripts"


async def test_a_frame_is_sandboxed_and_may_load_its_origin_alone(stage: Stage) -> None:
    url = 'http://localhost:3000/a?b="><script>alert(1)</script>&c=1'
    page, sandbox = await stage.view(await stage.uri("frame", give={"url": url}))
    outline = Outline(page)
    assert (outline.shown["plan"]["config"]["url"], sandbox) == (url, "allow-scripts allow-forms allow-popups")
    assert outline.policy.endswith("; frame-src http://localhost:3000")
    assert outline.loads_nothing

    by_address = Outline((await stage.view(await stage.uri("frame", give={"url": "http://[::1]:3000/"})))[0])
    assert by_address.policy.endswith("; frame-src http:")


async def test_data_that_cannot_be_shown_says_why(stage: Stage) -> None:
    page, _ = await stage.view(await stage.uri("frame", give={"url": "https://elsewhere.example/"}))
    assert "is on another machine" in Outline(page).shown["plan"]["error"]["message"]


async def test_too_large_data_is_reported_and_not_shown_in_part(stage: Stage) -> None:
    uri = await stage.uri("html", give={"rows": ["x" * 1000] * 1000})
    assert [cut["at"] for cut in (await stage.plan(uri))["truncated"]] == ["config.data", "input.give"]
    page, _ = await stage.view(uri)
    assert Outline(page).shown["plan"]["config"]["data"] is None and "Mine" not in page
    cut, _ = await stage.view(await stage.uri("code", give={"code": "y" * 1024 * 1024}))
    assert Outline(cut).content["truncated"] is True


async def test_nothing_to_show_is_a_page_too(stage: Stage) -> None:
    for uri in (await stage.uri("code", give={"code": ""}), await stage.uri("document", give={})):
        assert Outline((await stage.view(uri))[0]).content["text"] == ""


async def test_a_page_of_a_toolset_that_is_gone_missing_or_a_link_is_not_found(stage: Stage, tmp_path: Path) -> None:
    uri = f"{await stage.uri('html', give=1)}/view"
    artifact = stage.studio.home / "artifacts" / "a.html"
    (tmp_path / "secret.html").write_text("SECRET")

    async def found() -> str:
        refused = await stage.refusal(uri)
        assert "SECRET" not in str(refused) and str(tmp_path) not in str(refused)
        assert isinstance(refused.data, dict)
        return str(refused.data["code"])

    artifact.unlink()
    assert await found() == "ARTIFACT_NOT_FOUND"
    artifact.symlink_to(tmp_path / "secret.html")
    assert await found() == "ARTIFACT_NOT_FOUND"
    artifact.unlink()
    artifact.write_bytes(b"x" * (ARTIFACT_LIMIT + 1))
    assert await found() == "ARTIFACT_TOO_LARGE"
    artifact.parent.rename(tmp_path / "moved")
    artifact.parent.symlink_to(tmp_path / "moved")
    assert await found() == "ARTIFACT_NOT_FOUND"
    stage.studio.home.rename(tmp_path / "elsewhere")
    assert await found() == "ARTIFACT_NOT_FOUND"
    stage.studio.installed = False
    await stage.gateway.refresh()
    assert await found() == "TOOLSET_NOT_FOUND"
    assert (await stage.plan(uri.removesuffix("/view")))["renderer"] == "html"


async def test_a_large_artifact_is_read_in_ranges(stage: Stage) -> None:
    whole = f"<head></head><body>{'ä' * SPAN_LIMIT}</body>"
    (stage.studio.home / "artifacts" / "a.html").write_text(whole)
    uri = f"{await stage.uri('html', give=1)}/view"
    assert "read it in ranges" in (await stage.refusal(uri)).message
    read = await stage.read(f"{uri}?offset=0&length=79")
    assert read.text.startswith("<head><script>window.__TOOL_DATA__ = 1;</script></head>")
    assert (read.meta or {})["dev.toolgate/size"] == len(whole.encode()) + len(
        "<script>window.__TOOL_DATA__ = 1;</script>"
    )


async def test_only_the_owner_of_the_chat_reads_a_plan_and_nobody_learns_that_it_is_there(stage: Stage) -> None:
    call = {"give": {"code": "theirs"}}
    await stage.gateway.call("studio__code", call, chat="theirs", caller=Caller(principal="ada"))
    [record] = await stage.gateway.records.list_calls(chat="theirs")
    for suffix in ("", "/view"):
        theirs = await stage.refusal(f"render://{record.id}{suffix}")
        unknown = await stage.refusal(f"render://{'0' * len(record.id)}{suffix}")
        assert record.id in theirs.message and "theirs" not in str(theirs)
        assert theirs.message.replace(record.id, "") == unknown.message.replace("0" * len(record.id), "")
        assert (theirs.code, theirs.data["code"]) == (unknown.code, "RENDER_NOT_FOUND")
    assert (await stage.refusal(f"render://{record.id[:20]}")).data["code"] == "RENDER_NOT_FOUND"


@pytest.mark.parametrize("uri", ["render://", "render://x/", "render://x/other", "render://x/view/", "render://x?a=1"])
async def test_uri_of_no_plan_is_refused(stage: Stage, uri: str) -> None:
    assert (await stage.refusal(uri)).code in (types.INVALID_PARAMS, -32002)


async def test_the_latest_plans_are_listed_after_the_files_and_completed(stage: Stage) -> None:
    written = await stage.uri("file", path="a.py", write="x")
    uris = [await stage.uri("code", fail="no") for _ in range(LISTED + 1)]
    await stage.call("plain")
    newest_first = sorted([written, *uris], reverse=True)  # an id tells its millisecond, in which there may be several
    listed = (await stage.client.list_resources()).resources
    assert [resource.uri for resource in listed] == ["workspace://c/a.py", *newest_first[:LISTED]]
    assert str(listed[1].title).startswith("Show code, failed, 20")

    templates = {one.uri_template for one in (await stage.client.list_resource_templates()).resource_templates}
    assert {PLAN, VIEW} <= templates
    for template in (PLAN, VIEW):
        reference = types.ResourceTemplateReference(uri=template)
        completed = (await stage.client.complete(reference, {"name": "call_id", "value": ""})).completion
        assert len(completed.values) == LISTED + 2
        newest = UriTemplate.parse(template).expand({"call_id": completed.values[0]})
        assert newest.removesuffix("/view") == newest_first[0]
        begun = {"name": "call_id", "value": completed.values[0]}
        assert (await stage.client.complete(reference, begun)).completion.values == [completed.values[0]]


async def test_plans_are_on_the_last_page_of_many_files(stage: Stage) -> None:
    uri = await stage.uri("code", give={"code": "x"})
    stage.studio.files.mkdir(parents=True, exist_ok=True)
    for number in range(PAGE + 1):
        (stage.studio.files / f"{number:04}.txt").touch()
    first = await stage.client.list_resources()
    assert len(first.resources) == PAGE and first.next_cursor is not None
    last = await stage.client.list_resources(cursor=first.next_cursor)
    assert [resource.uri for resource in last.resources] == [f"workspace://c/{PAGE:04}.txt", uri]
    assert last.next_cursor is None


async def test_a_client_of_a_version_without_links_gets_none(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    async with Gateway.open({"data_dir": str(tmp_path / "data")}, sources=[studio]) as gateway:
        assert await content_types(gateway, "2025-03-26") == ["text"]
        assert await content_types(gateway, "2025-06-18") == ["text", "resource_link"]


async def content_types(gateway: Gateway, version: str) -> list[str]:
    """The blocks of a result as a client of that version gets them."""
    face = McpServer(Handlers(gateway.executor, gateway.versions, "c", gateway.records))
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception](9)
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage](9)
    hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
    call = {"name": "studio__code", "arguments": {"give": {"code": "x"}}}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(face.sdk.run, from_client, to_client, face.sdk.create_initialization_options())
        for message in (
            types.JSONRPCRequest(jsonrpc="2.0", id=1, method="initialize", params=hello),
            types.JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized"),
            types.JSONRPCRequest(jsonrpc="2.0", id=2, method="tools/call", params=call),
        ):
            await to_server.send(SessionMessage(message))
        with anyio.fail_after(TIMEOUT):
            await from_server.receive()
            answer = (await from_server.receive()).message
        await to_server.aclose()
        await from_server.aclose()
    assert isinstance(answer, types.JSONRPCResponse)
    return [block["type"] for block in answer.result["content"]]


async def test_server_without_plans_links_to_none(tmp_path: Path) -> None:
    async with (
        Gateway.open({"data_dir": str(tmp_path / "data")}, sources=[Studio(tmp_path)]) as gateway,
        Client(McpServer(Handlers(gateway.executor, gateway.versions, "c")).sdk, cache=None) as client,
    ):
        result = await client.call_tool("studio__code", {"give": {"code": "x"}})
        assert isinstance(result, types.CallToolResult)
        assert [block.type for block in result.content] == ["text"]
        assert (await client.list_resources()).resources == []


@ERAS
async def test_page_shows_no_file_that_a_rule_denies(tmp_path: Path, era: Any) -> None:
    rule = {"tool": "read_file", "when": {"path": "*.env"}, "then": "deny"}
    studio = Studio(tmp_path)
    settings = {"data_dir": str(tmp_path / "data"), "approval": {"rules": [rule]}}
    async with Gateway.open(settings, sources=[studio]) as gateway:
        face = McpServer(Handlers(gateway.executor, gateway.versions, "c", gateway.records))
        async with Client(face.sdk, mode=era, cache=None) as client:
            stage = Stage(client, gateway, studio)
            for path, shown in (("a.txt", True), ("a.env", False)):
                uri = await stage.uri("file", path=path, write="TOKEN")
                if shown:
                    assert "TOKEN" in (await stage.view(uri))[0]
                else:
                    assert (await stage.refusal(f"{uri}/view")).message.startswith("DENIED_BY_RULE")


@ERAS
async def test_render_plan_that_is_read_or_completed_is_recorded_limited_and_held_to_rules(
    tmp_path: Path, era: Any
) -> None:
    limits = {"calls_per_minute": {"read_render": 3}}
    async with staged(tmp_path / "limited", era, limits=limits) as stage:
        uri = await stage.uri("code", give={"code": "1"})
        await stage.read(uri)
        await stage.read(f"{uri}/view")
        ref = types.ResourceTemplateReference(type="ref/resource", uri=PLAN)
        await stage.client.complete(ref, {"name": "call_id", "value": ""})
        assert (await stage.refusal(uri)).data["code"] == "RATE_LIMITED"
        records = [record for record in await stage.gateway.records.list_calls() if record.tool_id == "read_render"]
        assert [(record.tool_name, record.status) for record in reversed(records)] == [
            ("resources/read", "success"),
            ("resources/read", "success"),
            ("completion/complete", "success"),
            ("resources/read", "error"),
        ]
    rules = {"rules": [{"tool": "read_render", "then": "deny"}]}
    async with staged(tmp_path / "denied", era, approval=rules) as stage:
        assert (await stage.refusal(await stage.uri("code", give={"code": "1"}))).data["code"] == "DENIED_BY_RULE"
