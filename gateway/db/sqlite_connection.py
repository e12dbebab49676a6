"""A SQLite connection that writes: how it is set up and migrated, and what its errors mean to us."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.db import Row, Statement
from gateway.db.migrations import MIGRATIONS, Migration, pending
from gateway.errors import Conflict, GatewayError, Invalid, Unavailable

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
