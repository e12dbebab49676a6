"""API keys: stored by their SHA-256, with the principal, role and profile each stands for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from gateway.db import Database, Row, Statement, bump_revision, load_revision, timestamp
from gateway.errors import Conflict, NotFound
from gateway.value import Value

SUBJECT = "api_keys"


class ApiKey(Value):
    """A key without its secret. `name` is its principal; several keys of one principal share everything. `digest` is
    the SHA-256 in hex, `hint` the beginning that people recognise it by. Times are ISO 8601."""

    id: str
    name: str
    role: str
    profile: str | None
    digest: str
    hint: str
    created_at: str
    created_by: str
    expires_at: str | None = None
    last_used_at: str | None = None
    revoked_at: str | None = None

    @property
    def expiry(self) -> float | None:
        """The time it expires at, in seconds since 1970."""
        return None if self.expires_at is None else datetime.fromisoformat(self.expires_at).timestamp()

    @property
    def status(self) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expiry is not None and self.expiry <= time.time() else "active"


_COLUMNS = [*ApiKey.__annotations__]
_LIST = f"SELECT {', '.join(_COLUMNS)} FROM api_keys ORDER BY created_at, id"  # noqa: S608 - own names
_INSERT = f"INSERT INTO api_keys ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608
_REVOKE = "UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
_USED = "UPDATE api_keys SET last_used_at = ? WHERE digest = ?"
_BUMP = bump_revision(SUBJECT)


class ApiKeys:
    """The keys of one database. `changed` is called after every change, so that each process loads them again."""

    def __init__(self, db: Database, changed: Callable[[], None] = lambda: None) -> None:
        self._db = db
        self._changed = changed

    async def revision(self) -> int:
        """A number that grows with every key made or revoked, by any process."""
        return await load_revision(self._db, SUBJECT)

    async def list(self) -> list[ApiKey]:
        """Every key, the oldest first, with those that are revoked or expired."""
        return [_api_key(row) for row in await self._db.fetch(_LIST)]

    async def add(self, key: ApiKey) -> None:
        await self._db.run(Statement(_INSERT, [getattr(key, name) for name in _COLUMNS]), _BUMP)
        self._changed()

    async def revoke(self, key_id: str) -> None:
        """Revoke a key for good; `NotFound` when there is none, or it is revoked already."""
        try:
            await self._db.run(Statement(_REVOKE, (timestamp(time.time()), key_id), 1), _BUMP)
        except Conflict:
            raise NotFound(f"there is no key {key_id!r} that could be revoked", code="UNKNOWN_KEY") from None
        self._changed()

    async def record_use(self, digests: Iterable[bytes]) -> None:
        """Store that keys were used now. Digests of other credentials are ignored."""
        now = timestamp(time.time())
        await self._db.run(*(Statement(_USED, (now, digest.hex())) for digest in digests))


def _api_key(row: Row) -> ApiKey:
    values: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
    return ApiKey(**values)
