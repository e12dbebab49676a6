"""Chats: the row behind each, and the principal it belongs to."""

from __future__ import annotations

import time

from gateway.db import Database, Insert, Statement, timestamp

_OWNER = "SELECT principal FROM chats WHERE id = ?"
_ENSURE = "INSERT INTO chats (id, principal, created_at) VALUES {rows} ON CONFLICT (id) DO NOTHING"
_ENSURE_ONE = _ENSURE.replace("{rows}", "(?, ?, ?)")


def ensure(chat: str, principal: str, at: float) -> Statement:
    """Create the chat's row before a statement refers to it; the first principal owns the chat for good."""
    return Statement(_ENSURE_ONE, (chat, principal, timestamp(at)))


def ensure_all(chat: int, principal: int, at: int) -> Insert:
    """The same statement for journaled rows that have these values at those places."""
    return Insert(_ENSURE, (chat, principal, at))


class Chats:
    """The owners of chats."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def owner(self, chat: str) -> str | None:
        """The principal that first used the chat; None while nobody has. Once given it never changes."""
        rows = await self._db.fetch(_OWNER, chat)
        return rows[0][0] if rows else None

    async def claim(self, chat: str, principal: str) -> str:
        """Make `principal` the owner of a chat nobody has used yet; the principal it belongs to now."""
        owner = await self.owner(chat)
        if owner is None:
            _, [(owner,)] = await self._db.run(ensure(chat, principal, time.time()), Statement(_OWNER, (chat,)))
        return str(owner)
