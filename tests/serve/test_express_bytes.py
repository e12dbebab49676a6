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

from .roads import Answer, Bench, Client, bench, call, on_pipes, request

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G3")]

TEXT = '{"type": "text", "text": "gr\\u00fc\\u00dfe"}'
# As no library of ours would write it; ID is the id it answers.
ODD = f"""{{ "id":"ID" , "result":{{"tomorrow":[1.50,1e2],"content":[{TEXT}],
"resultType":"complete"}},"jsonrpc":"2.0"}}
"""

LEVEL = "io.modelcontextprotocol/logLevel"


def plain(result: Mapping[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": "ID", "result": {"resultType": "complete", **result}})


def written(words: str, number: int | str = 1) -> bytes:
    return words.replace('"ID"', json.dumps(number)).encode()


def said(text: str, **more: Any) -> dict[str, Any]:
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
        body = written(self.words, request.body["id"])
        if self.kind == "application/json":
            request.answer(self.status, body, content_type=self.kind)
            return
        request.stream()
        for message in self.before:
            request.event(message)
        request.chunk(b"data: %s\n\n" % body.replace(b"\n", b" "))
        request.end()


@asynccontextmanager
async def fronting(directory: Path, **settings: Any) -> AsyncIterator[tuple[Bench, Upstream]]:
    upstream = Upstream()
    server: Scripted
    async with scripted(modern(upstream.serve)) as (server, url):
        async with bench(directory, mcpServers={"up": {"url": url, **settings}}) as opened:
            yield opened, upstream
        server.drop()


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[tuple[Bench, Upstream]]:
    async with fronting(tmp_path) as (opened, upstream):
        yield opened, upstream


async def spoken(desk: Bench, number: int | str = 1, **meta: Any) -> Answer:
    return await Client(desk.short).ask(call("up__speak", {}, number, **({"meta": meta} if meta else {})))


def own(answer: Answer) -> Any:
    """The result of an answer that is ours: it says which call it is, and that we gave it."""
    result = answer.message["result"]
    meta = result["_meta"]
    assert meta["dev.toolgate/call_id"] == answer.headers["toolgate-call-id"]
    assert meta["io.modelcontextprotocol/serverInfo"]["name"] == "toolgate"
    return result


@pytest.mark.parametrize("number", [1, 0, -7, 10**17, "", "a", "1", 'q"\\'])
async def test_the_answer_leaves_as_it_came_and_its_call_is_named_in_a_header(
    front: tuple[Bench, Upstream], number: int | str
) -> None:
    desk, upstream = front
    answer = await spoken(desk, number)
    assert answer.body == written(ODD, number)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["content-length"] == str(len(answer.body))
    [record] = await desk.gateway.records.list_calls()
    assert (record.id, record.status) == (answer.headers["toolgate-call-id"], "success")
    assert upstream.asked[0]["id"] == number


async def test_the_call_is_recorded_before_its_answer_leaves(front: tuple[Bench, Upstream]) -> None:
    desk, _ = front
    exchange = Client(desk.short).send(call("up__speak"))
    exchange.stop_hearing()
    await exchange.started()
    [record] = await desk.gateway.records.list_calls()
    kept = await desk.gateway.records.get(record.id)
    assert (kept.status, json.loads(kept.result or "null")) == ("success", [{"type": "text", "text": "grüße"}])
    exchange.hear_again()
    await exchange.answer()


@pytest.mark.parametrize("block", [LINK, EMBEDDED], ids=["link", "embedded"])
async def test_a_result_with_addresses_in_it_has_them_told_apart_by_server(tmp_path: Path, block: Any) -> None:
    async with fronting(tmp_path / "a") as (desk, upstream):
        upstream.words = plain({"content": [block], "kept": 1})
        result = own(await spoken(desk))
        [shown] = result["content"]
        assert (shown.get("uri") or shown["resource"]["uri"]).startswith("mcp+up:notes://")
        assert result["kept"] == 1
    async with fronting(tmp_path / "b", prefix="") as (desk, upstream):
        upstream.words = plain({"content": [block]})
        answer = await Client(desk.short).ask(call("speak"))
        assert answer.body == written(upstream.words)


@pytest.mark.parametrize("key", ["dev.toolgate/call_id", r"dev.toolgate\/call_id", r"\u0064ev.toolgate/call_id"])
async def test_no_server_says_what_is_ours_to_say(front: tuple[Bench, Upstream], key: str) -> None:
    desk, upstream = front
    upstream.words = plain(said("x", _meta={"KEY": "forged", "lab.example/own": 1})).replace("KEY", key)
    answer = await spoken(desk)
    assert b"forged" not in answer.body
    assert own(answer)["_meta"]["lab.example/own"] == 1


async def test_a_tools_own_error_leaves_as_it_came_and_is_recorded_as_one(front: tuple[Bench, Upstream]) -> None:
    desk, upstream = front
    upstream.words = plain(said("not today", isError=True, why="kept"))
    assert (await spoken(desk)).body == written(upstream.words)
    [(status, _)] = await desk.records()
    assert status == "error"


async def test_a_result_that_is_shown_in_a_way_of_ours_says_so(tmp_path: Path) -> None:
    shown = {"speak": {"renderer": "code", "renderer_config": {"content": "$return"}}}
    async with fronting(tmp_path, overrides=shown) as (desk, upstream):
        upstream.words = plain(said("x"))
        result = own(await spoken(desk))
        assert [block["type"] for block in result["content"]] == ["text", "resource_link"]


@pytest.mark.parametrize(("code", "status"), [(-32077, 200), (-32602, 400), (-32601, 404)])
async def test_a_servers_error_keeps_its_words(front: tuple[Bench, Upstream], code: int, status: int) -> None:
    desk, upstream = front
    error = {"code": code, "message": "closed", "data": {"until": [9, None]}}
    upstream.words = '{"jsonrpc":"2.0","id":"ID","error":' + json.dumps(error) + "}"
    answer = await spoken(desk)
    assert (answer.status, answer.message) == (status, {"jsonrpc": "2.0", "id": 1, "error": error})
    assert (await desk.records())[0][0] == "error"


async def test_a_servers_question_is_handed_on_as_ours(front: tuple[Bench, Upstream]) -> None:
    desk, upstream = front
    form = {"mode": "form", "message": "what?", "requestedSchema": {"type": "object", "properties": {}}}
    asking = {"q": {"method": "elicitation/create", "params": form}}
    upstream.words = plain({"resultType": "input_required", "inputRequests": asking, "requestState": "s"})
    capable: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    result = own(await spoken(desk, **capable))
    named = {**form, "message": labs.question("up", "what?"), "_meta": {"dev.toolgate/server": "up"}}
    asked = {"q": {"method": "elicitation/create", "params": named}}
    assert (result["resultType"], result["inputRequests"]) == ("input_required", asked)
    upstream.words = ODD
    again = call("up__speak", meta=capable)
    again["params"] |= {"inputResponses": {"q": {"action": "decline"}}, "requestState": result["requestState"]}
    answer = await Client(desk.short).ask(again)
    assert answer.message["result"]["tomorrow"] == [1.5, 100.0]
    assert upstream.asked[-1]["params"]["inputResponses"] == {"q": {"action": "decline"}}


async def test_an_answer_on_a_stream_is_written_anew(front: tuple[Bench, Upstream]) -> None:
    desk, upstream = front
    upstream.kind = "text/event-stream"
    assert own(await spoken(desk))["content"] == [{"type": "text", "text": "grüße"}]


@pytest.mark.parametrize("words", [plain({"structuredContent": {"a": 1}}), plain({"content": None}), plain({})])
async def test_a_result_without_content_gets_some(front: tuple[Bench, Upstream], words: str) -> None:
    desk, upstream = front
    upstream.words = words
    assert own(await spoken(desk))["content"] == []


async def test_a_large_result_leaves_as_it_came_where_it_is_not_kept_as_a_file(tmp_path: Path) -> None:
    async with fronting(tmp_path / "a", large_results="off") as (desk, upstream):
        upstream.words = plain(said("x" * 2_000_000))
        assert (await spoken(desk)).body == written(upstream.words)
    async with fronting(tmp_path / "b") as (desk, upstream):
        upstream.words = plain(said("x" * 2_000_000))
        answer = await spoken(desk)
        assert len(answer.body) < 100_000
        own(answer)


async def test_only_who_can_read_the_bytes_gets_them(front: tuple[Bench, Upstream]) -> None:
    desk, _ = front
    session = await desk.session()
    older = (await session.ask(call("up__speak", envelope={}))).message["result"]
    assert ("resultType" in older, older["tomorrow"]) == (False, [1.5, 100.0])
    async with on_pipes(desk.gateway) as pipes:
        await pipes.ask(request("server/discover"))
        piped = await pipes.ask(call("up__speak"))
        assert "dev.toolgate/call_id" in piped["result"]["_meta"]


async def test_an_answer_of_several_lines_is_one_event_of_a_stream(
    front: tuple[Bench, Upstream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that took long enough for a ping."""
    monkeypatch.setattr(fastpath, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(fastpath, "PING_SECONDS", 0.01)
    desk, upstream = front
    upstream.go = anyio.Event()
    upstream.words = json.dumps(json.loads(written(ODD)), indent=2).replace("\n", "\r\n")
    exchange = Client(desk.short).send(call("up__speak"))
    await exchange.until(fastpath.PING)
    upstream.go.set()
    answer = await exchange.answer()
    assert answer.message == json.loads(written(ODD))
    assert answer.body.count(b"\r\ndata: ") == 1


@pytest.mark.parametrize("number", ["7", '"1"', "null", "true", "1.0"])
async def test_an_answer_to_another_request_is_no_answer(front: tuple[Bench, Upstream], number: str) -> None:
    desk, upstream = front
    upstream.words = ODD.replace('"ID"', number)
    answer = await spoken(desk)
    assert answer.message["id"] == 1 and type(answer.message["id"]) is int
    assert answer.message["result"].get("isError") or number == '"1"'  # some servers hand a number back as text


@pytest.mark.parametrize("frame", ["[%s]", "[1, %s]"])
async def test_a_batch_of_one_leaves_as_one(front: tuple[Bench, Upstream], frame: str) -> None:
    desk, upstream = front
    upstream.words = frame % ODD
    assert isinstance((await spoken(desk)).message, dict)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", '"\\ud800"'])
async def test_what_is_no_json_to_others_is_written_anew(front: tuple[Bench, Upstream], value: str) -> None:
    desk, upstream = front
    upstream.words = plain(said("x", odd="HERE")).replace('"HERE"', value)
    answer = await spoken(desk)
    assert value.encode() not in answer.body
    own(answer)


async def test_an_answer_never_reaches_the_call_of_another(front: tuple[Bench, Upstream]) -> None:
    """The id of a client's request may be the number by which the link knows another's."""
    desk, upstream = front
    waiting = upstream.go = anyio.Event()
    others = [Client(desk.short).send(call("up__speak", {}, f"other {n}")) for n in range(12)]
    await async_eventually(lambda: len(upstream.asked) >= len(others))
    upstream.go = anyio.Event()
    upstream.go.set()
    upstream.words = plain(said("for 8 alone")).replace('"ID"', '"8"')  # as text, as some servers give numbers back
    await spoken(desk, 8)
    upstream.words = ODD
    waiting.set()
    assert [(await each.answer()).body for each in others] == [written(ODD, f"other {n}") for n in range(12)]


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_log_messages_are_told_from_the_wanted_level_on(front: tuple[Bench, Upstream], era: str) -> None:
    desk, upstream = front
    upstream.kind = "text/event-stream"
    levels = ["debug", "info", "warning", "error", "nonsense"]
    upstream.before = [{"method": "notifications/message", "params": {"level": each, "data": each}} for each in levels]
    upstream.before.append({"method": "notifications/message", "params": {"level": ["error"], "data": 1}})
    if era == "modern":
        none, some = await spoken(desk), await spoken(desk, **{LEVEL: "warning"})
    else:
        client = await desk.session()
        none = await client.ask(call("up__speak", envelope={}))
        await client.ask(request("logging/setLevel", {"level": "warning"}, envelope={}))
        some = await client.ask(call("up__speak", envelope={}))
    assert len(none.messages) == 1
    *told, last = some.messages
    assert [each["params"]["level"] for each in told] == ["warning", "error"]
    assert last["result"]["tomorrow"] == [1.5, 100.0]
