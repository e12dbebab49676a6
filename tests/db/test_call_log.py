"""The tamper-evident call log: every change of a record or of the log itself is found, and nothing else is reported."""

from __future__ import annotations

import json
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from amounts import amount

from gateway.admin import audit
from gateway.calls import Call, Caller, Outcome
from gateway.db import call_log
from gateway.db.call_log import COLUMNS, EntryKey, digest_call, link_entry, remove_calls, verify_log
from gateway.db.call_records import CallRecords
from gateway.db.migrations import MIGRATIONS
from gateway.db.sqlite import SqliteDatabase, connect, migrate
from gateway.errors import Invalid, NotFound, ToolFailed

DOCS = Path(__file__).parents[2] / "docs" / "audit.md"
RECORDS = amount(400, nightly=100_000)
TAMPERINGS = amount(80, nightly=1000)
AT_ONCE = amount(1, nightly=25)  # tamperings of one verification, each of which must be named
SESSIONS = 5
ODD_TEXT = 'quote " backslash \\ tab \t bell \x07 delete \x7f é 漢 \U0001f600 \u2028'

pytestmark = pytest.mark.promise("H5")


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


def verify(data: Path, connection: sqlite3.Connection, checkpoint: str | None = None) -> list[dict[str, Any]]:
    key = EntryKey(data / "audit.key")
    position, _, entry_hash = (checkpoint or "").partition(":")
    found = verify_log(connection, key, [key.public_key], (int(position), entry_hash) if checkpoint else None)
    return found.problems


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
    places = [Place(connection, 2 + size * number, 1 + size * (number + 1)) for number in range(AT_ONCE)]
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
    noted = audit.verify(data).signed
    assert verify(data, connection, noted) == []
    ((middle,),) = connection.execute(
        "SELECT position FROM call_log WHERE signature IS NOT NULL ORDER BY position LIMIT 1"
    ).fetchall()
    gone = "SELECT call_id FROM call_log WHERE position > ? AND call_id IS NOT NULL"
    connection.execute(f"DELETE FROM tool_calls WHERE id IN ({gone})", (middle,))
    connection.execute("DELETE FROM call_log WHERE position > ?", (middle,))
    assert verify(data, connection) == []  # as SECURITY.md says
    assert [problem["problem"] for problem in verify(data, connection, noted)] != []


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
        while (step := await remove_calls(db, middle, limit=10)).records:
            removed.append(step.records)
        await write_records(tmp_path, 5, 100)
        removed.append((await remove_calls(db, "9999", limit=1000)).records)
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
