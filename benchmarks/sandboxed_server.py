"""A stdio server in the sandbox against the same server outside of it, in interleaved rounds of one run.

A start is counted from nothing to the answered list of tools, a call from request to answer. Prints also the CPU time
that a sandboxed server costs the gateway while it waits. Exits 1 above a limit.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.config import SandboxSettings
from gateway.mcp_client import ClientFace, Confinement, Link, StdioEndpoint, open_link
from gateway.sandbox.detect import choose

STARTS, CALLS, ROUNDS = 9, 20, 150
START_LIMIT, CALL_LIMIT = 1.3, 1.05
IDLE_SECONDS = 10.0
ERA = "2025-11-25"
SERVER = Path(__file__).with_name("_plain_server.py")
ARGUMENTS = {"name": "count_words", "arguments": {"text": "the quick brown fox jumps over the lazy dog " * 4}}


async def start(endpoint: StdioEndpoint) -> tuple[Link, float]:
    started = time.perf_counter()
    link = await open_link(endpoint, client=ClientFace("benchmark", "1"), era=ERA, timeout=60)
    await link.request("tools/list")
    return link, (time.perf_counter() - started) * 1000


async def call(link: Link) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        result: Any = await link.request("tools/call", ARGUMENTS)
        assert not result.get("isError"), result
    return (time.perf_counter() - started) / CALLS * 1000


def report(what: str, inside: list[float], outside: list[float], limit: float) -> bool:
    """Print the medians and whether the ratio of pairs measured next to each other is within the limit."""
    ratio = statistics.median(one / other for one, other in zip(inside, outside, strict=True))
    told = f"{statistics.median(inside):7.2f} ms   outside {statistics.median(outside):7.2f} ms"
    print(f"{what:6} in the sandbox {told}   ratio {ratio:5.3f} (limit {limit})")
    return ratio <= limit


async def measure(place: Path) -> bool:
    settings = SandboxSettings()
    print(f"sandbox: {(await choose(settings)).name}")
    outside = StdioEndpoint(sys.executable, (str(SERVER),))
    inside = replace(outside, sandbox=Confinement(place / "servers/plain", place, settings))
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(STARTS + 1):
        for sandboxed in (True, False):
            link, taken = await start(inside if sandboxed else outside)
            await link.close()
            if number:  # the first fills caches
                times[sandboxed].append(taken)
    is_good = report("start", times[True], times[False], START_LIMIT)
    links = {sandboxed: (await start(inside if sandboxed else outside))[0] for sandboxed in (True, False)}
    for link in links.values():
        await call(link)
    rounds = [(await call(links[True]), await call(links[False])) for _ in range(ROUNDS)]
    is_good &= report("call", [one for one, _ in rounds], [other for _, other in rounds], CALL_LIMIT)
    await links[False].close()
    await asyncio.sleep(1)
    before = time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    print(f"waiting: {(time.process_time() - before) / IDLE_SECONDS * 1000:.2f} ms of CPU time each second")
    await links[True].close()
    return is_good


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        sys.exit(0 if asyncio.run(measure(Path(name))) else 1)
