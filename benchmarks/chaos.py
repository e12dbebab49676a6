"""Chaos: ten upstreams killed with `kill -9` in turn, one kill a second, while all are called at once.

Prints what the callers noticed. A phase of chaos is a few kills of one upstream; a quiet phase of the same length
follows, so that the noise of the machine meets both. Exits 1 when a call failed to an upstream that was not down, when
the 99th percentile of one in chaos was more than twice that in quiet, when one did not answer again within its
back-off and the time of a start, or when a process or descriptor was left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks._gateway_client import Client, Era, Refused
from benchmarks._gateway_processes import Processes, Running

SECONDS = 60.0
# Of one upstream, one after the other, where there is time. The first two may be bad luck; by the third it is left
# alone for a moment.
KILLS = 3

# From one kill to the next, unless the one that was killed needs longer.
KILL_SECONDS = 1.0

# Between phases; counted in neither.
SETTLE_SECONDS = 0.3

# Between two calls of one caller, by chance, so that they do not march in step; there is one for each upstream.
PAUSE_SECONDS = (0.015, 0.045)

# What a start may take above the back-off, on a machine that is busy with all of this.
START_SECONDS = 1.0

RATIO_LIMIT = 2.0
DESCRIPTORS_LIMIT = 8
PATIENCE = 15.0
LAB = Path(__file__).parents[1] / "tests/journeys/servers/lab.py"
ERAS: tuple[Era, ...] = ("modern", "handshake")
Phase = Literal["quiet", "chaos", "between"]

_PID = re.compile(rb'"pid":\s*(\d+)')
_WAIT = re.compile(r"the next attempt is in ([\d.]+) s")


@dataclass
class Upstream:
    """One server, and what its caller saw: how long calls took in each phase, failures, recoveries."""

    name: str
    settings: dict[str, Any]
    times: dict[Phase, list[float]] = field(default_factory=lambda: {"quiet": [], "chaos": [], "between": []})
    failed: list[str] = field(default_factory=list)
    recoveries: list[tuple[float, float]] = field(default_factory=list)
    pid: int = 0
    down: bool = False
    told: float = 0.0
    back: asyncio.Event = field(default_factory=asyncio.Event)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def ratio(self) -> float:
        return p99(self.times["chaos"]) / p99(self.times["quiet"])

    def over(self, phase: Phase) -> int:
        """Calls that took more than twice the 99th percentile of quiet ones."""
        limit = RATIO_LIMIT * p99(self.times["quiet"])
        return sum(taken > limit for taken in self.times[phase])


class Reached(Upstream):
    """One over HTTP: who runs it starts it again at once, on the port it had."""

    def __init__(self, name: str, era: Era, marker: str) -> None:
        self._command = [sys.executable, "-S", str(LAB), "http", era]
        self._environ = {**os.environ, "LAB_FILE": os.devnull, "CHAOS": marker}
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, env=self._environ)
        assert self._process.stdout is not None
        self._environ["LAB_PORT"] = port = self._process.stdout.readline().decode().strip()
        super().__init__(name, {"url": f"http://127.0.0.1:{port}/mcp"})

    def kill(self) -> None:
        self.end()
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, env=self._environ)

    def end(self) -> None:
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


@dataclass
class Load:
    """A caller for each upstream, and the phase they are in."""

    upstreams: list[Upstream]
    running: Running
    phase: Phase = "between"
    descriptors: list[int] = field(default_factory=list)

    async def run(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            pairs = zip(self.upstreams, itertools.cycle(ERAS), strict=False)
            callers = [tasks.create_task(self._call(upstream, era)) for upstream, era in pairs]
            for upstream in self.upstreams:
                await asyncio.wait_for(upstream.back.wait(), PATIENCE)
            await asyncio.sleep(SETTLE_SECONDS)
            self.descriptors.append(_descriptors(self.running))
            await self._alternate(seconds)
            self.descriptors.append(_descriptors(self.running))
            for caller in callers:
                caller.cancel()

    async def _alternate(self, seconds: float) -> None:
        victims = itertools.cycle(self.upstreams)
        kills = min(KILLS, max(1, round(seconds / len(self.upstreams) / KILL_SECONDS / 2)))
        end = time.monotonic() + seconds
        while time.monotonic() < end or not all(each.recoveries for each in self.upstreams):
            await self._enter("chaos")
            started, victim = time.monotonic(), next(victims)
            for _ in range(kills):
                await _fell(victim)
            lasted = time.monotonic() - started
            await self._enter("quiet")
            await asyncio.sleep(lasted)

    async def _enter(self, phase: Phase) -> None:
        self.phase = "between"
        await asyncio.sleep(SETTLE_SECONDS)
        self.phase = phase

    async def _call(self, upstream: Upstream, era: Era) -> None:
        client = await Client(f"{self.running.origin}/mcp", era).open()
        request = client.request("tools/call", {"name": f"{upstream.name}__echo", "arguments": {}})
        try:
            while True:
                phase, was_down, started = self.phase, upstream.down, time.perf_counter()
                try:
                    body = await client.ask(request, expected=b'"pid"')
                except Refused as refused:
                    _note_failure(upstream, str(refused), was_down or upstream.down)
                else:
                    _note_answer(upstream, body)
                    if not was_down and phase == self.phase:
                        upstream.times[phase].append(time.perf_counter() - started)
                await asyncio.sleep(random.uniform(*PAUSE_SECONDS))
        finally:
            client.close()


def _note_failure(upstream: Upstream, said: str, was_down: bool) -> None:
    if not was_down:
        upstream.failed.append(said)
    if wait := _WAIT.search(said):
        upstream.told = max(upstream.told, float(wait[1]))


def _note_answer(upstream: Upstream, body: bytes) -> None:
    found = _PID.search(body)
    assert found is not None
    pid = int(found[1])
    if pid != upstream.pid:
        upstream.pid, upstream.down = pid, False
        upstream.back.set()


async def _fell(victim: Upstream) -> None:
    """Kill it, note how long it took until a new process answered and which back-off its callers were told, and
    give the others the rest of the second."""
    victim.down, victim.told = True, 0.0
    victim.back.clear()
    started = time.monotonic()
    victim.kill()
    with suppress(TimeoutError):
        await asyncio.wait_for(victim.back.wait(), PATIENCE)
    lasted = time.monotonic() - started
    victim.recoveries.append((lasted, victim.told))
    await asyncio.sleep(max(0.0, KILL_SECONDS - lasted))


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


@contextmanager
def upstreams(marker: str) -> Iterator[list[Upstream]]:
    """Six the gateway starts itself and four it reaches, of both eras, in mixed order."""
    found: list[Upstream] = []
    try:
        for number, era in zip(range(10), itertools.cycle((*ERAS, *reversed(ERAS))), strict=False):
            if number in (2, 3, 6, 9):
                found.append(Reached(f"http{number}", era, marker))
            else:
                arguments = ["-S", str(LAB), "stdio", era]
                settings = {"command": sys.executable, "args": arguments, "env": {"CHAOS": marker}}
                found.append(Upstream(f"stdio{number}", settings))
        yield found
    finally:
        for each in found:
            if isinstance(each, Reached):
                each.end()


def gateway(processes: Processes, directory: Path, servers: Mapping[str, Any]) -> Running:
    """Everything on: what is called is checked, permitted, counted and recorded."""
    config = directory / "toolgate.yaml"
    unlimited = {"upstream": {"calls_per_minute": 1_000_000_000}}
    config.write_text(json.dumps({"mcpServers": servers, "approval": {"mode": "never"}, "categories": unlimited}))
    command = [sys.executable, "-m", "gateway", "serve", "--transport", "http", "--port", "0"]
    return processes.start([*command, "--config", str(config), "--data-dir", str(directory / "data")], directory)


def orphans(marker: str) -> list[int]:
    """What still runs of what this run started, after a moment to leave."""
    deadline = time.monotonic() + 5
    while (left := _marked(marker)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _marked(marker: str) -> list[int]:
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"CHAOS={marker}\0".encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
    return found


def report(found: Iterable[Upstream]) -> list[str]:
    """Print a row for each upstream; what is broken."""
    columns = f"{'p50':>7} {'p99':>7} {'most':>7}"
    print(f"{'':16} {'quiet, ms':^23} {'chaos, ms':^23}")
    outcome = f"{'p99 ratio':>9} {'over 2×':^9} {'failed':>6} {'killed':>6} {'back in':>8} {'back-off':>8}"
    print(f"{'upstream':9} {'calls':>6} {columns} {columns} {outcome}")
    broken = []
    for each in found:
        shown = [_milliseconds(each.times[phase]) for phase in ("quiet", "chaos")]
        lasted, told = max(each.recoveries)
        calls = sum(map(len, each.times.values()))
        recovered = f"{len(each.recoveries):6} {lasted:6.2f} s {told:6.1f} s"
        outcome = f"{each.ratio():9.2f} {each.over('quiet'):4}/{each.over('chaos'):<4} {len(each.failed):6} {recovered}"
        print(f"{each.name:9} {calls:6} {shown[0]} {shown[1]} {outcome}")
        broken += [f"{each.name}: a call failed though nobody had killed it: {said}" for said in each.failed[:3]]
        if each.ratio() > RATIO_LIMIT:
            broken.append(f"{each.name}: p99 {each.ratio():.2f} times that of quiet; limit {RATIO_LIMIT:g}")
        broken += [
            f"{each.name}: back after {lasted:.2f} s, with a back-off of {told:g} s; limit {START_SECONDS:g} s above it"
            for lasted, told in each.recoveries
            if lasted > told + START_SECONDS
        ]
    return broken


def _milliseconds(times: list[float]) -> str:
    return f"{statistics.median(times) * 1e3:7.1f} {p99(times) * 1e3:7.1f} {max(times) * 1e3:7.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as directory:
        with Processes() as processes, upstreams(directory) as found:
            running = gateway(processes, Path(directory), {each.name: each.settings for each in found})
            load = Load(found, running)
            asyncio.run(load.run(seconds))
        broken = report(found)
        left = orphans(directory)
    before, after = load.descriptors
    grown = after - before
    print(f"descriptors of the gateway: {before} before, {after} after; processes left behind: {len(left)}")
    if grown > DESCRIPTORS_LIMIT:
        broken.append(f"{grown} descriptors more than before; limit {DESCRIPTORS_LIMIT}")
    broken += [f"process {pid} outlived the gateway" for pid in left]
    for line in broken:
        print(line)
    return int(bool(broken))


def _descriptors(running: Running) -> int:
    return len(os.listdir(f"/proc/{running.pid}/fd"))


if __name__ == "__main__":
    sys.exit(main())
