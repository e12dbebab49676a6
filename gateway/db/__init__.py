"""What survives a restart. A write is data, not a callback: the same statements fit a writer
thread and a network engine, and compare-and-swap replaces reading inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

Row = tuple[Any, ...]


class Statement(NamedTuple):
    """One SQL statement with `?` placeholders. `expect` is the number of rows it must touch (or
    return); any other number raises `Conflict` and undoes the whole transaction."""

    sql: str
    parameters: Sequence[Any] = ()
    expect: int | None = None


class Database(Protocol):
    """One engine. What is acknowledged is committed; a failed transaction leaves no trace and
    does not disturb its neighbours."""

    async def run(self, *statements: Statement) -> list[list[Row]]:
        """Run the statements as one transaction; the rows each of them returned."""
        ...

    async def fetch(self, sql: str, *parameters: Any) -> list[Row]:
        """Rows as last committed, by any process."""
        ...

    async def close(self) -> None:
        """Finish what is queued, then let go of the files."""
        ...
