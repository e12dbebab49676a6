"""A chat's files as resources, from the real process, in both eras over both transports."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from eventually import TIMEOUT
from mcp import Client
from mcp.shared.exceptions import MCPError

from .clients import over_http, over_stdio, value
from .processes import Listening
from .wire import HANDSHAKE, MODERN

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600), pytest.mark.promise("G4")]

MANIFESTS = types.ResourceTemplateReference(uri="workspace://{chat}/{+path}{?manifest}")
ODD = ["grüße & co.txt", "50% #1?.txt", "日本/語 (2).txt"]


@dataclass
class Road:
    """A connected client, the chat it works in, the folder that chat's files are in, and what it is told."""

    client: Client
    era: str
    chat: str
    folder: Path
    told: list[str] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)

    async def hear(self, message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            self.told.append(message.params.uri)
        elif isinstance(message, types.ResourceListChangedNotification):
            self.told.append("list")
        self.news.set()

    async def hears(self, expected: str) -> None:
        with anyio.fail_after(TIMEOUT):
            while expected not in self.told:
                await self.news.wait()
                self.news = anyio.Event()

    @asynccontextmanager
    async def following(self, uri: str) -> AsyncIterator[None]:
        if self.era != MODERN:
            await self.client.subscribe_resource(uri)
            yield
            await self.client.unsubscribe_resource(uri)
            return
        async with self.client.listen(resources_list_changed=True, resource_subscriptions=[uri]):
            yield  # the client hands what comes on the stream to its message handler too

    async def read(self, uri: str) -> str | bytes:
        [read] = (await self.client.read_resource(uri)).contents
        return read.text if isinstance(read, types.TextResourceContents) else base64.b64decode(read.blob)

    async def refusal(self, uri: str) -> types.ErrorData:
        with pytest.raises(MCPError) as refused:
            await self.client.read_resource(uri)
        return refused.value.error


@pytest.fixture(params=[MODERN, pytest.param(HANDSHAKE, marks=pytest.mark.slow)])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[pytest.param("stdio", marks=pytest.mark.slow), "http"])
async def road(
    request: pytest.FixtureRequest, era: str, chat: str, tmp_path: Path, listening: Listening
) -> AsyncIterator[Road]:
    async def hear(message: Any) -> None:
        await travelled.hear(message)

    home = tmp_path if request.param == "stdio" else listening.log.parent
    connection = (
        over_stdio(tmp_path, era, "--chat", chat, hear=hear)
        if request.param == "stdio"
        else over_http(f"{listening.url}?chat={chat}", era, hear)
    )
    async with connection as client:
        travelled = Road(client, era, chat, home / "data" / "chats" / chat / "workspace")
        yield travelled


async def test_file_is_listed_read_subscribed_and_read_in_an_earlier_version(road: Road) -> None:
    client, uri = road.client, f"workspace://{road.chat}/notes/plan.md"
    await value(client, "write_file", {"path": "notes/plan.md", "content": "first\n", "createDirs": True})
    [listed] = (await client.list_resources()).resources
    assert (listed.uri, listed.title, listed.mime_type, listed.size) == (uri, "notes/plan.md", "text/markdown", 6)
    assert await road.read(uri) == "first\n"

    edit = {"oldText": "first", "newText": "second"}
    async with road.following(uri):
        await value(client, "edit_file", {"path": "notes/plan.md", "edits": [edit]})
        await road.hears(uri)
        assert await road.read(uri) == "second\n"
        road.told.clear()
        await value(client, "write_file", {"path": "more.txt", "content": ""})
        await road.hears("list")

    completed = await client.complete(MANIFESTS, {"name": "manifest", "value": ""}, {"chat": road.chat})
    third, second, first = completed.completion.values
    assert await road.read(f"{uri}?manifest={first}") == "first\n"
    assert await road.read(f"{uri}?manifest={second}") == "second\n"
    manifest = json.loads(await road.read(f"manifest://{third}"))
    assert manifest["parent"] == second
    assert manifest["files"].keys() == {"notes/plan.md", "more.txt"}
    assert manifest["changes"] == {"added": ["more.txt"], "changed": [], "deleted": []}


async def test_large_files_and_odd_names_are_read_and_nothing_outside_the_workspace(road: Road) -> None:
    for name in ODD:
        await value(road.client, "write_file", {"path": name, "content": name, "createDirs": True})
    whole = os.urandom(3 * 1024 * 1024)
    (road.folder / "big.bin").write_bytes(whole)
    (road.folder.parent / "secret.txt").write_text("SECRET")
    (road.folder / "link").symlink_to(road.folder.parent)

    listed = {str(resource.title): resource for resource in (await road.client.list_resources()).resources}
    assert listed.keys() == {*ODD, "big.bin"}
    assert [await road.read(listed[name].uri) for name in ODD] == ODD

    size, uri = listed["big.bin"].size, listed["big.bin"].uri
    assert size == len(whole)
    assert f"{size} bytes" in (await road.refusal(uri)).message
    step = 512 * 1024
    pieces = [await road.read(f"{uri}?offset={offset}&length={step}") for offset in range(0, size, step)]
    assert b"".join(piece for piece in pieces if isinstance(piece, bytes)) == whole

    for path in ("../secret.txt", "%2e%2e/secret.txt", "..%2Fsecret.txt", "/etc/passwd", "link/secret.txt"):
        refused = await road.refusal(f"workspace://{road.chat}/{path}")
        assert (refused.code, refused.data["code"]) == (types.INVALID_PARAMS, "INVALID_PATH")
        assert "SECRET" not in str(refused) and str(road.folder.parent) not in str(refused)
    missing = await road.refusal(f"workspace://{road.chat}/none.txt")
    assert missing.code == (types.INVALID_PARAMS if road.era == MODERN else -32002)


@pytest.mark.promise("T2")
async def test_edit_branch_switch_diff_and_undo_change_the_files_and_are_notified(road: Road) -> None:
    uri = f"workspace://{road.chat}/a.txt"

    async def at(message: str, parent: str | None, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        meta: Any = {"dev.toolgate/chat": road.chat, "dev.toolgate/message": message}
        if parent is not None:
            meta["dev.toolgate/parent_message"] = parent
        result = await road.client.call_tool(name, arguments, meta=meta)
        assert isinstance(result, types.CallToolResult) and not result.is_error, result.content
        return result

    def edit(old: str, new: str) -> dict[str, Any]:
        return {"path": "a.txt", "edits": [{"oldText": old, "newText": new}]}

    await at("m1", None, "write_file", {"path": "a.txt", "content": "one\n"})
    async with road.following(uri):
        await at("m2", "m1", "edit_file", edit("one", "two"))
        await road.hears(uri)
        assert await road.read(uri) == "two\n"

        road.told.clear()
        await at("m2-again", "m1", "edit_file", edit("one", "other"))  # from the earlier message: a branch
        await road.hears(uri)
        assert await road.read(uri) == "other\n"

        road.told.clear()
        await at("m2", None, "list_directory", {"path": "."})  # back to the first branch
        await road.hears(uri)
        assert await road.read(uri) == "two\n"

    shown = await value(road.client, "workspace_diff", {}, road.chat)
    assert "-one\n+two\n" in shown["diff"]
    command = [sys.executable, "-m", "gateway", "workspace", "undo", "--yes", "--chat", road.chat]
    await anyio.run_process([*command, "--data-dir", str(road.folder.parents[2])])  # by a person, meanwhile
    assert await road.read(uri) == "one\n"
    history = await value(road.client, "workspace_history", {}, road.chat)
    assert [each["source"] for each in history["versions"]].count("tool_run") == 3


@pytest.mark.promise("T2")
async def test_a_chat_whose_messages_of_a_person_call_no_tools_keeps_its_files_and_begins_anew_when_asked(
    road: Road,
) -> None:
    async def at(message: str, parent: str, name: str, **arguments: Any) -> None:
        keys = {"chat": road.chat, "message": message, "parent_message": parent}
        meta: Any = {f"dev.toolgate/{key}": named for key, named in keys.items()}
        result = await road.client.call_tool(name, arguments, meta=meta)
        assert isinstance(result, types.CallToolResult) and not result.is_error, result.content

    def names() -> set[str]:
        return {path.name for path in road.folder.iterdir()}

    await at("answer-1", "question-1", "write_file", path="a.txt", content="1")
    await at("answer-2", "question-2", "write_file", path="b.txt", content="2")
    assert names() == {"a.txt", "b.txt"}
    await at("answer-2-again", "question-2", "write_file", path="c.txt", content="3")
    assert names() == {"a.txt", "c.txt"}
    await at("answer-1-anew", "", "list_directory")
    assert names() == set()
    await at("answer-2", "question-2", "list_directory")
    assert names() == {"a.txt", "b.txt"}
