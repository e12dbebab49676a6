"""Usage: calls counted by day, tool and principal, once each, however their records were written."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

from gateway import Gateway
from gateway.admin.usage import report_usage
from gateway.calls import Call, Caller, Outcome
from gateway.cli import toolgate
from gateway.db.migrations import CALL_USAGE, MIGRATIONS
from gateway.db.sqlite import connect, migrate
from gateway.errors import Cancelled, Forbidden, InputRequired, Invalid, Timeout, ToolFailed
from gateway.tools import LIST_RESOURCES, Tool

pytestmark = [pytest.mark.promise("P3"), pytest.mark.anyio]

DAY = 86_400.0
NOON = 1_800_000_000.0 // DAY * DAY + DAY / 2
TODAY, TOMORROW = date(2027, 1, 15), date(2027, 1, 16)


def make_call(name: str, principal: str = "ada", at: float = NOON) -> Call:
    tool = None if name == "made-up" else Tool(id=name, description="A tool.", category="editing")
    caller = Caller(principal=principal)
    return Call(name=name, arguments={"text": "hi"}, tool=tool, caller=caller, started_at=at)


async def test_usage_counts_calls_errors_durations_and_bytes_by_every_dimension(tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
        record = gateway.records.record_finished
        await record(make_call("notes:add"), Outcome(value="x" * 98), finished_at=NOON + 1)
        await record(make_call("notes:add"), Outcome(error=ToolFailed("no")), finished_at=NOON + 3)
        await record(make_call("read_file", "bob"), Outcome(value=1), finished_at=NOON + 0.5)
        await record(make_call("notes:add", "bob", NOON + DAY), Outcome(value=1), finished_at=NOON + DAY)
        await record(make_call("made-up"), Outcome(error=Invalid("no such tool")), finished_at=NOON)

        async def count(*by: Any, **chosen: Any) -> list[tuple[Any, ...]]:
            found = await report_usage(gateway, by, since=TODAY, until=TOMORROW, **chosen)
            return [(*(getattr(row, name) for name in by), row.calls, row.errors) for row in found.items]

        assert sorted(await count("tool")) == [("notes:add", 3, 1), ("read_file", 1, 0), ("unknown", 1, 1)]
        assert sorted(await count("server")) == [("builtin", 1, 0), ("notes", 3, 1), ("unknown", 1, 1)]
        assert sorted(await count("principal")) == [("ada", 3, 2), ("bob", 2, 0)]
        assert await count("day") == [(str(TOMORROW), 1, 0), (str(TODAY), 4, 2)]
        assert await count("day", "tool", principal="bob") == [
            (str(TOMORROW), "notes:add", 1, 0),
            (str(TODAY), "read_file", 1, 0),
        ]
        assert await count("tool", server="notes") == [("notes:add", 3, 1)]
        [row] = (await report_usage(gateway, ["tool"], until=TODAY, tool="notes:add")).items
        assert (row.mean_ms, row.longest_ms, row.args_bytes, row.result_bytes) == (2000.0, 3000.0, 26, 100)
        short = await report_usage(gateway, ["tool"], until=TOMORROW, limit=1)
        assert (len(short.items), short.more, short.total.calls) == (1, True, 5)


async def test_usage_counts_no_requests_for_files_as_calls_of_builtins(tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
        for name, tool in (
            ("workspace/list", LIST_RESOURCES),  # a page of the console
            ("list_directory", LIST_RESOURCES),
            ("resources/read", Tool(id="notes:resources/read", description="", category="upstream")),
        ):
            call = replace(make_call("x"), name=name, tool=tool)
            await gateway.records.record_finished(call, Outcome(value=1), finished_at=NOON)
        found = (await report_usage(gateway, ["tool"], until=TODAY)).items
        assert sorted((row.tool, row.calls) for row in found) == [("list_directory", 1), ("notes:resources/read", 1)]
    connection = sqlite3.connect(tmp_path / "toolgate.db")
    counted = connection.execute("SELECT tool_id, call_count FROM tool_usage ORDER BY tool_id").fetchall()
    connection.close()
    assert counted == [("list_directory", 1), ("notes:resources/read", 1)]


async def test_usage_counts_a_call_once_that_waits_for_a_person_or_is_written_twice(
    tmp_path: Path,
) -> None:
    async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
        call = make_call("notes:add")
        await gateway.records.record_running(call)
        await gateway.records.record_finished(call, Outcome(error=InputRequired("may it?")))
        assert (await report_usage(gateway, until=TODAY)).total.calls == 0
        for _ in range(2):
            await gateway.records.record_finished(call, Outcome(value="y" * 200_000), finished_at=NOON)
        await gateway.records.wait()
        total = (await report_usage(gateway, until=TODAY)).total
        assert (total.calls, total.result_bytes) == (1, 200_002)


async def test_usage_tells_refused_and_cancelled_calls_from_failed_ones(tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
        refusals = [Forbidden("no", code="DECLINED"), Invalid("'path' is required"), Cancelled("stopped")]
        for error in (*refusals, ToolFailed("no"), Timeout("late")):
            await gateway.records.record_finished(make_call("notes:add"), Outcome(error=error), finished_at=NOON)
        total = (await report_usage(gateway, until=TODAY)).total
        assert (total.calls, total.errors, total.refused) == (5, 5, 3)


def test_usage_counts_the_calls_of_an_older_database(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "toolgate.db", isolation_level=None)
    migrate(connection, MIGRATIONS[: MIGRATIONS.index(CALL_USAGE)])
    connection.execute("INSERT INTO chats (id, principal, created_at) VALUES ('c', 'ada', '')")
    connection.execute(
        "INSERT INTO tool_calls (id, chat_id, tool_id, tool_name, category, principal, surface, args, status, "
        "started_at, finished_at, duration_ms) VALUES ('1', 'c', 't', 't', 'web', 'ada', 'mcp', '{}', 'success', "
        "'2027-01-15T00:00:00.000+00:00', '2027-01-15T00:00:01.000+00:00', 1000)"
    )
    connection.execute(
        "INSERT INTO tool_calls (id, chat_id, tool_id, tool_name, category, principal, surface, args, status, "
        "error_code, started_at, finished_at, duration_ms) VALUES ('2', 'c', 't', 't', 'web', 'ada', 'mcp', '{}', "
        "'error', 'DECLINED', '2027-01-15T00:00:00.000+00:00', '2027-01-15T00:00:01.000+00:00', 1000)"
    )
    connection.close()
    connection = connect(tmp_path / "toolgate.db")
    found = connection.execute("SELECT * FROM call_usage").fetchall()
    connection.close()
    assert found == [(str(TODAY), "t", "ada", 2, 1, 2000.0, 1000.0, 4, 0, 1)]


def test_call_stats_prints_a_table_and_json(tmp_path: Path) -> None:
    async def make_calls() -> None:
        async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
            for name in ("a.txt", "b.txt"):
                await gateway.call("write_file", {"path": name, "content": "x"})
            await gateway.call("read_file", {"path": "missing.txt"})

    anyio.run(make_calls)
    words = ["call", "stats", "--data-dir", str(tmp_path), "--by", "tool", "--by", "principal"]
    table = CliRunner().invoke(toolgate, words)
    assert table.exit_code == 0, table.output
    lines = [line.split() for line in table.stdout.splitlines()]
    assert lines[0] == ["TOOL", "PRINCIPAL", "CALLS", "ERRORS", "MEAN", "LONGEST", "SENT", "RETURNED"]
    assert [line[:4] for line in lines[1:3]] == [["write_file", "local", "2", "0"], ["read_file", "local", "1", "1"]]
    assert lines[3][:3] == ["all", "3", "1"]
    assert lines[2][-4:] == [str(len('{"path":"missing.txt"}')), "B", "0", "B"]
    found = json.loads(CliRunner().invoke(toolgate, [*words, "--json"]).stdout)
    assert found["total"]["calls"] == 3
