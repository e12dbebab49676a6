"""Upstreams: what they said last is offered, they are asked when it may be another, and callers have their own ways."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT, async_eventually
from journeys.servers import lab, labs
from mcp_client.scripted import Request, modern, scripted

from gateway.calls import Call, Caller, ClientInfo
from gateway.config import UpstreamSettings
from gateway.db.pins import Pins
from gateway.db.sqlite import SqliteDatabase
from gateway.db.upstreams import Upstreams
from gateway.errors import Unavailable
from gateway.sources.upstreams import definitions
from gateway.sources.upstreams import upstream as server
from gateway.sources.upstreams.registry import CLIENT_IDENTITY
from gateway.sources.upstreams.spec import SETTINGS, Spec
from gateway.sources.upstreams.upstream import Upstream

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def upstream_of(
    directory: Path, server_settings: dict[str, Any], environment: Any = None
) -> AsyncIterator[Upstream]:
    """An upstream named `lab` with what `directory` remembers of it."""
    db = await SqliteDatabase.open(directory / "toolgate.db")
    spec = Spec.of("lab", UpstreamSettings.model_validate(server_settings), SETTINGS)
    upstream = Upstream(
        spec,
        Upstreams(db),
        Pins(db),
        CLIENT_IDENTITY,
        lambda _: None,
        environment={} if environment is None else environment,
    )
    try:
        await upstream.load_cached()
        yield upstream
    finally:
        await upstream.close()
        await db.close()


def offered(upstream: Upstream) -> set[str]:
    return {tool.id for tool in upstream.tools if tool.withheld is None}


def call_of(principal: str, chat: str = "default") -> Call:
    return Call(name="x", arguments={}, chat=chat, caller=Caller(principal=principal))


async def pid(upstream: Upstream, principal: str, chat: str = "default") -> int:
    link = await upstream.connection_for(call_of(principal, chat)).connect()
    result = await link.request("tools/call", {"name": "echo"})
    return int(result["structuredContent"]["pid"])


@pytest.mark.parametrize("era", labs.LAB_ERAS)
async def test_it_is_asked_once_connected_and_offered_until_it_is_asked_again(tmp_path: Path, era: str) -> None:
    async with upstream_of(tmp_path, labs.on_stdio(era)) as upstream:
        assert not upstream.known
        await upstream.discover()
        assert "lab:plain" in offered(upstream)
        assert upstream.connected
        known_era = upstream.era
    async with upstream_of(tmp_path, {"command": "is-not-there"}) as upstream:
        assert "lab:plain" in offered(upstream)
        assert upstream.era == known_era
        with pytest.raises(Unavailable, match="'is-not-there' was not found"):
            await upstream.connection_for(call_of("ann")).connect()
        assert "lab:plain" in offered(upstream)
        memory = await upstream._store.load_listing("lab")
        assert "is-not-there" in str(memory.error)


@pytest.mark.parametrize("era", ["modern", pytest.param("handshake", marks=pytest.mark.slow)])
async def test_a_burst_of_changes_is_asked_about_a_few_times(
    tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SETTLE_SECONDS", 1.0)
    lists = 0

    def note(_: object) -> None:
        nonlocal lists
        lists += 1

    async with upstream_of(tmp_path, labs.on_stdio(era)) as upstream:
        take = upstream._apply

        async def counted(lab_update: Any) -> None:
            note(lab_update)
            await take(lab_update)

        monkeypatch.setattr(upstream, "_apply", counted)
        started = time.monotonic()
        await upstream.discover()
        link = await upstream.connection_for(call_of("local")).connect()
        for _ in range(100):
            await link.request("tools/call", {"name": "grow"})
        await async_eventually(lambda: len(offered(upstream)) == len(lab.tools) + 100)
        assert lists <= 3 + (time.monotonic() - started) / server.SETTLE_SECONDS


async def test_one_that_hangs_is_looked_at_without_end_and_closed_in_time(tmp_path: Path) -> None:
    async with upstream_of(tmp_path, labs.on_stdio(LAB_HABITS="silent")) as upstream:
        with anyio.move_on_after(0.2) as given_up:
            await upstream.discover()
        assert given_up.cancelled_caught
        assert not upstream.known
        with anyio.fail_after(server.START_SECONDS / 2):
            await upstream.close()


@pytest.mark.slow
async def test_one_that_does_not_say_what_it_has_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LIST_SECONDS", 0.1)
    monkeypatch.setattr(server, "AGAIN_SECONDS", 0.1)
    async with upstream_of(tmp_path, labs.on_stdio(LAB_HABITS="mute")) as upstream:
        with anyio.fail_after(TIMEOUT):
            await upstream.discover()
        assert not upstream.known
        monkeypatch.setattr(server, "LIST_SECONDS", TIMEOUT)
        monkeypatch.setattr(definitions, "LISTS", dict.fromkeys(("tools", "prompts", "resources"), ("ping", "x")))
        await async_eventually(lambda: upstream.known)


async def test_one_never_seen_is_tried_until_it_is_there(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    async with upstream_of(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as upstream:
        await upstream.discover()
        assert not upstream.known
        assert upstream.error
        with labs.on_http(LAB_PORT=str(port)):
            await async_eventually(lambda: "lab:plain" in offered(upstream))


async def test_one_that_is_not_lazy_is_connected_again_without_being_called(tmp_path: Path) -> None:
    async with upstream_of(tmp_path, {**labs.on_stdio(), "lazy": False}) as upstream:
        await upstream.discover()
        first = await pid(upstream, "local")
        labs.kill(first)
        await async_eventually(lambda: not upstream.connected)
        await async_eventually(lambda: upstream.connected)
        assert await pid(upstream, "local") != first


@pytest.mark.parametrize(
    ("sharing", "ways"),
    [
        ("principal", [("ann", "a"), ("ann", "a"), ("bob", "b")]),
        pytest.param("chat", [("ann", "a"), ("ann", "c"), ("bob", "b")], marks=pytest.mark.slow),
        ("all", [("ann", "a"), ("ann", "a"), ("ann", "a")]),
    ],
)
async def test_who_shares_a_child(tmp_path: Path, sharing: str, ways: list[tuple[str, str]]) -> None:
    """Of calls by ann in two chats and by bob in a third: which of them each call shares its child with."""
    async with upstream_of(tmp_path, {**labs.on_stdio(), "sharing": sharing}) as upstream:
        calls = [("ann", "a"), ("ann", "c"), ("bob", "b")]
        pids = {each: await pid(upstream, *each) for each in calls}
        assert [pids[each] for each in calls] == [pids[way] for way in ways]
        assert len(set(pids.values())) == len(set(ways))


async def test_children_are_bounded_and_those_nobody_uses_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_LIMIT", 2)
    async with upstream_of(tmp_path, labs.on_stdio(LAB_FILE=str(tmp_path / "notes"))) as upstream:
        first, second = upstream.connection_for(call_of("ann")), upstream.connection_for(call_of("bob"))
        with first.use():
            await first.connect()
            await second.connect()
            with upstream.connection_for(call_of("cid")).use():  # bob's is let go of
                assert upstream.connection_for(call_of("ann")) is first
                with pytest.raises(Unavailable, match="2 connections to 'lab' are in use"):
                    upstream.connection_for(call_of("dan"))
        await async_eventually(lambda: not second.connected)


async def test_a_missing_variable_is_named_and_found_when_it_is_set(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    server_settings = labs.on_stdio(LAB_WORDS="${LAB_SECRET} words")
    async with upstream_of(tmp_path, server_settings, environment) as upstream:
        with pytest.raises(Unavailable, match="environment variable LAB_SECRET is not set"):
            await upstream.connection_for(call_of("ann")).connect()
        assert "hush" not in str(await upstream._store.load_listing("lab"))
        environment["LAB_SECRET"] = "hush"
        await upstream.discover()
        await async_eventually(lambda: any(tool.description == "hush words" for tool in upstream.tools))
        assert "${LAB_SECRET}" in str(upstream.spec.settings)


async def test_a_removed_one_opens_nothing_any_more(tmp_path: Path) -> None:
    async with upstream_of(tmp_path, labs.on_stdio()) as upstream:
        connection = upstream.connection_for(call_of("ann"))
        await upstream.close()
        for late in (connection.connect(), upstream.discover()):
            try:
                await late
            except Unavailable as error:
                assert "removed" in error.message
        with pytest.raises(Unavailable, match="removed"):
            upstream.connection_for(call_of("bob"))
        assert not connection.connected


async def test_pages_are_declared_to_a_handshake_server_for_clients_that_show_them(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    extension = "io.modelcontextprotocol/ui"
    shows = ClientInfo(capabilities={"extensions": {extension: {}}})
    async with upstream_of(tmp_path, labs.on_stdio("handshake", LAB_HABITS="pages", LAB_FILE=str(notes))) as upstream:
        await upstream.discover()
    lists = len(labs.notes(notes))
    for client, declared in ((ClientInfo(), "initialize "), (shows, f"initialize {extension}")):
        server_settings = labs.on_stdio("handshake", LAB_HABITS="pages", LAB_FILE=str(notes))
        async with upstream_of(tmp_path, server_settings) as upstream:
            for modern in (False, True):
                call = call_of("local").replace(client=replace(client, modern=modern))
                await upstream.connection_for(call).connect()
        assert labs.notes(notes)[lists:] == ["start", declared]
        lists = len(labs.notes(notes))


async def test_clients_with_and_without_pages_have_their_own_connections(tmp_path: Path) -> None:
    shows = ClientInfo(capabilities={"extensions": {"io.modelcontextprotocol/ui": {}}})
    async with upstream_of(tmp_path, labs.on_stdio("handshake", LAB_HABITS="pages")) as upstream:
        await upstream.discover()
        calls = [call_of("local").replace(client=client) for client in (shows, ClientInfo())]
        with upstream.connection_for(calls[0]).use():
            assert upstream.connection_for(calls[0]) is not upstream.connection_for(calls[1])
    async with upstream_of(tmp_path / "plain", labs.on_stdio("handshake")) as upstream:
        await upstream.discover()
        assert upstream.connection_for(calls[0]) is upstream.connection_for(calls[1])


async def test_every_connection_knows_which_arguments_are_sent_as_headers(tmp_path: Path) -> None:
    with labs.on_http(LAB_HABITS="headers") as url:
        async with upstream_of(tmp_path, {"url": url}) as upstream:
            early = await upstream.connection_for(call_of("ann")).connect()
            await upstream.discover()
            late = await upstream.connection_for(call_of("bob")).connect()
            for link in (early, late):
                assert link.header_maps["echo"] == {("region",): "Region"}


async def test_list_of_a_server_that_announces_nothing_is_asked_for_again_when_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FRESH_SECONDS", 0.01)
    lists: list[int] = []

    async def serve(request: Request) -> None:
        lists.append(len(lists))
        tools = [{"name": f"tool_{number}", "inputSchema": {"type": "object"}} for number in lists[:2]]
        lifetime = {"ttlMs": 20 if len(lists) < 3 else 0, "cacheScope": "private"}
        request.result({"resultType": "complete", "tools": tools, **lifetime})

    async with scripted(modern(serve)) as (_, url), upstream_of(tmp_path, {"url": url}) as upstream:
        await upstream.discover()
        await async_eventually(lambda: offered(upstream) == {"lab:tool_0", "lab:tool_1"})
        await async_eventually(lambda: len(lists) == 3)  # whose list is not to be kept
