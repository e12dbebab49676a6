"""SQLite: one writer thread that groups commits, and a read-only connection beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import aiosqlite

from gateway.db import Inserts, Row, Statement
from gateway.db.call_log import KEY_FILE, CallLog, EntryKey
from gateway.db.journal import Batch, Journal, JournalFile
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


def lock_file(path: Path) -> Path:
    """The file whose lock the processes that write a database hold."""
    return path.with_name(f"{path.name}.gate")


def connect(path: Path) -> sqlite3.Connection:
    """A connection ready to write, its database at the newest version. Call it under the file lock."""
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


def is_storage_failure(error: Exception) -> bool:
    """Return whether the disk or the file failed, rather than the statement."""
    return isinstance(error, Unavailable) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _STORAGE_FAILURES


def convert_error(error: Exception, doing: str) -> GatewayError:
    """The error of ours for an exception of SQLite."""
    if isinstance(error, GatewayError):
        return error
    if getattr(error, "sqlite_errorcode", None) in _CONFLICTS:
        converted: GatewayError = Conflict(f"someone else was first: {error}")
    elif isinstance(error, UnicodeError | OverflowError):
        converted = Invalid(f"a value cannot be stored: {error}", code="INVALID_VALUE")
    else:
        converted = Unavailable(f"the database cannot {doing}: {error}", code="STORAGE_UNAVAILABLE")
    converted.__cause__ = error
    return converted


def _require_wal(connection: sqlite3.Connection) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise Unavailable(f"the file system does not carry SQLite's WAL mode (it stays in {mode} mode)")


_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "fuse"}
_MOUNTS = Path("/proc/self/mountinfo")

log = logging.getLogger(__name__)

Rows = list[list[Row]]

BATCH_LIMIT = 256
CHECKPOINT_AFTER = 2000  # transactions; up to 50 MB of WAL
BYTES_PER_TRANSACTION = 16 * 1024  # bytes of journaled rows that lengthen the WAL as one transaction does
CHANGES_PER_TRANSACTION = 10  # rows that lengthen it so, where one transaction changes many, as retention does
IDLE_AFTER = 1.0  # seconds without work until a checkpoint, and until deferred rows are tried again
LOG_LIMIT = 64 * 1024 * 1024
SIGN_AFTER = 10.0  # seconds between signatures of the call log while calls go on; also when idle, and at the end
PAGES_LEFT = 200  # of the WAL, written while the rest was copied
FLUSH_AFTER = 0.25  # seconds that a journaled row waits for others, unless something reads


@dataclass(slots=True)
class WriteJob:
    """One transaction and the future of its rows, or the rows of a journal file."""

    future: asyncio.Future[Rows]
    statements: Sequence[Statement]
    file: JournalFile | None = None

    @property
    def weight(self) -> int:
        """The number of ordinary transactions that lengthen the WAL as this one does."""
        return 1 if self.file is None else 1 + self.file.size // BYTES_PER_TRANSACTION


class Writer:
    """The writing connection and the thread that owns it.

    Nothing is acknowledged before its COMMIT, or its line in the journal. A killed process loses nothing it
    acknowledged; a power failure loses at most what was committed since the last checkpoint, never the database.
    Everything is written in the order in which it was submitted, journaled or not.
    `opened` and `ended` are futures of the event loop that made the writer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[WriteJob | None] = queue.SimpleQueue()
        self._key = EntryKey(path.with_name(KEY_FILE))
        self._journal = Journal(path, self._key.load_journal_key)
        self._appended: list[tuple[asyncio.Future[Rows], Inserts]] = []  # rows of this turn of the event loop
        self._timer_set = False  # a timer will flush the journal
        self._flushing: asyncio.Future[Rows] | None = None
        # Journal files the disk did not take; they are written before anything else.
        self._deferred: list[WriteJob] = []
        self._transactions_in_log = 0
        self._checkpointing: threading.Thread | None = None
        self.failure: str | None = None
        self._signed_at = time.monotonic()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, name="sqlite-writer", daemon=True).start()

    async def submit(self, statements: Sequence[Statement]) -> Rows:
        """Commit a transaction and return its rows."""
        self._flush()
        future: asyncio.Future[Rows] = self._loop.create_future()
        self._jobs.put(WriteJob(future, statements))
        return await future

    def append(self, inserts: Inserts, row: Sequence[Any]) -> bool:
        """Journal a row; False when it cannot be."""
        self._write_appended()
        if not self._journal.append(inserts, row) or self._journal.write():
            return False
        self._schedule_flush()
        return True

    def append_together(self, inserts: Inserts, row: Sequence[Any]) -> asyncio.Future[Rows] | None:
        """Journal a row in one write with all others of this turn of the event loop; None when it cannot be."""
        if not self._journal.append(inserts, row):
            return None
        if not self._appended:
            self._loop.call_soon(self._write_appended)
        future: asyncio.Future[Rows] = self._loop.create_future()
        self._appended.append((future, inserts))
        self._schedule_flush()
        return future

    def _write_appended(self) -> None:
        """Write the rows of this turn. Those that the disk does not take are committed by the thread instead."""
        if self._appended:
            appended, self._appended = self._appended, []
            failed = self._journal.write()
            for place, (future, inserts) in enumerate(appended):
                if failed:
                    self._jobs.put(WriteJob(future, Batch(inserts, [failed[place]]).statements()))
                elif not future.done():
                    future.set_result([])

    def _schedule_flush(self) -> None:
        if self._journal.is_full():
            self._flush()
        elif not self._timer_set:
            self._timer_set = True
            self._loop.call_later(FLUSH_AFTER, self._flush_when_due)

    async def flush(self) -> None:
        """Return when all journaled rows are written, as far as they can be."""
        self._flush()
        if self._flushing is not None and not self._flushing.done():
            await asyncio.wait([self._flushing])

    def stop(self) -> None:
        """End the thread once everything queued is written; nothing may be submitted afterwards."""
        self._flush()
        self._jobs.put(None)

    def _flush_when_due(self) -> None:
        self._timer_set = False
        self._flush()

    def _flush(self) -> None:
        self._write_appended()
        file = self._journal.rotate()
        if file is not None:
            self._flushing = self._loop.create_future()
            self._jobs.put(WriteJob(self._flushing, (), file))

    def _run(self) -> None:
        try:
            self._open()
        except Exception as error:
            self._call_in_loop(_resolve, self.opened, convert_error(error, f"be opened at {self._path}"))
        else:
            self._call_in_loop(_resolve, self.opened, None)
            self._work()
            self._close()
        self._call_in_loop(_resolve, self.ended, None)

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_local(self._path.parent)
        self._lock = FileLock(lock_file(self._path))
        try:
            with self._lock:
                _create_private(self._path)
                self._connection = connect(self._path)
                self._call_log = CallLog(self._connection, self._key)
                self._recover()
        except BaseException:
            self._lock.close()
            raise

    def _close(self) -> None:
        self._finish_checkpoint()
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._journal.close()
            self._sign_log()
            self._connection.close()  # the last connection of all processes makes a checkpoint
        self._lock.close()

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_AFTER if self._transactions_in_log or self._deferred else None)
            except queue.Empty:
                self._commit_deferred()
                self._finish_checkpoint()
                with self._lock:
                    self._recover()
                    self._sign_log()
                    self._checkpoint(truncate=True)
                continue
            if job is None:
                self._commit_deferred()
                return
            self._commit(self._collect_queued(job))

    def _collect_queued(self, job: WriteJob) -> list[WriteJob]:
        jobs = [job]
        while len(jobs) < BATCH_LIMIT and not self._jobs.empty():
            waiting = self._jobs.get()
            if waiting is None:
                self._jobs.put(None)  # for the next read of the queue
                break
            jobs.append(waiting)
        return jobs

    def _commit_deferred(self) -> None:
        if self._deferred:
            self._commit([])

    def _commit(self, jobs: list[WriteJob]) -> None:
        jobs = self._deferred + jobs
        self._transactions_in_log += sum(job.weight for job in jobs)
        with self._lock:
            changes = self._connection.total_changes
            results = self._results(jobs)
            if all(job.file is None for job in jobs):  # the journaled rows have their weight
                self._transactions_in_log += (self._connection.total_changes - changes) // CHANGES_PER_TRANSACTION
            self._deferred = [job for job, result in zip(jobs, results, strict=True) if not _finish(job, result)]
            self._note_failure(next((str(each) for each in results if isinstance(each, GatewayError)), ""))
            self._journal.open()
            self._call_in_loop(_resolve_all, jobs, results)
            if time.monotonic() - self._signed_at >= SIGN_AFTER:
                self._sign_log()
            if self._checkpointing is not None:
                if not self._checkpointing.is_alive():
                    self._checkpointing = None
                    self._checkpoint(truncate=False)  # what was written meanwhile, so that the WAL begins again
            elif self._transactions_in_log >= CHECKPOINT_AFTER:
                self._start_checkpoint()

    def _note_failure(self, reason: str) -> None:
        """Log once that journaled rows cannot be written, which is tried each second, and once that they are."""
        failing, self.failure = self.failure is not None, reason if self._deferred else None
        if self._deferred and not failing:
            files = ", ".join(str(job.file.path) for job in self._deferred if job.file is not None)
            log.warning("%s; the rows stay in %s", reason, files)
        elif failing and not self._deferred:
            log.warning("the journaled rows are written to %s again", self._path)

    def _results(self, jobs: list[WriteJob]) -> Sequence[Rows | GatewayError]:
        """Run all jobs in one transaction; if one fails, each in its own, so that it fails alone.

        A full or broken disk is the failure of no single job: all are refused.
        """
        try:
            rows = [row for job in jobs if job.file is not None for row in job.file.batch.rows]
            return self._execute([_statements(job) for job in jobs], rows)
        except Exception as error:
            if is_storage_failure(error):
                return [convert_error(error, "be written") for _ in jobs]
            if len(jobs) > 1:
                return [self._results([job])[0] for job in jobs]
            file = jobs[0].file
            return [convert_error(error, "be written") if file is None else self._write_batch(file.batch)]

    def _execute(self, jobs: Sequence[Sequence[Statement]], rows: Sequence[Sequence[Any]]) -> list[Rows]:
        """Run the statements of all jobs in one transaction; `rows` are the journaled ones among them."""
        connection = self._connection
        if connection.in_transaction:  # its rollback failed for lack of memory
            connection.rollback()
        with transaction(connection):
            self._call_log.check_schema()
            results = [[execute(connection, statement) for statement in statements] for statements in jobs]
            self._call_log.append_entries({row[0]: row for row in rows})
        self._call_log.write_head()
        return results

    def _write_batch(self, batch: Batch) -> Rows | GatewayError:
        """Write all rows together; if one of them fails, row by row, and log that one."""
        try:
            return self._execute([batch.statements()], batch.rows)[0]
        except Exception as error:
            if is_storage_failure(error) or isinstance(error, MemoryError):
                return convert_error(error, "be written")
            if len(batch.rows) == 1:
                log.error("a journaled row cannot be written: %s", error)
                return []
        results = map(self._write_batch, batch.split())
        return next((failed for failed in results if isinstance(failed, GatewayError)), [])

    def _recover(self) -> None:
        """Replay the journals of other processes."""
        try:
            for batch in self._journal.recover(self._key.is_from_before_head()):
                batch.rows = [row for row in batch.rows if not self._call_log.is_superseded(row)]
                failed = self._write_batch(batch)
                if isinstance(failed, GatewayError):
                    raise failed
            self._key.protect_head()
        except (GatewayError, OSError) as error:
            log.warning("journals for %s could not be replayed and will be tried again: %s", self._path, error)

    def _start_checkpoint(self) -> None:
        """Copy a long WAL to the database in another thread: this one commits meanwhile, so that nobody waits."""
        self._checkpointing = threading.Thread(target=_copy_wal, args=(self._path,), name="sqlite-checkpoint")
        self._checkpointing.start()

    def _finish_checkpoint(self) -> None:
        if self._checkpointing is not None:
            self._checkpointing.join()
            self._checkpointing = None

    def _checkpoint(self, truncate: bool) -> None:
        """Make a checkpoint, under the file lock. If nobody waits, truncate a WAL that is too long and that no reader
        needs: 100 MB take 0.2 s."""
        self._transactions_in_log = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            if truncate and self._path.with_name(f"{self._path.name}-wal").stat().st_size > LOG_LIMIT:
                self._set_busy_timeout(0)  # those that wait for the lock do not wait for a reader
                try:
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                finally:
                    self._set_busy_timeout(BUSY_TIMEOUT)
        except (sqlite3.Error, OSError) as error:
            log.warning("the checkpoint of %s failed and will be tried again: %s", self._path, error)

    def _sign_log(self) -> None:
        """Append a signed checkpoint to the call log, under the file lock."""
        self._signed_at = time.monotonic()
        try:
            with transaction(self._connection):
                self._call_log.sign()
            self._call_log.write_head()
        except (GatewayError, sqlite3.Error) as error:
            log.warning("the call log in %s could not be signed and will be tried again: %s", self._path, error)

    def _set_busy_timeout(self, seconds: float) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def _call_in_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._loop.call_soon_threadsafe(callback, *arguments)


def _copy_wal(path: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT)) as connection:
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA user_version").fetchall()  # before the first read, SQLite knows of no WAL
            copied = 0
            for _ in range(10):  # until few pages are left to the writer, for which all wait
                before, [(_, _, copied)] = copied, connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                if copied - before <= PAGES_LEFT:
                    return
    except sqlite3.Error as error:
        log.warning("the checkpoint of %s failed and will be tried again: %s", path, error)


def _statements(job: WriteJob) -> Sequence[Statement]:
    return job.statements if job.file is None else job.file.batch.statements()


def _finish(job: WriteJob, result: Rows | GatewayError) -> bool:
    """Empty the journal file of a job that was written; False when it must be tried again."""
    if job.file is None:
        return True
    if isinstance(result, GatewayError):
        return False
    job.file.clear()
    return True


def _resolve_all(jobs: Sequence[WriteJob], results: Sequence[Rows | GatewayError]) -> None:
    for job, result in zip(jobs, results, strict=True):
        _resolve(job.future, result if job.file is None else None)  # a flush waits for the attempt, whatever its result


def _resolve(future: asyncio.Future[Any], result: object) -> None:
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
            raise _make_closed_error()
        return await self._writer.submit(statements)

    def append_together(self, inserts: Inserts, row: Sequence[Any]) -> Awaitable[object] | None:
        return None if self._closed else self._writer.append_together(inserts, row)

    def append(self, inserts: Inserts, row: Sequence[Any]) -> bool:
        return not self._closed and self._writer.append(inserts, row)

    async def fetch(self, sql: str, *parameters: Any) -> list[Row]:
        await self._writer.flush()
        if self._closed:
            raise _make_closed_error()
        try:
            rows = await self._reader.execute_fetchall(sql, parameters)
            return cast(list[Row], rows)
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise convert_error(error, "be read") from error

    @property
    def failure(self) -> str | None:
        return self._writer.failure

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                await self._reader.close()
            finally:
                self._writer.stop()  # closes last, under the file lock
        await asyncio.shield(self._writer.ended)


async def _reader(path: Path) -> aiosqlite.Connection:
    uri = f"file:{quote(str(path))}?mode=ro"
    connecting = aiosqlite.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT)
    connecting._thread.daemon = True  # else a process that fails before `close` would never end
    try:
        return await connecting
    except sqlite3.Error as error:
        raise convert_error(error, f"be opened at {path}") from error


def _make_closed_error() -> Unavailable:
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
    """The type of the file system a directory is on, as Linux reports it; None elsewhere."""
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
