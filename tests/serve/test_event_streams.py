"""Streams of sessions that break and are resumed: what is kept, for how long, and who gets it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT, async_eventually

from gateway.serve.http import fastpath
from gateway.serve.mcp import event_streams
from gateway.serve.mcp.event_streams import ReplayStore

from .servers import Client, Exchange, Servers, call, open_servers, request

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G3")]

OLD = "2025-06-18"


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path) as opened:
        yield opened


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opens the stream of a long call sooner than one would."""
    monkeypatch.setattr(fastpath, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(fastpath, "STREAM_SECONDS", 0.01)


def in_session(tool: str, number: int | str = 1, **meta: Any) -> dict[str, Any]:
    return call(f"stall__{tool}", {}, number, envelope={}, **({"meta": meta} if meta else {}))


def ids(body: bytes) -> list[str]:
    return [line[4:].decode() for line in body.split(b"\r\n") if line.startswith(b"id: ")]


def resume(client: Client, event_id: str, **headers: str) -> Exchange:
    return client.send(None, {"last-event-id": event_id, "content-length": None, **headers}, method="GET")


async def begin(servers: Servers, client: Client, number: int | str = 1) -> Exchange:
    """Begin a call that waits until `go` is set."""
    exchange = client.send(in_session("wait", number))
    with anyio.fail_after(TIMEOUT):
        await servers.source.begun.wait()
    servers.source.begun.clear()
    return exchange


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("ends", ["before", "after"])
async def test_answer_of_a_call_whose_stream_broke_is_fetched_by_resuming(servers: Servers, ends: str) -> None:
    client = await servers.session()
    broken = await begin(servers, client)
    body = await broken.until(b"\r\n\r\n")
    assert body == b"id: 2-1\r\nretry: 1000\r\ndata: \r\n\r\n"  # the first stream was that of the handshake
    broken.leave()
    if ends == "before":
        servers.source.go.set()
        session = servers.server.handlers.sessions.get(session_id(client))
        assert session is not None
        await async_eventually(lambda: not session.calls)
    resumed = resume(client, "2-1")
    await resumed.started()
    servers.source.go.set()
    answer = await resumed.answer()
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["mcp-session-id"] == session_id(client)
    assert (answer.message["id"], answer.message["result"]["content"][0]["text"]) == (1, '"waited"')
    assert ids(answer.body) == ["2-2"]
    assert servers.source.ended == []


def session_id(client: Client) -> str:
    return client.session["mcp-session-id"]


@pytest.mark.parametrize("version", ["2025-11-25", OLD])
async def test_stream_is_resumed_after_any_of_its_events(servers: Servers, version: str) -> None:
    client = await servers.session(version=version)
    answer = await client.ask(in_session("count", progressToken="t"))
    sent = ids(answer.body)
    first = 1 if version == OLD else 2  # older clients get no event without data
    assert sent == [f"{first}-{number}" for number in range(1, first + 4)]
    for place, event_id in enumerate(sent):
        resumed = await resume(client, event_id).answer()
        assert resumed.messages == answer.messages[max(0, place - first + 2) :]
    other = await servers.session(version=version)
    assert (await resume(other, sent[0]).answer()).status == 400


@pytest.mark.usefixtures("hasty")
async def test_resumed_stream_belongs_to_the_last_who_resumed_it(servers: Servers) -> None:
    client = await servers.session()
    first = await begin(servers, client)
    await first.until(b"id: 2-1")
    second = resume(client, "2-1")
    await second.started()
    third = resume(client, "2-1")
    await third.started()
    assert (await second.answer()).body == b""
    servers.source.go.set()
    assert (await third.answer()).message["result"]["content"][0]["text"] == '"waited"'
    await async_eventually(first.done.done)
    assert ids(first.body) == ["2-1"]


@pytest.mark.usefixtures("hasty")
async def test_resumed_stream_is_pinged(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "PING_SECONDS", 0.01)
    client = await servers.session()
    first = await begin(servers, client)
    await first.until(b"id: 2-1")
    second = resume(client, "2-1")
    await second.until(event_streams.PING * 2)
    servers.source.go.set()
    await second.answer()


async def test_response_of_the_sdk_is_fetched_by_resuming_its_stream(servers: Servers) -> None:
    client = await servers.session()
    answer = await client.ask(request("resources/templates/list", envelope={}))
    [primed, last] = ids(answer.body)
    resumed = await resume(client, primed).answer()
    assert (resumed.messages, ids(resumed.body)) == (answer.messages, [last])


async def test_notifications_missed_while_disconnected_are_fetched_by_resuming(servers: Servers) -> None:
    client = await servers.session()
    stream = client.send(None, {"content-length": None}, method="GET")
    await stream.started()
    servers.server.handlers.notifications.notify_lists(["tools"])
    [first] = ids(await stream.until(b"tools/list_changed"))
    stream.leave()
    await async_eventually(stream.done.done)
    servers.server.handlers.notifications.notify_lists(["prompts", "resources"])
    resumed = resume(client, first)
    await resumed.until(b"resources/list_changed")
    servers.server.handlers.notifications.notify_lists(["tools"])
    await resumed.until(b"tools/list_changed")
    methods = [(await resumed.event())["method"].removeprefix("notifications/") for _ in range(3)]
    assert methods == ["prompts/list_changed", "resources/list_changed", "tools/list_changed"]
    resumed.leave()


@pytest.mark.parametrize("event_id", ["9-1", "0-", "x", "1", "1-1-1", "٣-1", "9" * 30 + "-1"])
async def test_unknown_event_is_refused_with_what_to_do(servers: Servers, event_id: str) -> None:
    client = await servers.session()
    answer = await resume(client, event_id.encode().decode("latin-1")).answer()
    assert answer.status == 400
    assert "send the request again" in json.loads(answer.body)["error"]["message"]


async def test_resuming_needs_a_session_and_an_event_stream(servers: Servers) -> None:
    client = await servers.session()
    await client.ask(in_session("count", progressToken="t"))
    assert (await resume(client, "2-1", **{"mcp-session-id": "other"}).answer()).status == 404
    assert (await resume(client, "2-1", accept="application/json").answer()).status == 406
    await client.delete()
    assert (await resume(client, "2-1").answer()).status == 404


@pytest.mark.usefixtures("hasty")
async def test_end_of_the_session_ends_a_resumed_stream(servers: Servers) -> None:
    client = await servers.session()
    broken = await begin(servers, client)
    await broken.until(b"id: 2-1")
    resumed = resume(client, "2-1")
    await resumed.started()
    await client.delete()
    assert (await resumed.answer()).body == b""
    assert len(servers.source.ended) == 1


async def quiet() -> None:
    """An interruption of nobody."""


async def test_kept_events_are_limited_per_session_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "SESSION_EVENTS", 10)
    monkeypatch.setattr(event_streams, "SESSION_BYTES", 5000)
    monkeypatch.setattr(event_streams, "ALL_EVENTS", 25)
    monkeypatch.setattr(event_streams, "ALL_BYTES", 12_000)
    store = ReplayStore()
    session = store.open("a")
    ended, live = session.open(quiet), session.open(quiet)
    ended.add(b"{}", last=True)
    for _ in range(9):
        live.add(b"{}")
    assert session.find("0-0") is not None
    for _ in range(3):
        live.add(b"{}")
    assert session.find("0-0") is None  # the oldest stream that has ended goes first
    assert [number for number, _, _ in live.events] == [*range(3, 13)]
    live.add(b"x" * 6000, last=True)
    assert (session.count, session.size, session.find("1-1")) == (0, 0, None)
    for name in "bcd":
        stream = store.open(name).open(quiet)
        for _ in range(10):
            stream.add(b"x" * 300)
    counts = [store.get(name).count for name in "bcd"]  # type: ignore[union-attr]
    assert sum(counts) == 25
    assert min(counts) >= 8
    for name in "abcd":
        store.close(name)
    assert (store._count, store._size) == (0, 0)
    stream.add(b"{}")  # of a call that ends after its session
    assert (store._count, store._size, stream.ended) == (0, 0, True)


async def test_events_are_kept_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(event_streams, "SWEEP_SECONDS", 0.01)
    store = ReplayStore()
    session = store.open("a")
    live, ended = session.open(quiet), session.open(quiet)
    live.add(b"{}")
    ended.add(b"{}", last=True)
    await async_eventually(lambda: store._count == 0)
    assert session.find("1-1") is None
    assert session.find("0-1") is not None  # what follows can still be fetched
    await async_eventually(lambda: store._sweep_timer is None)
