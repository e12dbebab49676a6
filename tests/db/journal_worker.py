"""Shared by the tests of the journal: a table of notes, and a process that journals rows of it."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

from gateway.db import Insert, Statement, journal, sqlite
from gateway.db.call_log import EntryKey
from gateway.db.sqlite import SqliteDatabase, execute
from gateway.errors import GatewayError

TABLE = Statement(
    "CREATE TABLE IF NOT EXISTS notes (id TEXT NOT NULL PRIMARY KEY, number, body, CHECK (body <> 'unlucky'))"
)
INSERTS = (
    Insert(
        "INSERT INTO notes (id, number, body) VALUES {rows} "
        "ON CONFLICT (id) DO UPDATE SET number = excluded.number, body = excluded.body",
        (0, 1, 2),
    ),
)
ALONE = Statement("INSERT INTO notes (id, number, body) VALUES (?, ?, ?)")


@asynccontextmanager
async def opened(place: Path) -> AsyncIterator[SqliteDatabase]:
    """A database with open journal files: the first row is refused, and has them opened."""
    db = await SqliteDatabase.open(place / "toolgate.db")
    try:
        db.append(INSERTS, ["refused", 0, None])
        await db.run(TABLE)
        yield db
    finally:
        await db.close()


def note(db: SqliteDatabase, name: str, number: Any = 1, body: Any = None) -> bool:
    return db.append(INSERTS, [name, number, body])


async def notes(db: SqliteDatabase) -> list[str]:
    return [name for (name,) in await db.fetch("SELECT id FROM notes ORDER BY id")]


async def left(place: Path) -> list[str]:
    """The notes that whoever opens the database next finds."""
    async with opened(place) as db:
        return await notes(db)


def journal_files(place: Path) -> list[Path]:
    return sorted(place.glob("toolgate.db.promised-*"))


def journal_of_dead_process(place: Path, text: bytes, name: str = "toolgate.db.promised-0dead-0") -> Path:
    """A file whose whole lines were written at once, the rest of the text being a write that was cut off."""
    path, end = place / name, text.rfind(b"\n") + 1
    mac = journal.start_mac(path, EntryKey(place / "audit.key").load_journal_key())
    path.write_bytes(journal.add_mac(b"", mac) + journal.add_mac(text[:end], mac) + text[end:])
    return path


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """As on a full disk: what would make a file longer fails, after as much of it as there is room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def lengthen_the_log(db: SqliteDatabase) -> int:
    """A size no file has and the log is beyond, so that with no file longer only notes are taken."""
    await db.run(Statement("INSERT OR REPLACE INTO notes VALUES ('0', 0, ?)", ("x" * 400_000,)))
    return 200_000


def has_rows(path: Path) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") > 1


def are_empty(*paths: Path) -> bool:
    return not any(map(has_rows, paths))


def tell(what: str) -> None:
    os.write(1, f"{what}\n".encode())


def die(*_: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


async def journal_some(place: Path, db: SqliteDatabase, name: str, number: int) -> None:
    for one in range(number):
        if note(db, f"{name}-{one:03}", one):
            tell(f"{name}-{one:03}")


async def killed_before(place: Path) -> None:
    async with opened(place) as db:
        await journal_some(place, db, "n", 100)
        die()


async def killed_within(place: Path) -> None:
    """After the statement and before the COMMIT."""
    async with opened(place) as db:
        await journal_some(place, db, "n", 100)
        setattr(sqlite, "execute", lambda *given: die(execute(*given)))  # noqa: B010 - mypy
        await notes(db)


async def killed_after(place: Path) -> None:
    """After the COMMIT and before the lines are gone."""
    async with opened(place) as db:
        await journal_some(place, db, "n", 100)
        setattr(journal.JournalFile, "clear", die)  # noqa: B010 - mypy
        await notes(db)


async def killed_without_memory(place: Path) -> None:
    """After the rows could not be written, through no fault of theirs."""
    logging.disable()
    async with opened(place) as db:
        with suppress(GatewayError):
            await db.run(Statement("PRAGMA hard_heap_limit = 1"))
        await journal_some(place, db, "n", 100)
        with suppress(MemoryError, GatewayError):
            await notes(db)
        die()


async def ended_without_closing(place: Path) -> None:
    db = await SqliteDatabase.open(place / "toolgate.db")
    note(db, "refused")
    await db.run(TABLE)
    await journal_some(place, db, "n", 100)


async def stopped(place: Path) -> None:
    """Stands still with rows journaled; goes on when it is told to."""
    async with opened(place) as db:
        await asyncio.sleep(0.2)  # the thread is through the gate
        await journal_some(place, db, "n", 100)
        os.kill(os.getpid(), signal.SIGSTOP)


async def survived_by_a_child(place: Path) -> None:
    """A child that knows nothing of it keeps the files open; it ends with its input."""
    async with opened(place) as db:
        await asyncio.sleep(0.2)
        await journal_some(place, db, "n", 100)
        if os.fork() == 0:
            os.close(1)
            os.read(0, 1)
            os._exit(0)
        die()


async def coming_and_going(place: Path) -> None:
    for turn in range(4):
        async with opened(place) as db:
            for some in range(8):
                await journal_some(place, db, f"{os.getpid()}-{turn}-{some}", 20)
                await (notes(db) if some % 2 else asyncio.sleep(0.02))


if __name__ == "__main__":
    anyio.run(globals()[sys.argv[1]], Path(sys.argv[2]))
