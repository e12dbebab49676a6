"""Usage: calls that have ended, counted by day, tool and principal. The counts outlive the records of the calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from gateway.db import Database, Statement
from gateway.value import Value

Dimension = Literal["day", "tool", "server", "principal"]

# The `server` of builtin tools, and the tool of calls that name none of the tools.
BUILTIN, UNKNOWN = "builtin", "unknown"
_SERVER = (
    f"CASE WHEN tool_id = '' THEN '{UNKNOWN}' WHEN instr(tool_id, ':') = 0 THEN '{BUILTIN}' "
    "ELSE substr(tool_id, 1, instr(tool_id, ':') - 1) END"
)
_COLUMNS: dict[Dimension, str] = {
    "day": "day",
    "tool": f"CASE WHEN tool_id = '' THEN '{UNKNOWN}' ELSE tool_id END",
    "server": _SERVER,
    "principal": "principal",
}
_SUMS = (
    "COALESCE(sum(calls), 0), COALESCE(sum(errors), 0), COALESCE(sum(refused), 0), "
    "COALESCE(sum(duration_ms) / sum(calls), 0.0), COALESCE(max(longest_ms), 0.0), "
    "COALESCE(sum(args_bytes), 0), COALESCE(sum(result_bytes), 0)"
)
_REMOVE = Statement("DELETE FROM call_usage WHERE day < ?")


class UsageRow(Value):
    """Counts of calls. What they are not grouped by is None. `refused` counts the errors that were refusals or
    cancellations. Bytes are those of arguments and results."""

    day: str | None
    tool: str | None
    server: str | None
    principal: str | None
    calls: int
    errors: int
    refused: int
    mean_ms: float
    longest_ms: float
    args_bytes: int
    result_bytes: int


class UsageFilter(NamedTuple):
    """Days in UTC, both included, and what the calls must be of; None for any."""

    since: str
    until: str
    tool: str | None = None
    server: str | None = None
    principal: str | None = None


_FILTERED: tuple[Dimension, ...] = ("tool", "server", "principal")


class CallUsage:
    """Reads the counts, which triggers of the database keep."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def load(self, by: Sequence[Dimension], chosen: UsageFilter, limit: int) -> list[UsageRow]:
        """Return the counts of each group: the newest days first, then the most calls."""
        clauses = ["day >= ?", "day <= ?"]
        clauses += [f"{_COLUMNS[name]} = ?" for name in _FILTERED if getattr(chosen, name) is not None]
        columns = ", ".join(column if name in by else "NULL" for name, column in _COLUMNS.items())
        grouping = f"GROUP BY {', '.join(_COLUMNS[name] for name in by)}" if by else ""
        order = "day DESC, sum(calls) DESC" if "day" in by else "sum(calls) DESC"
        sql = (
            f"SELECT {columns}, {_SUMS} FROM call_usage WHERE {' AND '.join(clauses)} "  # noqa: S608 - constants only
            f"{grouping} ORDER BY {order} LIMIT ?"
        )
        values = [value for value in chosen if value is not None]
        return [UsageRow(*row) for row in await self._db.fetch(sql, *values, limit)]

    async def remove(self, before: str) -> None:
        """Remove the counts of the days before one."""
        await self._db.run(_REMOVE._replace(parameters=(before,)))
