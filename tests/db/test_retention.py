"""Retention: the oldest records go, in small steps between which calls go on, and the call log stays verifiable."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from amounts import NIGHTLY, amount

from gateway import Gateway
from gateway.admin import audit
from gateway.calls import Call, Outcome
from gateway.db import timestamp
from gateway.db.migrations import MIGRATIONS
from gateway.db.sqlite import migrate, transaction
from gateway.db.usage import UsageFilter
from gateway.names import first_id
from gateway.tools import Tool

pytestmark = [pytest.mark.promise("P3"), pytest.mark.anyio]

RECORDS = amount(2_000, nightly=1_000_000)
TOOLS, PRINCIPALS = 50, 40


def fill(path: Path, begin: float, seconds: float) -> None:
    """Write records evenly over a time, as a version before the call log did; the log begins with them."""
    version = next(number for number, made in enumerate(MIGRATIONS) if "CREATE TABLE call_log" in made[0])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, MIGRATIONS[:version])
        connection.execute("PRAGMA synchronous = OFF")
        with transaction(connection):
            connection.execute("INSERT INTO chats (id, principal, created_at) VALUES ('c', 'p0', '')")
            connection.executemany(INSERT, map(make_row, itertools.count(), make_times(begin, seconds)))


def make_times(begin: float, seconds: float) -> Iterator[float]:
    return (begin + seconds * number / RECORDS for number in range(RECORDS))


def make_row(number: int, at: float) -> tuple[object, ...]:
    tool, moment = f"server:tool-{number % TOOLS}", timestamp(at)
    call_id = f"{first_id(at)[:13]}-7000-8000-{number:012x}"
    return (call_id, tool, tool, f"p{number * 7 % PRINCIPALS}", moment, moment)


INSERT = """INSERT INTO tool_calls (id, tool_id, tool_name, principal, started_at, finished_at, chat_id, category,
    surface, args, result, status, duration_ms)
    VALUES (?, ?, ?, ?, ?, ?, 'c', 'web', 'mcp', '{"a":1}', '{"b":2}', 'success', 1.5)"""


@pytest.mark.timeout(3600 if NIGHTLY else 600)
async def test_retention_removes_half_while_calls_go_on_and_the_log_verifies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.time()
    fill(tmp_path / "toolgate.db", now - 86_400, 86_000)
    settings = {"data_dir": str(tmp_path), "retention": {"calls": max(1000, RECORDS // 2), "days": 30}}
    async with Gateway.open(settings) as gateway:
        since = now - 43_200
        began = time.perf_counter()
        found = await gateway.records.list_calls(principal="p7", tool="server:tool-1", since=since, until=now, limit=50)
        seconds = time.perf_counter() - began
        assert {(each.principal, each.tool_id) for each in found} == {("p7", "server:tool-1")}
        assert all(each.started_at >= timestamp(since) for each in found)
        removal = asyncio.create_task(gateway.remove_old_records())
        calls, longest, previous = 0, 0.0, time.perf_counter()
        while not removal.done():
            assert (await gateway.call("list_directory", {})).ok
            calls, now = calls + 1, time.perf_counter()
            longest, previous = max(longest, now - previous), now
            await asyncio.sleep(0)
        removed = await removal
        kept = await gateway.records._db.fetch("SELECT count(*) FROM tool_calls WHERE tool_id LIKE 'server:%'")
        assert removed == RECORDS - kept[0][0]
        assert abs(removed - (RECORDS - max(1000, RECORDS // 2))) <= calls + 1
        assert f"{removed} call records were removed" in caplog.text
        usage = await gateway.usage.load((), UsageFilter("2000-01-01", "2100-01-01", server="server"), 1)
        assert usage[0].calls == RECORDS
    if NIGHTLY:
        print(f"query {seconds * 1000:.1f} ms, {removed} removed, {calls} calls, longest pause {longest * 1000:.1f} ms")
    verified = audit.verify(tmp_path)
    assert (verified.problems, verified.removed > 0) == ([], True)


async def test_retention_by_age_keeps_what_runs_and_what_is_newer(tmp_path: Path) -> None:
    tool = Tool(id="notes:add", description="Adds a note.", category="editing")
    async with Gateway.open({"data_dir": str(tmp_path), "retention": {"days": 2}}) as gateway:
        for days in (5, 3, 1):
            call = Call(name="notes__add", arguments={}, tool=tool, started_at=time.time() - days * 86_400)
            await gateway.records.record_finished(call, Outcome(value=days))
        running = Call(name="notes__add", arguments={}, tool=tool, started_at=time.time() - 10 * 86_400)
        await gateway.records.record_running(running)
        assert await gateway.remove_old_records() == 2
        kept = await gateway.records.list_calls()
        assert {each.status for each in kept} == {"running", "success"}
        assert await gateway.remove_old_records() == 0
