"""The parts that need no server: events out of chunks, whose question it is, messages as they are written and read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from eventually import TIMEOUT
from hypothesis import given
from hypothesis import strategies as st

from gateway import tasks
from gateway.mcp_client import ClientIdentity
from gateway.mcp_client.client import CANCELLED_SECONDS, Attribution
from gateway.mcp_client.messages import RequestEncoder, decode
from gateway.mcp_client.pending_request import CallReports, PendingRequest
from gateway.protocol.jsonrpc import RpcError
from gateway.protocol.sse import Event, EventParser, EventTooLarge
from gateway.tasks import REPORT_TEXT, REPORTS

CLIENT_IDENTITY = ClientIdentity("n", "1", {"roots": {}})


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
    old = RequestEncoder(CLIENT_IDENTITY, "2025-06-18").request(
        7, "tools/call", {"name": "t"}, meta, {"sampling": {}}, True
    )
    assert old["params"] == {"name": "t", "_meta": {"trace": 1, "progressToken": 7}}
    new = RequestEncoder(CLIENT_IDENTITY, "2026-07-28").request(7, "tools/list", None, meta, None, False)
    assert new["params"]["_meta"] == {
        "trace": 1,
        "io.modelcontextprotocol/logLevel": "info",
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "n", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
    }
    assert RequestEncoder(CLIENT_IDENTITY, "2025-06-18").request(7, "ping", None, None, None, False) == {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "ping",
    }


class Requests:
    """Pending requests, and a clock."""

    def __init__(self) -> None:
        self.pending: dict[int, PendingRequest] = {}
        self.now = 0.0
        self.attribution = Attribution(self.pending, lambda: self.now)

    def begin(self, number: int, method: str = "tools/call", asks: bool = True) -> PendingRequest:
        async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
            return {}

        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = PendingRequest(number, method, response, ask if asks else None, CallReports(None, None))
        self.pending[number] = request
        return request

    def find_requester(self, origin: PendingRequest | None = None) -> PendingRequest | str:
        try:
            return self.attribution.find_requester("elicitation/create", origin)
        except RpcError as error:
            return error.message


@pytest.mark.anyio
async def test_attribution_finds_the_requester_only_when_it_is_certain() -> None:
    requests = Requests()
    assert "none does" in str(requests.find_requester())
    one = requests.begin(1)
    requests.begin(2, "tools/list", asks=False)
    assert requests.find_requester() is one
    silent = requests.begin(3, asks=False)
    assert "does not identify its call" in str(requests.find_requester())
    assert requests.find_requester(one) is one
    assert "does not support" in str(requests.find_requester(silent))
    del requests.pending[3]
    assert requests.find_requester() is one


@pytest.mark.anyio
async def test_attribution_counts_a_cancelled_request_for_a_while() -> None:
    requests = Requests()
    old = requests.begin(1)
    del requests.pending[1]
    requests.attribution.add_cancelled(old)
    new = requests.begin(2)
    assert "does not identify its call" in str(requests.find_requester())
    assert requests.attribution.find_logger() is None
    requests.now = CANCELLED_SECONDS
    assert (requests.find_requester(), requests.attribution.find_logger()) == (new, new)
    requests.attribution.add_cancelled(old)
    requests.attribution.remove_cancelled(1)
    assert requests.find_requester() is new


@pytest.mark.anyio
async def test_reports_for_a_slow_callback_are_all_passed_on_in_order() -> None:
    received: list[Any] = []
    go = asyncio.Event()

    async def progress(*report: Any) -> None:
        await go.wait()
        received.append(report)

    async def log(params: dict[str, Any]) -> None:
        received.append(params)

    reports = CallReports(progress, log)
    for number in range(2000):
        reports.add_progress({"progress": number, "total": "many", "message": 3})
    reports.add_log({"data": "x"})
    reports.add_progress({"progress": "junk"})
    await asyncio.sleep(0)
    go.set()
    await reports.flush()
    assert received == [*((number, None, None) for number in range(2000)), {"data": "x"}]


@pytest.mark.anyio
@pytest.mark.parametrize(("message", "kept"), [(None, REPORTS), ("x" * (REPORT_TEXT // 4), 4)], ids=["many", "large"])
async def test_reports_over_the_limits_replace_the_newest(
    message: str | None, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[float] = []
    go = asyncio.Event()

    async def progress(done: float, *_: Any) -> None:
        await go.wait()
        received.append(done)

    reports = CallReports(progress, None)
    for number in range(kept + 100):
        reports.add_progress({"progress": number, "message": message})
    go.set()
    await reports.flush()
    assert received == [*range(kept - 1), kept + 99]
    assert caplog.text.count("too slow for the reports of its call") == 1


@pytest.mark.anyio
async def test_reports_of_a_callback_that_hangs_do_not_hold_the_answer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FLUSH_SECONDS", 0.01)
    taken = asyncio.Semaphore(3)

    async def progress(*_: Any) -> None:
        await taken.acquire()

    reports = CallReports(progress, None)
    for number in range(10):
        reports.add_progress({"progress": number})
    async with asyncio.timeout(TIMEOUT):
        await reports.flush()
    reports.close()
    assert taken.locked()
