"""A file from the web: streamed into an open file, whole or not at all."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import BinaryIO

import anyio.to_thread

from gateway.calls import Progress, no_progress
from gateway.errors import GatewayError, NotFound, Unavailable
from gateway.net.client import GuardedClient, HttpResponse, Retry
from gateway.net.policy import NetworkPolicy, RequestLimits
from gateway.net.transport import INTERNET, Network

BAD_STATUS = "BAD_STATUS"
URL_NOT_FOUND = "URL_NOT_FOUND"
_WRITE = 1024 * 1024


@dataclass(frozen=True)
class DownloadResult:
    """Where a file came from in the end, how long it is, and what the server says it is."""

    url_final: str
    bytes: int
    content_type: str | None


async def download(
    url: str,
    file: BinaryIO,
    *,
    limit: int,
    timeout: float,
    policy: NetworkPolicy,
    progress: Progress = no_progress,
    network: Network = INTERNET,
    tls: ssl.SSLContext | None = None,
) -> DownloadResult:
    """Write what is at `url` into `file`, from where it stands. Over https only, or http from this
    machine where the policy allows private addresses. Whatever goes wrong, the file is cut back to
    where it stood."""
    limits = RequestLimits(bytes=limit, seconds=timeout, connect_seconds=min(timeout, RequestLimits.connect_seconds))
    async with GuardedClient(replace(policy, https_only=True), network, tls) as door:
        return await save(door, url, file, limits=limits, progress=progress)


async def save(
    door: GuardedClient,
    url: str,
    file: BinaryIO,
    *,
    limits: RequestLimits,
    headers: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> DownloadResult:
    """The same through a door that is open already, under its own policy."""
    start = file.tell()
    try:
        async with door.request("GET", url, headers=headers, limits=limits, retry=Retry()) as answer:
            if answer.status != HTTPStatus.OK:
                raise _no_file(answer)
            written = await _write(answer, file, progress)
    except BaseException:
        with contextlib.suppress(OSError):
            file.seek(start)
            file.truncate()
        raise
    return DownloadResult(answer.url, written, answer.content_type)


async def _write(answer: HttpResponse, file: BinaryIO, progress: Progress) -> int:
    written = 0
    async for block in _blocks(answer.chunks):
        await anyio.to_thread.run_sync(file.write, block)
        written += len(block)
        await progress(written, answer.length, None)
    return written


async def _blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in fewer pieces: each is a trip to another thread."""
    block = bytearray()
    async for chunk in chunks:
        block += chunk
        if len(block) >= _WRITE:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def _no_file(answer: HttpResponse) -> GatewayError:
    try:
        said = f"{answer.status} {HTTPStatus(answer.status).phrase}"
    except ValueError:
        said = str(answer.status)
    if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return NotFound(f"{answer.origin} has nothing at that URL ({said}); check it", code=URL_NOT_FOUND)
    return Unavailable(f"{answer.origin} does not give the file: {said}", code=BAD_STATUS, status=answer.status)
