"""Chats: the row behind each, and the principal it belongs to."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from gateway.calls import DEFAULT_CHAT, LOCAL
from gateway.db import Database, Insert, Statement, timestamp
from gateway.errors import Forbidden
from gateway.files import lock, try_lock
from gateway.names import new_id
from gateway.value import Value

_OWNER = "SELECT principal FROM chats WHERE id = ?"
_LIST = "SELECT id, principal, created_at, active_manifest_id, active_leaf_message_id FROM chats"
# The principal of a chat that nobody owns yet: every call in it was refused.
NOBODY = ""
_ENSURE = f"""INSERT INTO chats (id, created_at, principal) SELECT column1, column2, '{NOBODY}'
    FROM (VALUES {{rows}}) WHERE TRUE ON CONFLICT (id) DO NOTHING"""  # noqa: S608 - constants
_ENSURE_ONE = _ENSURE.replace("{rows}", "(?, ?)")
_CLAIM = f"""INSERT INTO chats (id, principal, created_at) VALUES (?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET principal = excluded.principal WHERE chats.principal = '{NOBODY}'"""  # noqa: S608 - constants
_HEX = "[0-9a-f]" * 8
_DERIVED = f"SELECT id, principal FROM chats WHERE id GLOB 'default-*-{_HEX}' OR id GLOB 'client-*-{_HEX}'"  # noqa: S608


# Names of chats that the gateway gives to callers without a key, of whom there is only one, the owner, and to attached
# folders.
_OWNERS_NAMES = re.compile(rf"{DEFAULT_CHAT}|client-.*-[0-9a-f]{{8}}|folder-[0-9a-f]{{16}}", re.DOTALL)


def reserved_owner(chat: str) -> str | None:
    """The principal that a chat is kept for until somebody owns it; None if anybody may have it."""
    return LOCAL if _OWNERS_NAMES.fullmatch(chat) else None


def foreign_chat_error(chat: str) -> Forbidden:
    return Forbidden(f"chat {chat!r} belongs to someone else; use another chat id", code="CHAT_FORBIDDEN")


def ensure(chat: str, at: float) -> Statement:
    """Create the chat's row before a statement refers to it. The record of a refused call makes nobody its owner."""
    return Statement(_ENSURE_ONE, (chat, timestamp(at)))


def ensure_all(chat: int, at: int) -> Insert:
    """The same statement for journaled rows that have these values at those places."""
    return Insert(_ENSURE, (chat, at))


def claim(chat: str, principal: str, at: float) -> Statement:
    """Create the chat's row; the first principal that is not refused owns the chat for good."""
    return Statement(_CLAIM, (chat, principal, timestamp(at)))


class ChatRow(Value):
    """One chat: its owner, the version that its files are at, and its latest message."""

    id: str
    principal: str
    created_at: str
    manifest_id: str | None
    message_id: str | None

    @property
    def place(self) -> str:
        """Its place in the order of creation."""
        return f"{self.created_at} {self.id}"


class Chats:
    """The owners of chats."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def owner(self, chat: str) -> str | None:
        """The principal that first used the chat; None while nobody has. Once given it never changes."""
        rows = await self._db.fetch(_OWNER, chat)
        return rows[0][0] or None if rows else None

    async def list(self, principal: str | None, before: str | None, limit: int) -> list[ChatRow]:
        """The chats of a principal or of all, newest first; `before` is the `place` of the last one already seen."""
        clauses = {"principal = ?": principal, "created_at || ' ' || id < ?": before}
        chosen = {clause: value for clause, value in clauses.items() if value is not None}
        where = " AND ".join([f"principal <> '{NOBODY}'", *chosen])
        sql = " ".join([_LIST, "WHERE", where, "ORDER BY created_at DESC, id DESC LIMIT ?"])
        return [ChatRow(*row) for row in await self._db.fetch(sql, *chosen.values(), limit)]

    async def claim(self, chat: str, principal: str) -> str:
        """Make `principal` the owner of a chat nobody has used yet; the principal it belongs to now."""
        owner = await self.owner(chat)
        if owner is None and reserved_owner(chat) not in (None, principal):
            return LOCAL
        if owner is None:
            _, [(owner,)] = await self._db.run(claim(chat, principal, time.time()), Statement(_OWNER, (chat,)))
        return str(owner)

    async def list_derived(self) -> dict[str, str]:
        """Chats under names that older versions derived from their owners' names, and the owners."""
        return dict(await self._db.fetch(_DERIVED))


_OWNERS = "SELECT DISTINCT process FROM tool_calls WHERE status = 'running'"
_SETTLE = (
    "UPDATE tool_calls SET status = 'error', error_code = 'INTERRUPTED', error = ?, finished_at = ? "
    "WHERE status = 'running' AND process = ? RETURNING id"
)
_END_PROBLEMS = "UPDATE health_events SET ended_at = ? WHERE process = ? AND ended_at IS NULL"
_MESSAGE = "the gateway process that ran this call ended before the call did; what it had done by then is unknown"


class Instance:
    """This process, as others on the same data directory see it: alive until closed or killed."""

    def __init__(self, directory: Path) -> None:
        self.id = new_id()
        self._path = _lock_file(directory, self.id)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        lock(self._descriptor)
        temporary.rename(self._path)  # it appears already locked, so it never looks dead

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


async def settle_interrupted(db: Database, directory: Path) -> list[str]:
    """Mark the running calls of dead processes as interrupted, and their problems as ended; the ids of those calls.

    Any number of processes may do this at once: each dead one is settled by whoever takes its
    lock, and its lock file goes only after its calls are written.
    """
    owners = {process for (process,) in await db.fetch(_OWNERS)}
    settled: list[str] = []
    for process in sorted(owners | _list_lock_files(directory)):
        with _claim(_lock_file(directory, process)) as dead:
            if dead:
                now = timestamp(time.time())
                ended = Statement(_END_PROBLEMS, (now, process))
                rows, _ = await db.run(Statement(_SETTLE, (_MESSAGE, now, process)), ended)
                settled.extend(call for (call,) in rows)
    return settled


@contextlib.contextmanager
def _claim(lock_file: Path) -> Iterator[bool]:
    """True if the owner of a lock file is dead; its lock is then ours while inside, and removed."""
    try:
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        dead = try_lock(descriptor)
        yield dead
        if dead:
            lock_file.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _list_lock_files(directory: Path) -> set[str]:
    return {lock_file.stem for lock_file in directory.glob("*.lock")}


def _lock_file(directory: Path, process: str) -> Path:
    return directory / f"{process}.lock"
