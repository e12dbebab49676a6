"""The Python SDK's client, in both eras over both transports, with everything it can do with a builtin tool."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import EmptyResult

from gateway.sources.builtin.source import load
from gateway.tools import Permission

from .clients import CALL_ID, call, every_tool, over_http, over_stdio, refusal, text, value
from .processes import Listening, on_http
from .wire import ERAS, HANDSHAKE, MODERN

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

OFFERED = [builtin.tool for kind in ("files", "versions") for builtin in load(kind)]
READING = {tool.id for tool in OFFERED if tool.permission is Permission.READ_ONLY}
WRITING = {tool.id for tool in OFFERED if tool.permission is Permission.READ_WRITE}
# Arguments and returns every client may count on; a tool may take and give more.
SEED = {
    "list_directory": ({"path", "recursive", "includeHidden"}, {"entries"}),
    "read_file": ({"path", "encoding"}, {"content", "size", "modified"}),
    "write_file": ({"path", "content", "encoding", "createDirs"}, {"path", "size"}),
    "delete_file": ({"path", "recursive"}, {"deleted"}),
    "move_file": ({"from", "to", "overwrite"}, {"from", "to"}),
}


@pytest.mark.promise("G3")
async def test_client_of_each_version_is_served_in_its_version(client: Client, request: pytest.FixtureRequest) -> None:
    wanted = MODERN if "modern" in request.node.callspec.params["client"] else HANDSHAKE
    assert client.protocol_version == wanted
    assert client.server_info is not None
    assert client.server_info.name == "toolgate"
    assert client.server_capabilities.tools is not None


@pytest.mark.promise("C1")
async def test_every_builtin_tool_is_listed_once_over_all_pages(client: Client) -> None:
    names = [tool.name for tool in await every_tool(client)]
    assert sorted(names) == sorted(READING | WRITING)


@pytest.mark.promise("C1")
async def test_listed_tool_has_schemas_and_annotations(client: Client) -> None:
    for tool in await every_tool(client):
        assert tool.description, tool.name
        assert tool.input_schema["type"] == "object", tool.name
        assert tool.output_schema is not None, tool.name
        assert tool.output_schema["type"] == "object", tool.name
        assert tool.annotations is not None, tool.name
        assert tool.annotations.read_only_hint is (tool.name in READING), tool.name


@pytest.mark.promise("C1")
async def test_the_listed_schemas_carry_the_arguments_and_returns_of_the_seed(client: Client) -> None:
    tools = {tool.name: tool for tool in await every_tool(client)}
    for name, (arguments, returns) in SEED.items():
        schema = tools[name].output_schema
        assert schema is not None
        assert arguments <= tools[name].input_schema["properties"].keys(), name
        assert returns <= schema["properties"].keys(), name
    delete = tools["delete_file"].annotations
    assert delete is not None
    assert delete.destructive_hint is True


@pytest.mark.promise("C1")
async def test_a_file_that_was_written_is_read_back_and_listed(client: Client, chat: str) -> None:
    written = await call(client, "write_file", {"path": "notes.txt", "content": "grüße\n"}, chat)
    assert written.structured_content == {"path": "notes.txt", "size": 8, "created": True}
    assert "notes.txt" in text(written)

    read = await call(client, "read_file", {"path": "notes.txt"}, chat)
    assert read.structured_content is not None
    assert read.structured_content["content"] == "grüße\n"
    assert read.structured_content["size"] == 8
    assert "grüße" in text(read)

    listed = await value(client, "list_directory", {"path": "."}, chat)
    assert [(entry["name"], entry["type"], entry["size"]) for entry in listed["entries"]] == [("notes.txt", "file", 8)]


@pytest.mark.promise("C6")
async def test_every_result_carries_the_id_of_its_own_call(client: Client, chat: str) -> None:
    results = [
        await call(client, "list_directory", {"path": "."}, chat),
        await call(client, "read_file", {"path": "nowhere.txt"}, chat),
        await call(client, "delete_file", {"path": "nowhere.txt"}, chat),
        await call(client, "no_such_tool", {}, chat),
    ]
    call_ids = {(result.meta or {})[CALL_ID] for result in results}
    assert len(call_ids) == 4
    assert all(isinstance(call_id, str) and call_id for call_id in call_ids)


@pytest.mark.promise("C6")
async def test_a_missing_file_is_an_error_the_model_and_a_program_can_read(client: Client, chat: str) -> None:
    error = await refusal(client, "read_file", {"path": "nowhere.txt"}, chat)
    assert error["code"] == "FILE_NOT_FOUND"
    assert "nowhere.txt" in error["message"]


@pytest.mark.promise("C6")
@pytest.mark.parametrize("path", ["../outside.txt", "/etc/passwd", "a/../../b", "nul\0byte"])
async def test_a_path_that_leaves_the_workspace_is_refused(client: Client, chat: str, path: str) -> None:
    assert (await refusal(client, "read_file", {"path": path}, chat))["code"] == "INVALID_PATH"


@pytest.mark.promise("C6")
async def test_binary_file_is_refused_as_text_and_returned_as_base64(client: Client, chat: str) -> None:
    content = base64.b64encode(b"\xff\xfe\x00plain").decode()
    await value(client, "write_file", {"path": "raw.bin", "content": content, "encoding": "base64"}, chat)

    assert (await refusal(client, "read_file", {"path": "raw.bin"}, chat))["code"] == "NOT_UTF8"
    read = await value(client, "read_file", {"path": "raw.bin", "encoding": "base64"}, chat)
    assert (read["content"], read["size"]) == (content, 8)


@pytest.mark.promise("C5")
async def test_a_client_that_cannot_ask_its_user_is_refused_a_deletion(client: Client, chat: str) -> None:
    await value(client, "write_file", {"path": "keep.txt", "content": "kept"}, chat)

    assert (await refusal(client, "delete_file", {"path": "keep.txt"}, chat))["code"] == "CONFIRMATION_REQUIRED"
    assert (await value(client, "read_file", {"path": "keep.txt"}, chat))["content"] == "kept"


@pytest.mark.promise("C5")
async def test_a_client_that_cannot_ask_its_user_is_refused_an_overwrite(client: Client, chat: str) -> None:
    await value(client, "write_file", {"path": "keep.txt", "content": "kept"}, chat)

    error = await refusal(client, "write_file", {"path": "keep.txt", "content": "lost"}, chat)
    assert error["code"] == "CONFIRMATION_REQUIRED"
    assert (await value(client, "read_file", {"path": "keep.txt"}, chat))["content"] == "kept"


@pytest.mark.promise("C5")
@pytest.mark.slow
async def test_files_are_overwritten_and_deleted_where_approval_is_off(tmp_path: Path) -> None:
    config = tmp_path / "toolgate.yaml"
    config.write_text("approval: {mode: never}\n")
    with on_http(tmp_path, "--config", str(config)) as gateway:
        for era in ERAS:
            async with over_http(f"{gateway.url}?chat={era}", era) as client:
                await value(client, "write_file", {"path": "a.txt", "content": "one"})
                await value(client, "write_file", {"path": "a.txt", "content": "two"})
                assert (await value(client, "read_file", {"path": "a.txt"}))["content"] == "two"
                assert await value(client, "delete_file", {"path": "a.txt"}) == {"deleted": ["a.txt"], "count": 1}
                assert (await value(client, "list_directory", {"path": "."}))["entries"] == []


@pytest.mark.promise("C6")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "'path' is required"),
        ({"path": 7}, "path"),
        ({"path": None}, "path"),
        ({"path": "a.txt", "paht": "b.txt"}, "'paht' is not an argument"),
        ({"path": "a.txt", "encoding": "latin-1"}, "encoding"),
    ],
    ids=["missing", "number", "null", "unknown", "not-one-of"],
)
async def test_wrong_arguments_are_refused_by_name(
    client: Client, chat: str, arguments: dict[str, Any], named: str
) -> None:
    error = await refusal(client, "read_file", arguments, chat)
    assert error["code"] == "INVALID_ARGUMENTS"
    assert named in error["message"]


@pytest.mark.promise("C6")
async def test_an_unknown_tool_is_refused_by_name(client: Client, chat: str) -> None:
    error = await refusal(client, "raed_file", {"path": "a.txt"}, chat)
    assert error["code"] == "UNKNOWN_TOOL"
    assert "raed_file" in error["message"]


@pytest.mark.promise("G3")
@pytest.mark.parametrize(
    "client", [pytest.param("stdio_handshake", marks=pytest.mark.slow), "http_handshake"], indirect=True
)
async def test_a_handshake_client_may_ping(client: Client) -> None:
    assert await client.send_ping() == EmptyResult()


@pytest.mark.promise("C1")
async def test_two_chats_of_one_client_never_see_each_others_files(client: Client, chat: str) -> None:
    await value(client, "write_file", {"path": "mine.txt", "content": "mine"}, chat)

    error = await refusal(client, "read_file", {"path": "mine.txt"}, f"{chat}-other")
    assert error["code"] == "FILE_NOT_FOUND"
    assert (await value(client, "list_directory", {"path": "."}, f"{chat}-other"))["entries"] == []


@pytest.mark.promise("X2")
async def test_fifty_calls_at_once_are_all_answered_each_with_its_own_result(client: Client, chat: str) -> None:
    written: dict[str, Any] = {}

    async def write(path: str) -> None:
        written[path] = await value(client, "write_file", {"path": path, "content": path * 3}, chat)

    paths = [f"many-{number:02}.txt" for number in range(50)]
    async with anyio.create_task_group() as tasks:
        for path in paths:
            tasks.start_soon(write, path)

    assert written == {path: {"path": path, "size": 33, "created": True} for path in paths}
    listed = await value(client, "list_directory", {"path": "."}, chat)
    assert sorted(entry["name"] for entry in listed["entries"]) == paths


@pytest.mark.promise("X2")
async def test_client_that_cancels_its_calls_keeps_its_connection(client: Client, chat: str) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(call, client, "write_file", {"path": f"{number}.txt", "content": "x" * 100_000}, chat)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    await value(client, "write_file", {"path": "after.txt", "content": "still here"}, chat)
    assert (await value(client, "read_file", {"path": "after.txt"}, chat))["content"] == "still here"


@pytest.mark.promise("C1")
@pytest.mark.parametrize("era", ERAS)
async def test_the_url_chooses_the_chat_and_a_request_may_choose_another(
    listening: Listening, chat: str, era: str
) -> None:
    async with over_http(f"{listening.url}?chat={chat}", era) as client:
        await value(client, "write_file", {"path": "by-url.txt", "content": "url"})
        await value(client, "write_file", {"path": "by-meta.txt", "content": "meta"}, f"{chat}-meta")
        assert await _names(client) == ["by-url.txt"]
        assert await _names(client, f"{chat}-meta") == ["by-meta.txt"]
    async with over_http(listening.url, era) as elsewhere:
        assert await _names(elsewhere, chat) == ["by-url.txt"]


@pytest.mark.promise("C1")
async def test_two_handshake_sessions_over_http_have_a_workspace_each(listening: Listening) -> None:
    async with over_http(listening.url, HANDSHAKE) as one, over_http(listening.url, HANDSHAKE) as other:
        for client in (one, other):  # a client that keeps its session lists the tools in it
            await client.list_tools()
        await value(one, "write_file", {"path": "one.txt", "content": "1"})
        await value(other, "write_file", {"path": "other.txt", "content": "2"})
        assert await _names(one) == ["one.txt"]
        assert await _names(other) == ["other.txt"]


@pytest.mark.promise("C1")
async def test_without_a_session_or_a_choice_every_request_is_of_the_default_chat(
    listening: Listening, chat: str
) -> None:
    async with over_http(listening.url, MODERN) as client:
        await value(client, "write_file", {"path": f"{chat}.txt", "content": "x"})
        assert f"{chat}.txt" in await _names(client, "default")


@pytest.mark.promise("C1")
@pytest.mark.slow
async def test_the_command_line_chooses_the_chat_and_its_files_outlive_the_process(tmp_path: Path) -> None:
    async with over_stdio(tmp_path, HANDSHAKE, "--chat", "novel") as client:
        await value(client, "write_file", {"path": "chapter.md", "content": "# One\n"})
    async with over_stdio(tmp_path, MODERN) as client:
        assert await _names(client) == []
        assert (await value(client, "read_file", {"path": "chapter.md"}, "novel"))["content"] == "# One\n"


@pytest.mark.promise("B11")
async def test_ten_megabytes_of_argument_are_refused_with_the_limit(client: Client, chat: str) -> None:
    error = await refusal(client, "write_file", {"path": "big.txt", "content": "x" * 10_000_000}, chat)
    assert error["code"] == "REQUEST_TOO_LARGE"
    assert str(8 * 1024 * 1024) in error["message"]
    assert await _names(client, chat) == []


async def _names(client: Client, chat: str | None = None) -> list[str]:
    listed = await value(client, "list_directory", {"path": "."}, chat)
    return sorted(entry["name"] for entry in listed["entries"])
