"""Download a URL into an open file, completely or not at all."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import BinaryIO

import anyio.to_thread

from gateway.calls import Progress, no_progress
from gateway.errors import GatewayError, NotFound, Unavailable
from gateway.net.client import GuardedClient, HttpResponse, Retry
from gateway.net.policy import NetworkPolicy, RequestLimits
from gateway.net.transport import INTERNET, Network
from gateway.value import Value

BAD_STATUS = "BAD_STATUS"
URL_NOT_FOUND = "URL_NOT_FOUND"
_BLOCK_BYTES = 1024 * 1024


class DownloadResult(Value):
    """A completed download: its URL after redirects, size and content type."""

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
    """Write the content of `url` to `file` from its position on. Only https is used, or http from this machine if the
    policy allows private addresses. On any failure the file is truncated to where it was."""
    limits = RequestLimits(bytes=limit, seconds=timeout, connect_seconds=min(timeout, RequestLimits.connect_seconds))
    async with GuardedClient(replace(policy, https_only=True), network, tls) as client:
        return await save(client, url, file, limits=limits, progress=progress)


async def save(
    client: GuardedClient,
    url: str,
    file: BinaryIO,
    *,
    limits: RequestLimits,
    headers: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> DownloadResult:
    """Download with an existing client, under its policy."""
    start = file.tell()
    try:
        async with client.request("GET", url, headers=headers, limits=limits, retry=Retry()) as response:
            if response.status != HTTPStatus.OK:
                raise _status_error(response)
            written = await write_response(response, file, progress)
    except BaseException:
        with contextlib.suppress(OSError):
            file.seek(start)
            file.truncate()
        raise
    return DownloadResult(response.url, written, response.content_type)


async def write_response(response: HttpResponse, file: BinaryIO, progress: Progress) -> int:
    """Write the body of a response to a file; return its size."""
    written = 0
    async for block in _blocks(response.chunks):
        await anyio.to_thread.run_sync(file.write, block)
        written += len(block)
        await progress(written, response.length, None)
    return written


async def _blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Join chunks into larger blocks: each write is a trip to another thread."""
    block = bytearray()
    async for chunk in chunks:
        block += chunk
        if len(block) >= _BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def _status_error(response: HttpResponse) -> GatewayError:
    try:
        status = f"{response.status} {HTTPStatus(response.status).phrase}"
    except ValueError:
        status = str(response.status)
    if response.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return NotFound(f"{response.origin} has nothing at that URL ({status}); check the URL", code=URL_NOT_FOUND)
    return Unavailable(f"{response.origin} refused the download with {status}", code=BAD_STATUS, status=response.status)
