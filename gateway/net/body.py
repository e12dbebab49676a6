"""The body of an answer: piece by piece, unpacked, and never more than was allowed."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import cast

import anyio.lowlevel
import httpx2

from gateway.errors import ToolFailed
from gateway.net import errors

RESPONSE_TOO_LARGE = "RESPONSE_TOO_LARGE"
_PIECE = 256 * 1024
_GZIP = zlib.MAX_WBITS | 16


async def pieces(response: httpx2.Response, origin: str, limit: int) -> AsyncGenerator[bytes]:
    """The body as it is meant to be read. Refused beyond `limit` bytes, packed or unpacked; since
    it is unpacked in small pieces, a few bytes that stand for gigabytes cost no more than the limit."""
    packed = _is_packed(response, origin)
    length = declared_length(response)
    if length is not None and length > limit and response.request.method != "HEAD":
        raise _too_large(origin, limit)
    unpacker = _Gzip() if packed else _Plain()
    received = given = 0
    try:
        async with aclosing(_parts(response)) as parts:
            async for part in parts:
                received += len(part)
                for piece in unpacker.feed(part):
                    given += len(piece)
                    if max(received, given) > limit:
                        raise _too_large(origin, limit)
                    yield piece
                    await anyio.lowlevel.checkpoint()  # much may come of one part, and others wait
                if received > limit:
                    raise _too_large(origin, limit)
    except zlib.error:
        raise errors.bad_answer(origin, "its gzip data is damaged") from None
    except httpx2.TransportError:
        raise errors.within_answer(origin) from None
    if not unpacker.is_whole:
        raise errors.within_answer(origin)


def declared_length(response: httpx2.Response) -> int | None:
    """How many bytes the server says it sends, where it does."""
    text = response.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _parts(response: httpx2.Response) -> AsyncGenerator[bytes]:
    return cast("AsyncGenerator[bytes]", cast("httpx2.AsyncByteStream", response.stream).__aiter__())


def _is_packed(response: httpx2.Response, origin: str) -> bool:
    """One layer of gzip, which we ask for, or none: layers can multiply what a few bytes stand for."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("gzip", "x-gzip", "identity", ""):
        raise errors.bad_answer(origin, "it is packed in a way that was not asked for")
    return coding.endswith("gzip")


def _too_large(origin: str, limit: int) -> ToolFailed:
    return ToolFailed(f"the answer of {origin} is larger than {limit} bytes", code=RESPONSE_TOO_LARGE, limit=limit)


class _Plain:
    is_whole = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data


class _Gzip:
    """Unpacks gzip, also several of them one after another, at most a piece at a time."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_GZIP)
        self._begun = False

    @property
    def is_whole(self) -> bool:
        return self._inflate.eof or not self._begun

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._inflate.eof:
                self._inflate = zlib.decompressobj(_GZIP)
            self._begun = True
            piece = self._inflate.decompress(data, _PIECE)
            data = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            if piece:
                yield piece
