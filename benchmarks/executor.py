"""Executor: CPU a call costs above a bare function call, with validation, permission and a committed audit record.

Calls run 32 at a time. Prints the cost of both and the difference; exits 1 above the limit.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence

import anyio

from gateway import Gateway
from gateway.calls import Call, Outcome
from gateway.tools import Permission, Tool

CALLS = 4000
ROUNDS = 7
LIMIT_MICROSECONDS = 150
ARGUMENTS = {"path": "notes.txt", "encoding": "utf-8"}


class Bare:
    """A source whose tool does nothing."""

    name = "bare"

    def __init__(self) -> None:
        self.tool = Tool(
            "bare:echo",
            "Echo.",
            {
                "type": "object",
                "properties": {"path": {"type": "string"}, "encoding": {"enum": ["utf-8", "base64"]}},
                "required": ["path"],
                "additionalProperties": False,
            },
            {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
            owner="bare",
            permission=Permission.READ_WRITE,
        )

    async def list_tools(self) -> Sequence[Tool]:
        return [self.tool]

    async def call_tool(self, call: Call) -> Outcome:
        return Outcome(value={"path": call.arguments["path"]})


async def cpu_per_call(one: Callable[[], Awaitable[object]], width: int) -> float:
    remaining = iter(range(CALLS))

    async def worker() -> None:
        for _ in remaining:
            await one()

    started = time.process_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(width):
            tasks.start_soon(worker)
    return (time.process_time() - started) / CALLS * 1e6


async def measure(width: int) -> float:
    bare = Bare()
    with tempfile.TemporaryDirectory() as data:
        async with Gateway.open({"data_dir": data}, sources=[bare]) as gateway:

            async def direct() -> object:
                return await bare.call_tool(Call(name="bare:echo", arguments=ARGUMENTS))

            async def through() -> object:
                outcome = await gateway.call("bare__echo", ARGUMENTS, chat="bench")
                assert outcome.ok, outcome
                return outcome

            await cpu_per_call(through, width)
            pairs = [(await cpu_per_call(direct, width), await cpu_per_call(through, width)) for _ in range(ROUNDS)]
    direct_cost = statistics.median(pair[0] for pair in pairs)
    through_cost = statistics.median(pair[1] for pair in pairs)
    print(
        f"{width:3} at a time: bare call {direct_cost:6.1f} µs   through the executor {through_cost:6.1f} µs   "
        f"above it {through_cost - direct_cost:6.1f} µs"
    )
    return through_cost - direct_cost


def main() -> int:
    anyio.run(measure, 1)
    above = anyio.run(measure, 32)
    print(f"limit at 32: {LIMIT_MICROSECONDS} µs")
    return int(above > LIMIT_MICROSECONDS)


if __name__ == "__main__":
    sys.exit(main())
