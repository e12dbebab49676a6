"""Upstreams killed under load, one after the other: nobody else notices, and each is back soon."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway import Gateway

from .servers import labs

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.promise("G1")]

SERVERS = 10
SECONDS = 20.0
RECOVERY = 5.0
"""Seconds within which a killed server must answer again, its start included."""


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


async def test_killing_one_disturbs_no_other_and_it_comes_back(tmp_path: Path) -> None:
    eras = itertools.cycle(labs.LAB_ERAS)
    servers = {f"s{number}": labs.on_stdio(next(eras), LAB_FILE=str(tmp_path / "notes")) for number in range(SERVERS)}
    watched = {name: Watched() for name in servers}
    settings = {"data_dir": str(tmp_path / "data"), "approval": {"mode": "never"}, "mcpServers": servers}
    async with Gateway.open(settings) as gateway:
        for name in servers:
            assert (await gateway.call(f"{name}:echo")).ok
        before = len(os.listdir("/proc/self/fd"))
        end = time.monotonic() + SECONDS
        await asyncio.gather(*(_call(gateway, name, watched[name], end) for name in servers), _kill(watched, end))
        after = len(os.listdir("/proc/self/fd"))
    for name, seen in watched.items():
        assert seen.killed, f"{name} was never killed"
        assert [failure for failure in seen.failed if not seen.was_down(failure[0])] == [], name
        assert all(map(seen.is_back, seen.killed)), name
    assert after <= before + 2
    await labs.gone(str(tmp_path))


async def _call(gateway: Gateway, name: str, seen: Watched, end: float) -> None:
    while time.monotonic() < end:
        outcome = await gateway.call(f"{name}:echo", {"text": name})
        if outcome.ok:
            seen.answered.append((time.monotonic(), outcome.value["pid"]))
        else:
            seen.failed.append((time.monotonic(), str(outcome.error)))
        await asyncio.sleep(0.02)


async def _kill(watched: dict[str, Watched], end: float) -> None:
    """Kill the process that answered last, server by server, leaving the last one time to recover."""
    for seen in itertools.cycle(watched.values()):
        await asyncio.sleep(1.0)
        if time.monotonic() > end - RECOVERY:
            return
        labs.kill(seen.answered[-1][1])
        seen.killed.append(time.monotonic())
