"""Stored state: the `Database` protocol and its statements. A write is data, not a callback: the same statements fit
a writer thread and a network engine, and compare-and-swap replaces reading inside a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

# The database in a data directory.
DATABASE_FILE = "toolgate.db"

Row = tuple[Any, ...]


class Statement(NamedTuple):
    """One SQL statement with `?` placeholders. `expect` is the number of rows it must touch (or
    return); any other number raises `Conflict` and undoes the whole transaction."""

    sql: str
    parameters: Sequence[Any] = ()
    expect: int | None = None


class Insert(NamedTuple):
    """A statement that writes any number of rows, in place of `{rows}`; of each row the values at these places."""

    sql: str
    places: tuple[int, ...]


# The statements that write appended rows, in one transaction.
Inserts = tuple[Insert, ...]


class Database(Protocol):
    """One engine. What is acknowledged is committed; a failed transaction has no effect, on others neither.

    It raises `Conflict` when another row or `expect` forbids a write, `Invalid` for a value no database can hold (a
    lone surrogate, an integer beyond 64 bits), and `Unavailable` for everything else, such as a full disk or a closed
    database.
    """

    async def run(self, *statements: Statement) -> list[list[Row]]:
        """Run the statements as one transaction; return the rows of each.

        It is committed even when the task that waits for it is cancelled.
        """
        ...

    def append_together(self, inserts: Inserts, row: Sequence[Any]) -> Awaitable[object] | None:
        """Journal a row together with all others of this turn of the event loop: they are written to the database soon,
        even if this process is killed once the awaitable is done, or its waiter is cancelled. None when the row cannot
        be journaled, so that the caller must write it. A row that cannot be written later is only logged; it may be
        written twice. Reads of this process see it at once.
        """
        ...

    def append(self, inserts: Inserts, row: Sequence[Any]) -> bool:
        """Journal a row before this returns; False when the caller must write it."""
        ...

    async def fetch(self, sql: str, *parameters: Any) -> list[Row]:
        """Rows as last committed, by any process."""
        ...

    @property
    def failure(self) -> str | None:
        """The reason why journaled rows could not be written when that was last tried; None if they were."""
        ...

    async def close(self) -> None:
        """Finish queued writes, then close the files."""
        ...


# Takes a subject.
REVISION = "SELECT revision FROM revisions WHERE subject = ?"
_BUMP = (
    "INSERT INTO revisions (subject, revision) VALUES (?, 1) "
    "ON CONFLICT (subject) DO UPDATE SET revision = revisions.revision + 1"
)


def bump_revision(subject: str) -> Statement:
    """Return the statement that makes the revision of a subject grow, for the transaction that changes it."""
    return Statement(_BUMP, (subject,))


async def load_revision(db: Database, subject: str) -> int:
    """Return a number that grows with every change of a subject, by any process; 0 before the first."""
    rows = await db.fetch(REVISION, subject)
    return int(rows[0][0]) if rows else 0


def timestamp(seconds: float) -> str:
    """ISO 8601 in UTC to the millisecond, so that text order is time order."""
    second, millisecond = divmod(int(seconds * 1000), 1000)
    return f"{_second(second)}.{millisecond:03d}+00:00"


@lru_cache(maxsize=64)  # every call is stamped twice, mostly within the same second
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
