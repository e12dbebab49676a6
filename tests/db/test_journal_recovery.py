"""Rows that other processes journaled: killed at any moment, standing still or alive, they lose none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from eventually import async_eventually

from gateway.db import sqlite
from gateway.db.journal import header
from gateway.db.sqlite import SqliteDatabase

from . import journal_worker
from .journal_worker import INSERTS, TABLE, are_empty, journal_files, journal_of_dead_process, left, note, notes, opened

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T1")]

HEADER = header(INSERTS)
GOOD = HEADER + b'["good",1,null]\n'


def start(what: str, place: Path) -> subprocess.Popen[bytes]:
    """A process that tells what it has journaled."""
    command = [sys.executable, str(journal_worker.__file__), what, str(place)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def told(process: subprocess.Popen[bytes]) -> list[str]:
    said, complaints = process.communicate(timeout=300)
    # A thread of aiosqlite may be cut off in the middle of its complaint that the event loop has ended.
    assert complaints == b"" or (complaints.startswith(b"Exception in thread Thread-") and b"aiosqlite" in complaints)
    return said.decode().split()


MOMENTS = ["killed_before", "killed_within", "killed_after", "killed_without_memory", "ended_without_closing"]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_what_a_process_journaled_is_written_by_the_next_to_open(moment: str, tmp_path: Path) -> None:
    victim = start(moment, tmp_path)
    journaled = told(victim)
    assert victim.returncode == (0 if moment == "ended_without_closing" else -signal.SIGKILL)
    assert len(journaled) == 100
    assert len(journal_files(tmp_path)) == 3
    assert await left(tmp_path) == journaled
    assert journal_files(tmp_path) == []


async def test_what_a_living_process_journaled_is_seen_by_whoever_opens(tmp_path: Path) -> None:
    other = start("stopped", tmp_path)
    assert other.stdout is not None
    journaled = [other.stdout.readline().decode().strip() for _ in range(100)]
    assert await left(tmp_path) == journaled
    assert len(journal_files(tmp_path)) == 3
    other.send_signal(signal.SIGCONT)
    assert told(other) == []
    assert other.returncode == 0
    assert await left(tmp_path) == journaled
    assert journal_files(tmp_path) == []


async def test_a_child_that_has_the_files_open_still_keeps_nothing_back(tmp_path: Path) -> None:
    victim = start("survived_by_a_child", tmp_path)
    assert victim.stdout is not None
    journaled = [line.decode().strip() for line in victim.stdout]
    assert len(journaled) == 100
    assert await left(tmp_path) == journaled
    assert told(victim) == []  # and with that its child has ended
    assert await left(tmp_path) == journaled
    assert journal_files(tmp_path) == []


async def test_processes_that_come_and_go_at_once_lose_nothing(tmp_path: Path) -> None:
    workers = [start("coming_and_going", tmp_path) for _ in range(4)]
    journaled = [name for worker in workers for name in told(worker)]
    assert [worker.returncode for worker in workers] == [0] * 4
    assert len(journaled) == 4 * 4 * 8 * 20
    assert await left(tmp_path) == sorted(journaled)
    assert journal_files(tmp_path) == []


async def test_an_idle_process_writes_what_a_dead_one_journaled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "IDLE_AFTER", 0.1)
    async with opened(tmp_path) as db:
        dead = journal_of_dead_process(tmp_path, GOOD)
        assert note(db, "mine")
        await async_eventually(lambda: are_empty(dead))
        assert await notes(db) == ["good", "mine"]


ODD = {
    "nothing": (b"", []),
    "statements only": (HEADER, []),
    "a torn statement": (HEADER[:20], []),
    "a torn line": (HEADER + b'["a",1,null]\n["b",1,"to', ["a"]),
    "a line without its end": (HEADER + b'["a",1,null]\n["b",1,null]', ["a"]),
    "a line that is no JSON": (HEADER + b'["a",1,null]\n["b",\xff]\n\n{}\n7\n["c",1,null]\n', ["a", "c"]),
    "a line of zeros": (HEADER + bytes(4096) + b'\n["c",1,null]\n', ["c"]),
    "a row of another shape": (HEADER + b'[]\n["b",1,"unlucky"]\n["c",1,null,4]\n', ["c"]),
    "zeros": (bytes(5000), []),
    "statements that are no JSON": (b'["INSERT\n["a",1,null]\n', []),
    "no statements": (b'[]\n["a",1,null]\n', []),
    "statements that are no SQL": (b'[["DROP THE NOTES {rows}",[0]]]\n["a",1,null]\n', []),
    "statements that are no statements": (b'["DROP THE NOTES",7,null]\n["a",1,null]\n', []),
    "one statement that is none": (HEADER[:-2] + b',"DROP THE NOTES"]\n["a",1,null]\n', []),
    "statements without a place for rows": (b'[["DELETE FROM notes",[0]]]\n["a",1,null]\n', []),
    "statements of other rows": (HEADER.replace(b"[0,1,2]", b'[0,1,"a"]') + b'["a",1,null]\n', []),
}


@pytest.mark.parametrize("case", ODD)
async def test_an_odd_journal_of_dead_process_gives_what_can_be_read_and_is_gone(case: str, tmp_path: Path) -> None:
    await left(tmp_path)
    text, readable = ODD[case]
    journal_of_dead_process(tmp_path, text)
    journal_of_dead_process(tmp_path, GOOD, "toolgate.db.promised-1dead-0")
    assert await left(tmp_path) == [*readable, "good"]
    assert journal_files(tmp_path) == []


async def test_what_cannot_be_opened_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    await left(tmp_path)
    vanished = tmp_path / "toolgate.db.promised-0dead-0"
    vanished.symlink_to(tmp_path / "gone meanwhile")
    directory = tmp_path / "toolgate.db.promised-0dead-1"
    directory.mkdir()
    journal_of_dead_process(tmp_path, GOOD, "toolgate.db.promised-1dead-0")
    assert await left(tmp_path) == ["good"]
    assert journal_files(tmp_path) == [vanished, directory]


async def test_of_two_books_of_the_dead_the_later_one_has_the_last_word(tmp_path: Path) -> None:
    await left(tmp_path)
    later = journal_of_dead_process(tmp_path, HEADER + b'["a",2,null]\n', "toolgate.db.promised-dead-0")
    earlier = journal_of_dead_process(tmp_path, HEADER + b'["a",1,null]\n', "toolgate.db.promised-dead-1")
    os.utime(later, ns=(0, 2_000_000))
    os.utime(earlier, ns=(0, 1_000_000))
    async with opened(tmp_path) as db:
        assert await db.fetch("SELECT number FROM notes") == [(2,)]


async def test_the_rows_of_the_dead_are_written_together(tmp_path: Path) -> None:
    await left(tmp_path)
    log = tmp_path / "toolgate.db-wal"
    lines = b"".join(b'["%03d",1,null]\n' % number for number in range(400))
    async with opened(tmp_path) as db:
        journal_of_dead_process(tmp_path, HEADER + lines)
        before = log.stat().st_size
        assert len(await left(tmp_path)) == 400
        assert log.stat().st_size - before < 200_000  # one by one: more than 3 MB
        assert len(await notes(db)) == 400


async def test_a_journal_file_lies_beside_the_database_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    db = await SqliteDatabase.open(Path("toolgate.db"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert not note(db, "refused")
    await db.run(TABLE)
    assert len(journal_files(tmp_path)) == 3
    await db.close()
    assert journal_files(tmp_path) == []


async def test_a_journal_file_is_found_whatever_the_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd [1]*?.db"
    for names in ([], ["good"]):
        db = await SqliteDatabase.open(path)
        await db.run(TABLE)
        assert await notes(db) == names
        await db.close()
        journal_of_dead_process(tmp_path, GOOD, f"{path.name}.promised-0dead-0")
