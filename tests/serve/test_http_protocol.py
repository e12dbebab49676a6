"""What only shows over a connection: order, framing, leaving, and what our shortcut past uvicorn must not change."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from amounts import amount
from eventually import TIMEOUT, async_eventually
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import Gateway
from gateway.serve.http import app as http
from gateway.serve.http import fastpath, protocol
from gateway.serve.http.app import HttpApp, RequestGuard, bind, serve_http
from gateway.serve.http.protocol import FastHandler
from gateway.serve.mcp import event_streams
from gateway.serve.mcp.fastpath import SIZE
from gateway.serve.mcp.handlers import Handlers, McpServer

from .servers import HANDSHAKE, INITIALIZED, LIMIT, Line, RecordingSource, call, chunk, initialize, request, routing

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G3")]

ECHO, LIST, WAIT = call("stall__echo", {"a": 1}), request("tools/list"), call("stall__wait", number="w")
# What the short way leaves to the application.
LONG = request("resources/templates/list", number="long")


@pytest.fixture(scope="module", params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@dataclass
class Served:
    """A gateway listening on loopback; `passed` are the requests that came to its application."""

    gateway: Gateway
    server: McpServer
    source: RecordingSource
    address: tuple[str, int]
    stop: anyio.Event
    done: asyncio.Future[None]
    passed: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    async def line(self, *, buffer: int | None = None, source: str = "127.0.0.1") -> Line:
        """A connection from the source address; with a small buffer for one who reads slowly."""
        ours = socket.socket()
        ours.bind((source, 0))
        if buffer is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        ours.setblocking(False)
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(ours, self.address)
        self.lines.append(Line(*await asyncio.open_connection(sock=ours)))
        return self.lines[-1]

    async def send(self, *parts: bytes) -> Line:
        """What is said on a new connection, each part in a packet of its own."""
        line = await self.line()
        await send(line, *parts)
        return line

    async def wait_begun(self) -> None:
        with anyio.fail_after(TIMEOUT):
            await self.source.begun.wait()
        self.source.begun.clear()

    async def session(self) -> dict[str, str]:
        """The headers of a client that has shaken hands."""
        headers = {"mcp-protocol-version": HANDSHAKE}
        line = await self.send(encode_request(initialize(), {"mcp-protocol-version": None, "mcp-method": None}))
        headers["mcp-session-id"] = (await line.answer()).headers["mcp-session-id"]
        await send(line, encode_request(INITIALIZED, headers))
        assert (await line.answer()).status == 202
        await async_eventually(lambda: self.server.handlers.sessions.get(headers["mcp-session-id"]) is not None)
        return headers

    async def latest_record(self) -> tuple[str, str | None]:
        """What became of the latest call."""
        await self.gateway.executor.idle()
        record = (await self.gateway.records.list_calls())[0]
        return record.status, record.error_code


async def send(line: Line, *parts: bytes) -> None:
    for place, part in enumerate(parts):
        if place:
            await anyio.sleep(0.01)  # or they would be one packet
        line.writer.write(part)


def encode_request(
    message: Any,
    headers: Mapping[str, str | None] | None = None,
    *,
    more: Iterable[str] = (),
    target: str = "POST /mcp HTTP/1.1",
    chunks: Iterable[int] | None = None,
    trailers: str = "",
) -> bytes:
    """A request as its bytes: `more` are lines of the head besides, `chunks` the sizes its body is cut into."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode() if message is not None else b""
    request_headers: dict[str, str | None] = {
        "Host": "127.0.0.1",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **(routing(message) if isinstance(message, dict) else {}),
        **(headers or {}),
    }
    if chunks is not None:
        request_headers |= {"Content-Length": None, "Transfer-Encoding": "chunked"}
        cuts = [0, *accumulate(chunks), len(body)]
        body = b"".join(chunk(body[start:end]) for start, end in pairwise(cuts)) + f"0\r\n{trailers}\r\n".encode()
    lines = [target, *(f"{name}: {value}" for name, value in request_headers.items() if value is not None), *more]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@asynccontextmanager
async def serving(
    directory: Path,
    fast_path: Callable[[FastHandler], FastHandler] = lambda usual: usual,
    guard: RequestGuard | None = None,
) -> AsyncIterator[Served]:
    source = RecordingSource()
    chosen = {"data_dir": str(directory / "data"), "approval": {"mode": "never"}, "server": {"shutdown_grace": 5}}
    async with Gateway.open(chosen, sources=[source]) as gateway:
        server = McpServer(Handlers(gateway.executor, gateway.versions, plans=gateway.records))
        web = HttpApp(server, gateway.check_parts, guard or RequestGuard(LIMIT))
        listening, stop = bind("127.0.0.1", 0), anyio.Event()
        passed: list[str] = []

        async def drain() -> None:
            await gateway.drain()
            web.close()

        listening.listen()
        done = asyncio.ensure_future(
            serve_http(record_requests(web.app, passed), fast_path(web.fast_path), listening, stop, drain)
        )
        served = Served(gateway, server, source, listening.getsockname(), stop, done, passed)
        try:
            yield served
        finally:
            source.go.set()
            for line in served.lines:
                await line.close()
            stop.set()
            await done


def record_requests(app: ASGIApp, passed: list[str]) -> ASGIApp:
    async def noted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            passed.append(scope["method"])
        await app(scope, receive, send)

    return noted


@pytest.fixture(scope="module")
async def server(anyio_backend: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastpath, "WATCH_SECONDS", 0.01)
        async with serving(tmp_path_factory.mktemp("front")) as served:
            yield served


@pytest.fixture
async def served(server: Served) -> AsyncIterator[Served]:
    """The server, as if it were new."""
    server.passed.clear()
    server.source.take_calls()
    server.source.begun.clear()
    server.source.go.clear()
    yield server
    server.source.go.set()
    for line in server.lines:
        await line.close()
    server.lines.clear()


def number(answer: Any) -> Any:
    assert answer.status == 200, answer
    return answer.message["id"]


async def test_connection_serves_one_request_after_another_on_the_fast_path(served: Served) -> None:
    line = await served.line()
    for message in (ECHO, LIST, {**ECHO, "id": "again"}):
        await send(line, encode_request(message))
        assert number(await line.answer()) == message["id"]
    assert served.passed == []
    session = await served.session()
    served.passed.clear()
    for message in (call("stall__echo", envelope={}), request("tools/list", envelope={})):
        await send(line, encode_request(message, {**session, "mcp-method": None, "mcp-name": None}))
        assert (await line.answer()).headers["content-type"] == "application/json"
    assert served.passed == []


async def test_fast_response_has_the_same_head_as_one_of_the_application(served: Served) -> None:
    line = await served.send(encode_request(ECHO))
    fast = await line.answer()
    assert set(fast.headers) == {"date", "content-type", "content-length", "toolgate-call-id"}
    await send(line, encode_request(LONG))
    assert {"date", "content-type"} <= set((await line.answer()).headers)


SLOW = call("stall__wait", number="slow")
# A target that only the application understands.
ABSOLUTE = "http://127.0.0.1/mcp"
PIPELINES: dict[str, list[tuple[Any, str]]] = {
    "short, short": [(SLOW, "/mcp"), (ECHO, "/mcp")],
    "short, long": [(SLOW, "/mcp?chat=x"), (LONG, "/mcp")],
    "long, short": [(SLOW, ABSOLUTE), (ECHO, "/mcp")],
    "many": [(SLOW, "/mcp"), (LONG, "/mcp"), (ECHO, "/mcp"), (LIST, ABSOLUTE), (ECHO, "/mcp?chat=x")],
}


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
async def test_pipelined_requests_are_answered_in_order(served: Served, pipeline: list[tuple[Any, str]]) -> None:
    line = await served.send(b"".join(encode_request(each, target=f"POST {url} HTTP/1.1") for each, url in pipeline))
    await served.wait_begun()
    with anyio.move_on_after(0.05):
        pytest.fail(f"{await line.message()} came before its turn")
    served.source.go.set()
    assert [number(await line.answer()) for _ in pipeline] == [message["id"] for message, _ in pipeline]
    await send(line, encode_request({**ECHO, "id": "after"}))
    assert number(await line.answer()) == "after"


async def test_request_after_connection_close_is_not_answered(served: Served) -> None:
    line = await served.send(encode_request(ECHO, {"Connection": "close"}) + encode_request(LIST))
    assert number(await line.answer()) == 1
    assert await line.ended()


@pytest.mark.parametrize("message", [ECHO, LONG], ids=["short", "long"])
async def test_request_may_arrive_in_packets(served: Served, message: Any) -> None:
    whole = encode_request(message)
    head = whole.index(b"\r\n\r\n")
    cuts = [0, 3, 40, head + 2, head + 4, head + 5, len(whole) - 1, len(whole)]
    line = await served.send(*(whole[start:end] for start, end in pairwise(cuts)))
    assert number(await line.answer()) == message["id"]
    assert served.passed == ([] if message is ECHO else ["POST"])


@pytest.mark.parametrize("message", [ECHO, LONG], ids=["short", "long"])
async def test_chunked_body_is_read_and_its_trailers_are_ignored(served: Served, message: Any) -> None:
    trailers = "Host: evil.example\r\nMcp-Method: tools/list\r\nX-Late: 1\r\n"
    line = await served.send(encode_request(message, chunks=[1, 2, 30], trailers=trailers) + encode_request(LIST))
    assert number(await line.answer()) == message["id"]
    assert number(await line.answer()) == 1
    assert served.passed == (["POST"] if message is ECHO else ["POST", "POST"])  # a list in the pipeline


async def test_body_in_chunks_of_one_byte_is_read_on_the_fast_path(served: Served) -> None:
    size = amount(1_000_000, 200_000)
    large = call("stall__echo", {"a": "x" * size})
    line = await served.line()
    line.writer.write(encode_request(large, chunks=[1] * size))
    assert number(await line.answer()) == 1
    assert served.passed == []


async def test_spaces_around_header_values_are_ignored(served: Served) -> None:
    line = await served.send(encode_request(ECHO, {"mcp-method": " tools/call \t", "Host": "127.0.0.1 "}))
    assert number(await line.answer()) == 1
    assert served.passed == []


HEADS: dict[str, Any] = {
    "two of a kind": ({"more": ["X-A: 1", "X-A: 2"]}, 200, None),
    "two methods": ({"more": ["Mcp-Method: tools/call"]}, 400, -32020),
    "two hosts": ({"more": ["Host: 127.0.0.1"]}, 400, "INVALID_HEADER"),
    "a foreign host": ({"headers": {"Host": "evil.example"}}, 421, "HOST_FORBIDDEN"),
    "a host with a port that is none": ({"headers": {"Host": "127.0.0.1:\xb2"}}, 421, "HOST_FORBIDDEN"),
    "no host": ({"headers": {"Host": None}}, 421, "HOST_FORBIDDEN"),
    "a foreign origin": ({"headers": {"Origin": "http://evil.example"}}, 403, "ORIGIN_FORBIDDEN"),
    "a fragment": ({"target": "POST /mcp?chat=x#y HTTP/1.1"}, 200, None),
    "a whole address": ({"target": f"POST {ABSOLUTE} HTTP/1.1"}, 200, None),
    # The parser takes the body of one of these for what comes after the upgrade.
    "an upgrade": ({"more": ["Connection: upgrade", "Upgrade: h2c"]}, 400, -32700),
    "an upgrade to a web socket": ({"more": ["Connection: upgrade", "Upgrade: websocket"]}, 400, -32700),
}


@pytest.mark.parametrize("case", HEADS.values(), ids=HEADS)
async def test_unusual_head_is_left_to_the_application(served: Served, case: Any) -> None:
    options, status, code = case
    answer = await (await served.send(encode_request(ECHO, **options))).answer()
    assert answer.status == status, answer
    assert (answer.message["error"]["code"] if code else answer.message["id"]) == (code or 1)
    assert served.passed == ["POST"]


async def test_query_names_the_chat_on_the_fast_path_also_of_a_cached_head(served: Served) -> None:
    line = await served.line()
    queries = ["?chat=garden", "?chat=garden", "?chat=", "?x=1&chat=a%20b", "?chat=garden", ""]
    for query in queries:
        await send(line, encode_request(ECHO, target=f"POST /mcp{query} HTTP/1.1"))
        assert number(await line.answer()) == 1
    chats = [heard.chat for heard in served.source.calls]
    assert chats == ["garden", "garden", "default", "a b", "garden", "default"]
    assert served.passed == []


@pytest.mark.parametrize(
    "head",
    [
        ["Content-Length: 5", "Content-Length: 5"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked, gzip"],
        ["Transfer-Encoding: identity"],
        ["Content-Length: +5"],
        ["Content-Length : 5"],
        ["X: a\rb"],
    ],
)
async def test_request_of_ambiguous_length_is_refused(served: Served, head: list[str]) -> None:
    line = await served.send(
        encode_request(b"", {"Content-Length": None, **routing(ECHO)}, more=head) + encode_request(ECHO)
    )
    assert (await line.answer()).status == 400
    assert await line.ended()
    assert (served.source.calls, served.passed) == ([], [])


@pytest.mark.parametrize("message", [ECHO, call("stall__count", meta={"progressToken": 1})], ids=["plain", "stream"])
async def test_connection_close_is_honoured(served: Served, message: Any) -> None:
    line = await served.send(encode_request(message, {"Connection": "close"}))
    answer = await line.answer()
    assert (number(answer), answer.headers["connection"]) == (1, "close")
    assert await line.ended()
    assert served.passed == []


async def test_http_1_0_request_is_answered_and_the_connection_closed(served: Served) -> None:
    for more in ([], ["Connection: keep-alive"]):
        line = await served.send(encode_request(ECHO, target="POST /mcp HTTP/1.0", more=more))
        assert number(await line.answer()) == 1
        assert await line.ended()
    assert served.passed == []


async def test_expect_100_continue_is_answered(served: Served) -> None:
    head, _, body = encode_request(ECHO, {"Expect": "100-continue"}).partition(b"\r\n\r\n")
    line = await served.send(head + b"\r\n\r\n")
    assert (await line.answer()).status == 100
    await send(line, body)
    assert number(await line.answer()) == 1


@pytest.mark.parametrize("chunks", [None, [100_000]], ids=["length", "chunks"])
async def test_body_too_large_for_the_fast_path_is_left_to_the_application_and_one_over_the_limit_is_refused(
    served: Served, chunks: list[int] | None
) -> None:
    line = await served.line()
    for size in (SIZE - 1000, SIZE + 1):
        await send(line, encode_request(call("stall__echo", {"a": "x" * size}), chunks=chunks))
        assert number(await line.answer()) == 1
    assert served.passed == ["POST"]
    beyond = await served.send(encode_request(call("stall__echo", {"a": "x" * LIMIT}), chunks=chunks))
    answer = await beyond.answer()
    assert (answer.status, answer.message["error"]["code"]) == (413, "REQUEST_TOO_LARGE")
    assert len(served.source.calls) == 2


async def test_endless_body_is_refused(served: Served) -> None:
    endless = encode_request(call("stall__echo", {"a": "x" * LIMIT}), chunks=[100_000]).removesuffix(b"0\r\n\r\n")
    assert (await (await served.send(endless)).answer()).status == 413


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "OPTIONS"])
async def test_other_http_methods_are_left_to_the_application(served: Served, method: str) -> None:
    answer = await (await served.send(encode_request(ECHO, target=f"{method} /mcp HTTP/1.1"))).answer()
    assert answer.status in (400, 405)
    assert served.passed == [method]


async def test_head_request_is_left_to_the_application(served: Served) -> None:
    line = await served.send(encode_request(None, {"Connection": "close"}, target="HEAD /mcp HTTP/1.1"))
    with anyio.fail_after(TIMEOUT):
        assert (await line.reader.read()).endswith(b"\r\n\r\n")
    assert served.passed == ["HEAD"]


async def test_modern_client_that_disconnects_cancels_its_call(served: Served) -> None:
    line = await served.send(encode_request(WAIT))
    await served.wait_begun()
    ended = len(served.source.ended)
    await anyio.sleep(0.05)  # until somebody looks whether it is still there
    await line.close()
    assert await served.latest_record() == ("error", "CANCELLED")
    assert len(served.source.ended) == ended + 1


async def test_modern_client_that_disconnects_at_once_cancels_its_call(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        line = await served.send(encode_request(WAIT))
        await served.wait_begun()
        await line.close()
        assert await served.latest_record() == ("error", "CANCELLED")


async def test_call_in_a_session_goes_on_when_its_client_disconnects(served: Served) -> None:
    session = await served.session()
    line = await served.send(encode_request(call("stall__wait", envelope={}), session))
    await served.wait_begun()
    await line.close()
    await anyio.sleep(0.1)  # long enough for a client of the newest era to be missed
    served.source.go.set()
    assert await served.latest_record() == ("success", None)


async def test_incomplete_request_calls_nothing(served: Served) -> None:
    whole = encode_request(ECHO)
    line = await served.send(whole[:-1], b"")
    await line.close()
    assert number(await (await served.send(encode_request(LIST))).answer()) == 1
    assert (served.source.calls, served.passed) == ([], [])


async def test_event_stream_is_valid_chunked_http(served: Served) -> None:
    counting, usual = (
        call("stall__count", meta={"progressToken": "t"}),
        {"accept": "application/json, text/event-stream"},
    )
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{served.address[1]}") as client:
        for _ in range(2):
            answer = await client.post("/mcp", json=counting, headers={**usual, **routing(counting)})
            assert answer.headers["transfer-encoding"] == "chunked"
            messages = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
            assert [each.get("method", each.get("id")) for each in messages] == ["notifications/progress"] * 3 + [1]
    assert served.passed == []


async def test_event_is_sent_at_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastpath, "PING_SECONDS", 0.01)
    line = await served.send(encode_request(WAIT))
    with anyio.fail_after(TIMEOUT):
        start, first = await line.message(), await line.message()
    assert start is not None and start["status"] == 200
    assert first is not None and first["body"].startswith(event_streams.PING)
    served.source.go.set()
    assert b'"id":"w"' in await line.rest()


async def test_pipelined_requests_wait_for_a_client_that_does_not_read(served: Served) -> None:
    """What waits for it stays within what the sockets hold, and is all there when it reads again."""
    many, size = 40, 900_000
    line = await served.line(buffer=64 * 1024)
    for place in range(many):
        line.writer.write(encode_request(call("stall__echo", {"a": "x" * size}, place)))
        if len(served.source.calls) == place:  # each comes when the one before was called
            with anyio.move_on_after(0.3):
                while len(served.source.calls) == place:  # noqa: ASYNC110 - nothing tells
                    await anyio.sleep(0.005)
            await anyio.sleep(0.005)
    assert len(served.source.calls) < many // 2
    assert [number(await line.answer()) for _ in range(many)] == list(range(many))


async def test_client_that_disconnects_without_reading_blocks_nothing(served: Served) -> None:
    line = await served.line(buffer=64 * 1024)
    for place in range(20):
        line.writer.write(encode_request(call("stall__echo", {"a": "x" * 900_000}, place)))
    await anyio.sleep(0.3)
    line.writer.transport.abort()
    await served.gateway.executor.idle()
    assert number(await (await served.send(encode_request(LIST))).answer()) == 1


async def test_stopping_server_answers_calls_in_progress_and_closes(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        line, idle = await served.send(encode_request(WAIT)), await served.send(encode_request(LIST))
        await idle.answer()
        await served.wait_begun()
        served.stop.set()
        await anyio.sleep(0.05)
        assert not served.done.done()
        served.source.go.set()
        assert number(await line.answer()) == "w"
        assert await line.ended() and await idle.ended()
        with anyio.fail_after(TIMEOUT):
            await served.done


async def test_request_being_read_when_the_server_stops_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        whole = encode_request(ECHO)
        line, idle = await served.send(whole[:-1], b""), await served.send(encode_request(LIST))
        await idle.answer()
        served.stop.set()
        assert await idle.ended()  # by now all connections know
        await send(line, whole[-1:])
        answer = await line.answer()
        assert answer.message["result"]["_meta"]["dev.toolgate/error"]["code"] == "SHUTTING_DOWN"
        assert await line.ended()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nno header\r\n\r\n",
        encode_request(ECHO, chunks=[1]).replace(b"\r\n1\r\n", b"\r\nzz\r\n"),
    ],
)
async def test_garbage_is_refused_and_affects_no_other_connection(served: Served, garbage: bytes) -> None:
    other = await served.send(encode_request(WAIT))
    line = await served.send(garbage)
    assert (await line.answer()).status == 400
    assert await line.ended()
    served.source.go.set()
    assert number(await other.answer()) == "w"


@pytest.mark.parametrize(
    "parts",
    [
        [b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Large: "],
        [b"POST /"],
        [encode_request(ECHO)],
        [encode_request(ECHO, chunks=[5]).removesuffix(b"\r\n"), b"X-Late: "],
        [encode_request(LONG, chunks=[5]).removesuffix(b"\r\n"), b"X-Late: "],
    ],
    ids=["header", "address", "the next", "trailer", "trailer on the long way"],
)
async def test_endless_head_is_refused(served: Served, parts: list[bytes]) -> None:
    line = await served.send(*parts)
    if parts == [encode_request(ECHO)]:
        await line.answer()
        await send(line, b"POST /mcp HTTP/1.1\r\nX-Large: ")
    await send(line, b"x" * (protocol.HEAD - 100), b"x" * 200)
    answer = await line.answer()
    assert (answer.status, answer.body) == (431, b"the head of the request is larger than 65536 bytes")
    assert await line.ended()


async def test_head_limit_does_not_count_bodies_before(served: Served) -> None:
    large = encode_request(call("stall__echo", {"a": "x" * 300_000}))
    line = await served.line()
    for _ in range(3):
        await send(line, large[:50], large[50:120], large[120:])
        assert number(await line.answer()) == 1
    assert served.passed == []


async def test_head_limit_is_per_request(served: Served) -> None:
    line = await served.line()
    for _ in range(4):
        await send(
            line, encode_request(None, target="GET /healthz HTTP/1.1", more=["X-Large: " + "x" * (protocol.HEAD // 2)])
        )
        assert (await line.answer()).status == 200


class Failing:
    """A shortcut that breaks, before it answers, in the middle or at the end."""

    def __init__(self, usual: FastHandler, where: str) -> None:
        self.paths = usual.paths
        self.parse_head = usual.parse_head
        self._where = where

    def answer(self, *given: Any) -> Any:
        if self._where == "at once":
            raise RuntimeError("a bug")
        return self._answer(given[-1])

    async def _answer(self, send: Send) -> None:
        if self._where != "before":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        if self._where == "in the middle":
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("a bug")


@pytest.mark.parametrize("where", ["at once", "before", "once begun", "in the middle"])
async def test_exception_of_the_fast_path_is_logged_and_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    async with serving(tmp_path, lambda usual: Failing(usual, where)) as served:
        line = await served.send(encode_request(ECHO))
        if where == "at once":
            assert number(await line.answer()) == 1
        elif where == "in the middle":
            with pytest.raises(AssertionError, match="the connection has ended"):
                await line.answer()
        else:
            answer = await line.answer()
            assert (answer.status, answer.headers["connection"]) == (500, "close")
            assert await line.ended()
        assert served.passed == (["POST"] if where == "at once" else [])
    [record] = [each for each in caplog.records if each.name == "gateway.serve.http.protocol"]
    assert record.levelno == logging.ERROR and record.exc_info is not None


async def test_idle_connection_is_closed_and_not_while_a_call_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "KEEP_ALIVE", 1.0)
    async with serving(tmp_path) as served:
        line = await served.send(encode_request(LIST))
        await line.answer()
        await send(line, encode_request(WAIT))
        await served.wait_begun()
        await anyio.sleep(1.2)
        served.source.go.set()
        assert number(await line.answer()) == "w"
        assert await line.ended()


async def test_two_calls_with_the_same_id_at_the_same_time_are_both_answered(served: Served) -> None:
    session = await served.session()
    waiting = encode_request(call("stall__wait", number=5, envelope={}), session)
    lines = [await served.line() for _ in range(2)]
    for line in lines:
        line.writer.write(waiting)
    await served.wait_begun()
    served.source.go.set()
    assert [number(await line.answer()) for line in lines] == [5, 5]


async def test_request_leaves_no_garbage_behind(served: Served) -> None:
    """By itself: garbage of every request would have to be collected."""
    line = await served.line()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            await send(line, encode_request(LIST))
            await line.answer()
        left = [each for each in gc.get_objects() if isinstance(each, protocol._FastCycle)]
        assert len(left) <= 2
    finally:
        gc.enable()


async def test_cached_head_of_an_ended_session_is_left_to_the_application(served: Served) -> None:
    session = await served.session()
    asked = encode_request(call("stall__echo", envelope={}), session)
    line = await served.line()
    for _ in range(3):
        await send(line, asked)
        assert number(await line.answer()) == 1
    served.passed.clear()
    await send(line, encode_request(None, session, target="DELETE /mcp HTTP/1.1"))
    assert (await line.answer()).status == 200
    await send(line, asked)
    assert (await line.answer()).status == 404
    assert served.passed == ["DELETE", "POST"]
    assert len(served.source.calls) == 3


@pytest.mark.parametrize("cut", [1, 20, -30, -1])
async def test_cached_head_may_arrive_in_packets_and_pipelined(served: Served, cut: int) -> None:
    again = {**ECHO, "id": 2}  # as long as the other, so that its head is the same
    line = await served.line()
    for _ in range(2):
        await send(line, encode_request(ECHO))
        assert number(await line.answer()) == 1
    one, two = encode_request(ECHO), encode_request(again)
    await send(line, one[:cut], one[cut:] + two[:cut], two[cut:] + one)
    assert [number(await line.answer()) for _ in range(3)] == [1, 2, 1]
