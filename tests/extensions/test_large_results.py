"""Large results: kept where they can be read in parts, answered by their beginning, and never lost."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from journeys.servers import labs

from gateway import Gateway
from gateway.calls import Call, Caller, Outcome
from gateway.config import UpstreamSettings
from gateway.db.chats import Chats
from gateway.db.manifests import Manifests
from gateway.db.sqlite import SqliteDatabase
from gateway.errors import InputRequired, ToolFailed
from gateway.extensions import stack
from gateway.extensions.large_results import PREVIEW_CHARACTERS, LargeResults
from gateway.serve.mcp.uris import file_uri
from gateway.tools import Permission, Tool
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G2")]

LIMIT = 100_000
MAXIMUM = 1_000_000
LINES = "".join(f"line {number}\n" for number in range(20_000))
PNG = bytes(range(256)) * 1000
TOOL = Tool("lab:get/it all", "", {"type": "object"}, kind="mcp", owner="lab")
TYPED = Tool("lab:typed", "", {"type": "object"}, kind="mcp", owner="lab", output_schema={"type": "object"})


class Fixture:
    """The extension over real files, around a tool that gives what it is told to."""

    def __init__(self, versions: Versions, folder: Path) -> None:
        self.versions = versions
        self.folder = folder
        self._extension = LargeResults(versions, lambda _: LIMIT, MAXIMUM, file_uri)

    async def answer(self, wire: dict[str, Any], tool: Tool = TOOL, **more: Any) -> tuple[Call, Outcome]:
        call = Call(name=tool.id, arguments={}, tool=tool, chat="c", **more)

        async def run(_: Call) -> Outcome:
            return as_source(wire)

        return call, await stack([self._extension], run)(call)

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()
        }


def as_source(wire: dict[str, Any]) -> Outcome:
    """As the source of upstreams makes it."""
    content = wire["content"]
    error = ToolFailed("no") if wire.get("isError") else None
    value = None if error else wire.get("structuredContent", content)
    return Outcome(value=value, error=error, content=content, wire=wire)


@pytest.fixture
async def fixture(tmp_path: Path) -> AsyncIterator[Fixture]:
    db = await SqliteDatabase.open(tmp_path / "toolgate.db")
    workspaces = Workspaces(tmp_path)
    versions = Versions(Manifests(db), Chats(db), workspaces)
    yield Fixture(versions, workspaces.path("c"))
    await versions.close()
    await db.close()


def text(block: Mapping[str, Any]) -> str:
    return str(block["text"])


async def test_large_text_is_replaced_by_its_beginning_and_a_link(fixture: Fixture) -> None:
    notes = {"annotations": {"audience": ["user"]}, "_meta": {"lab.example/x": 1}}
    last = {"type": "text", "text": "and that is all"}
    call, outcome = await fixture.answer({"content": [{"type": "text", "text": LINES, **notes}, last], "x": 1})
    path = f"results/lab/get-it-all-{call.id}.txt"
    assert fixture.files() == {path: LINES.encode()}
    assert outcome.content is not None
    beginning, link, rest = outcome.content
    assert text(beginning).startswith("line 0\nline 1\n")
    assert f"{len(LINES)} bytes, saved in full as the file {path!r}" in text(beginning)
    assert len(text(beginning)) < PREVIEW_CHARACTERS + 300
    assert link == {
        "type": "resource_link",
        "uri": f"workspace://c/{path}",
        "name": path.rpartition("/")[2],
        "mimeType": "text/plain",
        "size": len(LINES),
        **notes,
    }
    assert beginning.items() >= notes.items()
    assert rest == last
    assert outcome.value == outcome.content
    assert (outcome.wire or {})["x"] == 1


async def test_large_result_is_saved_as_a_version_of_its_call(fixture: Fixture) -> None:
    (fixture.folder / "mine.txt").write_text("mine")
    call, outcome = await fixture.answer({"content": [{"type": "text", "text": LINES}]}, message="m")
    assert outcome.pre_manifest is not None
    assert outcome.post_manifest is not None
    before = await fixture.versions.tree("c", outcome.pre_manifest)
    after = await fixture.versions.tree("c", outcome.post_manifest)
    assert {*before.files} == {"mine.txt"}
    assert {*after.files} == {"mine.txt", f"results/lab/get-it-all-{call.id}.txt"}
    row = await fixture.versions.find("c", outcome.post_manifest)
    assert (row.source, row.source_ref) == ("tool_run", call.id)
    async with fixture.versions.hold("c", "local") as held:
        assert held.head.message_id == "m"


@pytest.mark.parametrize(
    ("block", "ending", "content"),
    [
        ({"type": "image", "mimeType": "image/png"}, "png", PNG),
        ({"type": "audio", "mimeType": "audio/x-wav; rate=8000"}, "wav", PNG),
        ({"type": "image", "mimeType": "../../etc"}, "bin", PNG),
    ],
)
async def test_large_images_and_audio_are_saved_decoded(
    fixture: Fixture, block: dict[str, Any], ending: str, content: bytes
) -> None:
    data = base64.b64encode(content).decode()
    call, outcome = await fixture.answer({"content": [{**block, "data": data}]})
    path = f"results/lab/get-it-all-{call.id}.{ending}"
    assert fixture.files() == {path: content}
    assert outcome.content is not None
    settings, link = outcome.content
    assert f"of {len(content)} bytes, saved in full as the file {path!r}" in text(settings)
    assert (link["mimeType"], link["size"]) == (block["mimeType"], len(content))


async def test_large_embedded_resources_are_saved_with_their_type(fixture: Fixture) -> None:
    page = {"uri": "x://page", "mimeType": "text/html", "text": f"<p>{LINES}"}
    blob = {"uri": "x://blob", "blob": base64.b64encode(PNG).decode()}
    odd = {"uri": "x://odd", "blob": "?" * LIMIT}
    blocks = [{"type": "resource", "resource": each} for each in (page, blob, odd)]
    call, _ = await fixture.answer({"content": blocks})
    name = f"results/lab/get-it-all-{call.id}"
    assert fixture.files() == {
        f"{name}.html": page["text"].encode(),
        f"{name}-2.bin": PNG,
        f"{name}-3.json": json.dumps(blocks[2], separators=(",", ":")).encode(),
    }


async def test_large_result_of_very_many_small_parts_is_saved_as_one_file(fixture: Fixture) -> None:
    blocks = [{"type": "text", "text": f"{number} " + "x" * 990} for number in range(200)]
    call, outcome = await fixture.answer({"content": blocks})
    [(path, content)] = fixture.files().items()
    assert path == f"results/lab/get-it-all-{call.id}.json"
    assert json.loads(content) == blocks
    assert outcome.content is not None
    assert [block["type"] for block in outcome.content] == ["text", "resource_link"]
    assert text(outcome.content[0]).startswith("0 xxx")


async def test_large_structured_content_is_saved_unless_the_tool_has_an_output_schema(fixture: Fixture) -> None:
    value = {"rows": [LINES]}
    wire = {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}
    call, outcome = await fixture.answer(dict(wire))
    name = f"results/lab/get-it-all-{call.id}"
    assert {path: json.loads(content) for path, content in fixture.files().items()} == {
        f"{name}.json": value,
        f"{name}-2.json": value,
    }
    assert "structuredContent" not in (outcome.wire or {})
    assert outcome.value == outcome.content

    call, typed = await fixture.answer(dict(wire), TYPED)
    assert f"results/lab/typed-{call.id}.json" in fixture.files()
    assert (typed.wire or {})["structuredContent"] == typed.value == value
    assert [block["type"] for block in typed.content or ()] == ["text", "resource_link"]


async def test_large_error_is_saved_and_remains_an_error(fixture: Fixture) -> None:
    _, outcome = await fixture.answer({"content": [{"type": "text", "text": LINES}], "isError": True})
    assert isinstance(outcome.error, ToolFailed)
    assert list(fixture.files().values()) == [LINES.encode()]
    assert (outcome.wire or {})["isError"] is True
    assert len(outcome.content or ()) == 2


async def test_result_that_is_small_or_asks_or_is_too_large_is_returned_unchanged(fixture: Fixture) -> None:
    for size in (LIMIT - 1000, MAXIMUM + 1):
        wire = {"content": [{"type": "text", "text": "x" * size}]}
        assert (await fixture.answer(wire))[1] == as_source(wire)
    asked = Outcome(error=InputRequired("?", reason="?"), wire={"inputRequests": {"q": {"message": LINES}}})
    call = Call(name="x", arguments={}, tool=TOOL, chat="c")
    assert LargeResults(fixture.versions, lambda _: 1, MAXIMUM, file_uri).after_execute(call, asked) is None
    assert fixture.files() == {}


async def test_large_result_that_cannot_be_saved_is_returned_whole(fixture: Fixture) -> None:
    wire = {"content": [{"type": "text", "text": LINES}]}
    (fixture.folder / "results").write_text("a file")
    assert (await fixture.answer(wire))[1] == as_source(wire)
    (fixture.folder / "results").unlink()
    assert (await fixture.answer(wire))[1] != as_source(wire)
    assert (await fixture.answer(wire, caller=Caller(principal="bob")))[1] == as_source(wire)  # the chat is not his


@asynccontextmanager
async def gateway_to(directory: Path, **more: Any) -> AsyncIterator[Gateway]:
    limits = {"response_bytes": MAXIMUM}
    settings = {
        "data_dir": str(directory),
        "approval": {"mode": "never"},
        "limits": limits,
        "profiles": {"reader": {"permission": "read-only"}},
        "mcpServers": {"lab": {**labs.on_stdio(), "large_results": {"over": LIMIT}, **more.pop("server", {})}},
        **more,
    }
    async with Gateway.open(settings) as gateway:
        yield gateway


async def lines(gateway: Gateway, size: int = LIMIT + 8, **more: Any) -> Outcome:
    return await gateway.call("lab__large", {"size": size, "kind": "lines"}, chat="c", **more)


async def test_gateway_saves_large_results_of_its_servers_and_records_them(tmp_path: Path) -> None:
    async with gateway_to(tmp_path) as gateway:
        outcome = await lines(gateway)
        assert outcome.content is not None
        path = outcome.content[1]["uri"].removeprefix("workspace://c/")
        with gateway.versions.root("c") as root, root.open(tuple(path.split("/"))) as file:
            assert file.read().startswith(b"line 0\nline 1\n")
        [record] = await gateway.records.list_calls()
        assert (record.pre_manifest_id, record.post_manifest_id) == (outcome.pre_manifest, outcome.post_manifest)
        refused = await lines(gateway, MAXIMUM * 2)
        assert refused.error is not None
        assert refused.error.code == "RESPONSE_TOO_LARGE"


@pytest.mark.parametrize("off", [{"server": {"large_results": "off"}}, {"profile": "reader"}])
async def test_gateway_saves_no_large_result_where_it_is_off_or_read_only(tmp_path: Path, off: dict[str, Any]) -> None:
    server = {"permission": "read-only", **off.get("server", {})}
    async with gateway_to(tmp_path, **{**off, "server": server}) as gateway:
        outcome = await lines(gateway)
        assert [block["type"] for block in outcome.content or ()] == ["text"], outcome.error
        assert outcome.post_manifest is None
        reader = Caller(permission=Permission.READ_ONLY)
        assert (await lines(gateway, caller=reader)).post_manifest is None


def test_large_results_setting_off_needs_no_quotes_in_yaml() -> None:
    settings = UpstreamSettings.model_validate({"command": "x", "large_results": False, "pinning": False})
    assert (settings.large_results.over, settings.pinning) == (None, "off")
