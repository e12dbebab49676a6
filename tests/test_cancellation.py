"""Calls cancelled at any moment: no slot, timer, count or unfinished record is left behind."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import coroutine
from typing import Any

import pytest
from amounts import amount
from eventually import TIMEOUT, async_eventually

from gateway import Gateway
from gateway.calls import Call, Outcome
from gateway.extensions.audit import Audit
from gateway.tools import Permission, Tool

pytestmark = [pytest.mark.anyio, pytest.mark.promise("X2")]

SERVER = """
import sys, json
for line in sys.stdin:
    message = json.loads(line)
    method, result = message["method"], {"resultType": "complete"}
    if "id" not in message:
        continue
    if method == "server/discover":
        result |= {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    elif method == "tools/list":
        result |= {"tools": [{"name": "echo", "description": "", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        result |= {"content": [{"type": "text", "text": "hi"}], "isError": False}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\\n")
    sys.stdout.flush()
"""


class Waiting:
    """A source whose tool waits for some turns of the event loop."""

    name = "waiting"

    async def list_tools(self) -> Sequence[Tool]:
        return [Tool("waiting:turns", "", owner="waiting", permission=Permission.READ_ONLY)]

    async def call_tool(self, call: Call) -> Outcome:
        for _ in range(int(call.arguments.get("turns", 3))):
            await asyncio.sleep(0)
        return Outcome(value="done")


@asynccontextmanager
async def opened(place: Path, concurrency: int = 8) -> AsyncIterator[Gateway]:
    settings = {
        "data_dir": place,
        "limits": {"concurrency": concurrency},
        "approval": {"mode": "never"},
        "mcpServers": {"lab": {"command": sys.executable, "args": ["-c", SERVER], "pinning": "off"}},
    }
    async with Gateway.open(settings, sources=[Waiting()]) as gateway:
        assert (await gateway.call("lab__echo", {})).ok
        yield gateway


async def assert_nothing_is_left(gateway: Gateway) -> None:
    async with asyncio.timeout(TIMEOUT):
        await gateway.executor.idle()
    concurrency = gateway._parts.concurrency
    audit = next(each for each in gateway.executor._extensions if isinstance(each, Audit))
    assert not concurrency._runs
    for slots in concurrency._slots.values():
        assert (slots.free, len(slots._waiting)) == (slots._number, 0)
    assert not any(timer.waits for timer in [audit._timer, *concurrency._timers.values()])
    assert gateway.telemetry.running == 0
    await async_eventually(lambda: not audit._running_records)
    assert await gateway.records.list_calls(status="running") == []


async def test_thousand_calls_cancelled_at_random_moments_leave_nothing_behind(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        tools = ["lab__echo", "waiting__turns", "list_directory"]
        calls = [Call(name=random.choice(tools), arguments={}) for _ in range(amount(1000, 300))]
        begun: list[str] = []
        ended: list[str] = []

        async def run(call: Call) -> None:
            begun.append(call.id)
            outcome = await gateway.executor.call_tool(call)
            if outcome.ok:
                ended.append(call.id)

        for start in range(0, len(calls), 50):  # more than the slots, so that some wait for one
            tasks = [asyncio.create_task(run(call)) for call in calls[start : start + 50]]
            while not all(task.done() for task in tasks):
                for task in random.sample(tasks, 3):
                    task.cancel()
                await asyncio.sleep(random.choice([0, 0, 0.001]))
        await assert_nothing_is_left(gateway)
        records = {call_id: await gateway.records.get(call_id) for call_id in begun}
        assert {records[call_id].status for call_id in ended} <= {"success"}
        assert {record.error_code for record in records.values()} == {None, "CANCELLED"}


@coroutine
def cancel_at(point: int, work: Awaitable[Any]) -> Generator[Any, Any, bool]:
    """Run the work, which is cancelled where it waits for the nth time; return whether it came so far."""
    waiting, reached = work.__await__(), False
    try:
        future = waiting.send(None)
        for number in range(sys.maxsize):
            if number == point:
                reached = True
                if future is not None:
                    future._asyncio_future_blocking = False
                future = waiting.throw(asyncio.CancelledError())
            else:
                yield future
                future = waiting.send(None)
    except (StopIteration, asyncio.CancelledError):
        return reached
    raise AssertionError


@pytest.mark.parametrize("tool", ["lab__echo", "waiting__turns", "write_file"])
async def test_call_cancelled_at_each_point_where_it_waits_leaves_nothing_behind(tool: str, tmp_path: Path) -> None:
    async with opened(tmp_path, concurrency=1) as gateway:
        arguments = {"path": "a.txt", "content": "a"} if tool == "write_file" else {}
        point, reached = 0, True
        while reached:
            call = Call(name=tool, arguments=arguments)
            reached = await cancel_at(point, gateway.executor.call_tool(call))
            await assert_nothing_is_left(gateway)
            assert (await gateway.records.get(call.id)).error_code in (None, "CANCELLED")
            point += 1
        assert point > 1
        assert (await gateway.call(tool, arguments)).ok
