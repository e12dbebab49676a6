"""SQLite: one writer thread that groups commits, and a read-only connection beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import aiosqlite

from gateway.db import Row, Statement, Writing
from gateway.db.journal import Journal, JournalFile, Promised
from gateway.db.migrations import MIGRATIONS, Migration, pending
from gateway.errors import Conflict, GatewayError, Invalid, Unavailable
from gateway.files import FileLock

BUSY_TIMEOUT = 30.0  # seconds; only a foreign program that locks the file can make us wait so long

_PRAGMAS = (
    "PRAGMA synchronous = NORMAL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA cache_size = -8192",
    "PRAGMA temp_store = MEMORY",
)
_STORAGE_FAILURES = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOTADB,
}
_CONFLICTS = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY,
}


def connect(path: Path) -> sqlite3.Connection:
    """A connection ready to write, its database at the newest version. Call it inside the gate."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT)
    try:
        _require_wal(connection)
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Run the pending migrations, each whole or not at all."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number, statements in pending(version, migrations):
        with transaction(connection):
            for sql in statements:
                connection.execute(sql)
            connection.execute(f"PRAGMA user_version = {number}")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Committed on leaving, undone on raising. IMMEDIATE: a transaction that turns from reading to
    writing cannot wait for another writer, it fails at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.rollback()
        raise


def execute(connection: sqlite3.Connection, statement: Statement) -> list[Row]:
    """The rows a statement returns; `Conflict` when it touched another number than expected."""
    sql, parameters, expect = statement
    cursor = connection.execute(sql, parameters)
    rows = [] if cursor.description is None else cursor.fetchall()
    if expect is not None:
        touched = cursor.rowcount if cursor.description is None else len(rows)
        if touched != expect:
            raise Conflict(f"someone else changed it first: {touched} rows where {expect} were expected")
    return rows


def storage_failed(error: Exception) -> bool:
    """Whether the disk or the file is at fault, rather than the statement."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _STORAGE_FAILURES


def refusal(error: Exception, doing: str) -> GatewayError:
    """What we say when SQLite says `error`."""
    if isinstance(error, GatewayError):
        return error
    if getattr(error, "sqlite_errorcode", None) in _CONFLICTS:
        said: GatewayError = Conflict(f"someone else was first: {error}")
    elif isinstance(error, UnicodeError | OverflowError):
        said = Invalid(f"a value cannot be stored: {error}", code="INVALID_VALUE")
    else:
        said = Unavailable(f"the database cannot {doing}: {error}", code="STORAGE_UNAVAILABLE")
    said.__cause__ = error
    return said


def _require_wal(connection: sqlite3.Connection) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise Unavailable(f"the file system does not carry SQLite's WAL mode (it stays in {mode} mode)")


_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "fuse"}
_MOUNTS = Path("/proc/self/mountinfo")

log = logging.getLogger(__name__)

Rows = list[list[Row]]

BATCH_LIMIT = 256
CHECKPOINT_AFTER = 2000  # transactions; up to 50 MB of log
AS_MUCH = 16 * 1024  # bytes of promised rows that lengthen the log as one transaction does
IDLE_AFTER = 1.0  # seconds without work until the log is brought home, and what was kept is tried again
LOG_LIMIT = 64 * 1024 * 1024
SOON = 0.25  # seconds that a promised row waits for others, unless somebody asks for it


@dataclass(slots=True)
class Job:
    """One transaction, and who waits for it; or the rows of a book."""

    future: asyncio.Future[Rows]
    statements: Sequence[Statement]
    book: JournalFile | None = None

    @property
    def weight(self) -> int:
        """How many ordinary transactions lengthen the log as this one does."""
        return 1 if self.book is None else 1 + self.book.size // AS_MUCH


class Writer:
    """The writing connection and the thread that owns it.

    Nothing is acknowledged before its COMMIT, or its line in a book (`promises`). A killed process loses nothing it
    acknowledged; a power failure at most what was committed since the log was last brought home, never the file.
    Everything is written in the order in which it was handed over, promised or not.
    `opened` and `ended` are futures of the event loop that made the writer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._promises = Journal(path)
        self._due = False  # a clock runs for what is promised
        self._making_good: asyncio.Future[Rows] | None = None
        self._kept: list[Job] = []  # books the disk did not take; they go before whatever is written next
        self._in_log = 0
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._live, name="sqlite-writer", daemon=True).start()

    async def submit(self, statements: Sequence[Statement]) -> Rows:
        """The rows of a transaction, once it is committed."""
        self._make_good()
        future: asyncio.Future[Rows] = self._loop.create_future()
        self._jobs.put(Job(future, statements))
        return await future

    def promise(self, writing: Writing, row: Sequence[Any]) -> bool:
        """Whether the row will be written, whatever becomes of this process."""
        if not self._promises.note(writing, row):
            return False
        if self._promises.full:
            self._make_good()
        elif not self._due:
            self._due = True
            self._loop.call_later(SOON, self._when_due)
        return True

    async def made_good(self) -> None:
        """Returns when all that was promised is written, as far as it could be."""
        self._make_good()
        if self._making_good is not None and not self._making_good.done():
            await asyncio.wait([self._making_good])

    def stop(self) -> None:
        """Let the thread end once everything queued before is written; nothing may follow."""
        self._make_good()
        self._jobs.put(None)

    def _when_due(self) -> None:
        self._due = False
        self._make_good()

    def _make_good(self) -> None:
        book = self._promises.turn_over()
        if book is not None:
            self._making_good = self._loop.create_future()
            self._jobs.put(Job(self._making_good, (), book))

    def _live(self) -> None:
        try:
            self._open()
        except Exception as error:
            self._tell(_settle, self.opened, refusal(error, f"be opened at {self._path}"))
        else:
            self._tell(_settle, self.opened, None)
            self._work()
            self._close()
        self._tell(_settle, self.ended, None)

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_local(self._path.parent)
        self._lock = FileLock(self._path.with_name(f"{self._path.name}.gate"))
        try:
            with self._lock:
                _create_private(self._path)
                self._connection = connect(self._path)
                self._write_left_behind()
        except BaseException:
            self._lock.close()
            raise

    def _close(self) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._promises.close()
            self._connection.close()  # the last connection of all processes brings the log home
        self._lock.close()

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_AFTER if self._in_log or self._kept else None)
            except queue.Empty:
                self._commit_kept()
                with self._lock:
                    self._write_left_behind()
                    self._checkpoint()
                continue
            if job is None:
                self._commit_kept()
                return
            self._commit(self._with_waiting(job))

    def _with_waiting(self, job: Job) -> list[Job]:
        jobs = [job]
        while len(jobs) < BATCH_LIMIT and not self._jobs.empty():
            waiting = self._jobs.get()
            if waiting is None:
                self._jobs.put(None)  # said again, for whoever takes from the queue next
                break
            jobs.append(waiting)
        return jobs

    def _commit_kept(self) -> None:
        if self._kept:
            self._commit([])

    def _commit(self, jobs: list[Job]) -> None:
        jobs = self._kept + jobs
        self._in_log += sum(job.weight for job in jobs)
        with self._lock:
            results = self._results(jobs)
            self._kept = [job for job, result in zip(jobs, results, strict=True) if not _cleared(job, result)]
            self._promises.open()
            self._tell(_settle_all, jobs, results)
            if self._in_log >= CHECKPOINT_AFTER:
                self._checkpoint()

    def _results(self, jobs: list[Job]) -> Sequence[Rows | GatewayError]:
        """All jobs in one transaction; if one fails, each in its own, so that none suffers for it.

        A full or broken disk is nobody's own failure: then all are refused.
        """
        try:
            return self._together([_statements(job) for job in jobs])
        except Exception as error:
            if storage_failed(error):
                return [refusal(error, "be written") for _ in jobs]
            if len(jobs) > 1:
                return [self._results([job])[0] for job in jobs]
            book = jobs[0].book
            return [refusal(error, "be written") if book is None else self._redeem(book.promised)]

    def _together(self, jobs: Sequence[Sequence[Statement]]) -> list[Rows]:
        connection = self._connection
        if connection.in_transaction:  # which could not be undone, for want of memory
            connection.rollback()
        if len(jobs) == 1 and len(jobs[0]) == 1 and jobs[0][0].expect is None:
            return [[execute(connection, jobs[0][0])]]  # which is a transaction by itself
        with transaction(connection):
            return [[execute(connection, statement) for statement in statements] for statements in jobs]

    def _redeem(self, promised: Promised) -> Rows | GatewayError:
        """All rows together; if one of them is in the way, row by row: of that one only the log will tell."""
        try:
            return self._together([promised.statements()])[0]
        except Exception as error:
            if storage_failed(error) or isinstance(error, MemoryError):
                return refusal(error, "be written")
            if len(promised.rows) == 1:
                log.error("a row that was promised cannot be written: %s", error)
                return []
        results = map(self._redeem, promised.apart())
        return next((failed for failed in results if isinstance(failed, GatewayError)), [])

    def _write_left_behind(self) -> None:
        """Keep the promises of those who cannot any more."""
        try:
            for promised in self._promises.left_behind():
                failed = self._redeem(promised)
                if isinstance(failed, GatewayError):
                    raise failed
        except (GatewayError, OSError) as error:
            log.warning("what others promised to %s was not written, it will be tried again: %s", self._path, error)

    def _checkpoint(self) -> None:
        """Bring the log home, inside the gate; one grown too long is cut when no reader needs it."""
        self._in_log = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            if self._path.with_name(f"{self._path.name}-wal").stat().st_size > LOG_LIMIT:
                self._wait_at_most(0)  # whoever waits for the gate does not wait for a reader
                try:
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                finally:
                    self._wait_at_most(BUSY_TIMEOUT)
        except (sqlite3.Error, OSError) as error:
            log.warning("the log of %s was not brought home, it will be tried again: %s", self._path, error)

    def _wait_at_most(self, seconds: float) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it whoever waited
            self._loop.call_soon_threadsafe(callback, *arguments)


def _statements(job: Job) -> Sequence[Statement]:
    return job.statements if job.book is None else job.book.promised.statements()


def _cleared(job: Job, result: Rows | GatewayError) -> bool:
    """Whether nothing is left to do for a job."""
    if job.book is None:
        return True
    if isinstance(result, GatewayError):
        log.warning("%s; what was promised is kept in %s", result, job.book.path)
        return False
    job.book.clear()
    return True


def _settle_all(jobs: Sequence[Job], results: Sequence[Rows | GatewayError]) -> None:
    for job, result in zip(jobs, results, strict=True):
        _settle(job.future, result if job.book is None else None)  # of a book one asks only that it was tried


def _settle(future: asyncio.Future[Any], result: object) -> None:
    if future.done():  # its waiter was cancelled; the transaction stands
        return
    if isinstance(result, GatewayError):
        future.set_exception(result)
    else:
        future.set_result(result)


class SqliteDatabase:
    """One file, any number of processes. Belongs to the event loop that opened it."""

    def __init__(self, writer: Writer, reader: aiosqlite.Connection) -> None:
        self._writer = writer
        self._reader = reader
        self._closed = False

    @classmethod
    async def open(cls, path: Path | str) -> SqliteDatabase:
        """Open or create the database and bring it to the newest version."""
        path = Path(path)
        writer = Writer(path)
        try:
            await writer.opened
            return cls(writer, await _reader(path))
        except BaseException:
            writer.stop()
            raise

    async def run(self, *statements: Statement) -> list[list[Row]]:
        if self._closed:
            raise _closed()
        return await self._writer.submit(statements)

    def promise(self, writing: Writing, row: Sequence[Any]) -> bool:
        return not self._closed and self._writer.promise(writing, row)

    async def fetch(self, sql: str, *parameters: Any) -> list[Row]:
        await self._writer.made_good()
        if self._closed:
            raise _closed()
        try:
            rows = await self._reader.execute_fetchall(sql, parameters)
            return cast(list[Row], rows)
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise refusal(error, "be read") from error

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                await self._reader.close()
            finally:
                self._writer.stop()  # closes last, inside the gate
        await asyncio.shield(self._writer.ended)


async def _reader(path: Path) -> aiosqlite.Connection:
    uri = f"file:{quote(str(path))}?mode=ro"
    connecting = aiosqlite.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT)
    connecting._thread.daemon = True  # else a process that fails before `close` would never end
    try:
        return await connecting
    except sqlite3.Error as error:
        raise refusal(error, f"be opened at {path}") from error


def _closed() -> Unavailable:
    return Unavailable("the database is closed", code="DATABASE_CLOSED")


def _create_private(path: Path) -> None:
    """Make an empty file only its owner can read; an existing one is left alone.

    Without O_EXCL, closing the descriptor would drop the locks another connection of this process
    holds on the file.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return


def require_local(directory: Path, mounts: Path = _MOUNTS) -> None:
    """Refuse a network file system: its locks and shared memory do not hold between processes."""
    kind = _file_system(directory, mounts)
    if kind is not None and kind.partition(".")[0] in _NETWORK:
        raise Unavailable(
            f"{directory} is on {kind}, where SQLite's locks cannot be trusted; "
            "choose a data directory on a local disk",
            code="NETWORK_FILE_SYSTEM",
            file_system=kind,
        )


def _file_system(directory: Path, mounts: Path) -> str | None:
    """The type of the file system a directory is on, where Linux tells; None elsewhere."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, origin = line.partition(" - ")
        if mount.split()[2] == wanted:
            return origin.split()[0]
    return None
