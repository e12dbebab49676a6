"""Lanes: a link for whoever needs one, opened once, opened again, and never in a rush."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from amounts import amount
from eventually import TIMEOUT, async_eventually
from journeys.servers import labs

from gateway.errors import Unavailable
from gateway.mcp_client import ClientIdentity, HttpEndpoint, McpClient, StdioEndpoint, open_client
from gateway.sources.upstreams import connection as lanes
from gateway.sources.upstreams.connection import ConnectionBusy, UpstreamConnection

pytestmark = pytest.mark.anyio

CLIENT_IDENTITY = ClientIdentity("lanes", "1", {})


@asynccontextmanager
async def open_upstream(
    endpoint: StdioEndpoint | HttpEndpoint, opened: Callable[[McpClient], None] = lambda _: None, **options: Any
) -> AsyncIterator[UpstreamConnection]:
    upstream = UpstreamConnection(
        "lab", lambda: open_client(endpoint, identity=CLIENT_IDENTITY, timeout=TIMEOUT), opened, **options
    )
    try:
        yield upstream
    finally:
        await upstream.close()


def lab(**env: str) -> StdioEndpoint:
    settings = labs.on_stdio(**env)
    return StdioEndpoint(settings["command"], tuple(settings["args"]), settings["env"])


async def pid(link: McpClient) -> int:
    result = await link.request("tools/call", {"name": "echo"})
    return int(result["structuredContent"]["pid"])


async def lost(link: McpClient) -> None:
    """Kill the child of a link, and wait until the link knows."""
    labs.kill(await pid(link))
    await link.wait_closed()


async def test_however_many_need_a_link_it_is_opened_once(tmp_path: Path) -> None:
    opened: list[McpClient] = []
    async with open_upstream(lab(LAB_FILE=str(tmp_path / "notes")), opened.append) as upstream:
        links = await asyncio.gather(*(upstream.connect() for _ in range(10)))
        assert opened == [links[0]]
        assert len(set(links)) == 1
        assert upstream.connected
        assert upstream.error is None
    assert labs.notes(tmp_path / "notes") == ["start"]
    assert labs.running(str(tmp_path)) == []


async def test_log_of_a_program_that_ended_says_where_its_stderr_is(caplog: pytest.LogCaptureFixture) -> None:
    ending = StdioEndpoint(sys.executable, ("-c", "import sys; print('the cause', file=sys.stderr); sys.exit(2)"), {})
    async with open_upstream(ending) as upstream:
        with pytest.raises(Unavailable) as refused:
            await upstream.connect()
    assert "the cause" not in refused.value.message
    [warning] = [text for text in caplog.messages if text.startswith("upstream lab did not start")]
    assert warning.endswith("ended with exit code 2; see: toolgate upstream logs lab")


async def test_whoever_gives_up_waiting_takes_the_link_from_nobody() -> None:
    async with open_upstream(lab()) as upstream:
        impatient, patient = asyncio.ensure_future(upstream.connect()), asyncio.ensure_future(upstream.connect())
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).lost is None
        assert impatient.cancelled()


async def test_a_server_that_dies_at_start_is_not_started_in_a_rush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "FIRST_WAIT", 300.0)
    monkeypatch.setattr(lanes, "LONGEST_WAIT", 900.0)
    notes = tmp_path / "notes"
    async with open_upstream(lab(LAB_FILE=str(notes), LAB_HABITS="dies")) as upstream:
        with pytest.raises(Unavailable, match=r"ended with exit code 1; the next attempt is in (300|2\d\d)\.\d s"):
            await upstream.connect()
        begun = len(labs.notes(notes))
        for _ in range(50):
            with pytest.raises(Unavailable) as refused:
                await upstream.connect()
            assert refused.value.code == "UPSTREAM_UNAVAILABLE"
            assert 0 < refused.value.details["retry_after"] <= 300
        assert len(labs.notes(notes)) == begun
        upstream._not_before = 0.0  # as if the time had passed
        with pytest.raises(Unavailable, match=r"the next attempt is in (600|5\d\d)\.\d s"):
            await upstream.connect()
        assert len(labs.notes(notes)) == 2 * begun


async def test_a_lost_link_is_replaced_at_once_but_one_lost_again_and_again_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seconds in ("FIRST_WAIT", "LONGEST_WAIT", "STEADY_SECONDS"):
        monkeypatch.setattr(lanes, seconds, 300.0)
    async with open_upstream(lab()) as upstream:
        first = await upstream.connect()
        await lost(first)
        assert not upstream.connected
        second = await upstream.connect()
        assert second is not first
        assert second.lost is None
        await lost(second)
        with pytest.raises(Unavailable, match=r"exit code 137; the next attempt is in (300|2\d\d)"):
            await upstream.connect()
        upstream._not_before = 0.0  # as if the time had passed
        assert (await upstream.connect()).lost is None


@pytest.mark.slow
async def test_what_lived_long_was_no_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "STEADY_SECONDS", 0.0)
    async with open_upstream(lab()) as upstream:
        for _ in range(2):
            await lost(await upstream.connect())
        assert (await upstream.connect()).lost is None


async def test_a_bug_is_a_failed_start_too() -> None:
    async def broken() -> McpClient:
        raise ZeroDivisionError

    upstream = UpstreamConnection("lab", broken, lambda _: None)
    with pytest.raises(Unavailable, match="see the gateway's log; the next attempt is in"):
        await upstream.connect()
    await upstream.close()


async def test_a_lane_nobody_uses_is_closed_and_one_in_use_is_not() -> None:
    left: list[UpstreamConnection] = []
    gone = asyncio.Event()

    def leave(upstream: UpstreamConnection) -> None:
        left.append(upstream)
        gone.set()

    async with open_upstream(lab(), idle=0.1, on_idle=leave) as upstream:
        with upstream.use():
            link = await upstream.connect()
            await asyncio.sleep(0.25)
            assert upstream.connected
        with anyio.fail_after(TIMEOUT):
            await gone.wait()
        await link.wait_closed()
        assert left == [upstream]
        with upstream.use():
            assert (await upstream.connect()).lost is None  # and back when it is wanted, at once


async def test_whoever_waits_when_a_lane_is_closed_is_told() -> None:
    async with open_upstream(lab(LAB_HABITS="silent")) as upstream:
        waiting = asyncio.ensure_future(upstream.connect())
        await asyncio.sleep(0.05)
        await upstream.close()
        with pytest.raises(Unavailable, match="removed"):
            await waiting
        with pytest.raises(Unavailable, match="removed"):
            await upstream.connect()


async def test_those_who_want_a_lane_for_themselves_have_it_in_turn() -> None:
    order: list[int] = []

    async def one(number: int) -> None:
        async with upstream.exclusive():
            order.append(number)
            await asyncio.sleep(0.01)
            order.append(number)

    async with open_upstream(lab()) as upstream:
        await asyncio.gather(*(one(number) for number in range(3)))
        assert order == [0, 0, 1, 1, 2, 2]


async def test_nobody_waits_for_a_lane_on_which_somebody_is_asked() -> None:
    async def wait() -> None:
        async with upstream.exclusive():
            raise AssertionError

    async with open_upstream(lab()) as upstream, upstream.exclusive():
        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        with upstream.waiting_for_input():
            assert upstream.awaiting_input
            with pytest.raises(ConnectionBusy):
                await waiting
        assert not upstream.awaiting_input


@pytest.mark.slow
async def test_many_restarts_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "STEADY_SECONDS", 0.0)
    async with open_upstream(lab(LAB_FILE=str(tmp_path / "notes"))) as upstream:
        for _ in range(3):
            await lost(await upstream.connect())
        await upstream.connect()
        before = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        for _ in range(amount(30, nightly=100)):
            await lost(await upstream.connect())
        await upstream.connect()
        await async_eventually(lambda: len(labs.running(str(tmp_path))) <= 2)  # the supervisor, and the server
        await async_eventually(lambda: len(os.listdir("/proc/self/fd")) <= before[0] + 2)
        await async_eventually(lambda: len(asyncio.all_tasks()) <= before[1] + 2)
