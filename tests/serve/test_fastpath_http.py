"""Calls in progress on the fast path over HTTP: notifications before the response, cancellation, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT, async_eventually

from gateway.identity import OWNER, Principal
from gateway.protocol import CLIENT_INFO_META_KEY, LOG_LEVEL_META_KEY
from gateway.serve.http import fastpath
from gateway.serve.mcp import event_streams
from gateway.serve.mcp.fastpath import Envelope, parse_modern

from .servers import ABLE, ENVELOPE, Client, Exchange, Servers, call, open_servers, request

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G3")]

ERAS = ["modern", "handshake"]
ACCEPTED = {"action": "accept", "content": {"answer": "42"}}


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path) as opened:
        yield opened


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks after a client and pings it sooner than one would."""
    monkeypatch.setattr(fastpath, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(fastpath, "PING_SECONDS", 0.02)


async def client_of(servers: Servers, era: str) -> Client:
    return Client(servers.fast) if era == "modern" else await servers.session(ABLE)


def make_call(era: str, tool: str, arguments: dict[str, Any] | None = None, number: int | str = 1, **meta: Any) -> Any:
    envelope = ENVELOPE if era == "modern" else {}
    return call(f"stall__{tool}", arguments, number, envelope=envelope, **({"meta": meta} if meta else {}))


def value(message: Any) -> str:
    assert message["result"]["isError"] is False, message
    text: str = message["result"]["content"][0]["text"]
    return text


def cancellation(number: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number, "reason": "no"}}


async def start_call(servers: Servers, client: Client, message: Any) -> Exchange:
    exchange = client.send(message)
    with anyio.fail_after(TIMEOUT):
        await servers.source.begun.wait()
    servers.source.begun.clear()
    return exchange


@pytest.mark.parametrize("era", ERAS)
async def test_progress_is_sent_before_the_response(servers: Servers, era: str) -> None:
    client = await client_of(servers, era)
    answer = await client.ask(make_call(era, "count", progressToken="t"))
    *received, last = answer.messages
    assert [each["params"] for each in received] == [
        {"progressToken": "t", "progress": 1, "total": 3, "message": "on"},
        {"progressToken": "t", "progress": 2.5},
        {"progressToken": "t", "progress": 3, "total": 3},
    ]
    assert value(last) == '"counted"'
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers.get("mcp-session-id") == client.session.get("mcp-session-id")


@pytest.mark.parametrize("era", ERAS)
async def test_response_without_notifications_is_plain_json_with_the_call_id(servers: Servers, era: str) -> None:
    answer = await (await client_of(servers, era)).ask(make_call(era, "count"))
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.body))
    [record] = await servers.gateway.records.list_calls()
    assert answer.headers["toolgate-call-id"] == record.id == answer.message["result"]["_meta"]["dev.toolgate/call_id"]


@pytest.mark.parametrize("era", ERAS)
async def test_progress_after_the_response_is_dropped(servers: Servers, era: str) -> None:
    client = await client_of(servers, era)
    answer = await client.ask(make_call(era, "late", progressToken=1))
    assert [value(message) for message in answer.messages] == ['"answered"']
    servers.source.go.set()
    with anyio.fail_after(TIMEOUT):
        await servers.source.begun.wait()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("era", ERAS)
async def test_silent_stream_is_pinged_until_the_response(servers: Servers, era: str) -> None:
    exchange = await start_call(servers, await client_of(servers, era), make_call(era, "wait"))
    await exchange.until(event_streams.PING * 3)
    servers.source.go.set()
    answer = await exchange.answer()
    assert value(answer.message) == '"waited"'
    assert answer.headers["content-type"] == "text/event-stream"


async def test_question_is_sent_on_the_stream_of_its_call_and_answered_by_another_request(servers: Servers) -> None:
    client = await servers.session(ABLE)
    exchange = client.send(make_call("handshake", "ask"))
    question = await exchange.event()
    assert (question["method"], question["params"]["message"]) == ("elicitation/create", "what?")
    response = await client.ask({"jsonrpc": "2.0", "id": question["id"], "result": ACCEPTED})
    assert (response.status, response.body, response.headers["mcp-session-id"]) == (
        202,
        b"",
        client.session["mcp-session-id"],
    )
    assert value((await exchange.answer()).message) == '{"action":"accept","content":{"answer":"42"}}'
    again = await client.ask({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}})
    assert again.status == 202


@pytest.mark.parametrize(
    ("response", "received"),
    [
        ({"error": {"code": -1, "message": "no", "data": [1]}}, {"code": -1, "message": "no", "data": [1]}),
        ({"error": {"code": -1}}, {"code": -32600, "data": None}),
        ({"result": 5}, {"code": -32600, "data": None}),
        ({}, {"code": -32600, "data": None}),
    ],
    ids=["no", "no error", "no result", "nothing"],
)
async def test_error_response_to_a_question_reaches_the_tool(
    servers: Servers, response: dict[str, Any], received: dict[str, Any]
) -> None:
    client = await servers.session(ABLE)
    exchange = client.send(make_call("handshake", "ask"))
    question = await exchange.event()
    assert (await client.ask({"jsonrpc": "2.0", "id": question["id"], **response})).status == 202
    answered = (await exchange.answer()).message["result"]["content"][0]["text"]
    for each in (f'"code":{received["code"]}', '"message":'):
        assert each in answered


async def test_question_is_answered_only_by_the_client_that_was_asked(servers: Servers) -> None:
    client, other = await servers.session(ABLE), await servers.session(ABLE)
    exchange = client.send(make_call("handshake", "ask"))
    question = await exchange.event()
    await other.ask({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}})
    await other.ask(cancellation(1))
    assert not exchange.done.done()
    await client.ask({"jsonrpc": "2.0", "id": question["id"], "result": ACCEPTED})
    assert "accept" in value((await exchange.answer()).message)


@pytest.mark.parametrize("number", [1, "1", "a"])
async def test_call_in_a_session_is_cancelled_by_its_client(servers: Servers, number: int | str) -> None:
    client = await servers.session()
    exchange = await start_call(servers, client, make_call("handshake", "wait", number=number))
    assert (await client.ask(cancellation("1" if number == 1 else number))).status == 202
    answer = await exchange.answer()
    assert answer.message == {
        "jsonrpc": "2.0",
        "id": number,
        "error": {"code": -32800, "message": "Request cancelled"},
    }
    assert (answer.status, len(servers.source.ended)) == (200, 1)
    assert await servers.records() == [("error", "CANCELLED")]


async def test_question_is_withdrawn_when_its_call_is_cancelled(servers: Servers) -> None:
    client = await servers.session(ABLE)
    exchange = client.send(make_call("handshake", "ask"))
    question = await exchange.event()
    await client.ask(cancellation(1))
    withdrawn, last = (await exchange.answer()).messages[1:]
    assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", question["id"])
    assert last["error"]["code"] == -32800
    assert await servers.records() == [("error", "CANCELLED")]


async def test_reply_that_only_the_sdk_can_parse_reaches_the_call_that_asked(servers: Servers) -> None:
    client = await servers.session(ABLE)
    exchange = client.send(make_call("handshake", "ask"))
    question = await exchange.event()
    content = {"action": "accept", "content": {"answer": 10**20}}
    reply = {"jsonrpc": "2.0", "id": question["id"], "result": content}
    assert (await client.ask(reply)).status == 202
    assert str(10**20) in value((await exchange.answer()).message)


async def test_cancellation_that_only_the_sdk_can_parse_ends_its_call(servers: Servers) -> None:
    client = await servers.session()
    exchange = await start_call(servers, client, make_call("handshake", "wait"))
    message = cancellation(1)
    message["params"]["_meta"] = {"number": 10**20}
    assert (await client.ask(message)).status == 202
    assert (await exchange.answer()).message["error"]["code"] == -32800


@pytest.mark.parametrize("number", [True, 1.0, None, [1], "2"])
async def test_cancellation_with_another_id_cancels_nothing(servers: Servers, number: Any) -> None:
    client = await servers.session()
    exchange = await start_call(servers, client, make_call("handshake", "wait"))
    await client.ask(cancellation(number))
    servers.source.go.set()
    assert value((await exchange.answer()).message) == '"waited"'


@pytest.mark.usefixtures("hasty")
async def test_modern_client_that_disconnects_cancels_its_call(servers: Servers) -> None:
    exchange = await start_call(servers, Client(servers.fast), make_call("modern", "wait"))
    exchange.leave()
    with anyio.fail_after(TIMEOUT):
        await exchange.done
    assert len(servers.source.ended) == 1
    assert await servers.records() == [("error", "CANCELLED")]
    assert b"jsonrpc" not in exchange.body


@pytest.mark.usefixtures("hasty")
async def test_cleanup_of_a_cancelled_call_is_not_interrupted(servers: Servers) -> None:
    exchange = await start_call(servers, Client(servers.fast), make_call("modern", "save"))
    exchange.leave()
    with anyio.fail_after(TIMEOUT):
        await exchange.done
    assert servers.source.ended[1:] == ["saved"]
    assert await servers.records() == [("error", "CANCELLED")]


async def test_deleted_session_cancels_only_its_own_calls(servers: Servers) -> None:
    client, other = await servers.session(), await servers.session()
    exchange = await start_call(servers, client, make_call("handshake", "wait"))
    spared = await start_call(servers, other, make_call("handshake", "wait"))
    assert (await client.delete()).status == 200
    assert (await exchange.answer()).message["error"]["code"] == -32800
    assert not spared.done.done()
    servers.source.go.set()
    assert value((await spared.answer()).message) == '"waited"'
    assert (await client.ask(make_call("handshake", "echo"))).status == 404


async def test_second_initialized_notification_keeps_calls_in_progress(servers: Servers) -> None:
    client = await servers.session(ABLE)
    exchange = client.send(make_call("handshake", "ask"))
    question = await exchange.event()
    await client.ask({"jsonrpc": "2.0", "method": "notifications/initialized"})
    await client.ask(request("ping", envelope={}))
    await client.ask({"jsonrpc": "2.0", "id": question["id"], "result": ACCEPTED})
    assert "accept" in value((await exchange.answer()).message)


async def test_two_calls_with_the_same_id_are_both_answered(servers: Servers) -> None:
    client = await servers.session()
    first = await start_call(servers, client, make_call("handshake", "wait", number=5))
    second = await start_call(servers, client, make_call("handshake", "wait", number="5"))
    servers.source.go.set()
    assert [(await each.answer()).message["id"] for each in (first, second)] == [5, "5"]


async def test_response_being_written_is_not_cancelled(servers: Servers) -> None:
    client = await servers.session()
    exchange = client.send(make_call("handshake", "count"))
    exchange.stop_reading()
    await exchange.started()
    assert (await client.ask(cancellation(1))).status == 202
    exchange.resume_reading()
    assert value((await exchange.answer()).message) == '"counted"'


@pytest.mark.parametrize("era", ERAS)
async def test_request_cancelled_by_the_server_ends_its_call(servers: Servers, era: str) -> None:
    client = await client_of(servers, era)
    exchange = await start_call(servers, client, make_call(era, "wait"))
    if session := servers.server.handlers.sessions.get(client.session.get("mcp-session-id")):
        assert session.take_reply(cancellation(1))  # at the same time its client gives up
    exchange.done.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.done
    records = await async_eventually(servers.records)  # a call that is cut off twice does not wait for the commit
    assert records == [("error", "CANCELLED")]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("in_time", [True, False])
async def test_stopping_gateway_finishes_its_calls_or_answers_with_an_error(
    tmp_path: Path, era: str, in_time: bool
) -> None:
    async with open_servers(tmp_path, server={"shutdown_grace": TIMEOUT if in_time else 0}) as servers:
        client = await client_of(servers, era)
        exchange = await start_call(servers, client, make_call(era, "wait"))
        stopping = asyncio.ensure_future(servers.gateway.drain())
        await anyio.sleep(0.02)
        if in_time:
            servers.source.go.set()
        message = (await exchange.answer()).message
        await stopping
        if in_time:
            assert value(message) == '"waited"'
        else:
            assert message["result"]["_meta"]["dev.toolgate/error"]["code"] == "SHUTTING_DOWN"
        refused = (await client.ask(make_call(era, "echo", number=2))).message
        assert refused["result"]["_meta"]["dev.toolgate/error"]["code"] == "SHUTTING_DOWN"


@pytest.mark.slow
async def test_session_used_on_the_fast_path_is_not_idle_and_an_unused_one_is(servers: Servers) -> None:
    def is_known(client: Client) -> bool:
        return servers.server.handlers.sessions.get(client.session["mcp-session-id"]) is not None

    servers.server.sdk.session_manager.session_idle_timeout = (
        4  # no busy machine lets so much time pass between two uses
    )
    used, waiting, forgotten = [await servers.session() for _ in range(3)]
    running = await start_call(servers, waiting, make_call("handshake", "wait"))
    with anyio.fail_after(TIMEOUT):
        while is_known(forgotten):
            await anyio.sleep(0.1)
            assert (await used.ask(make_call("handshake", "echo"))).status == 200
    assert (await forgotten.ask(make_call("handshake", "echo"))).status == 404
    servers.source.go.set()
    assert value((await running.answer()).message) == '"waited"'
    assert (await waiting.ask(make_call("handshake", "echo"))).status == 200
    await async_eventually(lambda: not is_known(used) and not is_known(waiting))
    assert [(await each.ask(make_call("handshake", "echo"))).status for each in (used, waiting)] == [404, 404]


@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
async def test_list_and_call_take_the_fast_path_in_both_versions(servers: Servers, method: str) -> None:
    """Or these tests would say nothing of it: the SDK answers a session with streams, and names no call."""
    client = await servers.session()
    params = {"name": "stall__echo"} if method == "tools/call" else {}
    older = await client.ask(request(method, params, envelope={}))
    assert older.headers["content-type"] == "application/json"
    newer = await Client(servers.fast).ask(request(method, params))
    assert ("toolgate-call-id" in newer.headers) == (method == "tools/call")


async def test_description_of_a_client_is_reused_only_word_for_word_and_for_its_own_principal() -> None:
    async def ignore(message: object) -> None:
        pass

    def parse(known: Envelope | None, changed: dict[str, Any], principal: Principal = OWNER) -> Any:
        params = {"name": "echo", "_meta": {**ENVELOPE, **changed}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return parse_modern(message, principal, "default", ignore, known=known)

    first, known = parse(None, {})
    again, same = parse(known, {})
    assert same is known and again.caller == first.caller
    other = {CLIENT_INFO_META_KEY: {"name": "other", "version": "2"}}
    assert parse(known, other)[0].caller.client == "other 2"
    assert parse(known, {}, Principal("ann"))[0].caller.principal == "ann"
    assert parse(known, {LOG_LEVEL_META_KEY: "loud"}) is None
    _, known = parse(None, {"com.example/flag": 1})
    assert parse(known, {"com.example/flag": True})[0].client.meta["com.example/flag"] is True
