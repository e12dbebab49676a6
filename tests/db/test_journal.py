"""Rows that are journaled: within one process as if written at once, whatever the disk does."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import anyio
import orjson
import pytest
from eventually import TIMEOUT, async_eventually
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.db import Insert, Statement, sqlite
from gateway.db.call_log import EntryKey
from gateway.db.journal import FILES, LONGEST, ROWS, SIZE, Journal, JournalFile, add_mac, header, start_mac
from gateway.db.sqlite import SqliteDatabase
from gateway.errors import Unavailable

from .journal_worker import (
    ALONE,
    INSERTS,
    TABLE,
    are_empty,
    has_rows,
    journal_files,
    left,
    lengthen_the_log,
    no_file_longer_than,
    note,
    notes,
    opened,
)

pytestmark = pytest.mark.anyio


@contextmanager
def the_gate_held(place: Path) -> Iterator[None]:
    """As by another process: nothing is written meanwhile."""
    with (place / "toolgate.db.gate").open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield


@pytest.mark.promise("T1")
async def test_whoever_reads_or_writes_after_a_journaled_row_finds_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        assert note(db, "a")
        assert await notes(db) == ["a"]
        assert note(db, "b")
        assert await db.run(Statement("SELECT id FROM notes")) == [[("a",), ("b",)]]
        assert note(db, "c")
        await db.run(Statement("DELETE FROM notes WHERE id IN ('b', 'c')"))
        assert await notes(db) == ["a"]
        await db.run(Statement("INSERT INTO notes VALUES ('d', 1, NULL)"))
        assert note(db, "d", 2) and note(db, "d", 3)
        await db.run(Statement("INSERT OR IGNORE INTO notes VALUES ('d', 4, NULL)"))
        assert await db.fetch("SELECT number FROM notes WHERE id = 'd'") == [(3,)]
    assert await left(tmp_path) == ["a", "d"]


async def test_what_nobody_asks_for_is_written_soon_and_the_lines_are_gone(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        for number in range(100):
            assert note(db, f"{number:03}")
        assert not are_empty(*journal_files(tmp_path))
        await async_eventually(lambda: are_empty(*journal_files(tmp_path)))
        foreign = sqlite3.connect(tmp_path / "toolgate.db")
        assert foreign.execute("SELECT count(*) FROM notes").fetchall() == [(100,)]
        foreign.close()


async def test_closing_writes_what_is_journaled_and_leaves_no_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        for number in range(100):
            assert note(db, f"{number:03}")
        assert len(journal_files(tmp_path)) == FILES
        await db.close()
        assert journal_files(tmp_path) == []
    assert len(await left(tmp_path)) == 100


async def test_a_closed_database_journals_no_row_not_even_into_files_that_were_opened_since(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        assert note(db, "a")
    others = [os.open(tmp_path / f"{number}", os.O_WRONLY | os.O_CREAT) for number in range(20)]
    assert not note(db, "too late")
    assert {os.fstat(other).st_size for other in others} == {0}
    for other in others:
        os.close(other)


@pytest.mark.promise("T1")
async def test_only_the_owner_can_read_what_is_journaled(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with opened(tmp_path) as db:
            assert note(db, "a")
            assert {stat.filemode(path.stat().st_mode) for path in journal_files(tmp_path)} == {"-rw-------"}
    finally:
        os.umask(before)


async def test_a_process_that_journals_nothing_makes_no_files(tmp_path: Path) -> None:
    db = await SqliteDatabase.open(tmp_path / "toolgate.db")
    await db.run(TABLE)
    assert journal_files(tmp_path) == []
    await db.close()


async def test_more_rows_than_go_together_wait_for_others_to_be_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        with the_gate_held(tmp_path):
            taken = [number for number in range(ROWS * FILES + 10) if note(db, f"{number:04}")]
            assert taken == list(range(ROWS * FILES))
            reading = asyncio.create_task(notes(db))
            await asyncio.sleep(0.01)
            assert not reading.done()
        assert await reading == [f"{number:04}" for number in taken]
        assert note(db, "9999")
        assert len(await notes(db)) == len(taken) + 1


async def test_a_journal_file_takes_no_more_bytes_than_it_may(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        assert note(db, "longest", 1, "x" * (LONGEST - len('["longest",1,""]')))
        assert not note(db, "longest", 1, "x" * (LONGEST + 1 - len('["longest",1,""]')))
        with the_gate_held(tmp_path):
            taken = sum(note(db, f"{number}", 1, "x" * 100_000) for number in range(100))
            sizes = [path.stat().st_size for path in journal_files(tmp_path)]
            assert SIZE <= min(sizes) <= max(sizes) < SIZE + 110_000
        assert len(await notes(db)) == 1 + taken < 50
        assert note(db, "after")


async def test_rows_of_another_kind_wait_until_the_others_are_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        other = (Insert("INSERT INTO notes (id) VALUES {rows}", (0,)),)
        assert note(db, "a")
        assert not db.append(other, ["b"])
        assert await notes(db) == ["a"]
        assert db.append(other, ["b"])
        assert await notes(db) == ["a", "b"]


@pytest.mark.promise("T1")
async def test_one_row_that_cannot_be_written_takes_no_neighbour_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as db:
        assert note(db, "a") and note(db, "c", 1, "unlucky") and note(db, "b")
        alone = asyncio.gather(db.run(Statement(ALONE.sql, ("c", 1, "unlucky"))), return_exceptions=True)
        await db.run(Statement(ALONE.sql, ("d", 1, None)))
        assert [type(refused) for refused in await alone] == [Unavailable]
        assert await notes(db) == ["a", "b", "d"]
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        await async_eventually(lambda: are_empty(*journal_files(tmp_path)))
    assert await left(tmp_path) == ["a", "b", "d"]


@pytest.mark.promise("T1")
async def test_rows_of_one_turn_are_journaled_by_one_write_before_any_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[bytes] = []
    write = os.write

    def count(file: int, text: bytes) -> int:
        writes.append(text)
        return write(file, text)

    monkeypatch.setattr(os, "write", count)

    async def append(number: int) -> None:
        written = db.append_together(INSERTS, [f"{number:02}", number, None])
        assert written is not None
        await written
        [file] = filter(has_rows, journal_files(tmp_path))
        assert f'"{number:02}"'.encode() in file.read_bytes()

    async with opened(tmp_path) as db:
        for turn in range(3):
            await asyncio.gather(*(append(10 * turn + number) for number in range(10)))
        assert len([text for text in writes if b'["' in text]) == 3
        assert len(await notes(db)) == 30


@pytest.mark.promise("T1")
async def test_rows_of_one_turn_are_written_though_their_callers_are_cancelled(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        futures = [
            asyncio.ensure_future(db.append_together(INSERTS, [name, 1, None]) or cast(Any, 0)) for name in "abc"
        ]
        futures[1].cancel()
        await asyncio.gather(futures[0], futures[2])
        assert await notes(db) == ["a", "b", "c"]
        db.append_together(INSERTS, ["d", 1, None])
        assert note(db, "d", 2)  # a row that is journaled at once does not overtake those of the turn
        assert await db.fetch("SELECT number FROM notes WHERE id = 'd'") == [(2,)]


@pytest.mark.promise("T1")
async def test_rows_of_one_turn_that_cannot_be_journaled_are_committed_instead(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        assert note(db, "before")
        cancelled, *others = [db.append_together(INSERTS, [name, 1, None]) for name in ("a", "b", "unlucky")]
        make_unwritable(db._writer._journal._current)
        assert isinstance(cancelled, asyncio.Future)
        cancelled.cancel()
        await asyncio.gather(*(each for each in others if each is not None))
        foreign = sqlite3.connect(tmp_path / "toolgate.db")
        assert foreign.execute("SELECT id FROM notes ORDER BY id").fetchall() == [("a",), ("b",), ("unlucky",)]
        foreign.close()
        assert await notes(db) == ["a", "b", "before", "unlucky"]


texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
durations = st.floats(0, 1e10).map(lambda milliseconds: round(milliseconds, 3))


@pytest.mark.promise("T1")
@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.tuples(st.none() | numbers | durations, st.none() | texts), max_size=20))
@example(rows=[(2**63 - 1, "nul \0 within"), (-(2**63), "\\u0000"), (0.1, "\u2028\u2029\ufeff\uffff"), (5e-324, "\n")])
@example(rows=[(2**53 + 1, "\x7f\x1b"), (1.7976931348623157e308, '"\\'), (-0.0, ""), (123456.789, "\U0010ffff")])
def test_values_come_back_as_if_they_had_been_written_alone(rows: list[tuple[Any, Any]]) -> None:
    async def main() -> None:
        with TemporaryDirectory() as place:
            async with opened(Path(place)) as db:
                for key, row in enumerate(rows):
                    if not note(db, f"{key:02}", *row):
                        await db.run(Statement(ALONE.sql, (f"{key:02}", *row)))
                found = await db.fetch("SELECT number, body FROM notes ORDER BY id")
                assert found == rows
                assert [type(number) for number, _ in found] == [type(number) for number, _ in rows]

    anyio.run(main)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**64, "lone \ud800", b"bytes", object()])
async def test_a_value_that_would_be_another_in_the_file_is_not_journaled(value: Any, tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        assert not note(db, "a", 1, value)
        assert note(db, "b")
        assert await notes(db) == ["b"]


def _noted(file: JournalFile, name: str, body: str | None = None) -> bool:
    row = [name, 1, body]
    return file.append(INSERTS, row, orjson.dumps(row)) and not file.write()


@pytest.mark.promise("T1")
async def test_a_row_for_which_the_disk_has_no_room_is_not_journaled_and_harms_none_after_it(tmp_path: Path) -> None:
    await left(tmp_path)
    key = EntryKey(tmp_path / "audit.key").load_journal_key()
    header_size = len(add_mac(header(INSERTS), start_mac(tmp_path, key)))  # with the first MAC
    rooms = [0, 1, header_size + 10, header_size + 100]  # for a part of the statements, of the first row, of the second
    for room in rooms:
        file = JournalFile(tmp_path / f"toolgate.db.promised-{room:03}-0", key)
        with no_file_longer_than(room):
            first = _noted(file, f"{room} first", "x" * 20)
            assert not _noted(file, f"{room} refused", "x" * 200)
        assert first == (room > header_size + 10)
        assert _noted(file, f"{room} after")
        os.close(file._descriptor)
    assert await left(tmp_path) == sorted([*[f"{room} after" for room in rooms], f"{rooms[-1]} first"])
    assert journal_files(tmp_path) == []


async def test_while_the_disk_is_full_nothing_is_journaled_and_afterwards_it_is(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        await lengthen_the_log(db)
        with no_file_longer_than(60):
            assert not note(db, "a")
            with pytest.raises(Unavailable):
                await db.run(Statement(ALONE.sql, ("a", 1, None)))
        assert note(db, "b")
        assert await notes(db) == ["0", "b"]


@pytest.mark.promise("T1")
async def test_what_the_disk_did_not_take_is_kept_and_written_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite, "IDLE_AFTER", 0.05)
    async with opened(tmp_path) as db:
        with no_file_longer_than(await lengthen_the_log(db)):
            assert note(db, "a")
            assert await notes(db) == ["0"]
            assert note(db, "b")
            assert await notes(db) == ["0"]
            with pytest.raises(Unavailable):
                await db.run(Statement("DELETE FROM notes WHERE id = 'a'"))
            assert note(db, "c")
        await db.run(Statement("DELETE FROM notes WHERE id = 'a'"))
        assert await notes(db) == ["0", "b", "c"]
        await async_eventually(lambda: are_empty(*journal_files(tmp_path)))
        with no_file_longer_than(await lengthen_the_log(db)):
            assert note(db, "d")
            assert await notes(db) == ["0", "b", "c"]
            for _ in range(3):
                assert await notes(db) == ["0", "b", "c"]
            assert "be written" in str(db.failure)
            # Each of two problems is logged once, however often the rows are tried.
            assert caplog.text.count("the rows stay in") == 2
        await async_eventually(lambda: are_empty(*journal_files(tmp_path)))  # though nobody writes or asks
        await async_eventually(lambda: db.failure is None)
        await async_eventually(lambda: caplog.text.count("are written to") == 2)
        assert await notes(db) == ["0", "b", "c", "d"]
    assert await left(tmp_path) == ["0", "b", "c", "d"]


@pytest.mark.promise("T1")
async def test_closing_on_a_broken_disk_keeps_the_lines_for_the_next(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        with no_file_longer_than(await lengthen_the_log(db)), anyio.fail_after(TIMEOUT):
            assert note(db, "a")
            await db.close()
        assert len(journal_files(tmp_path)) == 1
    assert await left(tmp_path) == ["0", "a"]
    assert journal_files(tmp_path) == []


async def test_closing_tries_once_more_what_the_disk_did_not_take(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        with no_file_longer_than(await lengthen_the_log(db)):
            assert note(db, "a")
            assert await notes(db) == ["0"]
        await db.close()
        assert journal_files(tmp_path) == []
    assert await left(tmp_path) == ["0", "a"]


def make_unwritable(file: JournalFile | None) -> None:
    assert file is not None
    with Path("/dev/null").open("rb") as unwritable:
        os.dup2(unwritable.fileno(), file._descriptor)


async def test_a_journal_file_whose_lines_cannot_be_removed_is_not_used_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        for number in range(FILES + 1):
            if note(db, f"{number}"):
                make_unwritable(db._writer._journal._current)
            with anyio.fail_after(TIMEOUT):
                assert len(await notes(db)) == min(number + 1, FILES)
        assert journal_files(tmp_path) == []  # else its rows were written again by whoever is idle
        await db.run(Statement(ALONE.sql, ("last", 1, None)))
        with anyio.fail_after(TIMEOUT):
            await db.close()


async def test_a_transaction_that_was_not_undone_takes_no_journaled_row_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as db:
        writer = db._writer

        def begin() -> None:  # in the thread of the writer, as where there was no memory to undo a transaction
            monkeypatch.undo()
            writer._connection.execute("BEGIN")

        monkeypatch.setattr(writer._journal, "open", begin)
        await db.run(Statement("SELECT 1"))
        assert note(db, "a") and note(db, "b")
        assert await notes(db) == ["a", "b"]
    assert await left(tmp_path) == ["a", "b"]


async def test_a_journal_file_in_which_nothing_can_be_noted_makes_way_for_another(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        make_unwritable(db._writer._journal._files[0])
        assert not note(db, "a")
        await db.run(Statement(ALONE.sql, ("a", 1, None)))
        assert note(db, "b")
        assert await notes(db) == ["a", "b"]


async def test_a_file_that_cannot_be_removed_keeps_nobody_from_closing(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        for path in journal_files(tmp_path):
            path.unlink()
            path.mkdir()
        with anyio.fail_after(TIMEOUT):
            await db.close()
    assert await left(tmp_path) == []


async def test_without_a_place_for_journal_files_rows_are_written_one_by_one_and_nothing_leaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks left")

    open_before = os.listdir("/proc/self/fd") if Path("/proc/self/fd").exists() else []
    journal = Journal(tmp_path / "toolgate.db", lambda: b"key")
    with monkeypatch.context() as refusing:
        refusing.setattr(fcntl, "flock", refuse)
        for _ in range(3):
            assert not journal.append(INSERTS, ["a", 1, None])
            journal.open()
        assert journal_files(tmp_path) == []
    if open_before:
        assert len(os.listdir("/proc/self/fd")) == len(open_before)
    assert not journal.append(INSERTS, ["a", 1, None])
    journal.open()
    assert journal.append(INSERTS, ["a", 1, None])
    journal.close()


async def test_whoever_stops_waiting_takes_no_journaled_row_with_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        with the_gate_held(tmp_path):
            assert note(db, "a")
            reading = [asyncio.create_task(notes(db)) for _ in range(2)]
            await asyncio.sleep(0.01)
            reading[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading[0]
        assert await reading[1] == ["a"]
        assert await notes(db) == ["a"]


async def test_who_reads_while_the_database_is_closed_is_told_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as db:
        with the_gate_held(tmp_path):
            assert note(db, "a")
            reading = asyncio.create_task(notes(db))
            closing = asyncio.create_task(db.close())
            await asyncio.sleep(0.05)
        with anyio.fail_after(TIMEOUT), pytest.raises(Unavailable) as refused:
            await reading
        assert refused.value.code == "DATABASE_CLOSED"
        await closing
    assert await left(tmp_path) == ["a"]


@pytest.mark.promise("X3")
async def test_the_log_does_not_grow_without_end_under_journaled_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_AFTER", 100)
    log, longest = tmp_path / "toolgate.db-wal", 0
    async with opened(tmp_path) as db:
        for number in range(60):
            for row in range(100):
                assert note(db, f"{number}-{row}", row, "x" * 5000)
            await db.fetch("SELECT 1")
            longest = max(longest, log.stat().st_size)
            await async_eventually(lambda: (thread := db._writer._checkpointing) is None or not thread.is_alive())
    assert longest < 12_000_000  # one checkpoint for each hundred journal_files: more than 30 MB


async def test_two_databases_of_one_process_keep_their_journals_apart(tmp_path: Path) -> None:
    async with opened(tmp_path) as first, opened(tmp_path) as second:
        for number in range(200):
            assert note(first, f"first-{number:03}")
            assert note(second, f"second-{number:03}")
            if number % 40 == 0:
                await asyncio.gather(notes(first), notes(second))
        await notes(second)
        assert len(await notes(first)) == 400
        await first.close()
        assert len(journal_files(tmp_path)) == FILES
        assert note(second, "after")
    assert len(await left(tmp_path)) == 401
