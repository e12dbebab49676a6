"""Render plans on their three ways to a view, the tools of views, and who may use them; no browser needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult
from serve.servers import RecordingSource

from gateway import Gateway
from gateway.admin import toolsets
from gateway.calls import Caller
from gateway.serve.mcp.handlers import Handlers, McpServer
from gateway.serve.mcp.request import Request, Response
from gateway.serve.mcp.view_tools import PLAN_META_LIMIT, RENDER, VIEW_TOOL_NAMES
from gateway.serve.mcp.views import result_view
from gateway.serve.web.inline import read_editor
from gateway.tools import Permission, Tool
from gateway.workspace.workspaces import default_chat

from .hosts import APPS, COUNTER, STUDIO

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G4")]


class ViewClient:
    """A client that shows views, in front of a gateway with the toolset."""

    def __init__(self, gateway: Gateway, client: Client) -> None:
        self.gateway = gateway
        self.client = client

    async def call(self, name: str, **arguments: Any) -> Any:
        return await self.client.call_tool(name, arguments)

    async def value(self, name: str, **arguments: Any) -> dict[str, Any]:
        result = await self.call(name, **arguments)
        assert not result.is_error, result.content
        assert json.loads(result.content[0].text) == result.structured_content
        return dict(result.structured_content)

    async def refusal(self, name: str, **arguments: Any) -> str:
        result = await self.call(name, **arguments)
        assert result.is_error
        return str(result.meta["dev.toolgate/error"]["code"])


@pytest.fixture(params=["auto", "legacy"])
async def views(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ViewClient]:
    async with Gateway.open({"data_dir": str(tmp_path / "data"), "mcpServers": {"counter": COUNTER}}) as gateway:
        await toolsets.install_toolset(gateway, str(STUDIO))
        await gateway.reload()
        handlers = Handlers(
            gateway.executor, gateway.versions, "c", gateway.records, gateway.passthrough, gateway.approval_flow
        )
        async with Client(McpServer(handlers).sdk, mode=request.param, cache=None, extensions=APPS) as client:
            yield ViewClient(gateway, client)


async def test_plan_reaches_a_view_on_each_of_three_ways(views: ViewClient) -> None:
    await views.call("write_file", path="a.py", content="x = '</script>'\n")
    result = await views.call("studio__edit", path="a.py")
    [link] = [block for block in result.content if block.type == "resource_link"]
    given = result.meta[RENDER]
    assert given["uri"] == link.uri and given["plan"]["input"] == {"path": "a.py"}
    [read] = (await views.client.read_resource(link.uri)).contents
    assert json.loads(read.text) == given["plan"]  # type: ignore[union-attr]
    by_uri, by_tool = (
        await views.value("render_plan", uri=link.uri),
        await views.value("render_plan", tool="studio__edit"),
    )
    assert by_uri == by_tool and by_uri["plan"] == given["plan"]
    content = by_uri["content"]
    assert content["text"] == "x = '</script>'\n" and "&lt;/script&gt;" in content["html"]
    assert content["editable"] is True and content["language"] == "python"


async def test_large_plan_is_linked_and_not_repeated_in_the_result(views: ViewClient) -> None:
    text = "x = 1\n" * (PLAN_META_LIMIT // 6)
    await views.call("write_file", path="big.py", content=text)
    result = await views.call("studio__look", path="big.py")
    assert result.meta[RENDER].keys() == {"uri"}
    assert (await views.value("render_plan", uri=result.meta[RENDER]["uri"]))["content"]["text"].startswith("x = 1\n")


async def test_view_saves_the_file_it_shows_and_never_over_another_change(views: ViewClient) -> None:
    await views.call("write_file", path="a.py", content="one\n")
    uri = (await views.call("studio__edit", path="a.py")).meta[RENDER]["uri"]
    first = (await views.value("view_read_file", uri=uri))["content"]["revision"]
    saved = await views.value("view_write_file", uri=uri, text="two\n", base_revision=first)
    assert saved["path"] == "a.py" and saved["manifest"]
    assert (await views.value("view_read_file", uri=uri))["content"]["text"] == "two\n"
    again = await views.call("view_write_file", uri=uri, text="three\n", base_revision=first)
    assert again.meta["dev.toolgate/error"]["code"] == "CONFLICT"
    assert again.meta["dev.toolgate/error"]["details"]["revision"] == saved["revision"]
    assert (await views.value("render_plan", uri=uri))["content"]["text"] == "two\n"
    records = [call for call in await views.gateway.records.list_calls(chat="c") if call.tool_id == "write_file"]
    assert [call.status for call in records] == ["error", "success", "success"]  # saving is recorded, refused or not


async def test_view_writes_no_file_that_its_tool_does_not_declare_editable(views: ViewClient) -> None:
    await views.call("write_file", path="a.py", content="one\n")
    looked = (await views.call("studio__look", path="a.py")).meta[RENDER]["uri"]
    assert await views.refusal("view_write_file", uri=looked, text="x", base_revision="r") == "FILE_NOT_FOUND"
    listed = (await views.call("studio__page", path=".")).meta[RENDER]["uri"]
    assert await views.refusal("view_read_file", uri=listed) == "FILE_NOT_FOUND"
    assert (
        await views.refusal("view_write_file", uri="workspace://c/a.py", text="x", base_revision="r")
        == "INVALID_ARGUMENTS"
    )
    assert await views.refusal("render_plan") == "INVALID_ARGUMENTS"


async def test_operators_rule_on_writing_files_holds_for_views(tmp_path: Path) -> None:
    rules = {"rules": [{"tool": "write_file", "when": {"path": "kept/*"}, "then": "deny"}]}
    async with Gateway.open({"data_dir": str(tmp_path / "data"), "approval": rules}) as gateway:
        await toolsets.install_toolset(gateway, str(STUDIO))
        await gateway.reload()
        handlers = Handlers(gateway.executor, gateway.versions, "c", gateway.records)
        await gateway.call("write_file", {"path": "free.py", "content": "one"}, chat="c")
        (tmp_path / "data/chats/c/workspace/kept").mkdir()
        (tmp_path / "data/chats/c/workspace/kept/a.py").write_text("one")
        async with Client(McpServer(handlers).sdk, cache=None, extensions=APPS) as client:
            views = ViewClient(gateway, client)
            for path, code in (("free.py", None), ("kept/a.py", "DENIED_BY_RULE")):
                uri = (await views.call("studio__edit", path=path)).meta[RENDER]["uri"]
                revision = (await views.value("view_read_file", uri=uri))["content"]["revision"]
                result = await views.call("view_write_file", uri=uri, text="two", base_revision=revision)
                assert (result.meta or {}).get("dev.toolgate/error", {}).get("code") == code


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_view_saves_in_an_attached_folder_when_the_person_agrees(tmp_path: Path, era: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.py").write_text("one\n")
    questions: list[str] = []
    answers: list[dict[str, Any]] = [{"decision": "deny"}, {"decision": "approve once"}]

    async def answer(context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content=answers.pop(0))

    settings = {"data_dir": str(tmp_path / "data"), "workspace": str(folder)}
    async with Gateway.open(settings) as gateway:
        await toolsets.install_toolset(gateway, str(STUDIO))
        await gateway.reload()
        handlers = Handlers(
            gateway.executor,
            gateway.versions,
            default_chat(gateway.settings),
            gateway.records,
            gateway.passthrough,
            gateway.approval_flow,
        )
        server = McpServer(handlers).sdk
        async with Client(server, mode=era, cache=None, extensions=APPS, elicitation_callback=answer) as client:
            views = ViewClient(gateway, client)
            uri = (await views.call("studio__edit", path="a.py")).meta[RENDER]["uri"]
            revision = (await views.value("view_read_file", uri=uri))["content"]["revision"]
            save = {"uri": uri, "text": "two\n", "base_revision": revision}
            assert await views.refusal("view_write_file", **save) == "DECLINED"
            assert (folder / "a.py").read_text() == "one\n"
            saved = await views.value("view_write_file", **save)
            assert (folder / "a.py").read_text() == "two\n" and "-one" in questions[-1] and "+two" in questions[-1]
            assert (await views.value("view_read_file", uri=uri))["content"]["revision"] == saved["revision"]
            assert await views.refusal("view_write_file", **save) == "CONFLICT"  # based on what is no longer there
            assert len(questions) == 2  # and nobody is asked about that
        async with Client(McpServer(handlers).sdk, mode=era, cache=None, extensions=APPS) as client:
            save["base_revision"] = saved["revision"]
            refused = await ViewClient(gateway, client).refusal("view_write_file", **{**save, "text": "three\n"})
            assert refused == "CONFIRMATION_REQUIRED" and (folder / "a.py").read_text() == "two\n"


async def test_plans_of_others_are_not_found_by_views(views: ViewClient) -> None:
    ada = Caller(principal="ada", permission=Permission.EXECUTE)
    await views.gateway.call("write_file", {"path": "s.py", "content": "secret"}, chat="theirs", caller=ada)
    await views.gateway.call("studio__edit", {"path": "s.py"}, chat="theirs", caller=ada)
    theirs = next(
        call for call in await views.gateway.records.list_calls(chat="theirs") if call.tool_id != "write_file"
    )
    for arguments in ({"uri": f"render://{theirs.id}"}, {"tool": "studio__edit"}):
        assert await views.refusal("render_plan", **arguments) == "RENDER_NOT_FOUND"
    for name in ("view_read_file", "view_write_file"):
        more = {"text": "x", "base_revision": "r"} if name == "view_write_file" else {}
        assert await views.refusal(name, uri=f"render://{theirs.id}", **more) == "RENDER_NOT_FOUND"


async def test_views_learn_nothing_of_calls_in_the_chats_of_others(views: ViewClient) -> None:
    ada = Caller(principal="ada", permission=Permission.EXECUTE)
    await views.gateway.call("write_file", {"path": "s.py", "content": "secret"}, chat="theirs", caller=ada)
    await views.gateway.call("studio__edit", {"path": "s.py"}, chat="theirs", caller=ada)
    answers = [
        await views.client.call_tool("render_plan", {"tool": "studio__edit"}, meta={"dev.toolgate/chat": chat})  # type: ignore[arg-type]
        for chat in ("theirs", "unused")
    ]
    assert answers[0].is_error and answers[0].content == answers[1].content


class Namesakes(RecordingSource):
    """Tools with the names of those for views, whose public names have this prefix."""

    def __init__(self, prefix: str) -> None:
        super().__init__(more=[*VIEW_TOOL_NAMES])
        self.prefix = prefix

    async def list_tools(self) -> Sequence[Tool]:
        return [replace(tool, prefix=self.prefix) for tool in await super().list_tools()]


@pytest.mark.parametrize("prefix", ["stall", ""])
async def test_no_other_tool_answers_the_calls_of_views(tmp_path: Path, prefix: str) -> None:
    source = Namesakes(prefix)
    async with Gateway.open({"data_dir": str(tmp_path / "data")}, sources=[source]) as gateway:
        names = {entry.tool.id: entry.name for entry in gateway.catalog}
        assert names["stall:render_plan"] == ("stall__render_plan" if prefix else "render_plan")
        handlers = Handlers(gateway.executor, gateway.versions, "c", gateway.records)
        async with Client(McpServer(handlers).sdk, cache=None, extensions=APPS) as client:
            for name in ("render_plan", "view_read_file", "view_write_file"):
                assert await ViewClient(gateway, client).refusal(name) == "INVALID_ARGUMENTS"
        assert source.calls == []
        async with Client(McpServer(handlers).sdk, cache=None) as client:  # shows no views
            await client.call_tool(names["stall:render_plan"])
        assert [call.target.id for call in source.calls] == ["stall:render_plan"]


async def test_old_version_of_a_view_is_answered_with_the_newest_and_not_cached(views: ViewClient) -> None:
    tools = {tool.name: tool.meta or {} for tool in (await views.client.list_tools()).tools}
    for name in ("studio__edit", "studio__page", "studio__site"):
        uri = tools[name]["ui"]["resourceUri"]
        newest = await views.client.read_resource(uri)
        old = await views.client.read_resource(f"{uri.partition('?')[0]}?v=00000000")
        assert old.contents[0].text == newest.contents[0].text  # type: ignore[union-attr]
        assert old.ttl_ms == 0
        if views.client.protocol_version == "2026-07-28":  # earlier ones have no hints
            assert newest.ttl_ms and newest.cache_scope == ("public" if name == "studio__edit" else "private")
    artifact = (await views.client.read_resource(tools["studio__page"]["ui"]["resourceUri"])).contents[0].text  # type: ignore[union-attr]
    assert '<script type="application/json" id="toolgate-artifact">' in artifact and "\\u003cul id" in artifact
    if (editor := read_editor()) is not None:
        script = await views.client.read_resource(editor[0])
        assert script.contents[0].text == editor[1] and script.contents[0].mime_type == "text/javascript"  # type: ignore[union-attr]
    for unknown in ("ui://toolgate/view/none", "ui://toolgate/html/studio__edit", "ui://nobody/view.html", "ui://x"):
        with pytest.raises(MCPError):
            await views.client.read_resource(unknown)


class CountingHandlers(Handlers):
    """Handlers that remember the methods of the requests which reached them."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.methods: list[str] = []

    def answer(self, request: Request) -> Awaitable[Response]:
        self.methods.append(request.method)
        return super().answer(request)


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_unchanged_view_keeps_its_uri_and_is_not_sent_twice(tmp_path: Path, era: str) -> None:
    folder = Path(shutil.copytree(STUDIO, tmp_path / "studio"))
    page, manifest = folder / "artifacts/list.html", folder / "toolset.yaml"

    async def list_uris() -> dict[str, str]:
        """Install the toolset anew; list its views as a client that caches, and read each twice."""
        async with Gateway.open({"data_dir": str(tmp_path / "data")}) as gateway:
            await toolsets.install_toolset(gateway, str(folder), copy=True)
            await gateway.reload()
            handlers = CountingHandlers(gateway.executor, gateway.versions, "c", gateway.records)
            async with Client(McpServer(handlers).sdk, mode=era, extensions=APPS) as client:
                listed = (await client.list_tools()).tools
                uris = {tool.name: (tool.meta or {}).get("ui", {}).get("resourceUri") for tool in listed}
                uris = {name: uri for name, uri in uris.items() if uri is not None}
                for uri in [*uris.values()] * 2:
                    await client.read_resource(uri)
            # Hints for caching are of the modern era; hosts of the other keep a view by its URI.
            assert handlers.methods.count("resources/read") == (
                len({*uris.values()}) if era == "auto" else 2 * len(uris)
            )
            return uris

    first = await list_uris()
    assert {"studio__edit", "studio__page", "studio__site", "write_file"} <= first.keys()
    manifest.write_text(manifest.read_text().replace("every kind of view", "any kind of view"))
    page.write_bytes(page.read_bytes())
    assert await list_uris() == first  # a later installation with another text, and a page written anew
    page.write_text(page.read_text().replace("Files", "Entries"))
    changed = await list_uris()
    assert {name for name in first if changed[name] != first[name]} == {"studio__page"}


async def test_tools_for_views_are_hidden_from_every_list_of_models(views: ViewClient) -> None:
    catalog = views.gateway.catalog
    assert catalog.get("counter__more") is not None
    names = {entry.name for entry in await views.gateway.search("count on more render plan", 50)}
    assert "counter__count" in names and names.isdisjoint({"counter__more", "render_plan"})
    for listed in (catalog.to_mcp_tools(), catalog.to_anthropic_tools()):
        assert {"counter__more", "render_plan"}.isdisjoint(tool["name"] for tool in listed)


async def test_short_list_has_views_for_a_client_that_shows_them(tmp_path: Path) -> None:
    settings = {"data_dir": str(tmp_path / "data"), "mcpServers": {"counter": COUNTER}, "tools": {"mode": "search"}}
    async with Gateway.open(settings) as gateway:
        await toolsets.install_toolset(gateway, str(STUDIO))
        await gateway.reload()
        face = McpServer(Handlers(gateway.executor, gateway.versions, "c", gateway.records, gateway.passthrough))
        async with Client(face.sdk, cache=None, extensions=APPS) as client, Client(face.sdk, cache=None) as other:
            tools = {tool.name: (tool.meta or {}).get("ui", {}) for tool in (await client.list_tools()).tools}
            plain = {tool.name for tool in (await other.list_tools()).tools}
            listed = {each.uri for each in (await client.list_resources()).resources}
            uri = tools["call_dangerous"]["resourceUri"]
            assert uri.startswith("ui://toolgate/view/auto?v=") and uri in listed
            assert tools["studio__edit"]["resourceUri"].startswith("ui://toolgate/view/code?v=")
            assert tools["search_tools"] == {"visibility": ["model"]}
            helpers = {"render_plan", "view_changes", "view_read_file", "view_write_file"}
            assert tools.keys() - plain == {"counter__more", *helpers}
            found = await other.call_tool("search_tools", {"query": "count on more"})
            assert "counter__more" not in str(found.structured_content)


async def test_changes_of_a_call_are_those_of_its_version(views: ViewClient) -> None:
    assert await views.value("view_changes") == {"diff": "", "truncated": False}
    first = await views.call("write_file", path="a.txt", content="one\n")
    second = await views.call("edit_file", path="a.txt", edits=[{"oldText": "one", "newText": "two"}])
    untouched = await views.call("read_file", path="a.txt")
    ids = [result.meta["dev.toolgate/call_id"] for result in (first, second, untouched)]
    created, changed, nothing = [await views.value("view_changes", call=call_id) for call_id in ids]
    assert "+one" in created["diff"] and created["from"] is None
    assert "-one\n+two" in changed["diff"] and changed["from"] == created["to"]
    assert nothing["diff"] == ""
    assert await views.value("view_changes") == changed


@pytest.mark.parametrize(
    ("kind", "schema", "view"),
    [
        (
            "toolset",
            {"rows": {"type": "array", "items": {"$ref": "#/$defs/Row"}}, "total": {"type": "integer"}},
            "table",
        ),
        ("mcp", {"rows": {"type": "array", "items": {"$ref": "#/$defs/Row"}}}, "table"),
        ("builtin", {"rows": {"type": "array", "items": {"$ref": "#/$defs/Row"}}}, None),
        ("mcp", {"names": {"type": "array", "items": {"type": "string"}}}, None),
        ("mcp", {"diff": {"type": "string"}}, "diff"),
        ("mcp", {}, None),
    ],
)
def test_view_of_a_tool_without_a_renderer_follows_its_output_schema(
    kind: str, schema: dict[str, Any], view: str | None
) -> None:
    row = {"type": "object", "properties": {"city": {"type": "string"}}}
    output = {"type": "object", "properties": schema, "$defs": {"Row": row}}
    tool = Tool("list", "Lists.", {"type": "object"}, kind=kind, output_schema=output)
    assert result_view(tool) == view


@pytest.mark.parametrize(
    ("name", "view"),
    [("browser_take_screenshot", "image"), ("get-image", "image"), ("drawChart", "image"), ("imagine", None)],
)
def test_view_of_a_tool_named_for_an_image_shows_images(name: str, view: str | None) -> None:
    assert result_view(Tool(f"web:{name}", "", {"type": "object"}, kind="mcp")) == view
    assert result_view(Tool(name, "", {"type": "object"})) is None
