"""An upstream's answer as its bytes: passed on as they came where nothing of ours must be in them, and only there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import async_eventually
from journeys.servers import labs
from mcp_client.scripted import Request, Scripted, modern, scripted

from gateway.serve.http import fastpath
from gateway.serve.mcp import event_streams

from .servers import Answer, Client, Servers, call, open_servers, request, serve_on_pipes

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G3")]

TEXT = '{"type": "text", "text": "gr\\u00fc\\u00dfe"}'
# As no library of ours would write it; ID is the id it answers.
ODD = f"""{{ "id":"ID" , "result":{{"tomorrow":[1.50,1e2],"content":[{TEXT}],
"resultType":"complete"}},"jsonrpc":"2.0"}}
"""

LEVEL = "io.modelcontextprotocol/logLevel"


def plain(result: Mapping[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": "ID", "result": {"resultType": "complete", **result}})


def encode(words: str, number: int | str = 1) -> bytes:
    return words.replace('"ID"', json.dumps(number)).encode()


def text_result(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **more}


LINK = {"type": "resource_link", "uri": "notes://one", "name": "one"}
EMBEDDED = {"type": "resource", "resource": {"uri": "notes://two", "text": "x"}}


class Upstream:
    """Answers a call with the words it is given."""

    def __init__(self) -> None:
        self.words = ODD
        self.kind = "application/json"
        self.status = 200
        self.before: list[dict[str, Any]] = []
        self.go = anyio.Event()
        self.go.set()
        self.asked: list[Any] = []

    async def serve(self, request: Request) -> None:
        if request.body["method"] == "tools/list":
            tools = [{"name": "speak", "inputSchema": {"type": "object"}}]
            request.result({"resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private"})
            return
        self.asked.append(request.body)
        await self.go.wait()
        body = encode(self.words, request.body["id"])
        if self.kind == "application/json":
            request.answer(self.status, body, content_type=self.kind)
            return
        request.stream()
        for message in self.before:
            request.event(message)
        request.chunk(b"data: %s\n\n" % body.replace(b"\n", b" "))
        request.end()


@asynccontextmanager
async def fronting(directory: Path, **settings: Any) -> AsyncIterator[tuple[Servers, Upstream]]:
    upstream = Upstream()
    server: Scripted
    async with scripted(modern(upstream.serve)) as (server, url):
        async with open_servers(directory, mcpServers={"up": {"url": url, **settings}}) as opened:
            yield opened, upstream
        server.drop()


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[tuple[Servers, Upstream]]:
    async with fronting(tmp_path) as (opened, upstream):
        yield opened, upstream


async def call_upstream(servers: Servers, number: int | str = 1, **meta: Any) -> Answer:
    return await Client(servers.fast).ask(call("up__speak", {}, number, **({"meta": meta} if meta else {})))


def own(answer: Answer) -> Any:
    """The result of an answer that is ours: it says which call it is, and that we gave it."""
    result = answer.message["result"]
    meta = result["_meta"]
    assert meta["dev.toolgate/call_id"] == answer.headers["toolgate-call-id"]
    assert meta["io.modelcontextprotocol/serverInfo"]["name"] == "toolgate"
    return result


@pytest.mark.parametrize("number", [1, 0, -7, 10**17, "", "a", "1", 'q"\\'])
async def test_upstream_response_is_passed_on_unchanged_with_the_call_id_in_a_header(
    front: tuple[Servers, Upstream], number: int | str
) -> None:
    servers, upstream = front
    answer = await call_upstream(servers, number)
    assert answer.body == encode(ODD, number)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["content-length"] == str(len(answer.body))
    [record] = await servers.gateway.records.list_calls()
    assert (record.id, record.status) == (answer.headers["toolgate-call-id"], "success")
    assert upstream.asked[0]["id"] == number


async def test_call_is_recorded_before_its_response_is_sent(front: tuple[Servers, Upstream]) -> None:
    servers, _ = front
    exchange = Client(servers.fast).send(call("up__speak"))
    exchange.stop_reading()
    await exchange.started()
    [record] = await servers.gateway.records.list_calls()
    kept = await servers.gateway.records.get(record.id)
    assert (kept.status, json.loads(kept.result or "null")) == ("success", [{"type": "text", "text": "grüße"}])
    exchange.resume_reading()
    await exchange.answer()


@pytest.mark.parametrize("block", [LINK, EMBEDDED], ids=["link", "embedded"])
async def test_uris_in_a_result_get_the_prefix_of_their_server(tmp_path: Path, block: Any) -> None:
    async with fronting(tmp_path / "a") as (servers, upstream):
        upstream.words = plain({"content": [block], "kept": 1})
        result = own(await call_upstream(servers))
        [shown] = result["content"]
        assert (shown.get("uri") or shown["resource"]["uri"]).startswith("mcp+up:notes://")
        assert result["kept"] == 1
    async with fronting(tmp_path / "b", prefix="") as (servers, upstream):
        upstream.words = plain({"content": [block]})
        answer = await Client(servers.fast).ask(call("speak"))
        assert answer.body == encode(upstream.words)


@pytest.mark.parametrize("key", ["dev.toolgate/call_id", r"dev.toolgate\/call_id", r"\u0064ev.toolgate/call_id"])
async def test_upstream_cannot_set_meta_keys_of_the_gateway(front: tuple[Servers, Upstream], key: str) -> None:
    servers, upstream = front
    upstream.words = plain(text_result("x", _meta={"KEY": "forged", "lab.example/own": 1})).replace("KEY", key)
    answer = await call_upstream(servers)
    assert b"forged" not in answer.body
    assert own(answer)["_meta"]["lab.example/own"] == 1


async def test_tool_error_is_passed_on_unchanged_and_recorded_as_an_error(front: tuple[Servers, Upstream]) -> None:
    servers, upstream = front
    upstream.words = plain(text_result("not today", isError=True, why="kept"))
    assert (await call_upstream(servers)).body == encode(upstream.words)
    [(status, _)] = await servers.records()
    assert status == "error"


async def test_result_with_a_renderer_links_to_its_plan(tmp_path: Path) -> None:
    shown = {"speak": {"renderer": "code", "renderer_config": {"content": "$return"}}}
    async with fronting(tmp_path, overrides=shown) as (servers, upstream):
        upstream.words = plain(text_result("x"))
        result = own(await call_upstream(servers))
        assert [block["type"] for block in result["content"]] == ["text", "resource_link"]


@pytest.mark.parametrize(("code", "status"), [(-32077, 200), (-32602, 400), (-32601, 404)])
async def test_upstream_error_keeps_its_message(front: tuple[Servers, Upstream], code: int, status: int) -> None:
    servers, upstream = front
    error = {"code": code, "message": "closed", "data": {"until": [9, None]}}
    upstream.words = '{"jsonrpc":"2.0","id":"ID","error":' + json.dumps(error) + "}"
    answer = await call_upstream(servers)
    assert (answer.status, answer.message) == (status, {"jsonrpc": "2.0", "id": 1, "error": error})
    assert (await servers.records())[0][0] == "error"


async def test_upstream_question_is_passed_on_as_ours(front: tuple[Servers, Upstream]) -> None:
    servers, upstream = front
    form = {"mode": "form", "message": "what?", "requestedSchema": {"type": "object", "properties": {}}}
    asking = {"q": {"method": "elicitation/create", "params": form}}
    upstream.words = plain({"resultType": "input_required", "inputRequests": asking, "requestState": "s"})
    capable: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    result = own(await call_upstream(servers, **capable))
    named = {**form, "message": labs.question("up", "what?"), "_meta": {"dev.toolgate/server": "up"}}
    asked = {"q": {"method": "elicitation/create", "params": named}}
    assert (result["resultType"], result["inputRequests"]) == ("input_required", asked)
    upstream.words = ODD
    again = call("up__speak", meta=capable)
    again["params"] |= {"inputResponses": {"q": {"action": "decline"}}, "requestState": result["requestState"]}
    answer = await Client(servers.fast).ask(again)
    assert answer.message["result"]["tomorrow"] == [1.5, 100.0]
    assert upstream.asked[-1]["params"]["inputResponses"] == {"q": {"action": "decline"}}


async def test_upstream_response_on_a_stream_is_encoded_again(front: tuple[Servers, Upstream]) -> None:
    servers, upstream = front
    upstream.kind = "text/event-stream"
    assert own(await call_upstream(servers))["content"] == [{"type": "text", "text": "grüße"}]


async def test_structured_result_without_content_gets_content(front: tuple[Servers, Upstream]) -> None:
    servers, upstream = front
    upstream.words = plain({"structuredContent": {"a": 1}})
    assert own(await call_upstream(servers))["content"] == []


@pytest.mark.parametrize("words", [plain({"content": None}), plain({})])
async def test_result_without_anything_is_an_error_of_the_upstream(front: tuple[Servers, Upstream], words: str) -> None:
    servers, upstream = front
    upstream.words = words
    [block] = own(await call_upstream(servers))["content"]
    assert block["text"].startswith("UPSTREAM_ERROR: up:speak answered with no result of a tool")


async def test_large_result_that_is_not_stored_is_passed_on_unchanged(tmp_path: Path) -> None:
    async with fronting(tmp_path / "a", large_results="off") as (servers, upstream):
        upstream.words = plain(text_result("x" * 2_000_000))
        assert (await call_upstream(servers)).body == encode(upstream.words)
    async with fronting(tmp_path / "b") as (servers, upstream):
        upstream.words = plain(text_result("x" * 2_000_000))
        answer = await call_upstream(servers)
        assert len(answer.body) < 100_000
        own(answer)


async def test_only_a_modern_client_gets_the_bytes_unchanged(front: tuple[Servers, Upstream]) -> None:
    servers, _ = front
    session = await servers.session()
    older = (await session.ask(call("up__speak", envelope={}))).message["result"]
    assert ("resultType" in older, older["tomorrow"]) == (False, [1.5, 100.0])
    async with serve_on_pipes(servers.gateway) as pipes:
        await pipes.ask(request("server/discover"))
        piped = await pipes.ask(call("up__speak"))
        assert "dev.toolgate/call_id" in piped["result"]["_meta"]


async def test_response_of_several_lines_is_one_event(
    front: tuple[Servers, Upstream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that took long enough for a ping."""
    monkeypatch.setattr(fastpath, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(fastpath, "PING_SECONDS", 0.01)
    servers, upstream = front
    upstream.go = anyio.Event()
    upstream.words = json.dumps(json.loads(encode(ODD)), indent=2).replace("\n", "\r\n")
    exchange = Client(servers.fast).send(call("up__speak"))
    await exchange.until(event_streams.PING)
    upstream.go.set()
    answer = await exchange.answer()
    assert answer.message == json.loads(encode(ODD))
    assert answer.body.count(b"\r\ndata: ") == 1


@pytest.mark.parametrize("number", ["7", '"1"', "null", "true", "1.0"])
async def test_upstream_response_with_another_id_is_ignored(front: tuple[Servers, Upstream], number: str) -> None:
    servers, upstream = front
    upstream.words = ODD.replace('"ID"', number)
    answer = await call_upstream(servers)
    assert answer.message["id"] == 1 and type(answer.message["id"]) is int
    assert answer.message["result"].get("isError") or number == '"1"'  # some servers hand a number back as text


@pytest.mark.parametrize("frame", ["[%s]", "[1, %s]"])
async def test_batch_of_one_response_is_passed_on(front: tuple[Servers, Upstream], frame: str) -> None:
    servers, upstream = front
    upstream.words = frame % ODD
    assert isinstance((await call_upstream(servers)).message, dict)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", '"\\ud800"'])
async def test_invalid_json_number_is_encoded_again(front: tuple[Servers, Upstream], value: str) -> None:
    servers, upstream = front
    upstream.words = plain(text_result("x", odd="HERE")).replace('"HERE"', value)
    answer = await call_upstream(servers)
    assert value.encode() not in answer.body
    own(answer)


async def test_upstream_response_never_reaches_another_call(front: tuple[Servers, Upstream]) -> None:
    """The id of a client's request may be the number by which the link knows another's."""
    servers, upstream = front
    waiting = upstream.go = anyio.Event()
    others = [Client(servers.fast).send(call("up__speak", {}, f"other {n}")) for n in range(12)]
    await async_eventually(lambda: len(upstream.asked) >= len(others))
    upstream.go = anyio.Event()
    upstream.go.set()
    upstream.words = plain(text_result("for 8 alone")).replace(
        '"ID"', '"8"'
    )  # as text, as some servers give numbers back
    await call_upstream(servers, 8)
    upstream.words = ODD
    waiting.set()
    assert [(await each.answer()).body for each in others] == [encode(ODD, f"other {n}") for n in range(12)]


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_log_messages_are_sent_from_the_requested_level_on(front: tuple[Servers, Upstream], era: str) -> None:
    servers, upstream = front
    upstream.kind = "text/event-stream"
    levels = ["debug", "info", "warning", "error", "nonsense"]
    upstream.before = [{"method": "notifications/message", "params": {"level": each, "data": each}} for each in levels]
    upstream.before.append({"method": "notifications/message", "params": {"level": ["error"], "data": 1}})
    if era == "modern":
        none, some = await call_upstream(servers), await call_upstream(servers, **{LEVEL: "warning"})
    else:
        client = await servers.session()
        none = await client.ask(call("up__speak", envelope={}))
        await client.ask(request("logging/setLevel", {"level": "warning"}, envelope={}))
        some = await client.ask(call("up__speak", envelope={}))
    assert len(none.messages) == 1
    *received, last = some.messages
    assert [each["params"]["level"] for each in received] == ["warning", "error"]
    assert last["result"]["tomorrow"] == [1.5, 100.0]
