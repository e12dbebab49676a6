"""Problems of the gateway's parts as events with a beginning and an end, of every process on the database."""

from __future__ import annotations

from gateway.db import Database, Statement
from gateway.value import Value

_COLUMNS = "id, process, subject, name, message, began_at, ended_at"
_WRITE = (
    f"INSERT INTO health_events ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) "  # noqa: S608 - constants only
    "ON CONFLICT (id) DO UPDATE SET ended_at = excluded.ended_at"
)
_RECENT = f"SELECT {_COLUMNS} FROM health_events ORDER BY ended_at IS NULL DESC, began_at DESC LIMIT ?"  # noqa: S608
_REMOVE = "DELETE FROM health_events WHERE ended_at < ?"


class HealthEvent(Value):
    """One problem, noticed by `process`; `ended_at` is None while it lasts."""

    id: str
    process: str
    subject: str
    name: str | None
    message: str
    began_at: str
    ended_at: str | None = None


class HealthEvents:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def write(self, event: HealthEvent) -> None:
        """Store an event, or the end of one that is stored."""
        values = (event.id, event.process, event.subject, event.name, event.message, event.began_at, event.ended_at)
        await self._db.run(Statement(_WRITE, values))

    async def list_recent(self, limit: int) -> list[HealthEvent]:
        """Return the latest events, those that last first."""
        return [HealthEvent(*row) for row in await self._db.fetch(_RECENT, limit)]

    async def remove(self, before: str) -> None:
        """Remove events that ended before a time."""
        await self._db.run(Statement(_REMOVE, (before,)))
