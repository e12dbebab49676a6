"""A toolset's function through the gateway, sandboxed, against the same function served by a plain SDK server.

One client speaks to both over stdio, in interleaved rounds of one run. Then fifty chats call three
toolsets each, and the memory of the gateway and every process below it is added up. Exits 1 above a limit.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import RequestParamsMeta

from gateway import Gateway

CALLS, ROUNDS = 60, 9
LIMIT = 2.0
CHATS, TOOLSETS = 50, 3
MEMORY_LIMIT_MB = 1024
TEXT = "the quick brown fox jumps over the lazy dog " * 4

MANIFEST = """
id: {id}
name: Words
version: 1.0.0
tools:
  - {{id: count_words, entrypoint: "words:count_words"}}
  - {{id: save_words, entrypoint: "words:save_words"}}
"""
CODE = '''
from covalt_toolset import get_context, tool
from pydantic import BaseModel

class Counted(BaseModel):
    words: int
    longest: str

@tool(access="none")
def count_words(text: str, shortest: int = 1) -> Counted:
    """Count the words of a text."""
    words = [word for word in text.split() if len(word) >= shortest]
    return Counted(words=len(words), longest=max(words, key=len, default=""))

@tool
def save_words(path: str, text: str) -> Counted:
    """Count the words of a text, and keep it in a file."""
    (get_context().workspace / path).write_text(text)
    return count_words(text)
'''


def make_toolset(place: Path, toolset_id: str) -> Path:
    folder = place / toolset_id
    (folder / "tools").mkdir(parents=True)
    (folder / "toolset.yaml").write_text(MANIFEST.format(id=toolset_id))
    (folder / "tools/words.py").write_text(CODE)
    return folder


async def install(data: Path, folders: list[Path]) -> None:
    async with Gateway.open({"data_dir": data}) as gateway:
        for folder in folders:
            await gateway.toolsets.library.install(folder, source_type="local", source_ref=str(folder))


async def connect(stack: AsyncExitStack, command: list[str], cwd: Path) -> Client:
    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ), cwd=cwd)
    return await stack.enter_async_context(Client(stdio_client(server), mode="auto", cache=None))


async def milliseconds(call: Callable[[], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        result = await call()
        assert not result.is_error, result
    return (time.perf_counter() - started) / CALLS * 1000


async def compare(gateway: Client, plain: Client, tool: str, arguments: dict[str, Any]) -> float:
    def through() -> Awaitable[Any]:
        return gateway.call_tool(f"words0__{tool}", arguments)

    def direct() -> Awaitable[Any]:
        return plain.call_tool(tool, arguments)

    await milliseconds(through)
    await milliseconds(direct)
    pairs = [(await milliseconds(through), await milliseconds(direct)) for _ in range(ROUNDS)]
    ours, theirs = statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)
    print(f"{tool:14} through the gateway {ours:6.2f} ms   plain server {theirs:6.2f} ms   ratio {ours / theirs:5.2f}")
    return ours / theirs


async def fill(gateway: Client) -> None:
    for chat in range(CHATS):
        for toolset in range(TOOLSETS):
            meta = cast(RequestParamsMeta, {"dev.toolgate/chat": f"chat{chat}"})
            arguments = {"path": "a.txt", "text": TEXT}
            result = await gateway.call_tool(f"words{toolset}__save_words", arguments, meta=meta)
            assert not result.is_error, result


def memory_below(pid: int) -> tuple[float, int]:
    """Megabytes of a process and all below it, what several share counted once, and how many they are."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in table.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found, pending = list[int](), [pid]
    while pending:
        found.append(pending.pop())
        pending += children.get(found[-1], [])
    return sum(map(_proportional, found)) / 1e6, len(found)


def _proportional(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has just ended
        return 0
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


def gateway_process(data: Path) -> int:
    """The gateway that serves this data directory, among our own children."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(data) in command.read_text().split("\0"):
                return int(command.parent.name)
        except OSError:
            continue
    raise RuntimeError("the gateway is not running")


async def measure(place: Path) -> bool:
    data = place / "data"
    await install(data, [make_toolset(place, f"words{number}") for number in range(TOOLSETS)])
    async with AsyncExitStack() as stack:
        serve = [sys.executable, "-m", "gateway", "serve", "--data-dir", str(data)]
        gateway = await connect(stack, serve, place)
        plain = await connect(stack, [sys.executable, str(Path(__file__).with_name("_plain_server.py"))], place)
        ratios = [
            await compare(gateway, plain, "count_words", {"text": TEXT}),
            await compare(gateway, plain, "save_words", {"path": "a.txt", "text": TEXT}),
        ]
        await fill(gateway)
        used, processes = memory_below(gateway_process(data))
    print(f"limit of the first: {LIMIT}; the second also keeps two versions of the workspace, durably")
    print(f"{CHATS} chats × {TOOLSETS} toolsets: {used:.0f} MB in {processes} processes; limit {MEMORY_LIMIT_MB} MB")
    print(json.dumps({"ratio": round(ratios[0], 3), "writing_ratio": round(ratios[1], 3), "memory_mb": round(used)}))
    return ratios[0] > LIMIT or used > MEMORY_LIMIT_MB


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        return int(anyio.run(measure, Path(name)))


if __name__ == "__main__":
    sys.exit(main())
