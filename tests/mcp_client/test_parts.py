"""The parts that need no server: events out of chunks, whose question it is, messages as they are written and read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp_client import ClientFace, McpFault
from gateway.mcp_client.client import ABANDONED_SECONDS, Attribution
from gateway.mcp_client.messages import RequestEncoder, decode
from gateway.mcp_client.pending_request import PROGRESS_LIMIT, Exchange, Reports
from gateway.protocol.sse import Event, EventParser, EventTooLarge

FACE = ClientFace("n", "1", {"roots": {}})


@given(
    st.lists(st.sampled_from([b"one", b'{"a": 1}', b"", b"x" * 50]), max_size=5),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_events_are_the_same_however_they_are_cut(texts: list[bytes], end: bytes, cuts: list[int]) -> None:
    lines: list[bytes] = []
    for number, text in enumerate(texts):
        lines += [b"event: e", b"id: %d" % number, b": note", b"data:" + text, b"data: more", b""]
    stream = b"".join(line + end for line in lines)
    parser, at = EventParser(10_000), 0
    found: list[Event] = []
    while at < len(stream):
        size = cuts[at % len(cuts)]
        found += parser.feed(stream[at : at + size])
        at += size
    assert found == [Event(text + b"\nmore", "e", str(number)) for number, text in enumerate(texts)]


def test_a_retry_is_told_and_an_empty_event_is_none() -> None:
    parser = EventParser(100)
    assert list(parser.feed(b"retry: 40\n\n\n\nevent: x\n\ndata: d\n\n")) == [Event(b"", retry=40), Event(b"d")]


def test_many_small_events_may_be_more_than_the_limit_and_one_may_not() -> None:
    parser = EventParser(40)
    assert len([event for _ in range(100) for event in parser.feed(b"data: small\n\n")]) == 100
    with pytest.raises(EventTooLarge):
        for _ in range(10):
            list(parser.feed(b"data: small\n"))


def test_what_python_writes_is_read() -> None:
    assert decode(b'{"jsonrpc": "2.0", "id": 1, "result": {"a": [NaN, Infinity, -Infinity]}}')[0]["result"] == {
        "a": [None, None, None]
    }
    assert decode(b'{"jsonrpc": "2.0", "result": {"a": "\\ud800 \xff"}}')[0]["result"]["a"].startswith("? ")
    assert decode(b'[{"jsonrpc": "2.0"}, 3, {"jsonrpc": "2.0", "id": 1}]') == [
        {"jsonrpc": "2.0"},
        {"jsonrpc": "2.0", "id": 1},
    ]
    for nothing in (b"", b"3", b"text", b'{"level": "info", "id": 1}', b"[" * 100_000, b'{"a"', b"\xff\xfe"):
        assert decode(nothing) == []


def test_a_request_is_written_as_its_era_has_it() -> None:
    meta = {"trace": 1, "io.modelcontextprotocol/logLevel": "info", "progressToken": "theirs"}
    old = RequestEncoder(FACE, "2025-06-18").request(7, "tools/call", {"name": "t"}, meta, {"sampling": {}}, True)
    assert old["params"] == {"name": "t", "_meta": {"trace": 1, "progressToken": 7}}
    new = RequestEncoder(FACE, "2026-07-28").request(7, "tools/list", None, meta, None, False)
    assert new["params"]["_meta"] == {
        "trace": 1,
        "io.modelcontextprotocol/logLevel": "info",
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "n", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
    }
    assert RequestEncoder(FACE, "2025-06-18").request(7, "ping", None, None, None, False) == {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "ping",
    }


class Room:
    """Requests under way, and a clock."""

    def __init__(self) -> None:
        self.under_way: dict[int, Exchange] = {}
        self.now = 0.0
        self.attribution = Attribution(self.under_way, lambda: self.now)

    def begin(self, number: int, method: str = "tools/call", asks: bool = True) -> Exchange:
        async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
            return {}

        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        exchange = Exchange(number, method, answer, ask if asks else None, Reports(None, None))
        self.under_way[number] = exchange
        return exchange

    def whose(self, origin: Exchange | None = None) -> Exchange | str:
        try:
            return self.attribution.whose("elicitation/create", origin)
        except McpFault as fault:
            return fault.message


@pytest.mark.anyio
async def test_a_question_is_answered_only_when_it_is_certain_whose_it_is() -> None:
    room = Room()
    assert "none does" in str(room.whose())
    one = room.begin(1)
    room.begin(2, "tools/list", asks=False)
    assert room.whose() is one
    silent = room.begin(3, asks=False)
    assert "which one asks" in str(room.whose())
    assert room.whose(one) is one
    assert "nobody answers" in str(room.whose(silent))
    del room.under_way[3]
    assert room.whose() is one


@pytest.mark.anyio
async def test_a_request_called_off_may_still_ask_for_a_while() -> None:
    room = Room()
    old = room.begin(1)
    del room.under_way[1]
    room.attribution.abandoned(old)
    new = room.begin(2)
    assert "which one asks" in str(room.whose())
    assert room.attribution.logger() is None
    room.now = ABANDONED_SECONDS
    assert (room.whose(), room.attribution.logger()) == (new, new)
    room.attribution.abandoned(old)
    room.attribution.settled(1)
    assert room.whose() is new


@pytest.mark.anyio
async def test_progress_reports_received_in_one_read_are_all_passed_on() -> None:
    received: list[float] = []

    async def progress(done: float, *_: Any) -> None:
        received.append(done)

    reports = Reports(progress, None)
    for number in range(PROGRESS_LIMIT):  # the task that passes them on cannot run in between
        reports.progress({"progress": number})
    await reports.told()
    assert received == [*range(PROGRESS_LIMIT)]


@pytest.mark.anyio
async def test_progress_reports_for_a_slow_listener_are_coalesced_into_the_newest() -> None:
    told: list[Any] = []
    go = asyncio.Event()

    async def progress(*report: Any) -> None:
        await go.wait()
        told.append(report)

    async def log(params: dict[str, Any]) -> None:
        told.append(params)

    reports = Reports(progress, log)
    reports.progress({"progress": 1})
    await asyncio.sleep(0)
    for number in range(2, 1000):
        reports.progress({"progress": number, "total": "many", "message": 3})
    reports.log({"data": "x"})
    reports.progress({"progress": "junk"})
    go.set()
    await reports.told()
    *progress_told, newest, logged = told
    assert progress_told == [(number, None, None) for number in range(1, PROGRESS_LIMIT + 1)]
    assert (newest, logged) == ((999, None, None), {"data": "x"})
