"""What survives a restart. A write is data, not a callback: the same statements fit a writer
thread and a network engine, and compare-and-swap replaces reading inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

Row = tuple[Any, ...]


class Statement(NamedTuple):
    """One SQL statement with `?` placeholders. `expect` is the number of rows it must touch (or
    return); any other number raises `Conflict` and undoes the whole transaction."""

    sql: str
    parameters: Sequence[Any] = ()
    expect: int | None = None


class Insert(NamedTuple):
    """A statement that writes any number of rows, which stand at `{rows}` in it: of each promised one the values at
    these places."""

    sql: str
    places: tuple[int, ...]


# All that is written for promised rows, in one transaction.
Writing = tuple[Insert, ...]


class Database(Protocol):
    """One engine. What is acknowledged is committed; a failed transaction leaves no trace and
    does not disturb its neighbours.

    It refuses with `Conflict` what another row or a missing `expect` forbids, with `Invalid` a
    value no database can hold (a lone surrogate, an integer beyond 64 bits), and with
    `Unavailable` everything else, a full disk and a closed database among it.
    """

    async def run(self, *statements: Statement) -> list[list[Row]]:
        """Run the statements as one transaction; the rows each of them returned.

        It is committed even when whoever waits for it is cancelled meanwhile.
        """
        ...

    def promise(self, writing: Writing, row: Sequence[Any]) -> bool:
        """Whether the engine takes it upon itself to write the row soon, whatever becomes of this process: where rows
        are many it is far cheaper to write them together. What refuses the row then, only a log will tell; it may be
        written twice.

        Within this process it is as if it were written at once.
        """
        ...

    async def fetch(self, sql: str, *parameters: Any) -> list[Row]:
        """Rows as last committed, by any process."""
        ...

    async def close(self) -> None:
        """Finish what is queued, then let go of the files."""
        ...


def timestamp(seconds: float) -> str:
    """How a moment is stored: ISO 8601 in UTC to the millisecond, so that text order is time order."""
    second, millisecond = divmod(int(seconds * 1000), 1000)
    return f"{_second(second)}.{millisecond:03d}+00:00"


@lru_cache(maxsize=64)  # every call is stamped twice, mostly within the same second
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
