"""Limits of the HTTP server over real connections: slow requests, large heads, Host and Origin, number of sessions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT, async_eventually

from gateway.errors import Invalid
from gateway.serve.http import protocol
from gateway.serve.http.app import RequestGuard
from gateway.serve.mcp import sdk

from .servers import HANDSHAKE, LIMIT, Answer, Line, call, chunk, initialize, request, routing
from .test_http_protocol import ECHO, WAIT, Served, encode_request, send, serving

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G3")]

# Targets of the fast path and of the ASGI application.
SHORT, LONG = "POST /mcp HTTP/1.1", "POST http://127.0.0.1/mcp HTTP/1.1"

each_road = pytest.mark.parametrize("target", [SHORT, LONG], ids=["fast path", "application"])


@pytest.fixture(scope="module", params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as served:
        yield served


async def read_answer(line: Line) -> Answer:
    """The next response, however busy the machine is."""
    with anyio.fail_after(TIMEOUT):
        start = await line.message()
        assert start is not None, "the connection was closed without a response"
    return Answer(start["status"], {name.decode(): text.decode() for name, text in start["headers"]}, await line.rest())


async def drip_until_answered(line: Line, *drops: bytes) -> Answer:
    """Send a few bytes now and then, as long as it takes."""

    async def drip() -> None:
        while True:
            for drop in drops:
                line.writer.write(drop)
                await anyio.sleep(0.05)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drip)
        answer = await read_answer(line)
        tasks.cancel_scope.cancel()
    return answer


async def assert_closed(line: Line) -> None:
    with anyio.fail_after(TIMEOUT):
        assert await line.message() is None


# Slow requests


@pytest.mark.parametrize("before", [b"", encode_request(ECHO)], ids=["first request", "later request"])
async def test_request_head_that_drips_is_answered_with_408_and_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    line = await served.send(before)
    if before:
        assert (await read_answer(line)).status == 200
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.5)
    await send(line, b"POST /mcp HTTP/1.1\r\nX-Slow: ")
    answer = await drip_until_answered(line, b"x")
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    await assert_closed(line)


async def test_many_dripping_connections_are_all_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.5)
    lines = [await served.send(b"GET / HTTP/1.1\r\nX-Slow: ") for _ in range(200)]
    for line in lines:
        assert (await read_answer(line)).status == 408
        await assert_closed(line)


async def test_connection_without_a_request_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.5)
    for first in (b"", b"\r\n\r\n"):
        await assert_closed(await served.send(first))


@each_road
@pytest.mark.parametrize("limit", ["BODY_IDLE_SECONDS", "BODY_SECONDS", "BODY_RATE"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
async def test_request_body_that_drips_or_stalls_is_answered_with_408_and_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch, target: str, limit: str, chunked: bool
) -> None:
    if limit == "BODY_RATE" and chunked:
        pytest.skip("the length of a body in chunks is unknown")
    monkeypatch.setattr(protocol, "BODY_IDLE_SECONDS", 0.5 if limit != "BODY_SECONDS" else 60.0)
    if limit == "BODY_SECONDS":
        monkeypatch.setattr(protocol, "BODY_SECONDS", 0.5)
    framing: dict[str, str | None] = {"Content-Length": "100000"}
    if chunked:
        framing = {"Content-Length": None, "Transfer-Encoding": "chunked"}
    head = encode_request(ECHO, framing, target=target).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    line = await served.send(head, chunk(b"{") if chunked else b"{")
    if limit == "BODY_IDLE_SECONDS":
        answer = await read_answer(line)
    else:
        monkeypatch.setattr(protocol, "BODY_RATE", 10**9)
        answer = await drip_until_answered(line, chunk(b" ") if chunked else b" ")
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    await assert_closed(line)
    assert served.source.calls == []


@each_road
async def test_request_that_arrives_slowly_within_the_limits_is_answered(served: Served, target: str) -> None:
    whole = encode_request(ECHO, target=target)
    line = await served.line()
    for start in range(0, len(whole), 20):
        line.writer.write(whole[start : start + 20])
        await anyio.sleep(0.1)
    assert (await read_answer(line)).message["id"] == 1


async def test_head_behind_a_running_call_does_not_end_the_call(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = await served.send(encode_request(WAIT), encode_request(ECHO)[:20])
    await served.wait_begun()
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)
    for _ in range(2):  # each takes a check of all connections
        assert (await read_answer(await served.send(b"GET / HTTP/1.1\r\n"))).status == 408
    monkeypatch.undo()
    served.source.go.set()
    assert (await read_answer(line)).message["id"] == "w"
    await send(line, encode_request(ECHO)[20:])
    assert (await read_answer(line)).message["id"] == 1


async def test_connection_whose_body_was_refused_early_can_be_used_again_and_is_closed_when_idle(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = await served.send(encode_request(b"x" * 100, {"Host": "evil.example"})[:-50])
    assert (await read_answer(line)).status == 421
    await send(line, b"x" * 50)
    await anyio.sleep(1.5)  # more than one check of all connections
    await send(line, encode_request(ECHO))
    assert (await read_answer(line)).status == 200


# Large heads


def head_of(size: int, target: str = "GET /healthz HTTP/1.1", more: str = "") -> bytes:
    """A request head of exactly so many bytes."""
    start = f"{target}\r\nHost: 127.0.0.1\r\n{more}X-Large: ".encode()
    return start + b"x" * (size - len(start) - 4) + b"\r\n\r\n"


BEFORE = {
    "nothing": b"",
    "empty lines": b"\r\n" * 3,
    "a request without a body": encode_request(None, target="GET /healthz HTTP/1.1"),
    "a body with empty lines": encode_request(b"\r\n\r\n" * 50),
    "chunks with empty lines": encode_request(b"\r\n\r\n" * 50, chunks=[1, 2, 3, 4, 5], trailers="X-Late: 1\r\n"),
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("cuts", [[], [-2], [1000, -3], [30_000, 60_000, -1]], ids=["whole", "2", "3", "4"])
async def test_request_head_limit_is_exact(served: Served, before: bytes, cuts: Sequence[int]) -> None:
    answers = before.count(b"HTTP/1.1")
    for size, status in ((protocol.HEAD, 200), (protocol.HEAD + 1, 431)):
        whole = before + head_of(size)
        ends = [0, *(cut % len(whole) for cut in cuts), len(whole)]
        line = await served.line()
        await send(line, *(whole[start:end] for start, end in pairwise(ends)))
        for _ in range(answers):
            assert (await read_answer(line)).status != 431
        if status == 200 or not answers:
            assert (await read_answer(line)).status == status
        else:  # it may have come before the answer to the request before it, which is then the last one
            with anyio.fail_after(TIMEOUT):
                refusal = await line.message()
            assert refusal is None or refusal["status"] == 431
            await line.rest() if refusal else None
        if status == 431:
            await assert_closed(line)


@each_road
@pytest.mark.parametrize("size", [protocol.HEAD + 1, 107_000, 250_000])
async def test_large_request_head_that_comes_in_one_read_is_refused(served: Served, target: str, size: int) -> None:
    usual = encode_request(ECHO, target=target)
    lines, _, body = usual.partition(b"\r\n\r\n")
    start = lines + b"\r\nX-Large: "
    line = await served.send(start + b"x" * (size - len(start) - 4) + b"\r\n\r\n" + body)
    assert (await read_answer(line)).status == 431
    assert (served.source.calls, served.passed) == ([], [])


@each_road
async def test_body_in_chunks_with_countless_empty_lines_is_refused(served: Served, target: str) -> None:
    """Each costs a call of the parser."""
    for count, status in ((protocol.EMPTY_LINES - 10, 200), (protocol.EMPTY_LINES + 10, 400)):
        body = json.dumps(ECHO).encode() + b"\r\n\r\n" * count
        line = await served.send(encode_request(body, routing(ECHO), target=target, chunks=[]))
        assert (await read_answer(line)).status == status


async def test_large_request_line_is_refused(served: Served) -> None:
    line = await served.send(encode_request(None, target=f"GET /{'x' * protocol.HEAD} HTTP/1.1"))
    assert (await read_answer(line)).status == 431


# Host and Origin

HOSTS = {
    **dict.fromkeys(["localhost", "LocalHost", "127.0.0.1", "[::1]", "[0:0:0:0:0:0:0:1]"], 200),
    **dict.fromkeys(["localhost:1", "127.0.0.1:65535", "[::1]:8080"], 200),
    **dict.fromkeys(["Named.example", "named.example:8443", "ported.example:81"], 200),
    **dict.fromkeys(["127.0.0.1:x@evil.com", "localhost:80@evil.com", "user@localhost", "localhost:x"], 421),
    **dict.fromkeys(["localhost:0", "localhost:65536", "localhost:99999", "localhost:", "localhost:+1"], 421),
    **dict.fromkeys(["", ":80", "localhost.", "evil.localhost", "127.0.0.1.evil.com", "localhost/", "local host"], 421),
    **dict.fromkeys(["localhost:80:80", "localhost,evil.com", "localhost#", "localhost?x", "localhost\\evil"], 421),
    **dict.fromkeys(["::1", "[::1", "::1]", "[::1]x", "[::1%lo]", "[::2]", "[localhost]", "[]", "[::1]:"], 421),
    **dict.fromkeys(["ported.example", "ported.example:82", "named.example.", "named.example:x"], 421),
}
ORIGINS = {
    **dict.fromkeys(["http://localhost", "https://127.0.0.1:3000", "HTTP://LOCALHOST:80", "http://[::1]:9"], 200),
    **dict.fromkeys(["https://page.example", "https://page.example:443", "HTTPS://Page.example"], 200),
    **dict.fromkeys(["evil://localhost", "http://localhost@evil.com", "http://user:x@localhost", "null", ""], 403),
    **dict.fromkeys(["http://localhost/", "http://localhost/path", "http://localhost?x", "http://localhost#x"], 403),
    **dict.fromkeys(["http://localhost:", "http://localhost:0", "http://localhost:99999", "http://localhost:x"], 403),
    **dict.fromkeys(["localhost", "//localhost", "http:localhost", "http:/localhost", "://localhost"], 403),
    **dict.fromkeys(["http://localhost http://evil.com", "http://localhost,http://evil.com", "file://"], 403),
    **dict.fromkeys(["http://localhost.", "http://evil.com", "http://::1", "http://[::1", "ws://localhost"], 403),
    **dict.fromkeys(["http://page.example", "https://page.example:8443", "https://page.example.evil.com"], 403),
}


@pytest.mark.parametrize(("header", "cases"), [("Host", HOSTS), ("Origin", ORIGINS)], ids=["Host", "Origin"])
async def test_host_and_origin_are_checked_the_same_on_both_paths(
    tmp_path: Path, header: str, cases: dict[str, int]
) -> None:
    guard = RequestGuard(LIMIT, ["NAMED.example", "ported.example:81"], ["https://Page.example"])
    decided: dict[str, list[int]] = {}
    async with serving(tmp_path, guard=guard) as served:
        for value in cases:
            line = await served.line()
            for target in (SHORT, SHORT, LONG):  # the second time, the fast path knows the head
                await send(line, encode_request(ECHO, {header: value}, target=target))
                decided.setdefault(value, []).append((await read_answer(line)).status)
    assert decided == {value: [status] * 3 for value, status in cases.items()}


@pytest.mark.parametrize(
    ("hosts", "origins"), [(["http://a.example"], []), (["a.example:x"], []), ([], ["a.example"]), ([], ["null"])]
)
async def test_allowed_host_or_origin_that_could_never_match_is_refused(hosts: list[str], origins: list[str]) -> None:
    with pytest.raises(Invalid, match="allowed_hosts"):
        RequestGuard(LIMIT, hosts, origins)


# Sessions

ALICE, BOB, CAROL = "127.0.0.2", "127.0.0.3", "127.0.0.4"


async def open_session(served: Served, source: str) -> Any:
    """The headers of a new session, or the response that refused one."""
    line = await served.line(source=source)
    await send(line, encode_request(initialize(), {"mcp-protocol-version": None, "mcp-method": None}))
    answer = await read_answer(line)
    if answer.status != 200:
        return answer
    return {"mcp-protocol-version": HANDSHAKE, "mcp-session-id": answer.headers["mcp-session-id"], "mcp-method": None}


async def is_alive(served: Served, session: Any) -> bool:
    """Use a session, which then has just become idle."""
    status = (await read_answer(await served.send(encode_request(request("ping", envelope={}), session)))).status
    assert status in (200, 404)
    return status == 200


async def open_stream(served: Served, session: Any) -> Line:
    line = await served.send(encode_request(None, session, target="GET /mcp HTTP/1.1"))
    with anyio.fail_after(TIMEOUT):
        start = await line.message()
    assert start is not None and start["status"] == 200
    return line


async def count_alive(served: Served) -> int:
    return len(served.server.sdk.session_manager._server_instances)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "SESSIONS", 8)
    monkeypatch.setattr(sdk, "SESSIONS_PER_CLIENT", 5)


@pytest.mark.usefixtures("small")
async def test_session_flood_of_one_client_ends_its_own_oldest_idle_sessions_only(served: Served) -> None:
    others = [await open_session(served, BOB) for _ in range(2)]
    streaming, calling, first, second = [await open_session(served, ALICE) for _ in range(4)]
    stream = await open_stream(served, streaming)
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await read_answer(await served.send(encode_request(ready, calling)))).status == 202
    running = await served.send(encode_request(call("stall__wait", envelope={}), calling))
    await served.wait_begun()
    assert await is_alive(served, first)  # so that the second is idle longer
    third = await open_session(served, ALICE)
    fourth = await open_session(served, ALICE)
    assert [await is_alive(served, each) for each in (second, third, fourth, first)] == [False, True, True, True]

    for _ in range(20):
        latest = await open_session(served, ALICE)
    assert await count_alive(served) == 7
    alive = [await is_alive(served, each) for each in (*others, latest, first, third, fourth)]
    assert alive == [True, True, True, False, False, False]
    served.source.go.set()
    assert (await read_answer(running)).status == 200
    assert await is_alive(served, streaming) and await is_alive(served, calling)
    assert not stream.reader.at_eof()


@pytest.mark.usefixtures("small")
async def test_session_limit_for_all_ends_a_session_of_the_client_with_the_most(served: Served) -> None:
    bobs = [await open_session(served, BOB) for _ in range(3)]  # idle longest
    alices = [await open_session(served, ALICE) for _ in range(5)]
    carols = [await open_session(served, CAROL) for _ in range(2)]
    alive = [[await is_alive(served, each) for each in sessions] for sessions in (bobs, alices, carols)]
    assert alive == [[True] * 3, [False] * 2 + [True] * 3, [True] * 2]


@pytest.mark.usefixtures("small")
async def test_session_is_refused_while_all_that_could_end_for_it_are_in_use(served: Served) -> None:
    bob = await open_session(served, BOB)
    streams = [await open_stream(served, await open_session(served, ALICE)) for _ in range(5)]
    refused = await open_session(served, ALICE)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "too many sessions" in refused.message["error"]["message"]
    assert await is_alive(served, bob)
    await streams[0].close()

    async def opened() -> bool:  # the server notices in its own time that the stream is closed
        return not isinstance(await open_session(served, ALICE), Answer)

    await async_eventually(opened)
    assert await count_alive(served) == 6


@pytest.mark.usefixtures("small")
async def test_sessions_opened_at_the_same_moment_stay_within_the_limit(served: Served) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(partial(open_session, served, ALICE))
    assert await count_alive(served) <= 5


async def test_ended_session_is_removed_with_its_state(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "SESSIONS_PER_CLIENT", 1)
    session = await served.session()
    await served.session()
    await async_eventually(lambda: served.server.handlers.sessions.get(session["mcp-session-id"]) is None)
    assert not await is_alive(served, session)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1:2", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
async def test_session_client_with_ipv6_is_known_by_its_network(address: str, network: str) -> None:
    assert sdk._network(address) == network
