"""Rules, permissions, limits and the record hold on every way to a file, and for what upstreams have besides tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from journeys.servers import labs
from mcp import Client
from mcp.shared.exceptions import MCPError

from gateway import Gateway
from gateway.serve.mcp.handlers import Handlers, McpServer
from gateway.serve.mcp.resources import FILE

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C5")]

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
NO_ENV = {"tool": "*", "when": {"path": "*.env"}, "then": "deny"}
RESOURCE, PROMPT = "plain", "lab__plain"
UNREAD = {"tool": "read_file", "when": {"path": ["*.env", "secrets/*"]}, "then": "deny", "why": "secrets stay here"}


@asynccontextmanager
async def served(
    place: Path, era: Any, *rules: dict[str, Any], chat: str = "c", **settings: Any
) -> AsyncIterator[tuple[Gateway, Client]]:
    """A gateway with rules, and a client of it; its chat has two versions of two files."""
    approval = {"rules": list(rules), **settings.pop("approval", {})}
    async with Gateway.open({"data_dir": str(place), "approval": approval, **settings}) as gateway:
        for content in ("TOKEN=1\n", "TOKEN=2\n"):
            await save(gateway, "a.env", content)
            await save(gateway, "a.txt", content)
        face = McpServer(Handlers(gateway.executor, gateway.versions, chat, relay=gateway.passthrough))
        async with Client(face.sdk, mode=era, cache=None) as client:
            yield gateway, client


async def save(gateway: Gateway, path: str, content: str) -> None:
    """As a person does, past every rule; a version keeps it."""
    folder = gateway.settings.data_dir / "chats" / "c" / "workspace"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(content)
    async with gateway.versions.hold("c", "local") as files:
        await files.save("edit")


async def call_code(client: Client, tool: str, **arguments: Any) -> str:
    """The code of a call's error, as the model reads it."""
    result = await client.call_tool(tool, arguments)
    [block] = result.content
    assert isinstance(block, types.TextContent)
    return block.text.partition(":")[0] if result.is_error else "OK"


async def latest(gateway: Gateway) -> str:
    [row] = await gateway.versions.manifests.history("c", limit=1)
    return row.id


async def refusal(request: Awaitable[Any]) -> str:
    with pytest.raises(MCPError) as refused:
        await request
    return refused.value.error.message


async def text(client: Client, uri: str) -> str:
    [read] = (await client.read_resource(uri)).contents
    assert isinstance(read, types.TextResourceContents)
    return read.text


async def recorded(gateway: Gateway) -> list[tuple[str, str, str, str | None]]:
    """Every call that came over MCP, oldest first: tool, name, status, code."""
    rows = [row for row in await gateway.records.list_calls() if row.surface == "mcp"]
    return [(row.tool_id, row.tool_name, row.status, row.error_code) for row in reversed(rows)]


@ERAS
@pytest.mark.parametrize("rule", [NO_ENV, UNREAD], ids=["every tool", "read_file"])
async def test_a_denied_file_is_refused_as_a_resource_as_by_read_file(
    tmp_path: Path, era: Any, rule: dict[str, Any]
) -> None:
    async with served(tmp_path, era, rule) as (gateway, client):
        by_tool = await client.call_tool("read_file", {"path": "a.env"})
        assert by_tool.is_error and isinstance(by_tool.content[0], types.TextContent)
        for query in ("", f"?manifest={await latest(gateway)}", "?offset=0&length=3"):
            assert await refusal(client.read_resource(f"workspace://c/a.env{query}")) == by_tool.content[0].text
        assert by_tool.content[0].text.startswith("DENIED_BY_RULE: read_file: ")
        assert await text(client, "workspace://c/a.txt") == "TOKEN=2\n"
        assert await recorded(gateway) == [
            ("read_file", "read_file", "error", "DENIED_BY_RULE"),
            *[("read_file", "resources/read", "error", "DENIED_BY_RULE")] * 3,
            ("read_file", "resources/read", "success", None),
        ]
        [read, *_] = await gateway.records.list_calls(tool="read_file")
        assert json.loads(read.args or "") == {"path": "a.txt"}
        assert read.chat_id == "c" and json.loads(read.result or "")["contents"][0]["text"] == "TOKEN=2\n"


@ERAS
async def test_a_resource_that_would_be_asked_about_is_refused_with_the_tool_to_use(tmp_path: Path, era: Any) -> None:
    async with served(tmp_path, era, {**UNREAD, "then": "ask"}) as (gateway, client):
        reason = await refusal(client.read_resource("workspace://c/a.env"))
        assert reason.startswith("CONFIRMATION_REQUIRED: secrets stay here (rule 1")
        assert reason.endswith("but resources/read cannot ask for consent; call the tool 'read_file' instead")
        assert await recorded(gateway) == [("read_file", "resources/read", "error", "CONFIRMATION_REQUIRED")]
        assert await gateway.approvals.records.entries() == []


@ERAS
async def test_approval_mode_applies_to_tools_only(tmp_path: Path, era: Any) -> None:
    async with served(tmp_path, era, approval={"mode": "always"}) as (_, client):
        assert await text(client, "workspace://c/a.env") == "TOKEN=2\n"
        assert (await client.call_tool("read_file", {"path": "a.env"})).is_error


@ERAS
async def test_resources_need_their_category_and_count_against_its_limit(tmp_path: Path, era: Any) -> None:
    reference = types.ResourceTemplateReference(uri=FILE)
    async with served(tmp_path / "off", era, categories={"filesystem": {"enabled": False}}) as (gateway, client):
        assert (await refusal(client.read_resource("workspace://c/a.txt"))).startswith("TOOL_DISABLED")
        assert (await refusal(client.read_resource(f"manifest://{await latest(gateway)}"))).startswith("TOOL_DISABLED")
        assert (await refusal(client.complete(reference, {"name": "path", "value": ""}))).startswith("TOOL_DISABLED")
        assert (await client.list_resources()).resources == []
    async with served(tmp_path / "few", era, limits={"calls_per_minute": {"read_file": 2}}) as (_, client):
        await client.call_tool("read_file", {"path": "a.txt"})
        await client.read_resource("workspace://c/a.txt")
        assert (await refusal(client.read_resource("workspace://c/a.txt"))).startswith("RATE_LIMITED: tool read_file")
        assert (await client.call_tool("read_file", {"path": "a.txt"})).is_error


@ERAS
async def test_lists_completions_and_manifests_leave_out_denied_files(tmp_path: Path, era: Any) -> None:
    async with served(tmp_path, era, NO_ENV) as (gateway, client):
        assert [each.uri for each in (await client.list_resources()).resources] == ["workspace://c/a.txt"]
        for begun in ("", "a", "a.env"):
            completed = await client.complete(
                types.ResourceTemplateReference(uri=FILE), {"name": "path", "value": begun}
            )
            assert completed.completion.values == (["a.txt"] if begun != "a.env" else [])
        manifest = json.loads(await text(client, f"manifest://{await latest(gateway)}"))
        assert (list(manifest["files"]), manifest["left_out"]) == (["a.txt"], 1)
        assert await recorded(gateway) == [
            ("list_directory", "resources/list", "success", None),
            *[("list_directory", "completion/complete", "success", None)] * 3,
            ("list_directory", "resources/read", "success", None),
        ]


@ERAS
@pytest.mark.parametrize("rule", [NO_ENV, UNREAD], ids=["every tool", "read_file"])
async def test_searches_and_diffs_leave_out_denied_files_and_count_them(
    tmp_path: Path, era: Any, rule: dict[str, Any]
) -> None:
    async with served(tmp_path, era, rule) as (gateway, client):
        found = await client.call_tool("search_code", {"pattern": "TOKEN"})
        assert found.structured_content is not None
        assert [match["path"] for match in found.structured_content["matches"]] == ["a.txt"]
        assert found.structured_content["filesLeftOut"] == 1
        assert "[1 file left out by the operator's rules]" in str(found.content)
        rows = await gateway.versions.manifests.history("c", limit=9)
        compared = await client.call_tool("workspace_diff", {"from": rows[-2].id, "to": rows[0].id})
        assert compared.structured_content is not None
        assert [file["path"] for file in compared.structured_content["files"]] == ["a.txt"]
        assert compared.structured_content["filesLeftOut"] == 1
        assert "a.env" not in str(compared) and "[1 file left out by the operator's rules]" in str(compared.content)
    async with served(tmp_path, era) as (_, client):
        found = await client.call_tool("search_code", {"pattern": "TOKEN"})
        assert found.structured_content is not None and "filesLeftOut" not in found.structured_content
        assert {match["path"] for match in found.structured_content["matches"]} == {"a.env", "a.txt"}


@ERAS
async def test_an_earlier_rule_that_allows_a_file_shows_it(tmp_path: Path, era: Any) -> None:
    allowed = {"tool": "*", "when": {"arguments": {"path": "a.env"}}, "then": "allow"}
    async with served(tmp_path, era, allowed, NO_ENV) as (_, client):
        assert await text(client, "workspace://c/a.env") == "TOKEN=2\n"
        found = await client.call_tool("search_code", {"pattern": "TOKEN"})
        assert found.structured_content is not None and len(found.structured_content["matches"]) == 2


@pytest.mark.parametrize("chat", ["c", "unused"])
async def test_a_subscription_to_a_denied_file_is_refused_in_the_handshake_era(tmp_path: Path, chat: str) -> None:
    async with served(tmp_path, "legacy", NO_ENV) as (gateway, client):
        refused = await refusal(client.subscribe_resource(f"workspace://{chat}/a.env"))
        assert refused.startswith("DENIED_BY_RULE: read_file: ")
        await client.subscribe_resource(f"workspace://{chat}/a.txt")
        assert await recorded(gateway) == (
            [
                ("read_file", "resources/subscribe", "error", "DENIED_BY_RULE"),
                ("read_file", "resources/subscribe", "success", None),
            ]
            if chat == "c"
            else []
        )
        assert await gateway.versions.may_read("unused", "local") is False


@pytest.mark.parametrize("chat", ["c", "unused"])
async def test_a_subscription_to_a_denied_file_is_not_acknowledged_in_the_sessionless_era(
    tmp_path: Path, chat: str
) -> None:
    uris = [f"workspace://{chat}/a.env", f"workspace://{chat}/a.txt"]
    async with served(tmp_path, "auto", NO_ENV) as (_, client), client.listen(resource_subscriptions=uris) as changes:
        assert changes.honored.resource_subscriptions == [f"workspace://{chat}/a.txt"]


@ERAS
async def test_a_subscription_to_a_manifest_is_checked_and_recorded_like_reading_it(tmp_path: Path, era: Any) -> None:
    async with served(tmp_path, era, {"tool": "list_directory", "then": "deny"}) as (gateway, client):
        uri = f"manifest://{await latest(gateway)}"
        if era == "legacy":
            assert (await refusal(client.subscribe_resource(uri))).startswith("DENIED_BY_RULE")
            assert (await refusal(client.subscribe_resource("manifest://none"))).startswith("MANIFEST_NOT_FOUND")
        else:
            async with client.listen(resource_subscriptions=[uri, "manifest://none"]) as changes:
                assert not changes.honored.resource_subscriptions
        assert await recorded(gateway) == [("list_directory", "resources/subscribe", "error", "DENIED_BY_RULE")]


async def lab_uri(client: Client, name: str) -> str:
    [uri] = [each.uri for each in (await client.list_resources()).resources if each.name == name]
    return uri


@ERAS
async def test_resources_and_prompts_of_upstreams_are_recorded_and_limited(tmp_path: Path, era: Any) -> None:
    limits = {"calls_per_minute": {"lab:resources/read": 1, "lab:resources/list": 1}}
    async with served(tmp_path, era, mcpServers={"lab": labs.on_stdio()}, limits=limits) as (gateway, client):
        uri = await lab_uri(client, RESOURCE)
        await client.read_resource(uri)
        assert (await refusal(client.read_resource(uri))).startswith("RATE_LIMITED: tool lab:resources/read")
        await client.get_prompt(PROMPT)
        assert (await refusal(client.list_resources())).startswith("RATE_LIMITED: tool lab:resources/list")
        assert (await recorded(gateway))[1:] == [
            ("lab:resources/list", "resources/list", "success", None),
            ("lab:resources/read", "resources/read", "success", None),
            ("lab:resources/read", "resources/read", "error", "RATE_LIMITED"),
            ("lab:prompts/get", "prompts/get", "success", None),
            ("list_directory", "resources/list", "success", None),
            ("lab:resources/list", "resources/list", "error", "RATE_LIMITED"),
        ]
        [got, *_] = await gateway.records.list_calls(tool="lab:prompts/get")
        assert (got.category, json.loads(got.args or "")["name"]) == ("upstream", PROMPT.removeprefix("lab__"))


@ERAS
@pytest.mark.parametrize(
    ("rules", "categories", "code"),
    [
        ([{"server": "lab", "then": "deny"}], {}, "DENIED_BY_RULE"),
        ([], {"upstream": {"enabled": False}}, "TOOL_DISABLED"),
    ],
    ids=["a rule", "a category that is off"],
)
async def test_resources_and_prompts_of_upstreams_are_refused_by(
    tmp_path: Path, era: Any, rules: list[dict[str, Any]], categories: dict[str, Any], code: str
) -> None:
    lab = {"lab": labs.on_stdio()}
    async with served(tmp_path / "free", era, mcpServers=lab) as (_, client):
        uri = await lab_uri(client, RESOURCE)
    async with served(tmp_path, era, *rules, mcpServers=lab, categories=categories) as (gateway, client):
        assert (await refusal(client.read_resource(uri))).startswith(code)
        assert (await refusal(client.get_prompt(PROMPT))).startswith(code)
        reference = types.PromptReference(name=PROMPT)
        assert (await refusal(client.complete(reference, {"name": "x", "value": ""}))).startswith(code)
        if era == "legacy":
            assert (await refusal(client.subscribe_resource(uri))).startswith(code)
        else:
            async with client.listen(resource_subscriptions=[uri]) as changes:
                assert not changes.honored.resource_subscriptions
        refused = await recorded(gateway)
        assert [row[3] for row in refused] == [code] * 4
        assert refused[-1][:2] == ("lab:resources/subscribe", "resources/subscribe")


@ERAS
@pytest.mark.parametrize("then", ["deny", "ask", "queue"])
async def test_lists_leave_out_prompts_and_resources_that_a_rule_names(tmp_path: Path, era: Any, then: str) -> None:
    lab = {"lab": labs.on_stdio()}

    async def listed(client: Client) -> tuple[set[str], set[str], set[str]]:
        prompts = {each.name for each in (await client.list_prompts()).prompts}
        resources = {each.name for each in (await client.list_resources()).resources}
        return (
            prompts,
            resources,
            {each.uri_template for each in (await client.list_resource_templates()).resource_templates},
        )

    async with served(tmp_path / "free", era, mcpServers=lab) as (_, client):
        prompts, resources, templates = await listed(client)
        uri = await lab_uri(client, RESOURCE)
    assert PROMPT in prompts and RESOURCE in resources and FILE in templates
    named: list[dict[str, Any]] = [
        {"tool": "lab:prompts/get", "when": {"arguments": {"name": "plain"}}, "then": then},
        {"tool": "lab:resources/read", "when": {"arguments": {"uri": f"*{uri.rpartition('/')[2]}"}}, "then": then},
        {"tool": "lab:tools/*"},
    ]
    async with served(tmp_path / "named", era, *named, mcpServers=lab) as (_, client):
        assert await listed(client) == (prompts - {PROMPT}, resources - {RESOURCE}, templates)
        assert (await refusal(client.get_prompt(PROMPT))).split(":")[0] in ("DENIED_BY_RULE", "CONFIRMATION_REQUIRED")
    async with served(tmp_path / "all", era, {"server": "lab", "then": then}, mcpServers=lab) as (_, client):
        assert await listed(client) == (set(), {"a.env", "a.txt"}, {each for each in templates if "lab" not in each})
    async with served(tmp_path / "files", era, {"tool": "read_file", "then": then}) as (_, client):
        _, own, left = await listed(client)
        assert own == set() and not [each for each in left if each.startswith("workspace:")]


@ERAS
async def test_files_do_not_leave_a_rule_with_their_directory(era: str, tmp_path: Path) -> None:
    rules = (
        {"tool": "*", "when": {"path": ["*.env", "secret/*"]}, "then": "deny"},
        {"tool": "delete_file", "then": "allow"},
    )
    async with served(tmp_path, era, *rules) as (gateway, client):
        call = partial(call_code, client)
        folder = gateway.settings.data_dir / "chats/c/workspace"
        for name in ("secret/key.txt", "deep/down/b.env", "plain/c.txt", "in/d.txt"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("kept\n")

        for source, target in (("secret", "public"), ("deep", "public"), ("in", "secret/in"), ("in", "in.env")):
            assert await call("move_file", **{"from": source, "to": target}) == "DENIED_BY_RULE"
        (folder / "secret/key.txt").rename(folder / "key.txt")
        (folder / "secret").rmdir()
        assert await call("move_file", **{"from": "in", "to": "secret"}) == "DENIED_BY_RULE"
        assert await call("delete_file", path="deep", recursive=True) == "DENIED_BY_RULE"
        assert (folder / "deep/down/b.env").exists() and (folder / "in/d.txt").exists()
        assert await call("move_file", **{"from": "plain", "to": "other"}) == "OK"
        assert await call("delete_file", path="other", recursive=True) == "OK"


@ERAS
async def test_file_is_not_moved_away_from_a_rule_for_reading(era: str, tmp_path: Path) -> None:
    async with served(tmp_path, era, UNREAD) as (_, client):
        assert await call_code(client, "move_file", **{"from": "a.env", "to": "b.txt"}) == "DENIED_BY_RULE"
        assert await call_code(client, "move_file", **{"from": "a.txt", "to": "b.txt"}) == "OK"
