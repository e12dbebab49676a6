"""Upstreams killed under load, one after the other: nobody else notices, each is back soon, and nothing is left."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway import Gateway
from gateway.sources.upstream import lane

from .servers import labs

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.promise("G1")]

STARTED, REACHED = 6, 4
SECONDS = 20.0
RECOVERY = 5.0
"""Seconds within which a killed server must answer again, its start included."""

RESTARTS, SIDE_BY_SIDE = 1000, 4


@dataclass
class Watched:
    """What one server's callers saw: process ids by the time they were told, failures, and its killings."""

    answered: list[tuple[float, int]] = field(default_factory=list)
    failed: list[tuple[float, str]] = field(default_factory=list)
    killed: list[float] = field(default_factory=list)

    def was_down(self, moment: float) -> bool:
        return any(killed - 0.5 <= moment <= killed + RECOVERY for killed in self.killed)

    def is_back(self, killed: float) -> bool:
        return any(killed < moment <= killed + RECOVERY for moment, _ in self.answered)


@pytest.fixture
def reached(tmp_path: Path) -> Iterator[dict[str, labs.Restarted]]:
    """The servers over HTTP, of both eras."""
    running = {f"h{number}": labs.Restarted(era, LAB_FILE=str(tmp_path / "notes")) for number, era in _eras(REACHED)}
    yield running
    for server in running.values():
        server.end()


async def test_killing_one_disturbs_no_other_and_it_comes_back(
    tmp_path: Path, reached: dict[str, labs.Restarted]
) -> None:
    started = {f"s{number}": labs.on_stdio(era, LAB_FILE=str(tmp_path / "notes")) for number, era in _eras(STARTED)}
    servers = started | {name: {"url": server.url} for name, server in reached.items()}
    watched = {name: Watched() for name in servers}
    settings = {"data_dir": str(tmp_path / "data"), "approval": {"mode": "never"}, "mcpServers": servers}
    async with Gateway.open(settings) as gateway:
        for name in servers:
            assert (await gateway.call(f"{name}:echo")).ok
        before = len(os.listdir("/proc/self/fd"))
        end = time.monotonic() + SECONDS
        callers = [_call(gateway, name, watched[name], end) for name in servers]
        await asyncio.gather(*callers, _kill(watched, reached, end))
        after = len(os.listdir("/proc/self/fd"))
    for name, seen in watched.items():
        assert seen.killed, f"{name} was never killed"
        assert [failure for failure in seen.failed if not seen.was_down(failure[0])] == [], name
        assert all(map(seen.is_back, seen.killed)), name
    assert after <= before + 2
    await labs.until(lambda: len(labs.running(str(tmp_path))) == REACHED)  # which are ours


@dataclass(frozen=True)
class Held:
    """What this process holds; children that nobody waited for are among them."""

    descriptors: int
    tasks: int
    threads: int
    children: int

    @classmethod
    def now(cls) -> Held:
        children = [file.read_text().split() for file in Path("/proc/self/task").glob("*/children")]
        return cls(
            len(os.listdir("/proc/self/fd")),
            len(asyncio.all_tasks()),
            sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate()),  # the loop's own are few
            sum(map(len, children)),
        )

    def is_within(self, other: Held) -> bool:
        return all(getattr(self, each) <= most for each, most in vars(other).items())


@pytest.mark.timeout(240)
async def test_a_thousand_restarts_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "STEADY_SECONDS", 0.0)  # each end is bad luck, and nobody has to wait
    servers = {f"s{number}": labs.tiny(MARKER=str(tmp_path)) for number in range(SIDE_BY_SIDE)}
    unlimited = {"upstream": {"calls_per_minute": 1_000_000}}
    settings = {"data_dir": str(tmp_path / "data"), "approval": {"mode": "never"}, "categories": unlimited}
    async with Gateway.open({**settings, "mcpServers": servers}) as gateway:
        await asyncio.gather(*(_restart(gateway, name, 5) for name in servers))
        await asyncio.sleep(0.5)  # what the last ones said is read and remembered
        before = Held.now()
        await asyncio.gather(*(_restart(gateway, name, RESTARTS // SIDE_BY_SIDE) for name in servers))
        with suppress(TimeoutError):
            await labs.until(lambda: Held.now().is_within(before))
        assert Held.now().is_within(before), (Held.now(), before)
        await labs.until(lambda: len(labs.running(str(tmp_path))) == 2 * SIDE_BY_SIDE)  # each with its keeper
    await labs.gone(str(tmp_path))


async def _restart(gateway: Gateway, name: str, times: int) -> None:
    """Kill a server so many times; each time one call is told of it at most, and the next has a new one."""
    pid = (await gateway.call(f"{name}:who")).value["pid"]
    for _ in range(times):
        labs.kill(pid)
        outcome = await gateway.call(f"{name}:who")
        if outcome.error is not None:
            assert outcome.error.code == "UPSTREAM_LOST"
            outcome = await gateway.call(f"{name}:who")
        assert outcome.error is None
        assert outcome.value["pid"] != pid
        pid = outcome.value["pid"]


async def _call(gateway: Gateway, name: str, seen: Watched, end: float) -> None:
    while time.monotonic() < end:
        outcome = await gateway.call(f"{name}:echo", {"text": name})
        if outcome.ok:
            seen.answered.append((time.monotonic(), outcome.value["pid"]))
        else:
            seen.failed.append((time.monotonic(), str(outcome.error)))
        await asyncio.sleep(0.02)


async def _kill(watched: dict[str, Watched], reached: dict[str, labs.Restarted], end: float) -> None:
    """Kill the process that answered last, server by server, leaving the last one time to recover."""
    for name, seen in itertools.cycle(watched.items()):
        await asyncio.sleep(1.0)
        if time.monotonic() > end - RECOVERY:
            return
        if name in reached:
            reached[name].kill()
        else:
            labs.kill(seen.answered[-1][1])
        seen.killed.append(time.monotonic())


def _eras(count: int) -> Iterator[tuple[int, str]]:
    return zip(range(count), itertools.cycle(labs.LAB_ERAS), strict=False)
