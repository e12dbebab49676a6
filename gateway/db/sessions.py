"""Sessions of people in a browser: stored by the SHA-256 of their cookie, with the key they were opened with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import astuple

from gateway.db import Database, Statement, bump_revision, load_revision, timestamp
from gateway.errors import Conflict
from gateway.value import Value

SUBJECT = "sessions"

# Sessions that a principal may have; a new one beyond that ends the oldest.
SESSIONS_LIMIT = 50


class SessionRow(Value):
    """A session without its cookie. It has the role and profile of its key, and ends with it. Times are ISO 8601."""

    id: str
    digest: str
    principal: str
    role: str
    profile: str | None
    key_digest: str
    browser: str
    created_at: str
    expires_at: str
    last_used_at: str | None = None


_COLUMNS = ", ".join(SessionRow.__annotations__)
_ADD = f"INSERT INTO sessions ({_COLUMNS}) VALUES ({', '.join('?' * len(SessionRow.__annotations__))})"  # noqa: S608 - own names
_LIVE = """SELECT s.id, s.digest, s.principal, k.role, k.profile, s.key_digest, s.browser,
    s.created_at, s.expires_at, s.last_used_at FROM sessions s JOIN api_keys k ON k.digest = s.key_digest
    WHERE s.expires_at > ? AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > ?)
    ORDER BY s.created_at, s.id"""
_END = "DELETE FROM sessions WHERE id = ?"
_PURGE = "DELETE FROM sessions WHERE expires_at <= ?"
_TRIM = """DELETE FROM sessions WHERE principal = ? AND id NOT IN (
    SELECT id FROM sessions WHERE principal = ? ORDER BY created_at DESC LIMIT ?)"""
_USED = "UPDATE sessions SET last_used_at = ? WHERE digest = ?"
_BUMP = bump_revision(SUBJECT)


class BrowserSessions:
    """The sessions of one database. `changed` is called after every change, so that each process loads them again."""

    def __init__(self, db: Database, changed: Callable[[], None] = lambda: None) -> None:
        self._db = db
        self._changed = changed

    async def revision(self) -> int:
        return await load_revision(self._db, SUBJECT)

    async def list_live(self) -> list[SessionRow]:
        """Return the sessions that are valid now, the oldest first, with the role and profile that their keys have."""
        now = timestamp(time.time())
        return [SessionRow(*row) for row in await self._db.fetch(_LIVE, now, now)]

    async def add(self, row: SessionRow) -> None:
        trim = Statement(_TRIM, (row.principal, row.principal, SESSIONS_LIMIT))
        purge = Statement(_PURGE, (timestamp(time.time()),))
        await self._db.run(purge, Statement(_ADD, astuple(row)), trim, _BUMP)
        self._changed()

    async def end(self, session_id: str) -> bool:
        """End a session in every process; False if there is none."""
        try:
            await self._db.run(Statement(_END, (session_id,), 1), _BUMP)
        except Conflict:
            return False
        self._changed()
        return True

    async def record_use(self, digests: Iterable[bytes]) -> None:
        """Store that sessions were used now. Digests of other credentials are ignored."""
        now = timestamp(time.time())
        await self._db.run(*(Statement(_USED, (now, digest.hex())) for digest in digests))
