"""`run_code` with `print(1)` through the whole gateway, against a bare `python3 -I -c` on the same machine.

In the process and by a client over stdio, interleaved in one run; first warm, then cold: in a chat that has its files
but no interpreter waiting, and in one that nobody has used and that has no folder yet; both also behind Landlock, as
where there are no user namespaces. Nothing that is cold is begun before the call. Each call keeps the versions of the
chat's files. Exits 1 above a limit.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import RequestParamsMeta

from gateway import Gateway
from gateway.sandbox import detect
from gateway.sandbox.landlock import Landlock, version
from gateway.sources.builtin.code.call_context import find_interpreter

ROUNDS, COLD_ROUNDS = 60, 15
# Seconds between two calls: as fast as anyone who reads an answer calls again, and time for what makes ready.
PAUSE = 0.25

WARM_LIMIT, COLD_LIMIT = 1.5, 3.0
ARGUMENTS = {"language": "python", "code": "print(1)"}
ON = {"categories": {"development": {"enabled": True}}}

ANCHOR = "bare python3 -I -c"
# A call in a chat.
Way = Callable[[str], Awaitable[None]]


async def bare(python: str) -> None:
    process = await asyncio.create_subprocess_exec(
        python, "-I", "-c", "print(1)", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out == b"1\n"


async def in_process(gateway: Gateway, chat: str) -> None:
    outcome = await gateway.call("run_code", ARGUMENTS, chat=chat)
    assert outcome.ok and outcome.value["stdout"] == "1\n", outcome


async def over_stdio(client: Client, chat: str) -> None:
    meta = cast(RequestParamsMeta, {"dev.toolgate/chat": chat})
    result = await client.call_tool("run_code", ARGUMENTS, meta=meta)
    assert not result.is_error and cast(Any, result.structured_content)["stdout"] == "1\n", result


async def prepare(gateways: Sequence[Gateway], client: Client, chat: str) -> None:
    """Have the chat's files there, and no interpreter."""
    arguments = {"path": "a.txt", "content": "a"}
    for gateway in gateways:
        assert (await gateway.call("write_file", arguments, chat=chat)).ok
    meta = cast(RequestParamsMeta, {"dev.toolgate/chat": chat})
    assert not (await client.call_tool("write_file", arguments, meta=meta)).is_error


async def milliseconds(call: Awaitable[None]) -> float:
    started = time.perf_counter()
    await call
    return (time.perf_counter() - started) * 1000


async def interleaved(ways: Mapping[str, Way], chats: Sequence[str]) -> dict[str, list[float]]:
    """Each way once per round, so that what else the machine does falls on all of them; the first is for practice."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for chat in chats:
        for name, call in ways.items():
            taken[name].append(await milliseconds(call(chat)))
            await anyio.sleep(PAUSE)
    return {name: times[1:] for name, times in taken.items()}


def report(taken: dict[str, list[float]]) -> dict[str, float]:
    """Print each way's times; their medians against the bare interpreter's."""
    anchor = statistics.median(taken[ANCHOR])
    ratios = {}
    for name, times in taken.items():
        median = statistics.median(times)
        ratios[name] = median / anchor
        print(f"{name:28} median {median:6.1f} ms   best {min(times):6.1f} ms   ratio {ratios[name]:5.2f}")
    return ratios


@asynccontextmanager
async def behind_landlock(place: Path) -> AsyncIterator[Gateway]:
    """A gateway on a machine with no other sandbox."""
    found = detect._cached_survey[:]
    detect._cached_survey[:] = [detect.Survey(Landlock())]
    try:
        async with Gateway.open({"data_dir": place, **ON}) as gateway:
            detect._cached_survey[:] = found
            yield gateway
    finally:
        detect._cached_survey[:] = found


@asynccontextmanager
async def served(place: Path) -> AsyncIterator[Client]:
    """A client of a gateway that serves it over stdio."""
    command = ["-m", "gateway", "serve", "--enable-tool-categories", "development", "--data-dir", str(place / "other")]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ), cwd=place)
    async with Client(stdio_client(server), mode="auto", cache=None) as client:
        yield client


def anew(way: Way) -> Way:
    """The same in a chat of which nothing is there."""
    return lambda chat: way(f"{chat}-new")


async def measure(place: Path) -> bool:
    found = find_interpreter()
    assert found is not None, "there is no python3 here"
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(Gateway.open({"data_dir": place / "data", **ON}))
        client = await stack.enter_async_context(served(place))
        gateways = [gateway]
        ways: dict[str, Way] = {
            ANCHOR: lambda _: bare(found.path),
            "gateway, in process": lambda chat: in_process(gateway, chat),
            "gateway, MCP over stdio": lambda chat: over_stdio(client, chat),
        }
        others: dict[str, Way] = {}
        if version():
            landlocked = await stack.enter_async_context(behind_landlock(place / "landlocked"))
            gateways.append(landlocked)
            others["Landlock, in process"] = lambda chat: in_process(landlocked, chat)
        await prepare(gateways, client, "warm")
        print(f"warm; limit {WARM_LIMIT}")
        warm = report(await interleaved(ways, ["warm"] * (ROUNDS + 1)))
        cold_chats = [f"cold{number}" for number in range(COLD_ROUNDS + 1)]
        for chat in cold_chats:
            await prepare(gateways, client, chat)
        ways |= others
        ways |= {f"{name}, new": anew(way) for name, way in ways.items() if name != ANCHOR}
        print(f"cold: the first call of a chat, and of a new one; limit {COLD_LIMIT}")
        cold = report(await interleaved(ways, cold_chats))
    worst = {"warm": max(list(warm.values())[1:]), "cold": max(list(cold.values())[1:])}
    print(json.dumps({name: round(ratio, 3) for name, ratio in worst.items()}))
    return worst["warm"] > WARM_LIMIT or worst["cold"] > COLD_LIMIT


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        return int(anyio.run(measure, Path(name)))


if __name__ == "__main__":
    sys.exit(main())
