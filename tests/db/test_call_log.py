"""The tamper-evident call log: every change of a record or of the log itself is found, and nothing else is reported."""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from amounts import NIGHTLY, amount
from click.testing import CliRunner

from gateway import Gateway
from gateway.admin import audit
from gateway.admin.health_monitor import HealthCheck
from gateway.calls import Call, Caller, Outcome
from gateway.cli import toolgate
from gateway.db import Statement, call_log, sqlite
from gateway.db.call_log import COLUMNS, EntryKey, digest_call, link_entry, verify_log
from gateway.db.call_records import CallRecords, Removal, remove_calls
from gateway.db.journal import _verify, add_mac, start_mac
from gateway.db.migrations import MIGRATIONS
from gateway.db.sqlite import SqliteDatabase, connect, migrate
from gateway.errors import Invalid, NotFound, ToolFailed, Unavailable

DOCS = Path(__file__).parents[2] / "docs" / "audit.md"
RECORDS = amount(400, nightly=100_000)
TAMPERINGS = amount(80, nightly=1000)
AT_ONCE = amount(1, nightly=100)  # tamperings of one verification, each of which must be named in its own place
SESSIONS = 5
ODD_TEXT = 'quote " backslash \\ tab \t bell \x07 delete \x7f é 漢 \U0001f600 \u2028'

pytestmark = [pytest.mark.promise("H5"), pytest.mark.timeout(3600 if NIGHTLY else 600)]


async def write_records(data: Path, number: int, first: int = 0) -> None:
    """Records of every kind: short, long, failed, large, with odd texts."""
    db = await SqliteDatabase.open(data / "toolgate.db")
    records = CallRecords(db, "process")
    for count in range(first, first + number):
        arguments = {"number": count, "text": ODD_TEXT if count % 7 == 0 else "plain"}
        caller, began = Caller("ann", "mcp"), 1_700_000_000 + count
        call = Call(name="note", arguments=arguments, chat=f"chat-{count % 5}", caller=caller, started_at=began)
        if count % 20 == 0:
            await records.record_running(call)
        failed = Outcome(error=ToolFailed(ODD_TEXT)) if count % 11 == 0 else None
        large = "y" * 70_000 if count % 101 == 0 else count / 3
        await records.record_finished(call, failed or Outcome(value={"value": large}), finished_at=began + 0.5)
    await records.wait()
    await db.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log")
    for session in range(SESSIONS):
        anyio.run(write_records, directory, RECORDS // SESSIONS, session * RECORDS)
    return directory


@pytest.fixture
def connection(data: Path) -> Iterator[sqlite3.Connection]:
    """The database of an intruder, who has everything but the key. What it writes is undone."""
    with closing(sqlite3.connect(data / "toolgate.db", isolation_level=None)) as opened:
        opened.text_factory = lambda text: text.decode(errors="surrogateescape")
        opened.execute("BEGIN")
        yield opened


def verify(data: Path, connection: sqlite3.Connection, *noted: call_log.EntryPlace) -> list[dict[str, Any]]:
    key = EntryKey(data / "audit.key")
    return verify_log(connection, key, [key.public_key], noted).problems


def test_call_log_digests_every_column_of_a_record(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "toolgate.db")) as connection:
        columns = {name for _, name, *_ in connection.execute("PRAGMA table_info(tool_calls)")}
    assert set(COLUMNS) == columns


def test_call_log_of_several_sessions_verifies_and_is_signed_to_its_end(data: Path) -> None:
    found = audit.verify(data)
    assert found.problems == []
    assert found.records == RECORDS
    assert found.checkpoints >= SESSIONS
    assert found.unsigned == 0
    assert found.entries > RECORDS + SESSIONS  # records that were written twice have two entries


Tamper = Callable[[sqlite3.Connection, random.Random, "Place"], None]


class Place:
    """A part of the log of its own for each of several tamperings at once."""

    def __init__(self, connection: sqlite3.Connection, first: int, last: int) -> None:
        self.first, self.last = first, last
        rows = connection.execute(
            "SELECT position, call_id FROM call_log WHERE position BETWEEN ? AND ?", (first + 1, last - 1)
        ).fetchall()
        self.calls = [(position, call_id) for position, call_id in rows if call_id is not None]
        self.positions = [position for position, _ in rows]

    def covers(self, problem: dict[str, Any], added: set[str]) -> bool:
        position = problem["position"]
        return problem["call_id"] in added or (position is not None and self.first <= position <= self.last + 1)


def edit_record(connection: sqlite3.Connection, chance: random.Random, place: Place) -> None:
    _, call_id = chance.choice(place.calls)
    column = chance.choice([name for name in COLUMNS if name not in ("id", "status")])
    (value,) = connection.execute(f"SELECT {column} FROM tool_calls WHERE id = ?", (call_id,)).fetchone()
    other = (value or 0) + 1 if column in ("duration_ms", "attempts") else f"{value or ''}x"
    connection.execute(f"UPDATE tool_calls SET {column} = ? WHERE id = ?", (other, call_id))


def change_status(connection: sqlite3.Connection, chance: random.Random, place: Place) -> None:
    _, call_id = chance.choice(place.calls)
    swap = "CASE status WHEN 'success' THEN 'error' ELSE 'success' END"
    connection.execute(f"UPDATE tool_calls SET status = {swap} WHERE id = ?", (call_id,))


def store_another_type(connection: sqlite3.Connection, chance: random.Random, place: Place) -> None:
    _, call_id = chance.choice(place.calls)
    connection.execute("UPDATE tool_calls SET tool_name = CAST(tool_name AS BLOB) WHERE id = ?", (call_id,))


def delete_record(connection: sqlite3.Connection, chance: random.Random, place: Place) -> None:
    connection.execute("DELETE FROM tool_calls WHERE id = ?", (chance.choice(place.calls)[1],))


def delete_record_and_entries(connection: sqlite3.Connection, chance: random.Random, place: Place) -> None:
    _, call_id = chance.choice(place.calls)
    connection.execute("DELETE FROM tool_calls WHERE id = ?", (call_id,))
    connection.execute("DELETE FROM call_log WHERE call_id = ?", (call_id,))


def insert_record(connection: sqlite3.Connection, chance: random.Random, place: Place) -> None:
    _, call_id = chance.choice(place.calls)
    copied = ", ".join(COLUMNS[1:])
    connection.execute(
        f"INSERT INTO tool_calls (id, {copied}) SELECT ?, {copied} FROM tool_calls WHERE id = ?",
        (f"inserted-{place.first}", call_id),
    )


def exchange_records(connection: sqlite3.Connection, chance: random.Random, place: Place) -> None:
    one, other = chance.sample(sorted({call_id for _, call_id in place.calls}), 2)
    for source, target in ((one, "exchanged"), (other, one), ("exchanged", other)):
        connection.execute("UPDATE tool_calls SET id = ? WHERE id = ?", (target, source))


def edit_entry(connection: sqlite3.Connection, chance: random.Random, place: Place) -> None:
    column = chance.choice(["call_id", "before", "digest", "removed", "at", "hash", "mac", "signature"])
    position = chance.choice(place.positions)
    value = 0 if column == "removed" else chance.randbytes(32)
    connection.execute(f"UPDATE call_log SET {column} = ? WHERE position = ?", (value, position))


def delete_entries(connection: sqlite3.Connection, chance: random.Random, place: Place) -> None:
    first, last = sorted(chance.sample(place.positions, 2))
    connection.execute("DELETE FROM call_log WHERE position BETWEEN ? AND ?", (first, last))


def exchange_entries(connection: sqlite3.Connection, chance: random.Random, place: Place) -> None:
    one, other = chance.sample(place.positions, 2)
    for source, target in ((one, -1), (other, one), (-1, other)):
        connection.execute("UPDATE call_log SET position = ? WHERE position = ?", (target, source))


def rewrite_record_with_its_hashes(connection: sqlite3.Connection, chance: random.Random, place: Place) -> None:
    """Edit a record as an intruder does who knows the format: every hash that follows in this place is made anew."""
    start, call_id = chance.choice(place.calls)
    connection.execute("UPDATE tool_calls SET principal = 'bob' WHERE id = ?", (call_id,))
    row = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM tool_calls WHERE id = ?", (call_id,)).fetchone()
    connection.execute("UPDATE call_log SET digest = ? WHERE position = ?", (digest_call(*row), start))
    (previous,) = connection.execute("SELECT hash FROM call_log WHERE position = ?", (start - 1,)).fetchone()
    fields = "position, call_id, before, digest, removed, at"
    for position, *values in connection.execute(
        f"SELECT {fields} FROM call_log WHERE position BETWEEN ? AND ? ORDER BY position", (start, place.last)
    ).fetchall():
        previous = link_entry(previous, position, *values)
        connection.execute("UPDATE call_log SET hash = ? WHERE position = ?", (previous, position))


TAMPERS: tuple[Tamper, ...] = (
    edit_record,
    change_status,
    store_another_type,
    delete_record,
    delete_record_and_entries,
    insert_record,
    exchange_records,
    edit_entry,
    delete_entries,
    exchange_entries,
    rewrite_record_with_its_hashes,
)


def test_call_log_shows_every_random_tampering(
    data: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_log, "PROBLEM_LIMIT", 10_000_000)  # one tampering of many at once may cause thousands
    ((last,),) = connection.execute("SELECT max(position) FROM call_log").fetchall()
    size = (last - 2) // AT_ONCE
    # Between them is an entry of none: what one breaks there proves nothing about its neighbour.
    places = [Place(connection, 2 + size * number, size * (number + 1) - 1) for number in range(AT_ONCE)]
    for first in range(0, TAMPERINGS, AT_ONCE):
        connection.execute("SAVEPOINT tampering")
        for number, place in enumerate(places, first):
            TAMPERS[number % len(TAMPERS)](connection, random.Random(number), place)
        problems = verify(data, connection)
        for number, place in enumerate(places, first):
            added = {f"inserted-{place.first}"}
            named = any(place.covers(problem, added) for problem in problems)
            assert named, f"{TAMPERS[number % len(TAMPERS)].__name__} number {number} was not found"
        connection.execute("ROLLBACK TO tampering")
        connection.execute("RELEASE tampering")
    assert verify(data, connection) == []


def test_call_log_with_a_forged_entry_at_its_end_is_found(data: Path, connection: sqlite3.Connection) -> None:
    names = ", ".join(COLUMNS[1:])
    connection.execute(f"INSERT INTO tool_calls (id, {names}) SELECT 'forged', {names} FROM tool_calls LIMIT 1")
    row = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM tool_calls WHERE id = 'forged'").fetchone()
    position, previous = connection.execute(
        "SELECT position, hash FROM call_log ORDER BY position DESC LIMIT 1"
    ).fetchone()
    digest = digest_call(*row)
    forged = link_entry(previous, position + 1, "forged", None, digest, None, None)
    connection.execute(
        "INSERT INTO call_log (position, call_id, digest, hash, mac) VALUES (?, 'forged', ?, ?, ?)",
        (position + 1, digest, forged, bytes(16)),
    )
    assert [problem["position"] for problem in verify(data, connection)] == [position + 1]


def test_call_log_cut_off_before_a_checkpoint_is_found_with_the_noted_one(
    data: Path, connection: sqlite3.Connection
) -> None:
    noted = audit._parse_checkpoint(str(audit.verify(data).signed))
    head = EntryKey(data / "audit.key").read_head()
    assert head is not None
    assert verify(data, connection, noted, head) == []
    ((middle,),) = connection.execute(  # no call has entries before and after it
        """SELECT position FROM call_log AS c WHERE signature IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM call_log AS one JOIN call_log AS other ON other.call_id = one.call_id
            WHERE one.position < c.position AND other.position > c.position
        ) ORDER BY position LIMIT 1"""
    ).fetchall()
    gone = "SELECT call_id FROM call_log WHERE position > ? AND call_id IS NOT NULL"
    connection.execute(f"DELETE FROM tool_calls WHERE id IN ({gone})", (middle,))
    connection.execute("DELETE FROM call_log WHERE position > ?", (middle,))
    assert verify(data, connection) == []  # as docs/audit.md says
    assert verify(data, connection, noted) != []
    assert verify(data, connection, head) != []


def cut(data: Path, position: int) -> None:
    """Remove the end of a log with its records, as an intruder does who leaves nothing behind that contradicts."""
    with closing(sqlite3.connect(data / "toolgate.db")) as intruder, intruder:
        gone = "SELECT call_id FROM call_log WHERE position > ?"
        intruder.execute(f"DELETE FROM tool_calls WHERE id IN ({gone})", (position,))
        intruder.execute("DELETE FROM call_log WHERE position > ?", (position,))


def test_call_log_whose_end_somebody_cut_off_is_found_also_after_the_gateway_goes_on(tmp_path: Path) -> None:
    log, head = tmp_path / "log", tmp_path / "log" / "audit.head"
    anyio.run(write_records, log, 12)
    older = shutil.copytree(log, tmp_path / "older")
    anyio.run(write_records, log, 12, 12)
    (length,) = [audit.verify(log).entries]
    for position in (length - 1, length - 2, 9, 0):  # its last checkpoint alone, a call too, most, all
        found = shutil.copytree(log, tmp_path / f"cut-{position}")
        cut(found, position)
        assert len(audit.verify(found).problems) == 1
        (found / "audit.head").unlink()  # the gateway makes no other one
        assert len(audit.verify(found).problems) == 1
        shutil.copy(head, found)
        anyio.run(write_records, found, 20, 24)  # more than was removed: the position is there again
        assert [problem["position"] for problem in audit.verify(found).problems] == [length]

    shutil.copy(older / "toolgate.db", tmp_path / "cut-9")  # an older copy of the database alone
    assert audit.verify(tmp_path / "cut-9").problems != []
    audit.accept(tmp_path / "cut-9")  # a person restored it
    anyio.run(write_records, tmp_path / "cut-9", 1, 60)
    assert audit.verify(tmp_path / "cut-9").problems == []
    noted = audit.verify(log).signed
    assert audit.verify(older).problems == []  # with its head: only what was noted elsewhere shows that
    assert audit.verify(older, checkpoint=noted).problems != []
    head.write_text(head.read_text().replace("0", "1", 1))
    assert [problem["position"] for problem in audit.verify(log).problems] == [None]


def test_call_log_from_which_all_of_one_process_was_removed_is_found(tmp_path: Path) -> None:
    async def run() -> None:
        databases = [await SqliteDatabase.open(tmp_path / "toolgate.db") for _ in range(2)]
        for number in range(12):
            records = CallRecords(databases[number % 2], f"process {number % 2}")
            await records.record_finished(Call(name="note", arguments={}), Outcome(value=number))
            await databases[number % 2].fetch("SELECT 1")
        for db in databases:
            await db.close()

    anyio.run(run)
    with closing(sqlite3.connect(tmp_path / "toolgate.db")) as intruder, intruder:
        (before,) = intruder.execute("SELECT max(position) FROM call_log").fetchone()
        gone = "SELECT id FROM tool_calls WHERE process = 'process 1'"
        intruder.execute(f"DELETE FROM call_log WHERE call_id IN ({gone})")
        intruder.execute(f"DELETE FROM tool_calls WHERE id IN ({gone})")
    assert [problem["position"] for problem in audit.verify(tmp_path).problems if "goes on" in problem["problem"]]
    with closing(sqlite3.connect(tmp_path / "toolgate.db")) as intruder, intruder:  # and made good, but for the MACs
        rows = intruder.execute("SELECT position, call_id, before, digest, removed, at FROM call_log ORDER BY position")
        previous = None
        for position, (old, *values) in enumerate(rows.fetchall(), 1):
            previous = link_entry(previous, position, *values)
            intruder.execute("UPDATE call_log SET position = ?, hash = ? WHERE position = ?", (position, previous, old))
        (after,) = intruder.execute("SELECT max(position) FROM call_log").fetchone()
    assert after <= before - 6
    problems = [problem["problem"] for problem in audit.verify(tmp_path).problems]
    assert any("not written by this gateway" in problem for problem in problems)
    assert any("truncated or replaced" in problem for problem in problems)


def test_call_log_cut_off_while_a_gateway_writes_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        records = CallRecords(db, "process")
        for number in range(6):
            await records.record_finished(Call(name="note", arguments={}), Outcome(value=number))
            await db.fetch("SELECT 1")
            if number == 3:
                cut(tmp_path, 2)
        await db.close()

    anyio.run(run)
    assert [problem["position"] for problem in audit.verify(tmp_path).problems] == [4]
    assert caplog.text.count("the end of the call log was removed") == 1


TRIGGERS = {
    "edits": "AFTER INSERT ON tool_calls BEGIN UPDATE tool_calls SET principal = 'bob'; END",
    "hides": "BEFORE INSERT ON tool_calls BEGIN SELECT RAISE(IGNORE); END",
    "signs": "AFTER INSERT ON tool_calls BEGIN UPDATE chats SET id = hex(sign_entry(randomblob(32))); END",
}


@pytest.mark.parametrize("change", TRIGGERS)
def test_call_log_is_not_written_through_a_trigger_of_an_intruder(change: str, tmp_path: Path) -> None:
    anyio.run(write_records, tmp_path, 4)

    def intrude(sql: str) -> None:
        with closing(sqlite3.connect(tmp_path / "toolgate.db")) as intruder, intruder:
            intruder.execute(sql)

    async def record(records: CallRecords) -> None:
        await records.record_finished(Call(name="note", arguments={}), Outcome(value=1))

    async def run() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        records = CallRecords(db, "process")
        await record(records)
        await db.fetch("SELECT 1")
        intrude(f"CREATE TRIGGER evil {TRIGGERS[change]}")
        await record(records)  # it waits in the journal
        await db.fetch("SELECT 1")
        assert "'evil'" in str(db.failure)
        with pytest.raises(Unavailable, match="evil"):
            await db.run(Statement("UPDATE tool_calls SET status = 'error'"))
        with pytest.raises(Unavailable, match="evil"):
            await SqliteDatabase.open(tmp_path / "toolgate.db")
        intrude("DROP TRIGGER evil")
        await record(records)
        await db.close()

    anyio.run(run)
    found = audit.verify(tmp_path)
    assert (found.records, found.problems) == (7, [])


def test_call_log_signs_nothing_for_the_schema_of_an_intruder(tmp_path: Path) -> None:
    async def run() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        with closing(sqlite3.connect(tmp_path / "toolgate.db")) as intruder, intruder:
            intruder.execute("CREATE TABLE loot (id, stolen DEFAULT (sign_entry(x'00')))")
        with pytest.raises(Unavailable, match="unsafe use"):
            await db.run(Statement("INSERT INTO loot (id) VALUES (1)"))
        await db.close()

    anyio.run(run)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory as two killed gateways leave it: one call of each is committed, three are journaled."""
    place = tmp_path_factory.mktemp("killed")

    async def run() -> None:
        databases = [await SqliteDatabase.open(place / "live" / "toolgate.db") for _ in range(2)]
        for db in databases:
            for number in range(4):
                await CallRecords(db, "process").record_finished(
                    Call(name="note", arguments={"number": number}), Outcome(value=number)
                )
        shutil.copytree(place / "live", place / "killed")
        for db in databases:
            await db.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "FLUSH_AFTER", 3600)
        patch.setattr(sqlite, "IDLE_AFTER", 3600)
        anyio.run(run)
    return place / "killed"


def list_journals(data: Path) -> list[Path]:
    return sorted(path for path in data.glob("toolgate.db.promised-*") if path.read_bytes().count(b"\n") > 1)


async def reopen(data: Path) -> None:
    await (await SqliteDatabase.open(data / "toolgate.db")).close()


# What an intruder makes of the lines of a journal file (a MAC, the statements, then three times a row and its MAC) and
# of another one; how many of the eight calls are recorded then, and how many files are reported.
Lines = list[bytes]
FORGED = b'["00000000-0000-7000-8000-000000000000","chat","m"]\n'


def use_own_key(lines: Lines) -> Lines:
    mac = start_mac(Path("toolgate.db.promised-0-0"), b"the intruder's")
    return add_mac(b"".join(lines[1:3]), mac).splitlines(keepends=True)


def edit(lines: Lines, place: int, old: bytes, new: bytes) -> Lines:
    return [*lines[:place], lines[place].replace(old, new), *lines[place + 1 :]]


JOURNAL_CHANGES: dict[str, tuple[Callable[[Lines, Lines], tuple[Lines, Lines]], int, int]] = {
    "nothing": (lambda one, two: (one, two), 8, 0),
    "a row edited": (lambda one, two: (edit(one, 4, b"number", b"NUMBER"), two), 6, 1),
    "the statements edited": (lambda one, two: (edit(one, 1, b"args = ", b"error = "), two), 5, 1),
    "a row forged within": (lambda one, two: ([*one[:4], FORGED, *one[4:]], two), 6, 1),
    "a write removed": (lambda one, two: ([*one[:4], *one[6:]], two), 6, 1),
    "two writes exchanged": (lambda one, two: ([*one[:4], *one[6:], *one[4:6]], two), 6, 1),
    "a write repeated": (lambda one, two: ([*one, *one[6:]], two), 8, 1),
    "a row appended": (lambda one, two: ([*one, FORGED], two), 8, 0),
    "a row appended with a MAC": (lambda one, two: ([*one, FORGED, one[7]], two), 8, 1),
    "the last write cut off": (lambda one, two: ([*one[:7], one[7][:9]], two), 7, 0),
    "the only write cut off": (lambda one, two: (one[:3], two), 5, 0),
    "files exchanged": (lambda one, two: (two, one), 2, 2),
    "a write of another file": (lambda one, two: ([*one, *two[2:4]], two), 8, 1),
    "no first MAC": (lambda one, two: (one[1:], two), 8, 0),
    "no MACs, as before them": (lambda one, two: (one[1::2][:1] + one[2::2], two), 5, 1),
    "the MACs of another key": (lambda one, two: (use_own_key(one), two), 5, 1),
}


@pytest.mark.parametrize("case", JOURNAL_CHANGES)
def test_call_log_takes_no_journaled_call_that_was_not_written_with_its_key(
    case: str, killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, recorded, reported = JOURNAL_CHANGES[case]
    data = shutil.copytree(killed, tmp_path / "data")
    journals = list_journals(data)
    before = [path.read_bytes().splitlines(keepends=True) for path in journals]
    assert [len(lines) for lines in before] == [8, 8]
    for path, lines in zip(journals, change(*before), strict=True):
        path.write_bytes(b"".join(lines))
    anyio.run(reopen, data)
    found = audit.verify(data)
    assert (found.records, len(found.problems)) == (recorded, reported)
    assert [str(problem["problem"]).partition("-")[0] for problem in found.problems] == [
        "toolgate.db.unverified"
    ] * reported
    assert all("toolgate audit accept" in str(problem["problem"]) for problem in found.problems)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == reported
    assert len(list(data.glob("toolgate.db.unverified-*"))) == reported
    assert not list(data.glob("toolgate.db.promised-*"))
    anyio.run(reopen, data)  # another start changes nothing
    assert audit.verify(data).records == recorded
    if case == "no MACs, as before them":
        audit.accept(data)
        anyio.run(reopen, data)
        found = audit.verify(data)
        assert (found.records, found.problems) == (8, [])


def test_call_log_of_a_journal_file_cut_at_any_byte_keeps_its_whole_writes(killed: Path) -> None:
    path = list_journals(killed)[0]
    text, key = path.read_bytes(), EntryKey(killed / "audit.key").load_journal_key()
    ends = [match.end() for match in re.finditer(rb'^"[0-9a-f]+"\n', text, re.MULTILINE)]
    assert len(ends) == 4
    for size in range(ends[0], len(text) + 1):
        assert _verify(path, text[:size], key) == (max(end for end in ends if end <= size), False)


def make_older(data: Path) -> None:
    """Make a data directory what a version without `audit.head` and MACs in journals left behind."""
    for path in list_journals(data):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(line for line in lines if not line.startswith(b'"')))
    (data / "audit.head").unlink()
    (data / "audit.key").chmod(0o600)


def test_call_log_of_an_older_version_is_taken_over_once(
    killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = shutil.copytree(killed, tmp_path / "data")
    make_older(data)
    assert audit.verify(data).problems == []  # before its first start too
    anyio.run(reopen, data)
    found = audit.verify(data)
    assert (found.records, found.problems, caplog.records) == (8, [], [])
    before = shutil.copytree(data, tmp_path / "before")
    cut(data, 3)
    (data / "audit.head").unlink()  # as if it were older still
    anyio.run(reopen, data)
    assert "audit.head is missing" in str(audit.verify(data).problems)
    assert audit.verify(before).problems == []


def test_call_log_is_not_changed_by_a_journal_file_that_is_put_back(killed: Path, tmp_path: Path) -> None:
    data = shutil.copytree(killed, tmp_path / "data")
    journal, *_ = list_journals(data)
    older = journal.read_bytes()
    anyio.run(reopen, data)
    entries = audit.verify(data).entries
    journal.write_bytes(older)
    anyio.run(reopen, data)
    assert (audit.verify(data).entries, audit.verify(data).problems) == (entries, [])

    async def record_large() -> tuple[Path, bytes]:
        db = await SqliteDatabase.open(data / "toolgate.db")
        records = CallRecords(db, "process")
        for value in ("first", "x" * 100_000):
            await records.record_finished(Call(name="note", arguments={}), Outcome(value=value))
        [journal] = list_journals(data)
        without_digest = journal.read_bytes()
        await records.wait()
        await db.close()
        return journal, without_digest

    journal, without_digest = anyio.run(record_large)
    assert b"truncated" in without_digest and b"sha256" not in without_digest
    journal.write_bytes(without_digest)
    anyio.run(reopen, data)
    assert audit.verify(data).problems == []
    with closing(sqlite3.connect(data / "toolgate.db")) as connection:
        [(result,)] = connection.execute("SELECT result FROM tool_calls WHERE result LIKE '%truncated%'").fetchall()
    assert "sha256" in result


def test_call_log_with_a_journal_file_set_aside_is_a_problem_until_it_is_accepted(killed: Path, tmp_path: Path) -> None:
    data = shutil.copytree(killed, tmp_path / "data")
    journal, *_ = list_journals(data)
    journal.write_bytes(journal.read_bytes().replace(b"note", b"NOTE"))
    arguments = ["--data-dir", str(data)]

    async def check() -> HealthCheck:
        async with Gateway.open({"data_dir": str(data)}) as gateway:
            [check] = [part for part in await gateway.health.check(thorough=False) if part.subject == "journal"]
            return check

    checked = anyio.run(check)
    assert (checked.state, checked.blocks) == ("note", False)
    assert "toolgate.db.unverified-" in checked.message
    verified = CliRunner().invoke(toolgate, ["audit", "verify", *arguments])
    assert "toolgate.db.unverified-" in verified.stdout and "TAMPERED WITH" in verified.stdout
    (data / "audit.head").unlink()
    assert "toolgate audit accept" in str(audit.verify(data).problems[0]["problem"])
    assert CliRunner().invoke(toolgate, ["audit", "accept", *arguments]).exit_code == 0
    assert anyio.run(check).state == "ok"
    assert CliRunner().invoke(toolgate, ["audit", "verify", *arguments]).stdout.startswith("ok: 8 records")


def test_call_log_whose_beginning_somebody_cut_off_is_found(data: Path, connection: sqlite3.Connection) -> None:
    gone = "SELECT call_id FROM call_log WHERE position <= 9 AND call_id IS NOT NULL"
    connection.execute(f"DELETE FROM tool_calls WHERE id IN ({gone})")
    connection.execute("DELETE FROM call_log WHERE position <= 9")
    assert verify(data, connection) != []


def test_call_log_shows_a_record_that_was_edited_while_its_call_ran(tmp_path: Path) -> None:
    async def run() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        records = CallRecords(db, "process")
        call = Call(name="note", arguments={}, caller=Caller("ann", "mcp"))
        await records.record_running(call)
        with closing(sqlite3.connect(tmp_path / "toolgate.db")) as intruder, intruder:
            intruder.execute("UPDATE tool_calls SET principal = 'bob'")
        await records.record_finished(call, Outcome(value=1))
        await db.close()

    anyio.run(run)
    (problem,) = audit.verify(tmp_path).problems
    assert "between two writes" in problem["problem"]


def test_call_log_after_retention_verifies_and_says_what_was_removed(tmp_path: Path) -> None:
    async def run() -> list[int]:
        await write_records(tmp_path, 40)
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        running = Call(name="endless", arguments={})
        await CallRecords(db, "process").record_running(running)
        ((middle,),) = await db.fetch("SELECT started_at FROM tool_calls ORDER BY started_at LIMIT 1 OFFSET 25")
        removed = []
        while (step := await remove_calls(db, Removal(middle), limit=10)).records:
            removed.append(step.records)
        await write_records(tmp_path, 5, 100)
        removed.append((await remove_calls(db, Removal("9999"), limit=1000)).records)
        assert ("endless",) in await db.fetch("SELECT tool_name FROM tool_calls")
        await db.close()
        return removed

    removed = anyio.run(run)
    assert sum(removed[:-1]) == 25
    assert removed[-1] == 15  # nothing behind the call that runs
    found = audit.verify(tmp_path)
    assert found.problems == []
    assert found.records == 6
    assert found.removed > 40
    assert _run_script(tmp_path).returncode == 0


def test_call_log_shows_an_edit_of_a_record_that_retention_moved_past_others(tmp_path: Path) -> None:
    async def run() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        records = CallRecords(db, "process")
        for name in ("ann", *["bob"] * 5):
            await records.record_finished(Call(name="note", arguments={}, caller=Caller(name, "mcp")), Outcome(value=1))
        with closing(sqlite3.connect(tmp_path / "toolgate.db")) as intruder, intruder:
            intruder.execute("UPDATE tool_calls SET client = 'other' WHERE principal = 'ann'")
        assert await records.remove_old(2, None) == 4
        await db.close()

    anyio.run(run)
    (problem,) = audit.verify(tmp_path).problems
    assert problem["problem"] == "the record was edited"


def test_call_log_begins_with_the_records_of_an_older_version_once(tmp_path: Path) -> None:
    path = tmp_path / "toolgate.db"
    version = next(number for number, made in enumerate(MIGRATIONS) if "CREATE TABLE call_log" in made[0])
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.execute("PRAGMA journal_mode = WAL")
        migrate(old, MIGRATIONS[:version])
        old.execute("INSERT INTO chats (id, principal, created_at) VALUES ('c', 'ann', '2026')")
        for call in ("one", "two"):
            old.execute(
                "INSERT INTO tool_calls (id, chat_id, tool_id, tool_name, principal, surface, status, started_at) "
                "VALUES (?, 'c', 't', 't', 'ann', 'mcp', 'success', '2026')",
                (call,),
            )
    EntryKey(tmp_path / "audit.key").load_journal_key()  # by a process that was killed before its commit
    anyio.run(write_records, tmp_path, 3)
    found = audit.verify(tmp_path)
    assert (found.records, found.problems) == (5, [])

    with closing(connect(path)) as intruder:  # the same again, to have other records signed
        intruder.execute("DELETE FROM call_log")
        intruder.execute("UPDATE tool_calls SET principal = 'bob'")
        intruder.execute("INSERT INTO revisions VALUES ('call_log_import', 1)")
    anyio.run(write_records, tmp_path, 1)
    assert len(audit.verify(tmp_path).problems) >= 5


def _run_script(data: Path, *arguments: str, lines: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the script of the documentation on an export."""
    (script,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    export = data / "calls.jsonl"
    export.write_text("".join(f"{line}\n" for line in (audit.export(data) if lines is None else lines)))
    (public_key,) = audit.own_public_keys(data)
    command = [sys.executable, "-c", script, public_key, str(export), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_call_log_export_is_verified_by_the_script_of_the_documentation(data: Path) -> None:
    noted = audit.verify(data).signed or ""
    result = _run_script(data, noted)
    assert result.stdout.startswith(f"ok: {RECORDS} records"), result.stderr

    lines = list(audit.export(data))
    chosen = next(number for number, line in enumerate(lines) if number > 20 and '"record":' in line)
    entry = json.loads(lines[chosen])
    edited = json.dumps(entry | {"record": entry["record"] | {"principal": "bob"}})
    bare = json.dumps({name: value for name, value in entry.items() if name != "record"})
    for tampered in (
        [*lines[:chosen], edited, *lines[chosen + 1 :]],
        [*lines[:chosen], bare, *lines[chosen + 1 :]],
        [*lines[:chosen], *lines[chosen + 1 :]],
        lines[1:],
    ):
        assert _run_script(data, lines=tampered).returncode == 1
    assert _run_script(data, noted, lines=lines[:-1]).returncode == 1


def test_call_log_verification_refuses_what_is_no_key_checkpoint_or_database(data: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        audit.verify(data, ["abc"])
    with pytest.raises(Invalid):
        audit.verify(data, checkpoint="12")
    with pytest.raises(NotFound):
        audit.verify(tmp_path)
    assert audit.verify(data, ["00" * 32]).problems != []  # somebody else's key
