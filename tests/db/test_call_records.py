from __future__ import annotations

import asyncio
import fcntl
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT

from gateway.calls import PLAN_LIMIT, Call, Caller, Outcome, PlannedCall, to_json
from gateway.db import Statement
from gateway.db.call_records import DOCUMENT_LIMIT, FOLLOWING, PLANS_LOOKBACK, PREVIEW_LIMIT, CallRecord, CallRecords
from gateway.db.chats import Chats
from gateway.db.journal import LONGEST
from gateway.db.sqlite import SqliteDatabase
from gateway.errors import Cancelled, GatewayError, InputRequired, Invalid, NotFound, ToolFailed
from gateway.tools import Tool

TOOL = Tool(id="notes:add", description="Adds a note.", category="editing")
NOON = 1_800_000_000.0


def a_call(**changes: Any) -> Call:
    caller = Caller(principal="ada", surface="mcp", client="desktop 1.0")
    given = {"name": "notes__add", "arguments": {"text": "hi"}, "tool": TOOL, "chat": "c1", "caller": caller}
    return Call(**{"started_at": NOON, **given, **changes})


@asynccontextmanager
async def opened(place: Path, *, journal_worker: bool = True) -> AsyncIterator[tuple[CallRecords, SqliteDatabase]]:
    """A database that takes promises, as it does after it was asked once; or one that was not asked yet."""
    db = await SqliteDatabase.open(place / "toolgate.db")
    try:
        if journal_worker:
            assert not db.append((), [])
            await db.run(Statement("SELECT 1"))
        yield CallRecords(db, "process-1"), db
    finally:
        await db.close()


def recorded(place: Path, call: Call, outcome: Outcome, *, finished_at: float = NOON) -> CallRecord:
    """The record of a finished call, which is the same whether it was journaled or written alone."""

    async def main() -> CallRecord:
        found = []
        for journal_worker in (False, True):
            async with opened(place / f"{journal_worker}", journal_worker=journal_worker) as (records, _):
                await records.record_finished(call, outcome, finished_at=finished_at)
                found.append(await records.get(call.id))
        assert found[0] == found[1]
        return found[1]

    return anyio.run(main)


@pytest.mark.promise("P3")
@pytest.mark.promise("T1")
def test_a_finished_call_is_recorded_whole(tmp_path: Path) -> None:
    call = a_call(message="m2", parent_message="m1")
    record = recorded(
        tmp_path,
        call,
        Outcome(value={"id": 7}, pre_manifest="before", post_manifest="after", render_plan={"renderer": "code"}),
        finished_at=NOON + 1.5,
    )
    assert record == CallRecord(
        id=call.id,
        chat_id="c1",
        message_id="m2",
        parent_message_id="m1",
        tool_id="notes:add",
        tool_name="notes__add",
        category="editing",
        principal="ada",
        surface="mcp",
        client="desktop 1.0",
        started_at="2027-01-15T08:00:00.000+00:00",
        process="process-1",
        parent_call_id=None,
        args='{"text":"hi"}',
        status="success",
        error=None,
        error_code=None,
        result='{"id":7}',
        render_plan='{"renderer":"code"}',
        finished_at="2027-01-15T08:00:01.500+00:00",
        duration_ms=1500.0,
        pre_manifest_id="before",
        post_manifest_id="after",
        attempts=1,
        args_bytes=13,
        result_bytes=8,
    )
    assert record.to_dict()["result"] == {"id": 7}


@pytest.mark.promise("P3")
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (None, "success", None),
        (ToolFailed("the note is empty"), "error", "EXECUTION_ERROR"),
        (Cancelled("the caller called it off"), "error", "CANCELLED"),
        (InputRequired("may it overwrite?"), "pending", "CONFIRMATION_REQUIRED"),
        (GatewayError("the gateway failed"), "error", "INTERNAL"),
    ],
)
def test_the_status_says_what_came_of_a_call(
    error: GatewayError | None, status: str, code: str | None, tmp_path: Path
) -> None:
    record = recorded(tmp_path, a_call(), Outcome(error=error))
    assert (record.status, record.error_code, record.error) == (status, code, error and error.message)
    assert (record.finished_at is None) == (status == "pending")


@pytest.mark.promise("P3")
def test_a_call_to_an_unknown_name_is_recorded_under_that_name(tmp_path: Path) -> None:
    record = recorded(tmp_path, a_call(name="nope", tool=None), Outcome(error=NotFound("no tool is named 'nope'")))
    assert (record.tool_id, record.tool_name, record.category, record.status) == ("nope", "nope", None, "error")


def on_records(place: Path, test: Callable[[CallRecords, SqliteDatabase], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened(place) as (records, db):
            await test(records, db)

    anyio.run(main)


def test_beginning_and_end_may_be_written_in_either_order(tmp_path: Path) -> None:
    async def test(records: CallRecords, db: SqliteDatabase) -> None:
        late, early = a_call(), a_call()
        await records.record_running(early)
        assert (await records.get(early.id)).status == "running"
        await records.record_finished(early, Outcome(value=1), finished_at=NOON)
        await records.record_finished(late, Outcome(value=1), finished_at=NOON)
        await records.record_running(late)
        one, two = await records.get(early.id), await records.get(late.id)
        assert one == replace(two, id=early.id)
        assert one.status == "success"
        await records.record_finished(a_call(id="neither pauses"), Outcome(value=1))
        await records.record_running(a_call(id="neither pauses"))
        assert (await records.get("neither pauses")).status == "success"

    on_records(tmp_path, test)


@pytest.mark.promise("P3")
def test_calls_are_listed_newest_first_page_by_page(tmp_path: Path) -> None:
    async def test(records: CallRecords, db: SqliteDatabase) -> None:
        ids = [f"{number:04}" for number in range(10)]
        for call_id in ids:
            await records.record_finished(a_call(id=call_id), Outcome(value=1))
        pages: list[list[str]] = []
        before = None
        while page := await records.list_calls(limit=4, before=before):
            pages.append([record.id for record in page])
            before = page[-1].id
        newest = ids[::-1]
        assert pages == [newest[:4], newest[4:8], newest[8:]]

    on_records(tmp_path, test)


@pytest.mark.promise("P3")
def test_calls_are_found_by_chat_tool_status_and_principal(tmp_path: Path) -> None:
    async def test(records: CallRecords, db: SqliteDatabase) -> None:
        failed = Outcome(error=ToolFailed("no"))
        await records.record_finished(a_call(id="1", chat="other"), Outcome(value=1))
        await records.record_finished(a_call(id="2", name="x", tool=None), failed)
        await records.record_finished(a_call(id="3", caller=Caller(principal="bob")), failed)

        async def found(**filters: Any) -> list[str]:
            return [record.id for record in await records.list_calls(**filters)]

        assert await found() == ["3", "2", "1"]
        assert await found(chat="c1") == ["3", "2"]
        assert await found(tool="notes:add") == ["3", "1"]
        assert await found(tool="x") == ["2"]
        assert await found(status="error") == ["3", "2"]
        assert await found(principal="ada") == ["2", "1"]
        assert await found(principal="ada", status="error", chat="c1") == ["2"]
        for limit in (0, 1001):
            with pytest.raises(Invalid):
                await records.list_calls(limit=limit)

    on_records(tmp_path, test)


def test_a_call_is_found_by_its_id_or_the_beginning_of_it(tmp_path: Path) -> None:
    async def test(records: CallRecords, db: SqliteDatabase) -> None:
        for call_id in ("ab", "abc", "b%"):
            await records.record_finished(a_call(id=call_id), Outcome(value=1))
        assert [(await records.get(given)).id for given in ("ab", "abc", "b")] == ["ab", "abc", "b%"]
        with pytest.raises(Invalid, match="several calls match 'a'"):
            await records.get("a")
        for unknown in ("", "c", "abcd", "%"):
            with pytest.raises(NotFound):
                await records.get(unknown)

    on_records(tmp_path, test)


def test_a_document_too_large_is_kept_as_its_size_digest_and_beginning(tmp_path: Path) -> None:
    text = "ä" * DOCUMENT_LIMIT
    record = recorded(tmp_path, a_call(arguments={"text": text}), Outcome(value=text)).to_dict()
    for name, document in (("args", to_json({"text": text})), ("result", to_json(text))):
        kept = record[name]
        assert document.decode().startswith(kept.pop("preview"))
        assert kept == {"truncated": True, "bytes": len(document), "sha256": hashlib.sha256(document).hexdigest()}


def test_a_document_at_the_limit_is_kept_whole(tmp_path: Path) -> None:
    text = "x" * (DOCUMENT_LIMIT - 2)
    assert recorded(tmp_path, a_call(), Outcome(value=text)).result == f'"{text}"'


@pytest.mark.promise("P3")
def test_a_secret_argument_is_in_no_column_of_the_record(tmp_path: Path) -> None:
    arguments = {"user": "ada", "auth": {"apiKey": "hunter2-hunter2"}, "rest": "x" * PREVIEW_LIMIT}
    complaint = Outcome(error=Invalid("'auth.apiKey': \"hunter2-hunter2\" is too short"))
    for large in ("", "x" * DOCUMENT_LIMIT):
        record = recorded(tmp_path, a_call(arguments={**arguments, "large": large}), complaint)
        assert "hunter2" not in repr(record)
        assert '"user":"ada"' in (record.args or "").replace("\\", "")
        assert record.error == "'auth.apiKey': \"[redacted]\" is too short"


@pytest.mark.promise("P3")
def test_a_secret_argument_is_not_in_the_files_either(tmp_path: Path) -> None:
    async def test(records: CallRecords, db: SqliteDatabase) -> None:
        secret = a_call(arguments={"user": "ada", "password": "hunter2-hunter2"})
        await records.record_finished(secret, Outcome(error=Invalid("hunter2-hunter2 is too short")))
        journaled = b"".join(path.read_bytes() for path in tmp_path.glob("toolgate.db.promised-*"))
        assert b"ada" in journaled and b"is too short" in journaled
        assert b"hunter2" not in journaled

    on_records(tmp_path, test)


@pytest.mark.promise("X3")
def test_a_call_whose_arguments_are_no_json_is_recorded_without_them(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep]
    for arguments in ({"text": "\ud800"}, {"what": object()}, {"deep": deep}, {"both": ["\ud800", 2**70]}):
        record = recorded(tmp_path, a_call(arguments=arguments), Outcome(error=Invalid("no", code="INVALID_JSON")))
        assert (record.args, record.status, record.error_code) == (None, "error", "INVALID_JSON")
        assert recorded(tmp_path, a_call(arguments=arguments), Outcome(value=1)).error is not None


@pytest.mark.promise("X3")
def test_a_call_is_recorded_whatever_texts_it_carries(tmp_path: Path) -> None:
    call = a_call(name="odd \udcff name", tool=None, chat="odd \udcff chat")
    record = recorded(tmp_path, call, Outcome(error=ToolFailed("no file \udcff")))
    assert (record.tool_name, record.error) == ("odd \\udcff name", "no file \\udcff")


def test_a_value_that_is_no_json_is_recorded_by_its_type(tmp_path: Path) -> None:
    assert recorded(tmp_path, a_call(), Outcome(value=object())).result == '{"not_json":"object"}'


def test_what_the_model_read_is_recorded_where_there_is_no_value(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "hello"}]
    assert recorded(tmp_path, a_call(), Outcome(content=content)).to_dict()["result"] == content


def test_a_chat_deleted_meanwhile_is_made_again_for_the_record(tmp_path: Path) -> None:
    async def test(records: CallRecords, db: SqliteDatabase) -> None:
        await records.record_finished(a_call(id="1"), Outcome(value=1))
        await db.run(Statement("DELETE FROM chats"))
        await records.record_finished(a_call(id="2"), Outcome(value=1))
        assert [record.id for record in await records.list_calls()] == ["2"]
        assert await db.fetch("SELECT id FROM chats") == [("c1",)]

    on_records(tmp_path, test)


def test_a_record_makes_nobody_the_owner_of_a_chat(tmp_path: Path) -> None:
    async def test(records: CallRecords, db: SqliteDatabase) -> None:
        for principal in ("ada", "bob"):  # journaled together
            await records.record_finished(a_call(caller=Caller(principal=principal)), Outcome(value=1))
        chats = Chats(db)
        assert await chats.owner("c1") is None
        assert await chats.list(None, None, 10) == []
        assert await chats.claim("c1", "bob") == "bob"
        assert await chats.claim("c1", "ada") == "bob"
        assert {record.principal for record in await records.list_calls()} == {"ada", "bob"}

    on_records(tmp_path, test)


def test_a_render_plan_is_kept_whole_up_to_its_own_limit(tmp_path: Path) -> None:
    plan = {"renderer": "code", "text": "x" * (PLAN_LIMIT - 29)}
    assert len(to_json(plan)) == PLAN_LIMIT
    assert recorded(tmp_path, a_call(), Outcome(render_plan=plan)).to_dict()["render_plan"] == plan
    larger = recorded(tmp_path, a_call(), Outcome(render_plan={**plan, "more": 1})).to_dict()["render_plan"]
    assert larger["truncated"] is True


@pytest.mark.promise("X3")
def test_a_call_is_recorded_although_its_plan_is_no_json(tmp_path: Path) -> None:
    record = recorded(tmp_path, a_call(), Outcome(value=1, render_plan={"what": object()}))
    assert (record.result, record.render_plan) == ("1", None)


def test_plans_are_found_by_the_whole_id_and_the_latest_of_a_chat_newest_first(tmp_path: Path) -> None:
    async def test(records: CallRecords, db: SqliteDatabase) -> None:
        planned, failed = Outcome(render_plan={"n": 1}), Outcome(error=ToolFailed("no"), render_plan={"n": 2})
        await records.record_finished(a_call(id="a1"), planned)
        await records.record_finished(a_call(id="a2"), Outcome(value=1))
        await records.record_finished(a_call(id="a3"), failed)
        await records.record_finished(a_call(id="b1", chat="other"), planned)

        found = await records.find_plan("a3")
        started = "2027-01-15T08:00:00.000+00:00"
        assert found == PlannedCall("a3", "c1", "notes:add", "notes__add", "error", started, '{"n":2}')
        assert [await records.find_plan(unknown) for unknown in ("a2", "a", "", "c")] == [None] * 4

        earlier = PlannedCall("a1", "c1", "notes:add", "notes__add", "success", started)
        assert await records.list_plans("c1", 10) == [replace(found, plan=None), earlier]
        assert [call.id for call in await records.list_plans("c1", 1)] == ["a3"]
        assert await records.list_plans("nobody's", 10) == []

    on_records(tmp_path, test)


def test_the_look_for_plans_ends_after_a_thousand_calls(tmp_path: Path) -> None:
    async def test(records: CallRecords, db: SqliteDatabase) -> None:
        await records.record_finished(a_call(id="0000"), Outcome(render_plan={}))
        async with anyio.create_task_group() as tasks:
            for number in range(1, PLANS_LOOKBACK):
                tasks.start_soon(records.record_finished, a_call(id=f"{number:04}"), Outcome(value=1))
        assert [call.id for call in await records.list_plans("c1", 5)] == ["0000"]
        await records.record_finished(a_call(id=f"{PLANS_LOOKBACK:04}"), Outcome(value=1))
        assert await records.list_plans("c1", 5) == []

    on_records(tmp_path, test)


LARGE = "x" * DOCUMENT_LIMIT
DIGEST = hashlib.sha256(to_json(LARGE)).hexdigest()


def digest_of(record: CallRecord) -> Any:
    return record.to_dict()["result"].get("sha256")


def test_a_caller_cancelled_while_the_record_is_written_takes_no_digest_with_it(tmp_path: Path) -> None:
    async def test(records: CallRecords, db: SqliteDatabase) -> None:
        call = a_call(name="x" * LONGEST, tool=None)  # too long to be journaled
        with (tmp_path / "toolgate.db.gate").open() as gate:  # held, so that it has to wait
            fcntl.flock(gate, fcntl.LOCK_EX)
            inserts = asyncio.ensure_future(records.record_finished(call, Outcome(value=LARGE)))
            await asyncio.sleep(0)
            inserts.cancel()
            with pytest.raises(asyncio.CancelledError):
                await inserts
        assert digest_of(await records.get(call.id)) == DIGEST

    on_records(tmp_path, test)


def test_however_many_large_results_come_at_once_few_wait_for_their_digest(tmp_path: Path) -> None:
    async def test(records: CallRecords, db: SqliteDatabase) -> None:
        calls = [a_call() for _ in range(FOLLOWING * 2)]
        for call in calls:
            await records.record_finished(call, Outcome(value=LARGE))
            assert len(records._following) <= FOLLOWING
        assert {digest_of(record) for record in await records.list_calls(limit=len(calls))} == {DIGEST}

    on_records(tmp_path, test)


KILLED = """
import os, sys, anyio
from gateway.calls import Call, Outcome
from gateway.db.call_records import CallRecords
from gateway.db.sqlite import SqliteDatabase
from pathlib import Path

async def main():
    records = CallRecords(await SqliteDatabase.open(Path(sys.argv[1])), "p")
    await records.record_finished(Call(id="first", name="n", arguments={}), Outcome(value="x" * 10**6))
    await records.wait()
    await records.record_running(Call(id="begun", name="n", arguments={}))
    await records.record_finished(Call(id="begun", name="n", arguments={}), Outcome(value=1))
    for number in range(100):
        await records.record_finished(Call(id=f"{number:03}", name="n", arguments={}), Outcome(value=number))
    await records.record_finished(Call(id="last", name="n", arguments={}), Outcome(value="x" * 10**6))
    os.kill(os.getpid(), 9)

anyio.run(main)
"""


@pytest.mark.promise("P3")
def test_what_is_recorded_is_there_after_a_kill_if_need_be_without_its_digest(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "toolgate.db")], check=False, timeout=TIMEOUT)

    async def test(records: CallRecords, db: SqliteDatabase) -> None:
        kept = (await records.get("last")).to_dict()["result"]
        assert (kept["truncated"], kept["bytes"], len(kept["preview"])) == (True, 10**6 + 2, PREVIEW_LIMIT)
        assert digest_of(await records.get("first")) == hashlib.sha256(to_json("x" * 10**6)).hexdigest()
        found = await records.list_calls(before="a", limit=1000)
        assert [record.result for record in found] == [f"{number}" for number in range(99, -1, -1)]
        assert (await records.get("begun")).status == "success"

    on_records(tmp_path, test)
