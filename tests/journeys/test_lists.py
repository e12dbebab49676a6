"""Lists, names, arguments and instructions of many servers, as clients of both eras see them over both transports."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT, async_eventually
from mcp import Client, MCPError
from mcp_types import ElicitResult

from gateway import Gateway
from gateway.calls import Call, Outcome
from gateway.serve.mcp.handlers import Handlers, McpServer
from gateway.tools import Tool

from .clients import call, every_tool, over_http, over_stdio, refusal, text
from .processes import environment, on_http, on_stdio, serve_command
from .wire import ERAS, HANDSHAKE, INITIALIZE, INITIALIZED, MODERN, request

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G1", "G3")]

SERVER = Path(__file__).parent / "servers/listed.py"

# As @playwright/mcp lists it: `type` has a default, and is required all the same.
SCREENSHOT: dict[str, Any] = {
    "name": "browser_take_screenshot",
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "type": {"default": "png", "type": "string", "enum": ["png", "jpeg"]},
            "filename": {"type": "string"},
            "fullPage": {"type": "boolean"},
        },
        "required": ["type"],
        "additionalProperties": False,
    },
}
DRAFT_4: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-04/schema#",
    "type": "object",
    "properties": {"count": {"type": "integer"}},
}
# Schemas that cannot be compiled here.
ODD: dict[str, dict[str, Any]] = {
    "remote": {"type": "object", "properties": {"a": {"$ref": "https://schemas.example/a.json"}}},
    "regex": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=a"}}},
    "int": {"type": "object", "properties": {"a": {"type": "int"}}},
}
LONG = "n" * 200
LENGTHY = "Times are in UTC. get-time returns one, `search` finds pages; a search takes a second. " * 200


def tool(name: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema or {"type": "object"}}


def listed(directory: Path, name: str, *tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Settings of a server that lists these tools."""
    prefix = {"prefix": more.pop("prefix")} if "prefix" in more else {}
    file = directory / f"{name}.json"
    file.write_text(json.dumps({"tools": tools, **more}))
    return {"command": sys.executable, "args": ["-S", str(SERVER), str(file)], **prefix}


def settings(directory: Path, **servers: dict[str, Any]) -> Path:
    file = directory / "toolgate.yaml"
    file.write_text(json.dumps({"mcpServers": servers, "approval": {"mode": "never"}, "tools": {"first": ["web:d*"]}}))
    return file


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("listed")
    return settings(
        directory,
        vanilla=listed(directory, "vanilla", tool("get-time"), tool("search"), instructions=LENGTHY),
        second=listed(directory, "second", tool("search"), tool("write_file"), instructions="Call search often."),
        odd=listed(directory, "odd", *(tool(name, ODD[name]) for name in ODD), tool(LONG), tool("привет-мир")),
        web=listed(directory, "web", SCREENSHOT, tool("draft4", DRAFT_4)),
        many=listed(directory, "many", *(tool(f"t{number:03}") for number in range(300))),
    )


@asynccontextmanager
async def connected(transport: str, era: str, directory: Path, config: Path) -> AsyncIterator[Client]:
    if transport == "stdio":
        async with over_stdio(directory, era, "--config", str(config)) as client:
            yield client
    else:
        with on_http(directory, "--config", str(config)) as gateway:
            async with over_http(gateway.url, era) as client:
                yield client


@pytest.fixture(
    scope="module",
    params=[
        ("stdio", MODERN),
        pytest.param(("stdio", HANDSHAKE), marks=pytest.mark.slow),
        pytest.param(("http", MODERN), marks=pytest.mark.slow),
        ("http", HANDSHAKE),
    ],
    ids=lambda pair: "-".join(pair),
)
async def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, config: Path
) -> AsyncIterator[Client]:
    transport, era = request.param
    async with connected(transport, era, tmp_path_factory.mktemp("gateway"), config) as client:
        yield client


async def arrived(client: Client, name: str, arguments: dict[str, Any]) -> Any:
    """What the server of a tool gets."""
    result = await call(client, name, arguments)
    assert not result.is_error, result
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def test_tools_are_listed_on_one_page_with_chosen_ones_and_ours_first(client: Client) -> None:
    page = await client.list_tools()
    names = [each.name for each in page.tools]
    assert page.next_cursor is None
    assert len([name for name in names if name.startswith("many__")]) == 300
    assert names[0] == "web__draft4"
    first_upstream = next(index for index, name in enumerate(names) if index and "__" in name)
    assert "write_file" in names[:first_upstream]


async def test_unknown_cursor_is_an_error_of_the_parameters(client: Client) -> None:
    for method in (client.list_tools, client.list_prompts, client.list_resources, client.list_resource_templates):
        with pytest.raises(MCPError) as refused:
            await method(cursor="nobody-gave-me-this")
        assert refused.value.error.code == -32602


async def test_unknown_prompt_is_an_error_of_the_parameters(client: Client) -> None:
    with pytest.raises(MCPError) as refused:
        await client.get_prompt("nobody", {})
    assert refused.value.error.code == -32602


async def test_bare_name_of_one_server_is_accepted(client: Client) -> None:
    assert await arrived(client, "get-time", {"a": 1}) == {"name": "get-time", "arguments": {"a": 1}}


async def test_bare_name_of_two_servers_is_refused_with_both_names(client: Client) -> None:
    error = await refusal(client, "search", {})
    assert error["code"] == "AMBIGUOUS_TOOL"
    assert "second__search, vanilla__search" in error["message"]


async def test_bare_name_of_our_own_tool_stays_ours(client: Client) -> None:
    error = await refusal(client, "write_file", {"path": 5})
    assert error["message"].startswith("write_file:")


async def test_arguments_that_the_server_takes_reach_it_repaired(client: Client) -> None:
    name = "web__browser_take_screenshot"
    assert (await arrived(client, name, {}))["arguments"] == {"type": "png"}
    assert (await arrived(client, name, {"type": None, "filename": None}))["arguments"] == {"type": "png"}
    assert (await arrived(client, name, {"type": "gif", "more": 1}))["arguments"] == {"type": "gif", "more": 1}
    assert (await arrived(client, "web__draft4", {"count": 1.0}))["arguments"] == {"count": 1.0}


async def test_arguments_of_our_own_tools_are_checked_strictly(client: Client) -> None:
    error = await refusal(client, "read_file", {"path": "a", "offset": None})
    assert error["code"] == "INVALID_ARGUMENTS"


async def test_tool_whose_schema_cannot_be_compiled_is_offered(client: Client) -> None:
    offered = {each.name: each for each in await every_tool(client)}
    for name, schema in ODD.items():
        assert offered[f"odd__{name}"].input_schema == schema
        assert (await arrived(client, f"odd__{name}", {"a": 1}))["arguments"] == {"a": 1}
    [long] = [name for name in offered if name.startswith("odd__nnn")]
    assert len(long) == 64
    assert (await arrived(client, long, {}))["name"] == LONG


async def test_name_in_another_script_is_transliterated(client: Client) -> None:
    [name] = [each.name for each in await every_tool(client) if each.name.startswith("odd__privet-mir_")]
    assert (await arrived(client, name, {}))["name"] == "привет-мир"


async def test_instructions_fit_and_their_whole_text_is_a_resource(client: Client) -> None:
    instructions = client.instructions
    assert instructions is not None
    assert len(instructions) <= 2000
    own, vanilla, second = instructions.split("\n")
    assert "workspace" in own
    assert vanilla.startswith(
        "vanilla: Times are in UTC. vanilla__get-time returns one, `vanilla__search` finds pages; a search takes a"
    )
    assert vanilla.endswith("… (instructions://vanilla)")
    assert second == "second: Call search often."
    listed = {resource.uri: resource for resource in (await client.list_resources()).resources}
    assert listed["instructions://vanilla"].size == len(LENGTHY)
    [whole] = (await client.read_resource("instructions://vanilla")).contents
    assert whole.text == LENGTHY  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_person_is_asked_about_the_arguments_that_are_sent(tmp_path: Path, mode: Any) -> None:
    questions: list[str] = []

    async def agree(context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={"decision": "approve once"})

    web = {**listed(tmp_path, "web", SCREENSHOT), "requires_confirmation": True}
    async with Gateway.open({"data_dir": str(tmp_path / "data"), "mcpServers": {"web": web}}) as gateway:
        parts = (gateway.chat, gateway.records, gateway.passthrough, gateway.approval_flow)
        server = McpServer(Handlers(gateway.executor, gateway.versions, *parts))
        async with Client(server.sdk, mode=mode, elicitation_callback=agree) as client:
            result = await call(client, "browser_take_screenshot", {"filename": None})
    assert result.structured_content == {"name": "browser_take_screenshot", "arguments": {"type": "png"}}
    assert "changed" not in text(result)
    [question] = questions
    assert 'type: "png"' in question and "filename" not in question


@pytest.mark.parametrize("era", ERAS)
async def test_changed_prefix_takes_effect_and_the_old_name_still_works(tmp_path: Path, era: str) -> None:
    def config(prefix: str) -> Path:
        return settings(tmp_path, server=listed(tmp_path, "server", tool("run"), prefix=prefix))

    async with over_stdio(tmp_path, era, "--config", str(config("old"))) as client:
        assert "old__run" in [each.name for each in await every_tool(client)]
    async with over_stdio(tmp_path, era, "--config", str(config("new"))) as client:
        names = [each.name for each in await every_tool(client)]
        assert "new__run" in names and "old__run" not in names
        for name in ("new__run", "old__run", "server:run", "run"):
            assert (await arrived(client, name, {}))["name"] == "run"
    assert "NAME_TAKEN" not in (tmp_path / "stderr.log").read_text()


@pytest.mark.parametrize("era", ERAS)
def test_first_list_waits_for_a_slow_server_and_nothing_else_does(tmp_path: Path, era: str) -> None:
    slow = listed(tmp_path, "slow", tool("late"), after=str(tmp_path / "go"))
    with on_stdio(tmp_path, "--config", str(settings(tmp_path, slow=slow))) as gateway:
        if era == HANDSHAKE:
            assert "result" in gateway.ask(INITIALIZE)
            gateway.send(INITIALIZED)
        gateway.send(request(era, 1, "tools/list"))
        assert "result" in gateway.ask(request(era, 2, "tools/call", {"name": "list_directory", "arguments": {}}))
        (tmp_path / "go").touch()
        assert "slow__late" in [each["name"] for each in gateway.receive()["result"]["tools"]]


async def test_start_waits_once_for_a_server_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = listed(tmp_path, "hanging", tool("never"), after=str(tmp_path / "never"))
    known = {**listed(tmp_path, "known", tool("here")), "lazy": False}
    options = {"data_dir": str(tmp_path / "data"), "mcpServers": {"hanging": hanging, "known": known}}
    monkeypatch.setattr("gateway.gateway.STARTUP_SECONDS", 0.1)
    async with Gateway.open(options, follow=True) as gateway:
        assert gateway.first_lists() is not None
        await async_eventually(lambda: gateway.catalog.get("known__here"))
    listed(tmp_path, "known", tool("here"), after=str(tmp_path / "never"))  # from now on it hangs, too
    monkeypatch.setattr("gateway.gateway.STARTUP_SECONDS", 600.0)
    monkeypatch.setattr("gateway.gateway.NEXT_LIST_SECONDS", 0.1)
    with anyio.fail_after(TIMEOUT):
        async with Gateway.open(options, follow=True) as gateway:
            assert gateway.catalog.get("known__here") is not None
            await async_eventually(lambda: gateway.first_lists() is None)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_call_by_bare_name_has_structured_content(tmp_path: Path, mode: Any) -> None:
    class Source:
        name = "box"

        async def list_tools(self) -> list[Tool]:
            return [Tool("box:count", "", output_schema={"type": "object"}, owner="box", category="filesystem")]

        async def call_tool(self, call: Call) -> Outcome:
            return Outcome(value={"n": 1})

    options = {"data_dir": str(tmp_path / "data"), "categories": {"filesystem": {"permission": "execute"}}}
    async with (
        Gateway.open(options, sources=[Source()]) as gateway,
        Client(McpServer(Handlers(gateway.executor, gateway.versions)).sdk, mode=mode) as client,
    ):
        for name in ("box__count", "box:count", "count"):
            assert (await call(client, name, {})).structured_content == {"n": 1}


async def test_tools_left_out_and_unchecked_are_said_on_stderr_and_by_doctor(tmp_path: Path) -> None:
    broken = listed(tmp_path, "odd", tool("int", ODD["int"]), {"name": "none"}, tool("fine"))
    file = settings(tmp_path, odd=broken)
    async with over_stdio(tmp_path, MODERN, "--config", str(file)) as client:
        assert {"odd__int", "odd__fine"} <= {each.name for each in await every_tool(client)}
    log = (tmp_path / "stderr.log").read_text()
    command = [*serve_command(tmp_path / "data")[:3], "doctor", "--wait", "120", "--data-dir", str(tmp_path / "data")]
    doctor = await anyio.run_process([*command, "--config", str(file)], env=environment(tmp_path), check=False)
    for output in (log, doctor.stdout.decode()):
        assert output.count("odd:none is left out: the server lists it without an input schema") == 1
        assert output.count("odd:int: its input schema is no JSON Schema") == 1
        assert "its arguments are sent unchecked" in output
