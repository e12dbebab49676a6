"""The header cache: a request with a cached head gets the same response as one without."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import anyio
import pytest
import uvicorn
from amounts import amount
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.serve.http.protocol import CACHED_HEAD_SIZE, CACHED_HEADS, HEAD, FastHttpProtocol, HeaderCache

pytestmark = pytest.mark.promise("G3")

KEEP_ALIVE = 10


class Echo:
    """Says what was sent, on the short way and on the long one, and which of the two it was. A body that begins with
    `late` is answered some turns later, one with `long` by the application, one with `gone` when nobody is left."""

    paths = frozenset({b"/mcp"})

    def __init__(self) -> None:
        self.read: list[Mapping[bytes, bytes]] = []

    def parse_head(self, _path: bytes, _query: bytes, headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes] | None:
        self.read.append(headers)
        return headers if headers.get(b"x-way") != b"long" else None

    def answer(self, headers: Mapping[bytes, bytes], body: bytes, receive: Receive, send: Send) -> Any:
        return None if body.startswith(b"long") else _say(b"short", headers.get(b"x-said", b""), body, send)


class Nothing(HeaderCache):
    """Knows none."""

    def find(self, request: bytes) -> None:
        return None


async def _say(way: bytes, sent: bytes, body: bytes, send: Send) -> None:
    for _ in range(5 if body.startswith(b"late") else 0):
        await asyncio.sleep(0)
    text = b"<%b|%b|%b>" % (way, sent, body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await _say(b"long", dict(scope["headers"]).get(b"x-said", b""), body, send)


@dataclass
class Place:
    """Where connections are served, each with the same heads known."""

    heads: HeaderCache = field(default_factory=HeaderCache)
    echo: Echo = field(default_factory=Echo)
    state: ServerState = field(default_factory=ServerState)

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Line]:
        config = uvicorn.Config(_app, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=KEEP_ALIVE)
        theirs, ours = socket.socketpair()
        ours.setblocking(False)
        transport, front = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: FastHttpProtocol(self.echo, self.heads, config, self.state, {}), theirs
        )
        try:
            yield Line(ours, front, self.state)
        finally:
            transport.abort()
            ours.close()
            await _turns(3)

    async def answer_to(self, packets: Sequence[bytes]) -> bytes:
        """All that is answered on one connection, over which these come one after another."""
        async with self.line() as line:
            return b"".join([await line.say(packet) for packet in packets]) + await line.say(b"", wait=True)


@dataclass
class Line:
    """A client's end of a connection, and the other one."""

    ours: socket.socket
    front: FastHttpProtocol
    state: ServerState

    async def say(self, packet: bytes, wait: bool = False) -> bytes:
        """What is answered to it soon, or `wait` until nothing is under way any more but what waits for a body."""
        if not self.closed:
            self.ours.sendall(packet)
        await _turns(4)
        with anyio.fail_after(60):
            while wait and len(self.state.tasks) > self.unfinished:
                await _turns(1)
        with suppress(BlockingIOError, ConnectionError):
            return self.ours.recv(65536)
        return b""

    @property
    def unfinished(self) -> bool:
        """True if the application waits for the rest of a body, which will not come."""
        return not (self.front._in_head or self.front.pipeline or self.closed) and self.front._body is None

    @property
    def closed(self) -> bool:
        return self.front.transport.is_closing()


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def posted(body: bytes, *lines: bytes, length: bytes | None = None, first: bytes = b"POST /mcp HTTP/1.1") -> bytes:
    size = b"Content-Length: %d" % len(body) if length is None else length
    return b"\r\n".join([first, b"Host: a", size, *lines]) + b"\r\n\r\n" + body


A, B, LATE = posted(b"aaaa"), posted(b"bbbbbbb", b"X-Said: b"), posted(b"late")
GET = posted(b"", length=b"X: y", first=b"GET /api/a HTTP/1.1")
KEPT = [A, B, LATE, posted(b"aaaa", b"Connection: keep-alive"), b"\r\n" + A, GET]
REQUESTS = [
    *KEPT,
    posted(b"long"),
    posted(b"aaaa", b"X-Way: long"),
    posted(b"aaaa", b"Connection: close"),
    posted(b"aaaa", b"X-Said: 1", b"X-Said: 2"),
    posted(b"aaaa", b"Expect: 100-continue"),
    posted(b"aaaa", b"Upgrade: h2c"),
    posted(b"aaaa", b"Connection: upgrade", b"Upgrade: h2c"),
    posted(b"aaaa", first=b"POST /mcp HTTP/1.0"),
    posted(b"aaaa", first=b"POST /mcp?a=b HTTP/1.1"),
    posted(b"", first=b"GET /mcp HTTP/1.1"),
    posted(b""),
    posted(b"", first=b"GET /api/a HTTP/1.1"),
    posted(b"aaaa", first=b"GET /api/a HTTP/1.1"),
    posted(b"4\r\naaaa\r\n0\r\n\r\n", length=b"Transfer-Encoding: chunked", first=b"GET /api/a HTTP/1.1"),
    *(posted(b"aaaa", length=b"Content-Length:" + length) for length in (b" 04", b" +4", b"4 ", b"2", b"6", b"99")),
    posted(b"aaaa", b"Content-Length: 4"),
    posted(b"4\r\naaaa\r\n0\r\n\r\n", length=b"Transfer-Encoding: chunked"),
    posted(b"4\r\naaaa\r\n0\r\nX-Said: late\r\n\r\n", length=b"Transfer-Encoding: chunked"),
    posted(b"4\r\naaaa\r\n0\r\n\r\n", b"Transfer-Encoding: chunked"),
    *(posted(b"aaaa", line) for line in (b"X: a\nX-Said: b", b"X: a\r\n b", b"X : a", b"X: a\0b", b"no header")),
    A.replace(b"\r\n\r\n", b"\n\n"),
    A.replace(b"\r\n", b"\n"),
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b"POST", b"aaaa", b"0\r\n\r\n"),
    *(b"\r\n" + A, b"\r\n\r\n" + A, A + b"\r\n", A[:-1], A + b"a"),
]


@cache
def everything() -> HeaderCache:
    """With every head known that could be."""

    async def main() -> HeaderCache:
        place = Place()
        for each in REQUESTS:
            await place.answer_to([each])
        return place.heads

    return anyio.run(main)


@settings(max_examples=amount(200, 50), deadline=None)
@given(
    requests=st.lists(st.one_of(st.sampled_from(KEPT), st.sampled_from(REQUESTS)), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 600), max_size=3),
    joined=st.booleans(),
)
@example([A, posted(b"aaaa", length=b"Content-Length: 6")], [], True)
def test_responses_do_not_depend_on_the_header_cache(requests: list[bytes], cuts: list[int], joined: bool) -> None:
    """However the requests stand in their packets."""
    whole = b"".join(requests)
    ends = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    packets = [whole[start:end] for start, end in pairwise(ends)] if joined else requests

    known, none = Place(deepcopy(everything())), Place(Nothing())

    async def main() -> None:
        assert await known.answer_to(packets) == await none.answer_to(packets)

    anyio.run(main)


def test_head_in_the_cache_is_not_parsed() -> None:
    async def main() -> None:
        place = Place()
        answers = [
            await place.answer_to([A]),
            await place.answer_to([A, A]),
            await place.answer_to([A.replace(b"aaaa", b"cccc")]),
        ]
        assert [answer.count(b"<short") for answer in answers] == [1, 2, 1]
        assert answers[2].endswith(b"<short||cccc>")
        assert len(place.echo.read) == 1

    anyio.run(main)


def test_get_request_of_rest_has_the_response_of_any_other_of_the_application() -> None:
    requests = [
        GET,
        posted(b"", first=b"GET /api/a HTTP/1.1"),
        posted(b"aaaa", first=b"GET /api/a HTTP/1.1"),
        posted(b"4\r\naaaa\r\n0\r\n\r\n", length=b"Transfer-Encoding: chunked", first=b"GET /api/a HTTP/1.1"),
        posted(b"", b"Connection: close", first=b"GET /api/a HTTP/1.1"),
        posted(b"", first=b"GET /api/a HTTP/1.0"),
        posted(b"", b"X-Said: 1", b"X-Said: 2", first=b"GET /api/a HTTP/1.1"),
    ]

    async def main() -> None:
        place = Place()
        for request in requests:
            others = request.replace(b"/api/a", b"/else")
            for _ in range(2):  # the second time with a known head
                assert await place.answer_to([request, request]) == await place.answer_to([others, others]), request
        assert len(place.heads._heads) == 2  # without a body, and to stay connected

    anyio.run(main)


def test_header_cache_is_limited_in_number_and_size() -> None:
    def known(*lines: bytes) -> bool:
        request = posted(b"aaaa", *lines)
        heads.add(request, {}, {b"content-length": b"4"} | dict.fromkeys(lines, b""))
        return heads.find(request) is not None

    heads = HeaderCache()
    assert [known(b"n: %d" % number) for number in range(CACHED_HEADS * 2)] == [True] * CACHED_HEADS * 2
    assert len(heads._heads) <= CACHED_HEADS
    assert known(b"x" * (CACHED_HEAD_SIZE - 200)) and not known(b"x" * CACHED_HEAD_SIZE)
    assert not known(*(b"%d:" % line for line in range(CACHED_HEAD_SIZE // 10)))  # each a key and a value in memory


def test_data_after_a_refused_upgrade_is_not_a_request() -> None:
    """Of the body it announced, or of another protocol."""

    async def main() -> None:
        place = Place()
        await place.answer_to([A])
        head = posted(b"", b"Connection: upgrade", b"Upgrade: h2c", length=b"Content-Length: %d" % len(A))
        for packets in ([head, A], [head + A], [head, B, A]):
            answer = await place.answer_to(packets)
            assert (answer.count(b"HTTP/1.1"), answer.count(b"connection: close")) == (1, 1), answer
            assert answer.endswith(b"<long||>")

    anyio.run(main)


def test_empty_lines_between_requests_are_ignored() -> None:
    async def main() -> None:
        place = Place()
        async with place.line() as line:
            for _ in range(4):
                assert (await line.say(A)).endswith(b"<short||aaaa>")
                assert await line.say(b"\r\n" * (HEAD // 5)) == b""
            assert not line.closed

    anyio.run(main)


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time can be moved on."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


STEPS = st.one_of(st.sampled_from([1, 2, 4, 6, 9, 11]), st.sampled_from([A, B, posted(b"long"), A[:9]]))


@settings(max_examples=amount(150, 40), deadline=None)
@given(st.lists(STEPS, max_size=9))
def test_connection_is_closed_after_the_keep_alive_time_and_not_before(steps: list[int | bytes]) -> None:
    """Whichever way its requests take; one that begins is waited for."""
    heads = deepcopy(everything())

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Clock)
        idle, begun = None, b""
        async with Place(heads).line() as line:
            for step in [*steps, 11]:
                if isinstance(step, int):
                    loop.ahead += step
                    idle = idle if idle is None or begun else idle + step
                elif begun:
                    assert (await line.say(A[9:])).endswith(b"<short||aaaa>")
                    idle, begun = 0, b""
                elif step == A[:9]:
                    assert await line.say(step) == b""
                    begun = step
                else:
                    assert (await line.say(step)).startswith(b"HTTP/1.1 200 OK")
                    idle = 0
                await _turns(3)
                assert line.closed == (idle is not None and not begun and idle >= KEEP_ALIVE)
                if line.closed:
                    return

    anyio.run(main, backend_options={"loop_factory": Clock})


def test_keep_alive_timer_does_not_end_a_request_with_a_cached_head() -> None:
    class Waiting(Echo):
        go: asyncio.Event

        def answer(self, headers: Mapping[bytes, bytes], body: bytes, *ways: Any) -> Any:
            return self._wait(body, ways[-1])

        async def _wait(self, body: bytes, send: Send) -> None:
            await self.go.wait()
            await _say(b"short", b"", body, send)

    async def main() -> None:
        loop, echo = asyncio.get_running_loop(), Waiting()
        assert isinstance(loop, Clock)
        echo.go = asyncio.Event()
        echo.go.set()
        async with Place(echo=echo).line() as line:
            await line.say(A)
            echo.go.clear()
            assert await line.say(A) == b""
            for _ in range(3):
                loop.ahead += KEEP_ALIVE
                await _turns(3)
            assert not line.closed
            echo.go.set()
            assert (await line.say(b"")).endswith(b"<short||aaaa>")
            loop.ahead += KEEP_ALIVE - 1
            await _turns(3)
            assert not line.closed
            loop.ahead += 1
            await _turns(3)
            assert line.closed

    anyio.run(main, backend_options={"loop_factory": Clock})


def test_stopping_server_closes_after_a_request_with_a_cached_head() -> None:
    async def main() -> None:
        place = Place()
        await place.answer_to([LATE])
        async with place.line() as idle, place.line() as line:
            await idle.say(A)
            line.ours.sendall(LATE)
            await _turns(2)
            assert len(place.state.tasks) == 1
            idle.front.shutdown()
            line.front.shutdown()
            answer = await line.say(LATE, wait=True)
            assert answer.count(b"HTTP/1.1 200 OK") == 1 and b"connection: close" in answer
            assert line.closed and idle.closed

    anyio.run(main)
