"""A file from the web, whole or not at all."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT

from gateway.errors import Forbidden, GatewayError, NotFound, Timeout, ToolFailed, Unavailable
from gateway.net.download import DownloadResult, download
from gateway.net.policy import NetworkPolicy

from .sites import PUBLIC, Lab, Reply, answer, redirect, serving, trusting
from .test_limits import BROKEN, drip, flood

pytestmark = pytest.mark.anyio

ANY = NetworkPolicy(any_host=True)
OPEN = NetworkPolicy(any_host=True, allow_private=True)
BODY = bytes(range(256)) * 20000


async def fetch(url: str, file: Any, policy: NetworkPolicy = OPEN, **more: Any) -> DownloadResult:
    with anyio.fail_after(TIMEOUT):
        return await download(url, file, policy=policy, **{"limit": len(BODY), "timeout": TIMEOUT, **more})


async def test_download_is_complete_and_reports_progress(tmp_path: Path) -> None:
    seen: list[tuple[float, float | None]] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        seen.append((done, total))

    replies = {"/x": redirect("/bundle.zip?v=2"), "/bundle.zip": answer(200, BODY, "Content-Type: application/zip")}
    async with serving(replies) as site:
        with (tmp_path / "bundle.zip").open("wb") as file:
            got = await fetch(site["/x"], file, progress=progress)
        assert got == DownloadResult(site["/bundle.zip?v=2"], len(BODY), "application/zip")
    assert (tmp_path / "bundle.zip").read_bytes() == BODY
    assert 1 < len(seen) < 10
    assert [*sorted(seen)[:-1], (len(BODY), len(BODY))] == seen


async def test_download_is_never_held_in_memory_as_a_whole(tmp_path: Path) -> None:
    size, largest = 40 * 1024 * 1024, 0

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // 65536):
            writer.write(bytes(65536))
            await writer.drain()

    class Watched(io.FileIO):
        def write(self, data: Any) -> int:
            nonlocal largest
            largest = max(largest, len(data))
            return super().write(data)

    async with serving({"/": send}) as site:
        with Watched(tmp_path / "file", "wb") as file:
            assert (await fetch(site["/"], file, limit=size)).bytes == size
    assert largest < 2 * 1024 * 1024
    assert hashlib.sha256((tmp_path / "file").read_bytes()).digest() == hashlib.sha256(bytes(size)).digest()


async def test_a_file_from_a_public_host_comes_over_tls() -> None:
    async with serving({"/": answer(200, b"bundle")}, names=["public.test"]) as site:
        file = io.BytesIO()
        lab = Lab(site.port, {"public.test": [[PUBLIC]]})
        await fetch("https://public.test/", file, ANY, network=lab, tls=trusting())
    assert file.getvalue() == b"bundle"


async def test_plain_http_is_refused_but_from_this_machine() -> None:
    async with serving({"/": answer(200, b"bundle")}) as site:
        lab = Lab(site.port, {"public.test": [[PUBLIC]], "lan.test": [["192.168.0.9"]], "here.test": [["127.0.0.1"]]})
        for url, policy in (
            ("http://public.test/", ANY),
            ("http://public.test/", OPEN),
            ("http://lan.test/", OPEN),
            ("http://here.test/", ANY),
        ):
            with pytest.raises(Forbidden, match="use https") as refused:
                await fetch(url, io.BytesIO(), policy, network=lab)
            assert refused.value.code == "INSECURE_URL"
        assert lab.connected == []
        assert (await fetch("http://here.test/", io.BytesIO(), OPEN, network=lab)).bytes == 6


async def test_a_redirect_from_https_to_http_is_refused() -> None:
    async with serving({"/": redirect("http://localhost/")}, names=["public.test"]) as site:
        lab = Lab(site.port, {"public.test": [[PUBLIC]], "localhost": [["127.0.0.1"]]})
        with pytest.raises(Forbidden) as refused:
            await fetch("https://public.test/", io.BytesIO(), OPEN, network=lab, tls=trusting())
        assert refused.value.code == "INSECURE_REDIRECT"
        assert lab.connected == [PUBLIC]


async def test_only_the_hosts_that_are_allowed_where_some_are_named() -> None:
    with pytest.raises(Forbidden) as refused:
        await fetch("https://other.test/", io.BytesIO(), NetworkPolicy(allowed_hosts=("public.test",)))
    assert refused.value.code == "HOST_NOT_ALLOWED"


@pytest.mark.parametrize("status", [404, 410])
async def test_download_not_found_is_reported_without_the_query(status: int) -> None:
    async with serving({"/bundle.zip": answer(status, b"<html>")}) as site:
        file = io.BytesIO()
        with pytest.raises(NotFound, match=rf"http://127\.0\.0\.1:\d+ has nothing at that URL \({status} ") as refused:
            await fetch(site["/bundle.zip?token=hidden"], file)
    assert refused.value.code == "URL_NOT_FOUND"
    assert "hidden" not in str(refused.value.to_dict())
    assert file.getvalue() == b""


@pytest.mark.parametrize("status", [204, 206, 401, 403, 500, 599, 999])
async def test_download_with_an_error_status_is_refused(status: int) -> None:
    async with serving({"/": answer(status, b"" if status == 204 else b"<html>")}) as site:
        file = io.BytesIO()
        with pytest.raises(Unavailable, match=f"refused the download with {status}") as refused:
            await fetch(site["/"], file)
    assert (refused.value.code, refused.value.details, file.getvalue()) == ("BAD_STATUS", {"status": status}, b"")


HOSTILE: dict[str, Reply] = {
    **BROKEN,
    "drip": drip,
    "flood": flood,
    "bomb": answer(200, gzip.compress(bytes(len(BODY) + 1)), "Content-Encoding: gzip"),
    "loop": redirect("/"),
}


@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE)
async def test_failed_download_leaves_the_file_as_it_was(reply: Reply, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    async with serving({"/": reply}) as site:
        with path.open("ab") as file, pytest.raises((Unavailable, ToolFailed, Timeout)):
            await fetch(site["/"], file, timeout=1)
    assert path.read_bytes() == b"before"


async def test_cancelled_download_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    async with serving({"/": drip}) as site:
        with path.open("wb") as file:
            task = asyncio.create_task(fetch(site["/"], file))
            await site.was_asked(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert path.read_bytes() == b""


async def test_download_is_retried_while_the_server_is_busy() -> None:
    async with serving({"/": [answer(503, b"", "Retry-After: 0"), answer(200, b"bundle")]}) as site:
        assert (await fetch(site["/"], io.BytesIO())).bytes == 6


async def test_download_to_a_full_disk_raises_the_disk_error(tmp_path: Path) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    async with serving({"/": answer(200, b"bundle")}) as site:
        with pytest.raises(OSError, match="No space left") as failed:
            await fetch(site["/"], Full())
    assert not isinstance(failed.value, GatewayError)
