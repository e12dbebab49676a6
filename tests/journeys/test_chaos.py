"""Upstreams killed under load, one after the other: nobody else notices, each is back soon, and nothing is left."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from amounts import amount
from eventually import async_eventually

from gateway import Gateway
from gateway.sources.upstreams import connection

from .servers import labs

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.promise("G1")]

STARTED, REACHED = 6, 4
# Kills in all, a second apart, so that each server has its turn and some are down at the same time.
KILLS = 15

RESTARTS, SIDE_BY_SIDE = amount(100, nightly=1000), 4


@dataclass
class Watched:
    """The calls of one server and its kills, in order."""

    # The process that answered last.
    pid: int = 0

    # The process that was killed last, until another one answers.
    killed_pid: int | None = None

    kills: int = 0
    # Failures while the server was not down.
    failures: list[str] = field(default_factory=list)

    def can_be_killed(self) -> bool:
        return bool(self.pid) and self.killed_pid is None

    def note_answer(self, pid: int) -> None:
        self.pid = pid
        if pid != self.killed_pid:
            self.killed_pid = None

    def note_failure(self, message: str) -> None:
        if self.killed_pid is None:
            self.failures.append(message)


@pytest.fixture
def reached(tmp_path: Path) -> Iterator[dict[str, labs.Restarted]]:
    """The servers over HTTP, of both eras."""
    running = {f"h{number}": labs.Restarted(era, LAB_FILE=str(tmp_path / "notes")) for number, era in _eras(REACHED)}
    yield running
    for server in running.values():
        server.end()


async def test_killed_upstream_is_restarted_and_affects_no_other(
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
        callers = [asyncio.ensure_future(_call(gateway, name, watched[name])) for name in servers]
        await _kill(watched, reached)
        await async_eventually(lambda: all(seen.killed_pid is None for seen in watched.values()))
        for caller in callers:
            caller.cancel()
        ends = await asyncio.gather(*callers, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * len(callers)
        await async_eventually(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)
    for name, seen in watched.items():
        assert seen.kills, f"{name} was never killed"
        assert seen.failures == [], name
    await async_eventually(lambda: len(labs.running(str(tmp_path))) == REACHED)  # which are ours


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


@pytest.mark.timeout(600)
async def test_upstream_restarted_a_thousand_times_leaves_no_process_or_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STEADY_SECONDS", 0.0)  # each end is bad luck, and nobody has to wait
    servers = {f"s{number}": labs.tiny(MARKER=str(tmp_path)) for number in range(SIDE_BY_SIDE)}
    unlimited = {"upstream": {"calls_per_minute": 1_000_000}}
    settings = {"data_dir": str(tmp_path / "data"), "approval": {"mode": "never"}, "categories": unlimited}
    async with Gateway.open({**settings, "mcpServers": servers}) as gateway:
        await asyncio.gather(*(_restart(gateway, name, 5) for name in servers))
        await asyncio.sleep(0.5)  # what the last ones said is read and remembered
        before = Held.now()
        await asyncio.gather(*(_restart(gateway, name, RESTARTS // SIDE_BY_SIDE) for name in servers))
        await async_eventually(lambda: Held.now().is_within(before))
        await async_eventually(lambda: len(labs.running(str(tmp_path))) == 2 * SIDE_BY_SIDE)  # each with its supervisor
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


async def _call(gateway: Gateway, name: str, seen: Watched) -> None:
    while True:
        outcome = await gateway.call(f"{name}:echo", {"text": name})
        if outcome.ok:
            seen.note_answer(outcome.value["pid"])
        else:
            seen.note_failure(str(outcome.error))
        await asyncio.sleep(0.02)


async def _kill(watched: dict[str, Watched], reached: dict[str, labs.Restarted]) -> None:
    """Kill the process that answered last, server by server."""
    for name, seen in itertools.islice(itertools.cycle(watched.items()), KILLS):
        await asyncio.sleep(1.0)
        await async_eventually(seen.can_be_killed)
        seen.killed_pid = seen.pid
        seen.kills += 1
        if name in reached:
            reached[name].kill()
        else:
            labs.kill(seen.pid)


def _eras(count: int) -> Iterator[tuple[int, str]]:
    return zip(range(count), itertools.cycle(labs.LAB_ERAS), strict=False)
