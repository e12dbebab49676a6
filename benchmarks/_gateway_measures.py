"""What is measured, in windows of time that take turns, so that a noisy moment meets all alike."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks._gateway_client import Client, Era, Refused, run_for
from benchmarks._gateway_gates import Case, Gate, Servers
from benchmarks._gateway_processes import Processes, Running

WIDTHS = (1, 16, 64)
TEXT = "the quick brown fox"
# Seconds of calls before any that count.
SETTLE = 0.3

Work = Callable[[], Awaitable[object]]
Works = dict[str, tuple[Running, Sequence[Work]]]
Start = Callable[[Processes, Path, Servers], Gate]
FAILURES = (Refused, OSError, TimeoutError)


@dataclass(frozen=True)
class Pace:
    rounds: int
    seconds: float


@dataclass(frozen=True)
class Window:
    """Calls made within one window, and what they cost the process that was called."""

    times: list[float]
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds

    @property
    def cpu_each(self) -> float:
        return self.cpu / len(self.times)


@dataclass
class Figures:
    """The windows of one gate, by how many calls were made at once."""

    windows: dict[int, list[Window]] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        return sum(len(window.times) for windows in self.windows.values() for window in windows)

    def cpu(self, width: int = 1) -> float:
        """Of the windows, that which a fifth fall below: what others do on the machine only ever adds."""
        costs = sorted(window.cpu_each for window in self.windows[width])
        return costs[len(costs) // 5]

    def rate(self, width: int) -> float:
        return statistics.median(window.rate for window in self.windows[width])

    def time(self, percent: int = 50) -> float:
        times = sorted(time for window in self.windows[1] for time in window.times)
        return times[min(len(times) - 1, len(times) * percent // 100)]

    def rate_against(self, anchor: Figures, width: int) -> float:
        pairs = zip(self.windows[width], anchor.windows[width], strict=True)
        return statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)


async def _in_turns(pace: Pace, widths: Sequence[int], works: Works) -> tuple[dict[str, Figures], dict[str, str]]:
    """The figures of each; and of one that failed meanwhile, why it has none."""
    found = {name: Figures({width: [] for width in widths}) for name in works}
    failed: dict[str, str] = {}

    async def window(name: str, width: int, seconds: float) -> Window | None:
        running, some = works[name]
        before = running.cpu()
        try:
            times, took = await run_for(seconds, some[:width])
        except FAILURES as reason:
            failed[name] = f"{reason!r}"[:300]
            return None
        return Window(times, took, running.cpu() - before)

    for name in works:
        await window(name, 16, SETTLE)
    for number in range(pace.rounds):
        for width in widths:
            for name in sorted(works.keys() - failed.keys(), reverse=number % 2 == 0):
                if (seen := await window(name, width, pace.seconds)) is not None:
                    found[name].windows[width].append(seen)
    return {name: figures for name, figures in found.items() if name not in failed}, failed


async def small_calls(case: Case, gates: Sequence[Gate], pace: Pace) -> tuple[dict[str, Figures], dict[str, str]]:
    """Small calls at each width; and why a gate that cannot make them cannot."""
    return await _calls(case, gates, pace, WIDTHS, 0)


async def large_calls(
    case: Case, gates: Sequence[Gate], pace: Pace, size: int
) -> tuple[dict[str, Figures], dict[str, str]]:
    return await _calls(case, gates, pace, (1,), size)


async def _calls(
    case: Case, gates: Sequence[Gate], pace: Pace, widths: Sequence[int], size: int
) -> tuple[dict[str, Figures], dict[str, str]]:
    works: Works = {}
    reasons: dict[str, str] = {}
    with ExitStack() as stack:
        for gate in gates:
            try:
                works[gate.name] = gate.running, await _callers(stack, case, gate, max(widths), size)
            except FAILURES as reason:
                reasons[gate.name] = f"{reason!r}"[:300]
        found, failed = await _in_turns(pace, widths, works)
        return found, reasons | failed


async def _callers(stack: ExitStack, case: Case, gate: Gate, width: int, size: int) -> list[Work]:
    _, tool = gate.address(case.upstream)
    arguments = {"text": TEXT, "bytes": size} if size else {"text": TEXT}
    callers: list[Work] = []
    for _ in range(width):
        client = gate.client(case)
        stack.callback(client.close)
        async with asyncio.timeout(20):
            await client.open()
            request = client.request("tools/call", {"name": tool, "arguments": arguments})
            callers.append(partial(client.ask, request, TEXT.encode(), size))
            await callers[-1]()
    return callers


async def listings(expected: int, routes: Mapping[str, tuple[Running, str]], pace: Pace) -> dict[str, Figures]:
    """All tools listed, one client at a time, in the modern era."""
    works: Works = {}
    with ExitStack() as stack:
        for name, (running, url) in routes.items():
            client = await Client(url, "modern").open()
            stack.callback(client.close)
            if (listed := await client.list_tools()) < expected:
                raise Refused(f"{name} lists {listed} tools of {expected}")
            works[name] = running, [client.list_tools]
        found, failed = await _in_turns(pace, (1,), works)
        if failed:
            raise Refused(f"{failed}")
        return found


async def cold_start(
    processes: Processes, start: Start, directory: Path, servers: Servers, tools: int
) -> tuple[float, Gate]:
    """Seconds from starting a gateway to its listing the tools of all its upstreams."""
    started = time.perf_counter()
    gate = start(processes, directory, servers)
    client = await Client(f"{gate.running.origin}/mcp", "modern").open()
    try:
        async with asyncio.timeout(60):
            while await client.list_tools() < tools:  # noqa: ASYNC110 - another process sets no event of ours
                await asyncio.sleep(0.01)
    finally:
        client.close()
    return time.perf_counter() - started, gate


async def idle_memory(gate: Gate, upstream: str, sessions: int) -> float:
    """Bytes one more session adds that was opened, has called once, and is only listened to."""
    clients: list[Client] = []
    era: Era = "handshake"
    url, tool = gate.address(upstream)

    async def open_more(count: int) -> None:
        for _ in range(count):
            client = Client(url, era)
            clients.append(client)
            await client.open()
            await client.listen()
            await client.ask(client.request("tools/call", {"name": tool, "arguments": {"text": TEXT}}))
        await asyncio.sleep(1)

    try:
        await open_more(sessions // 4)
        before = gate.running.memory()
        await open_more(sessions)
        return (gate.running.memory() - before) / sessions
    finally:
        for client in clients:
            client.close()
