"""Approval: what 200 calls that wait for a person cost the others, and what the gate costs a call that asks nobody.

Other calls are measured with nobody waiting, with 200 people thinking in front of their clients, and with 200 calls
in the queue, in turns: the CPU a call costs, and the best rate seen (which neighbours on the machine disturb). All use
the slots of one owner, of which there are 64: did a waiting call hold one, the others would be turned away. Exits 1
when the CPU per call rises above the limit, or the gate costs more than its own.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import anyio

from gateway import Gateway
from gateway.approval.flow import ApprovalFlow
from gateway.calls import Call, Caller, ClientInfo, Outcome
from gateway.config.settings import ApprovalRule
from gateway.extensions import stack
from gateway.extensions.approval import Approval
from gateway.tools import Permission, Tool

PENDING = 200
CALLS = 6000  # one commit of their records must not fall into one measurement and not into another
WIDTH = 32
ROUNDS = 7
LIMIT_RATIO = 1.15
GATE_CALLS = 20_000
LIMIT_GATE_MICROSECONDS = 2.0


class Bare:
    """A tool that does nothing, and one that asks first."""

    name = "bare"

    async def list_tools(self) -> Sequence[Tool]:
        terms: dict[str, Any] = {"owner": "bare", "permission": Permission.READ_WRITE}
        return [Tool("bare:echo", "", **terms), Tool("bare:danger", "", requires_confirmation=True, **terms)]

    async def call_tool(self, call: Call) -> Outcome:
        return Outcome(value=call.arguments)


class Measure(NamedTuple):
    microseconds: float
    rate: float


async def measure(flow: ApprovalFlow) -> Measure:
    remaining = iter(range(CALLS))

    async def worker() -> None:
        for number in remaining:
            outcome = await flow.call_tool(Call(name="bare__echo", arguments={"n": number}, chat="others"))
            assert outcome.ok, outcome

    started, cpu = time.perf_counter(), time.process_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(WIDTH):
            tasks.start_soon(worker)
    return Measure((time.process_time() - cpu) / CALLS * 1e6, CALLS / (time.perf_counter() - started))


@asynccontextmanager
async def waiting(
    flow: ApprovalFlow, client: ClientInfo | None, asked: Callable[[], Awaitable[int]]
) -> AsyncIterator[None]:
    """200 calls that wait for a person, until left."""
    async with anyio.create_task_group() as tasks:
        for number in range(PENDING):
            call = Call(name="bare__danger", arguments={"n": number, "at": time.time()}, chat="waiting", client=client)
            tasks.start_soon(flow.call_tool, replace(call, caller=Caller(surface="mcp")))
        while await asked() < PENDING:  # noqa: ASYNC110 - the queue is another process's as well
            await anyio.sleep(0.05)
        await anyio.sleep(0.5)
        yield
        tasks.cancel_scope.cancel()


async def throughput() -> list[tuple[Measure, Measure, Measure]]:
    with tempfile.TemporaryDirectory() as data:
        settings = {
            "data_dir": data,
            "approval": {"without_elicitation": "queue", "queue_wait": 600, "pending": 10_000},
        }
        async with Gateway.open(settings, sources=[Bare()]) as gateway:
            flow = gateway.approval_flow
            thinking = 0

            async def ask(_: str, __: Mapping[str, Any]) -> dict[str, Any]:
                nonlocal thinking
                thinking += 1
                try:
                    await anyio.sleep_forever()
                finally:
                    thinking -= 1
                return {}

            async def people() -> int:
                return thinking

            known = 0

            async def entries() -> int:
                return len(await gateway.approvals.records.entries(limit=1000)) - known

            await measure(flow)
            rounds = []
            for _ in range(ROUNDS):
                alone = await measure(flow)
                async with waiting(flow, ClientInfo(capabilities={"elicitation": {}}, ask=ask), people):
                    asking = await measure(flow)
                known = len(await gateway.approvals.records.entries(limit=1000))
                async with waiting(flow, None, entries):
                    queued = await measure(flow)
                for entry in await gateway.approvals.records.entries(limit=1000):
                    await gateway.approvals.deny(entry.id, "benchmark")
                rounds.append((alone, asking, queued))
            return rounds


async def gate_cost(rules: Sequence[ApprovalRule]) -> float:
    """Microseconds the gate adds to a call that needs nobody, the tool known."""
    tool = Tool("bare:echo", "", owner="bare")
    call = Call(name=tool.id, arguments={"n": 1}, tool=tool)

    async def run(call: Call) -> Outcome:
        return Outcome(value=call.arguments)

    bare, gated = stack([], run), stack([Approval("unsafe_only", rules)], run)
    costs = []
    for _ in range(ROUNDS):
        took = []
        for road in (bare, gated):
            started = time.process_time()
            for _ in range(GATE_CALLS):
                await road(call)
            took.append(time.process_time() - started)
        costs.append((took[1] - took[0]) / GATE_CALLS * 1e6)
    return statistics.median(costs)


def main() -> int:
    rounds = anyio.run(throughput)
    ratios = []
    for place, what in enumerate(("nobody waiting", f"{PENDING} people thinking", f"{PENDING} calls in the queue")):
        cost = statistics.median(each[place].microseconds for each in rounds)
        ratios.append(statistics.median(each[place].microseconds / each[0].microseconds for each in rounds))
        best = max(each[place].rate for each in rounds)
        print(f"other calls, {what:24} {cost:6.1f} µs of CPU each, {ratios[-1]:.2f} of alone; {best:6.0f} a second")
    print(f"limit {LIMIT_RATIO}")
    elsewhere = [ApprovalRule.model_validate({"tool": f"other{number}:*"}) for number in range(100)]
    plain, ruled = anyio.run(gate_cost, []), anyio.run(gate_cost, elsewhere)
    print(f"the gate, for a call that asks nobody   {plain:.2f} µs, with 100 rules about other tools {ruled:.2f} µs")
    print(f"  limit {LIMIT_GATE_MICROSECONDS} µs")
    return int(max(ratios) > LIMIT_RATIO or max(plain, ruled) > LIMIT_GATE_MICROSECONDS)


if __name__ == "__main__":
    sys.exit(main())
