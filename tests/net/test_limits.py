"""Servers that send too much, too slowly, or not what they said."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib

import anyio
import pytest
from eventually import TIMEOUT

from gateway.errors import GatewayError, Timeout, ToolFailed, Unavailable
from gateway.net.client import GuardedClient
from gateway.net.policy import NetworkPolicy, RequestLimits

from .sites import Reply, answer, serving

pytestmark = pytest.mark.anyio

OPEN = NetworkPolicy(any_host=True, allow_private=True)
KIBIBYTE = 1024
PLAIN = b"HTTP/1.1 200 OK\r\n"


async def get(reply: Reply, limits: RequestLimits = RequestLimits()) -> bytes:  # noqa: B008
    async with serving({"/": reply}) as site, GuardedClient(OPEN) as client:
        with anyio.fail_after(TIMEOUT):
            async with client.request("GET", site["/"], limits=limits) as received:
                return await received.read()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(PLAIN + b"Content-Length: 100000\r\n\r\n")
    while True:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(0.01)


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(PLAIN + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        await writer.drain()


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await anyio.sleep_forever()


async def header_flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(PLAIN)
    while True:
        writer.write(b"X-More: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


async def patience(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.005)


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(PLAIN + b"Content-Length: 100000\r\n\r\n" + b"x" * 500)
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.transport.abort()


@pytest.mark.parametrize("reply", [drip, silence, patience])
async def test_time_limit_covers_the_whole_request(reply: Reply) -> None:
    with pytest.raises(Timeout, match=r"did not answer completely within 0\.2 s"):
        await get(reply, RequestLimits(seconds=0.2))


async def test_time_limit_covers_a_slow_reader() -> None:
    async with serving({"/": answer(200, b"x")}) as site, GuardedClient(OPEN) as client:
        with pytest.raises(Timeout):
            async with client.request("GET", site["/"], limits=RequestLimits(seconds=0.2)):
                await anyio.sleep_forever()


async def test_endless_body_is_cut_at_the_limit() -> None:
    with pytest.raises(ToolFailed, match="larger than 300000 bytes") as refused:
        await get(flood, RequestLimits(bytes=300_000))
    assert (refused.value.code, refused.value.details) == ("RESPONSE_TOO_LARGE", {"limit": 300_000})


async def test_body_with_a_too_large_content_length_is_not_read() -> None:
    with pytest.raises(ToolFailed, match="larger than 1000 bytes"):
        await get(PLAIN + b"Content-Length: 100000000000\r\n\r\n", RequestLimits(bytes=1000, seconds=TIMEOUT))


async def test_a_body_of_just_the_limit_is_read() -> None:
    assert await get(answer(200, b"x" * 1000), RequestLimits(bytes=1000)) == b"x" * 1000


async def test_endless_headers_are_refused() -> None:
    with pytest.raises(Unavailable, match="headers are too large") as refused:
        await get(header_flood)
    assert refused.value.code == "BAD_ANSWER"


async def test_large_headers_are_refused() -> None:
    with pytest.raises(Unavailable, match="headers are larger than 65536 bytes"):
        await get(answer(200, b"", *(f"X-{n}: {'x' * 1000}" for n in range(70))))


def packed(body: bytes) -> bytes:
    return answer(200, body, "Content-Encoding: gzip")


async def test_gzip_of_several_members_is_decompressed() -> None:
    assert await get(packed(gzip.compress(b"one"))) == b"one"
    assert await get(packed(gzip.compress(b"one") + gzip.compress(b"two"))) == b"onetwo"
    assert await get(packed(b"")) == b""


@pytest.mark.slow
async def test_gzip_bomb_costs_no_more_than_the_limit() -> None:
    bomb = gzip.compress(bytes(300 * KIBIBYTE * KIBIBYTE), 9)
    assert len(bomb) < 400 * KIBIBYTE
    tracemalloc.start()
    try:
        with pytest.raises(ToolFailed, match="larger than 2097152 bytes"):
            await get(packed(bomb), RequestLimits(bytes=2 * KIBIBYTE * KIBIBYTE))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * KIBIBYTE * KIBIBYTE


async def test_limit_counts_compressed_bytes_that_decompress_to_nothing() -> None:
    with pytest.raises(ToolFailed, match="larger than 1000 bytes"):
        await get(PLAIN + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n" + gzip.compress(b"") * 100,
                  RequestLimits(bytes=1000))  # fmt: skip


@pytest.mark.parametrize("coding", ["br", "zstd", "deflate", "gzip, gzip", "gzip, br", "compress", "aes128gcm"])
async def test_content_encoding_that_was_not_requested_is_refused(coding: str) -> None:
    with pytest.raises(Unavailable, match="content encoding that was not requested"):
        await get(answer(200, zlib.compress(b"x"), f"Content-Encoding: {coding}"))


async def test_gzip_that_is_damaged_or_ends_early_is_refused() -> None:
    whole = gzip.compress(b"some text " * 100)
    with pytest.raises(Unavailable, match="ended before its body was complete"):
        await get(packed(whole[:-10]))
    with pytest.raises(Unavailable, match="gzip data is damaged"):
        await get(packed(b"no gzip at all"))
    with pytest.raises(Unavailable, match="gzip data is damaged"):
        await get(packed(whole[:-8] + b"12345678"))


BROKEN: dict[str, Reply] = {
    "reset": reset,
    "too short": PLAIN + b"Content-Length: 100\r\nConnection: close\r\n\r\nshort",
    "chunks without end": PLAIN + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nshort\r\n",
    "bad chunks": PLAIN + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\nshort\r\n",
}


@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN)
async def test_truncated_body_is_an_error(reply: Reply) -> None:
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:\d+ ended before its body was complete") as refused:
        await get(reply)
    assert refused.value.code == "CONNECTION_LOST"


NOT_HTTP = {
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n Connection: close \r\n\r\n",
    "nothing": b"Connection: close",
    "two lengths": PLAIN + b"Content-Length: 1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab",
    "bad length": PLAIN + b"Content-Length: -1\r\nConnection: close\r\n\r\nab",
    "uninvited upgrade": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: close\r\n\r\n",
}


@pytest.mark.parametrize("reply", NOT_HTTP.values(), ids=NOT_HTTP)
async def test_response_that_is_not_http_is_an_error(reply: bytes) -> None:
    with pytest.raises(GatewayError) as refused:
        await get(reply, RequestLimits(seconds=5))
    assert refused.value.code in ("BAD_ANSWER", "CONNECTION_LOST")


async def test_connection_closed_without_a_response_is_an_error() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    with pytest.raises(Unavailable, match="closed the connection without a response") as refused:
        await get(hang_up)
    assert refused.value.code == "CONNECTION_LOST"


async def test_body_is_read_up_to_its_content_length() -> None:
    assert await get(PLAIN + b"Content-Length: 5\r\nConnection: close\r\n\r\nshort and more") == b"short"


async def test_content_length_of_a_head_response_is_not_limited() -> None:
    reply = PLAIN + b"Content-Length: 5000\r\nConnection: close\r\n\r\n"
    async with (
        serving({"/": reply}) as site,
        GuardedClient(OPEN) as client,
        client.request("HEAD", site["/"], limits=RequestLimits(bytes=10)) as received,
    ):
        assert (await received.read(), received.length) == (b"", 5000)
