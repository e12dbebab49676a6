"""Retention: the oldest records go, in small steps between which calls go on, and the call log stays verifiable."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from amounts import NIGHTLY, amount
from hypothesis import given
from hypothesis import strategies as st

from gateway import Gateway
from gateway.admin import audit
from gateway.calls import Call, Caller, Outcome
from gateway.db import timestamp
from gateway.db.call_records import share_out
from gateway.db.migrations import MIGRATIONS, REST_BUNDLES
from gateway.db.sqlite import WriteJob, Writer, migrate, transaction
from gateway.db.usage import UsageFilter
from gateway.names import first_id
from gateway.tools import Tool

pytestmark = [pytest.mark.promise("P3"), pytest.mark.anyio]

RECORDS = amount(2_000, nightly=1_000_000)
TOOLS, PRINCIPALS = 50, 40
NEWEST, PARTS = max(1000, RECORDS // 2), amount(1, nightly=20)


def fill(path: Path, begin: float, seconds: float) -> None:
    """Write records evenly over a time, as the first version did. The next start counts them and begins the log with
    them, all at once; indexes are made after the rows for the same reason."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, MIGRATIONS[: MIGRATIONS.index(REST_BUNDLES)])
        connection.execute("PRAGMA synchronous = OFF")
        indexes = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql LIKE 'CREATE INDEX tool_calls%'")
        with transaction(connection):
            dropped = indexes.fetchall()
            for name, _ in dropped:
                connection.execute(f"DROP INDEX {name}")
            connection.execute("INSERT INTO chats (id, principal, created_at) VALUES ('c', 'p0', '')")
            connection.executemany(INSERT, map(make_row, itertools.count(), make_times(begin, seconds)))
            for _, sql in dropped:
                connection.execute(sql)


def make_times(begin: float, seconds: float) -> Iterator[float]:
    return (begin + seconds * number / RECORDS for number in range(RECORDS))


def make_row(number: int, at: float) -> tuple[object, ...]:
    tool, moment = f"server:tool-{number % TOOLS}", timestamp(at)
    call_id = f"{first_id(at)[:13]}-7000-8000-{number:012x}"
    return (call_id, tool, tool, f"p{number * 7 % PRINCIPALS}", moment, moment)


INSERT = """INSERT INTO tool_calls (id, tool_id, tool_name, principal, started_at, finished_at, chat_id, category,
    surface, args, result, status, duration_ms)
    VALUES (?, ?, ?, ?, ?, ?, 'c', 'web', 'mcp', '{"a":1}', '{"b":2}', 'success', 1.5)"""


async def check_queries(gateway: Gateway, now: float) -> None:
    """Each query by principal, tool and time takes less than 0.1 s of CPU, which other processes do not lengthen."""
    since, middle = now - 43_200, now - 20_000
    for wanted, some in (
        ({"principal": "p7", "tool": "server:tool-1", "since": since, "until": now}, True),
        ({"principal": "p7", "since": middle, "until": middle + 3600}, True),
        ({"tool": "server:tool-1", "since": middle, "until": middle + 3600}, True),
        ({"since": middle, "until": middle + 3600}, True),
        ({"principal": "p3", "tool": "server:tool-1"}, False),  # they never met
        ({"principal": "nobody", "since": since}, False),
    ):
        began, cpu = time.perf_counter(), time.process_time()
        found = await gateway.records.list_calls(limit=50, **wanted)
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - began
        assert bool(found) == some, wanted
        for record in found:
            assert record.principal == wanted.get("principal", record.principal)
            assert record.tool_id == wanted.get("tool", record.tool_id)
            assert timestamp(float(str(wanted.get("since", 0)))) <= record.started_at
        assert cpu < 0.1, (wanted, cpu)
        if NIGHTLY:
            print(f"{seconds * 1000:6.1f} ms, CPU {cpu * 1000:6.1f} ms: {wanted}")


def make_deadline(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() > end


async def measure_pauses(gateway: Gateway, name: str, *until: Callable[[], bool]) -> list[float]:
    """Call a tool until one of these is true; return the times between its answers."""
    pauses: list[float] = []
    previous = time.perf_counter()
    while not any(is_over() for is_over in until):
        arguments = {"path": "a.txt", "content": str(len(pauses))} if name == "write_file" else {}
        assert (await gateway.call(name, arguments, confirmed=True)).ok
        pauses.append(time.perf_counter() - previous)
        previous = time.perf_counter()
        await asyncio.sleep(0.001)
    return pauses


def print_pauses(pauses: dict[tuple[str, str], list[float]], holds: dict[bool, list[float]]) -> None:
    for (name, how), unsorted in sorted(pauses.items()):
        if not (found := sorted(unsorted)):
            continue
        usual, late, longest = (1000 * found[at] for at in (len(found) // 2, len(found) * 999 // 1000, -1))
        many = 60 * sum(pause > 0.05 for pause in found) / sum(found)
        print(f"{len(found)} {name} {how}, ms: median {usual:.1f}, 99.9 % {late:.1f}, longest {longest:.1f};", end=" ")
        print(f"{many:.1f} in a minute above 50 ms")
    for removing, seconds in holds.items():
        longest_holds = [round(1000 * each, 1) for each in sorted(seconds)[-5:]]
        print(f"{len(seconds)} transactions {'with removal' if removing else 'alone'}, ms of CPU: {longest_holds}")


@pytest.mark.timeout(3600 if NIGHTLY else 600)
async def test_retention_removes_half_while_calls_go_on_and_the_log_verifies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    removing = False
    holds: dict[bool, list[float]] = {False: [], True: []}  # CPU seconds of the writer, for which all others wait

    def commit(writer: Writer, jobs: list[WriteJob], whole: Callable[..., None] = Writer._commit) -> None:
        began = time.thread_time()
        whole(writer, jobs)
        if all(job.file is None for job in jobs):  # of new calls, many may wait on a busy machine
            holds[removing].append(time.thread_time() - began)

    now = time.time()
    fill(tmp_path / "toolgate.db", now - 86_400, 86_000)
    settings = {"data_dir": str(tmp_path), "retention": {"calls": NEWEST, "days": 30}}
    async with Gateway.open(settings) as gateway:
        await check_queries(gateway, now)
        monkeypatch.setattr(Writer, "_commit", commit)
        pauses = defaultdict[tuple[str, str], list[float]](list)
        removed = 0
        # At night in parts, each after as long a time without: a busy machine lengthens both alike.
        for left in reversed(range(PARTS)):
            for name in ("write_file", "list_directory") if NIGHTLY else ():
                pauses[name, "alone"] += await measure_pauses(gateway, name, make_deadline(1))
            removing = True
            keep = NEWEST + (RECORDS - NEWEST) * left // PARTS
            removal = asyncio.create_task(
                gateway.records.remove_old(keep, None) if left else gateway.remove_old_records()
            )
            is_over = make_deadline(1 if NIGHTLY else 0)
            pauses["write_file", "with removal"] += await measure_pauses(gateway, "write_file", removal.done, is_over)
            pauses["list_directory", "with removal"] += await measure_pauses(gateway, "list_directory", removal.done)
            removed += (last := await removal)
            removing = False
        calls = sum(map(len, pauses.values()))
        if NIGHTLY:
            print_pauses(pauses, holds)
        assert max(holds[True]) < 0.05
        rows = await gateway.records._db.fetch("SELECT count(*), sum(tool_id LIKE 'server:%') FROM tool_calls")
        assert (removed, rows[0][1] or 0) == (RECORDS + calls - rows[0][0], max(0, RECORDS - removed))
        assert abs(removed - (RECORDS - NEWEST)) <= calls + 1
        assert f"{last} call records were removed" in caplog.text
        usage = await gateway.usage.load((), UsageFilter("2000-01-01", "2100-01-01", server="server"), 1)
        assert usage[0].calls == RECORDS
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


async def test_retention_by_number_takes_the_oldest_of_whoever_has_the_most(tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": str(tmp_path), "retention": {"days": None}}) as gateway:

        async def call(principal: str, times: int) -> None:
            caller = Caller(principal, "mcp")
            for _ in range(times):  # refused, and recorded
                await gateway.call("no_such_tool", {}, caller=caller, chat=principal)

        async def count() -> dict[str, int]:
            rows = await gateway.records._db.fetch("SELECT principal, count(*) FROM tool_calls GROUP BY principal")
            return dict(rows)

        async def remove() -> int:
            return await gateway.records.remove_old(300, None)

        await call("ann", 70)
        await call("bob", 3)
        assert await remove() == 0
        ann, bob = [await gateway.records.list_calls(principal=name, limit=100) for name in ("ann", "bob")]
        for _ in range(2):
            await call("flood", 400)
            newest = await gateway.records.list_calls(principal="flood", limit=227)
            await remove()
            assert await count() == {"ann": 70, "bob": 3, "flood": 227}
            assert await gateway.records.list_calls(principal="flood", limit=1000) == newest
        assert await gateway.records.list_calls(principal="ann", limit=100) == ann
        assert await gateway.records.list_calls(principal="bob", limit=100) == bob
        assert await remove() == 0
        assert await gateway.records.remove_old(100, None) == 200
        assert await count() == {"ann": 48, "bob": 3, "flood": 49}
        await call("flood", 10)
        await gateway.records.remove_old(None, time.time() + 10)
        assert await count() == {}
    verified = audit.verify(tmp_path)
    assert (verified.problems, verified.removed > 900) == ([], True)


async def test_retention_by_age_reaches_records_that_were_moved_past_newer_ones(tmp_path: Path) -> None:
    now = time.time()
    tool = Tool(id="notes:add", description="Adds a note.", category="editing")
    async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
        for number, (principal, days) in enumerate([("ann", 3), *[("bob", 1)] * 9]):
            at = now - days * 86_400
            call = Call(name="x", arguments={}, tool=tool, started_at=at, caller=Caller(principal, "mcp"))
            await gateway.records.record_finished(call.replace(id=make_row(number, at)[0]), Outcome(value=1))
        assert await gateway.records.remove_old(5, None) == 5
        assert await gateway.records.remove_old(None, now - 2 * 86_400) == 1
        assert [each.principal for each in await gateway.records.list_calls()] == ["bob"] * 4
    assert audit.verify(tmp_path).problems == []


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 50), min_size=1), st.integers(0, 200))
def test_retention_shares_evenly_among_those_who_have_enough(counts: dict[str, int], amount: int) -> None:
    shares = share_out(amount, counts)
    assert sum(shares.values()) == min(amount, sum(counts.values()))
    for name, count in counts.items():
        assert shares[name] <= count
        assert shares[name] == count or shares[name] >= max(shares.values()) - 1
