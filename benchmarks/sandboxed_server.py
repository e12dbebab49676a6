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
from gateway.mcp_client import ClientIdentity, Confinement, McpClient, StdioEndpoint, open_client
from gateway.sandbox.detect import choose

STARTS, CALLS, ROUNDS = 9, 20, 150
START_LIMIT, CALL_LIMIT = 1.3, 1.05
IDLE_SECONDS = 10.0
ERA = "2025-11-25"
SERVER = Path(__file__).with_name("_plain_server.py")
ARGUMENTS = {"name": "count_words", "arguments": {"text": "the quick brown fox jumps over the lazy dog " * 4}}


async def start(endpoint: StdioEndpoint) -> tuple[McpClient, float]:
    started = time.perf_counter()
    client = await open_client(endpoint, identity=ClientIdentity("benchmark", "1"), version=ERA, timeout=60)
    await client.request("tools/list")
    return client, (time.perf_counter() - started) * 1000


async def call(client: McpClient) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        result: Any = await client.request("tools/call", ARGUMENTS)
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
            client, taken = await start(inside if sandboxed else outside)
            await client.close()
            if number:  # the first fills caches
                times[sandboxed].append(taken)
    is_good = report("start", times[True], times[False], START_LIMIT)
    clients = {sandboxed: (await start(inside if sandboxed else outside))[0] for sandboxed in (True, False)}
    for client in clients.values():
        await call(client)
    rounds = [(await call(clients[True]), await call(clients[False])) for _ in range(ROUNDS)]
    is_good &= report("call", [one for one, _ in rounds], [other for _, other in rounds], CALL_LIMIT)
    await clients[False].close()
    await asyncio.sleep(1)
    before = time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    print(f"waiting: {(time.process_time() - before) / IDLE_SECONDS * 1000:.2f} ms of CPU time each second")
    await clients[True].close()
    return is_good


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        sys.exit(0 if asyncio.run(measure(Path(name))) else 1)
