"""Resources that are followed: the server stays for its followers, comes back for them, and is let go of after them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT, async_eventually
from journeys.servers import labs

from gateway.errors import Invalid, Unavailable
from gateway.mcp_client import Subscription
from gateway.sources.upstreams import subscriptions
from gateway.sources.upstreams import upstream as upstream_module
from gateway.sources.upstreams.upstream import Upstream

from .test_upstream import call_of, pid, upstream_of

pytestmark = pytest.mark.anyio

URI = "lab://plain"


class Follower:
    """Remembers that it was told."""

    def __init__(self) -> None:
        self.times = 0
        self._told = asyncio.Event()

    def __call__(self) -> None:
        self.times += 1
        self._told.set()

    async def wait_for_update(self) -> None:
        with anyio.fail_after(TIMEOUT):
            await self._told.wait()
        self._told.clear()


async def touch(upstream: Upstream, uri: str = URI) -> None:
    link = await upstream.connection_for(call_of("local")).connect()
    await link.request("tools/call", {"name": "touch", "arguments": {"uri": uri}})


@asynccontextmanager
async def lazy(directory: Path, era: str) -> AsyncIterator[Upstream]:
    declared = labs.on_stdio(era, LAB_FILE=str(directory / "notes"))
    async with upstream_of(directory, {**declared, "lazy": True}) as upstream:
        yield upstream


@pytest.mark.parametrize("era", labs.LAB_ERAS)
async def test_all_followers_are_told_until_they_leave_and_the_server_once(tmp_path: Path, era: str) -> None:
    async with lazy(tmp_path, era) as upstream:
        one, other = Follower(), Follower()
        leave = await upstream.subscriptions.subscribe(URI, one)
        leave_too = await upstream.subscriptions.subscribe(URI, other)
        await touch(upstream, "lab://ask")
        await touch(upstream)
        await one.wait_for_update()
        await other.wait_for_update()
        leave()
        await touch(upstream)
        await other.wait_for_update()
        leave_too()
        leave_too()
        await labs.noted(tmp_path / "notes", f"resources/unsubscribe {URI}")
        assert (one.times, other.times) == (1, 2)
        lab_notes = labs.notes(tmp_path / "notes")
        assert lab_notes.count(f"resources/subscribe {URI}") == lab_notes.count(f"resources/unsubscribe {URI}") == 1


@pytest.mark.parametrize("era", labs.LAB_ERAS)
async def test_a_server_does_not_rest_while_it_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, era: str
) -> None:
    monkeypatch.setattr(upstream_module, "IDLE_SECONDS", 0.1)
    async with lazy(tmp_path, era) as upstream:
        follower = Follower()
        leave = await upstream.subscriptions.subscribe(URI, follower)
        ours = await pid(upstream, "local")
        theirs = await pid(upstream, "bob")
        await async_eventually(lambda: theirs not in labs.running(str(tmp_path)))
        assert ours in labs.running(str(tmp_path))
        await touch(upstream)
        await follower.wait_for_update()
        leave()
        await labs.gone(str(tmp_path))


@pytest.mark.parametrize("era", labs.LAB_ERAS)
async def test_a_server_that_is_lost_comes_back_for_its_listeners(tmp_path: Path, era: str) -> None:
    async with lazy(tmp_path, era) as upstream:
        follower = Follower()
        await upstream.subscriptions.subscribe(URI, follower)
        assert follower.times == 0
        labs.kill(await pid(upstream, "local"))
        await follower.wait_for_update()  # something may have changed while nobody heard
        assert labs.notes(tmp_path / "notes").count(f"resources/subscribe {URI}") == 2
        await touch(upstream)
        await follower.wait_for_update()


@pytest.mark.parametrize("era", labs.LAB_ERAS)
async def test_one_that_is_reached_over_http_is_heard_again_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, era: str
) -> None:
    monkeypatch.setattr(subscriptions, "AGAIN_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with ExitStack() as stack:
        running = stack.enter_context(ExitStack())
        url = running.enter_context(labs.on_http(era, LAB_PORT=port))
        async with upstream_of(tmp_path, {"url": url, "lazy": True}) as upstream:
            follower = Follower()
            await upstream.subscriptions.subscribe(URI, follower)
            running.close()
            stack.enter_context(labs.on_http(era, LAB_PORT=port))
            await follower.wait_for_update()
            await touch(upstream)
            await follower.wait_for_update()


@pytest.mark.parametrize("era", labs.LAB_ERAS)
async def test_many_resources_take_few_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, era: str) -> None:
    monkeypatch.setattr(subscriptions, "STREAMS", 3)
    open_streams = most = 0

    async with lazy(tmp_path, era) as upstream:
        link = await upstream.connection_for(call_of("local")).connect()
        listen = link.listen

        async def counted(*arguments: Any, **more: Any) -> Subscription:
            nonlocal open_streams, most
            listening = await listen(*arguments, **more)
            open_streams += 1
            most = max(most, open_streams)
            close = listening.close

            def closed() -> None:
                nonlocal open_streams
                open_streams -= 1
                close()

            monkeypatch.setattr(listening, "close", closed)
            return listening

        monkeypatch.setattr(link, "listen", counted)
        followers = {f"lab://{number}": Follower() for number in range(20)}
        leave = [await upstream.subscriptions.subscribe(uri, follower) for uri, follower in followers.items()]
        for uri, follower in followers.items():
            await touch(upstream, uri)
            await follower.wait_for_update()
        assert most <= 5
        for each in leave:
            each()
        await async_eventually(lambda: not upstream.subscriptions._tasks)
        assert open_streams == 0


async def test_what_cannot_be_followed_is_refused_and_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "LIMIT", 1)
    declared: dict[str, Any] = labs.on_stdio("handshake", LAB_FILE=str(tmp_path / "notes"), LAB_HABITS="dies")
    async with upstream_of(tmp_path, {**declared, "lazy": True}) as upstream:
        with pytest.raises(Unavailable):
            await upstream.subscriptions.subscribe(URI, Follower())
        await async_eventually(lambda: not upstream.subscriptions._listeners)
    async with lazy(tmp_path, "handshake") as upstream:
        leave = await upstream.subscriptions.subscribe(URI, Follower())
        with pytest.raises(Invalid, match="1 resources of this server have subscriptions already"):
            await upstream.subscriptions.subscribe("lab://ask", Follower())
        leave()
        await labs.noted(tmp_path / "notes", f"resources/unsubscribe {URI}")
        await async_eventually(lambda: not upstream.subscriptions._listeners)
        await upstream.subscriptions.subscribe("lab://ask", Follower())
