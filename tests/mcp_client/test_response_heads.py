"""The cache of response heads: what arrives with a known head is taken for what the parser would make of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import Unavailable
from gateway.mcp_client import http_connection
from gateway.mcp_client.endpoints import HttpEndpoint
from gateway.mcp_client.http_connection import ResponseHeads
from gateway.mcp_client.http_pool import HttpPool
from gateway.protocol.sse import Event

from .scripted import Request, scripted

pytestmark = pytest.mark.anyio

JSON = {"content_type": "application/json"}
STREAM = {"content_type": "text/event-stream", "transfer_encoding": "chunked"}
CHUNKS = b"a\r\ndata: {}\n\n\r\n0\r\n\r\n"
# Each is sent twice: the head of the first may be known when the second comes.
RESPONSES: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "plain": (200, b'{"a": 1}', JSON),
    "other text of the same length": (200, b'{"b": 2}', JSON),
    "other length": (200, b'{"a": 1234}', JSON),
    "with a session": (200, b'{"a": 1}', {**JSON, "mcp_session_id": "7"}),
    "with a character set": (200, b'{"a": 1}', {"content_type": "Application/JSON; charset=utf-8"}),
    "announced to close": (200, b'{"a": 1}', {**JSON, "connection": "close"}),
    "announced to be kept": (200, b'{"a": 1}', {**JSON, "keep_alive": "timeout=5"}),
    "an error": (500, b'{"a": 1}', JSON),
    "empty": (200, b"", JSON),
    "events": (200, b"data: {}\n\n", {"content_type": "text/event-stream"}),
    "compressed": (200, b'{"a": 1}', {**JSON, "content_encoding": "gzip"}),
    "too large": (200, b'"%b"' % (b"x" * 2000), JSON),
    "a stream": (200, CHUNKS, STREAM),
    "another stream": (200, b"8\r\ndata: 1\n\r\n1\r\n\n\r\n0\r\n\r\n", STREAM),
    "a stream with a session": (200, CHUNKS, {**STREAM, "mcp_session_id": "7"}),
    "a stream with trailers": (200, CHUNKS[:-2] + b"content-encoding: gzip\r\n\r\n", STREAM),
    "a stream announced to close": (200, CHUNKS, {**STREAM, "connection": "close"}),
    "a stream announced to be kept": (200, CHUNKS, {**STREAM, "connection": "Keep-Alive", "keep_alive": "timeout=5"}),
    "a stream that failed": (500, CHUNKS, STREAM),
    "a compressed stream": (200, CHUNKS, {**STREAM, "content_encoding": "gzip"}),
    "no stream": (200, CHUNKS, {**STREAM, **JSON}),
    "a large head": (200, b'{"a": 1}', {**JSON, "x": "y" * http_connection.CACHED_HEAD_SIZE}),
}


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection.HttpReply, "limit", 1000)


class Events(list[Event]):
    """A sink that takes whatever comes."""

    def __call__(self, event: Event) -> bool:
        self.append(event)
        return False


async def exchange() -> tuple[list[Any], int]:
    """Get each response twice; return them, and how many connections that took."""
    waiting = [name for name in RESPONSES for _ in range(2)]

    async def answer(request: Request) -> None:
        status, body, headers = RESPONSES[waiting.pop(0)]
        request.answer(status, body, **headers)

    found: list[Any] = []
    async with scripted(answer) as (script, url):
        pool = HttpPool(HttpEndpoint(url))
        while waiting:
            try:
                events = Events()
                reply = await pool.send("POST", b"", b'{"id": 1}', sink=events)
                content = bytes(reply.body), reply.streaming, events
                found.append((reply.status, reply.media_type, dict(reply.headers), *content))
            except Unavailable as error:
                found.append(error.message.removeprefix(pool.label))
        pool.close()
        return found, script.connections


async def test_response_with_a_cached_head_is_what_the_parser_makes_of_it(
    limit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached, connections = await exchange()
    with monkeypatch.context() as patch:
        patch.setattr(ResponseHeads, "find", lambda *_: None)
        assert await exchange() == (cached, connections)
    assert len([reply for reply in cached if isinstance(reply, str)]) == 6  # four compressed, two too large
    assert [Event(b"1")] in [reply[-1] for reply in cached]


async def test_response_in_pieces_or_beside_other_data_is_not_taken_from_the_cache() -> None:
    heads, reply = ResponseHeads(), http_connection.HttpReply(asyncio.get_running_loop().create_future(), None)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n"
    reply.status, reply.media_type, reply.body = 200, "application/json", b"{}"
    reply.headers = {b"content-type": b"application/json", b"content-length": b"2"}
    heads.add(head, reply)
    assert heads.find(head + b"[]", 10) is None
    heads.add(head + b"{}", reply)
    assert heads.find(head + b"[]", 10) == (b"[]", reply.headers, False)
    for data in (head, head + b"[", head + b"[]" + head, head + b"[]\r\n", head[:30], b""):
        assert heads.find(data, 10) is None
    assert heads.find(head + b"[]", 1) is None


async def test_head_of_a_stream_is_cached_whatever_follows_it_but_not_with_trailers_or_twice_the_same_header() -> None:
    heads, reply = ResponseHeads(), http_connection.HttpReply(asyncio.get_running_loop().create_future(), None)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    headers = {b"content-type": b"text/event-stream", b"transfer-encoding": b"chunked"}
    reply.status, reply.media_type, reply.streaming = 200, "text/event-stream", True
    for parsed, data in (
        ({**headers, b"trailer": b"1"}, head + CHUNKS),
        (headers, head.replace(b"\r\n\r\n", b"\r\ncontent-type: text/event-stream\r\n\r\n")),
        (headers, head[:-2]),
        (headers, b"HTTP/1.1 100 Continue\r\n\r\n" + head),
    ):
        reply.headers = parsed
        heads.add(data, reply)
        assert heads.find(data, 10) is None
    reply.headers = {**headers}
    heads.add(head + b"a\r\nda", reply)
    reply.headers[b"trailer"] = b"1"  # the same stream ends
    for rest in (b"", b"a\r\nda", CHUNKS):
        assert heads.find(head + rest, 0) == (rest, headers, True)
