"""Versions of a chat's files as rows: chains of patches, the head of each chat, and the messages they belong to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields

from gateway.db import Database, Statement, timestamp
from gateway.errors import Conflict, Invalid, NotFound

PAGE_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """One row, in the order it is selected. The patches are JSON text against the parent, or
    against nothing when `depth` is 0."""

    id: str
    chat_id: str
    parent_id: str | None
    depth: int
    chain_bytes: int
    full_bytes: int
    patch: str
    meta_patch: str
    created_at: str
    source: str
    source_ref: str | None


@dataclass(frozen=True, slots=True)
class Head:
    """The state of a chat: its manifest (None: no files yet), its latest message, and the manifest
    whose restoring was begun and not ended, if any (empty: that of no files)."""

    manifest_id: str | None = None
    message_id: str | None = None
    materializing: str | None = None


_COLUMNS = ", ".join(field.name for field in fields(ManifestRow))
_INSERT = f"INSERT INTO manifest_rows ({_COLUMNS}) VALUES ({', '.join('?' * len(fields(ManifestRow)))})"  # noqa: S608
_SELECT = f"SELECT {_COLUMNS} FROM manifest_rows"  # noqa: S608
_HEAD = "SELECT active_manifest_id, active_leaf_message_id, materializing FROM chats WHERE id = ?"
_MOVE = (
    "UPDATE chats SET active_manifest_id = ?, active_leaf_message_id = COALESCE(?, active_leaf_message_id), "
    "materializing = NULL WHERE id = ? AND COALESCE(active_manifest_id, '') = COALESCE(?, '')"
)
_MESSAGE = (
    "INSERT INTO messages (chat_id, id, parent_id, manifest_id, created_at) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (chat_id, id) DO UPDATE SET manifest_id = COALESCE(excluded.manifest_id, messages.manifest_id)"
)
_ATTACH = (
    "UPDATE messages SET manifest_id = ? WHERE chat_id = ? AND id = "
    "(SELECT active_leaf_message_id FROM chats WHERE id = ?)"
)
_CHAIN = """
    WITH RECURSIVE chain (depth, parent_id, patch, meta_patch) AS (
        SELECT depth, parent_id, patch, meta_patch FROM manifest_rows WHERE id = ?
        UNION ALL
        SELECT m.depth, m.parent_id, m.patch, m.meta_patch
        FROM chain JOIN manifest_rows m ON m.id = chain.parent_id WHERE chain.depth > 0
    )
    SELECT patch, meta_patch FROM chain ORDER BY depth
"""
_NEAREST = """
    WITH RECURSIVE above (id, parent_id, manifest_id, steps) AS (
        SELECT id, parent_id, manifest_id, 0 FROM messages WHERE chat_id = ? AND id = ?
        UNION ALL
        SELECT m.id, m.parent_id, m.manifest_id, above.steps + 1
        FROM above JOIN messages m ON m.chat_id = ? AND m.id = above.parent_id
        WHERE above.manifest_id IS NULL AND above.steps < 100000
    )
    SELECT manifest_id FROM above WHERE manifest_id IS NOT NULL LIMIT 1
"""
_BEGINNING = """
    SELECT id FROM manifest_rows WHERE chat_id = ? AND id < COALESCE((
        SELECT MIN(id) FROM manifest_rows WHERE chat_id = ? AND source NOT IN ('edit', 'user_upload')
    ), '~') ORDER BY id DESC LIMIT 1
"""


class Manifests:
    """The manifests of one database. Rows are only ever added; what moves is a chat's head."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def head(self, chat: str) -> Head:
        rows = await self._db.fetch(_HEAD, chat)
        return Head(*rows[0]) if rows else Head()

    async def add(self, row: ManifestRow, head: str | None) -> bool:
        """Store the row and make it the chat's head, if the head is still the one given; else it is
        stored as a branch of its own and False is returned. Either way it is never lost."""
        insert = _insert(row)
        attach = Statement(_ATTACH, (row.id, row.chat_id, row.chat_id))
        try:
            await self._db.run(insert, Statement(_MOVE, (row.id, None, row.chat_id, head), 1), attach)
        except Conflict:
            await self.store(row)
            return False
        return True

    async def store(self, row: ManifestRow) -> None:
        """Store the row as a branch; the head stays where it is."""
        await self._db.run(_insert(row))

    async def set_head(self, chat: str, target: str | None, head: str | None, message: str | None = None) -> None:
        """Make another manifest the head. `Conflict` when the head is no longer the one given."""
        attach = Statement(_ATTACH, (target, chat, chat))
        await self._db.run(Statement(_MOVE, (target, message, chat, head), 1), *([] if message else [attach]))

    async def record_pending_restore(self, chat: str, target: str) -> None:
        """Note that the files of a manifest are about to be written to disk; `set_head` clears the note."""
        await self._db.run(Statement("UPDATE chats SET materializing = ? WHERE id = ?", (target, chat), 1))

    async def store_message(self, chat: str, message: str, parent: str | None, manifest: str | None = None) -> None:
        """Store a message, its parent, and its files if it has no parent. A later call does not change them."""
        await self._db.run(Statement(_MESSAGE, (chat, message, parent, manifest, timestamp(time.time()))))

    async def knows_message(self, chat: str, message: str) -> bool:
        return bool(await self._db.fetch("SELECT 1 FROM messages WHERE chat_id = ? AND id = ?", chat, message))

    async def find_by_message(self, chat: str, message: str) -> str | None:
        """The manifest of a message, or of the nearest one above it that has one; without a name, of the beginning of
        the chat: the last that a person made before anything else did."""
        sql, *values = (_NEAREST, chat, message, chat) if message else (_BEGINNING, chat, chat)
        rows = await self._db.fetch(sql, *values)
        return rows[0][0] if rows else None

    async def load_messages(self, chat: str, first: str, last: str) -> dict[str, str]:
        """Messages by their manifests, for manifests between two ids; of several messages, the latest."""
        sql = (
            "SELECT manifest_id, id FROM messages WHERE chat_id = ? AND manifest_id BETWEEN ? AND ? ORDER BY created_at"
        )
        return dict(await self._db.fetch(sql, chat, first, last))

    async def load_tool_names(self, calls: Sequence[str]) -> dict[str, str]:
        """The name of the tool of each of these calls that is recorded."""
        sql = f"SELECT id, tool_name FROM tool_calls WHERE id IN ({', '.join('?' * len(calls))})"  # noqa: S608
        return dict(await self._db.fetch(sql, *calls))

    async def load_chain(self, manifest: str) -> Sequence[tuple[str, str]]:
        """The patches that make a manifest, the whole one first: `(patch, meta_patch)` as JSON text."""
        rows = await self._db.fetch(_CHAIN, manifest)
        if not rows:
            raise NotFound(f"there is no manifest {manifest!r}", code="MANIFEST_NOT_FOUND")
        return [(row[0], row[1]) for row in rows]

    async def get(self, chat: str, id_or_prefix: str) -> ManifestRow:
        """A manifest of the chat by its id or a unique beginning of it."""
        if not id_or_prefix:
            raise Invalid("a manifest id, or its beginning, is needed")
        end = id_or_prefix + "\uffff"
        rows = await self._db.fetch(
            f"{_SELECT} WHERE chat_id = ? AND id >= ? AND id < ? ORDER BY id LIMIT 2", chat, id_or_prefix, end
        )
        if not rows:
            raise NotFound(
                f"chat {chat!r} has no version {id_or_prefix!r}; see: toolgate workspace log", code="MANIFEST_NOT_FOUND"
            )
        if len(rows) > 1 and rows[0][0] != id_or_prefix:
            raise Conflict(f"several manifests begin with {id_or_prefix!r}; give more of the id", code="AMBIGUOUS_ID")
        return ManifestRow(*rows[0])

    async def find(self, manifest: str) -> ManifestRow:
        """A manifest of any chat, by its whole id."""
        rows = await self._db.fetch(f"{_SELECT} WHERE id = ?", manifest)
        if not rows:
            raise NotFound(f"there is no manifest {manifest!r}", code="MANIFEST_NOT_FOUND")
        return ManifestRow(*rows[0])

    async def history(self, chat: str, *, before: str | None = None, limit: int = 50) -> list[ManifestRow]:
        """The chat's manifests of all branches, newest first."""
        if not 1 <= limit <= PAGE_LIMIT:
            raise Invalid(f"limit must be between 1 and {PAGE_LIMIT}, not {limit}")
        where, values = ("AND id < ?", (before,)) if before else ("", ())
        rows = await self._db.fetch(
            f"{_SELECT} WHERE chat_id = ? {where} ORDER BY id DESC LIMIT {limit}", chat, *values
        )
        return [ManifestRow(*row) for row in rows]

    async def beside(self, chat: str, head: str | None, source: str) -> list[ManifestRow]:
        """The versions of a source that were stored beside the head: on top of it, or by the call that made it.
        Newest first."""
        sql = (
            f"{_SELECT} WHERE chat_id = ? AND source = ? AND (COALESCE(parent_id, '') = ? OR source_ref = "  # noqa: S608
            "(SELECT source_ref FROM manifest_rows WHERE id = ?)) ORDER BY id DESC LIMIT 100"
        )
        return [ManifestRow(*row) for row in await self._db.fetch(sql, chat, source, head or "", head)]

    async def unversioned_calls(self, chat: str, since: str, tools: Sequence[str]) -> list[tuple[str, str]]:
        """The successful calls of these tools since a version that left no version of their own: `(id, tool)`, newest
        first."""
        sql = (
            "SELECT id, tool_name FROM tool_calls WHERE chat_id = ? AND id > ? AND status = 'success' "  # noqa: S608
            f"AND tool_id IN ({', '.join('?' * len(tools))}) "
            "AND COALESCE(pre_manifest_id, '') = COALESCE(post_manifest_id, '') "
            "AND NOT EXISTS (SELECT 1 FROM manifest_rows WHERE chat_id = ? AND source_ref = tool_calls.id) "
            "ORDER BY id DESC LIMIT 3"
        )
        return [(row[0], row[1]) for row in await self._db.fetch(sql, chat, since, *tools, chat)]

    async def patches(self, chat: str) -> list[str]:
        """Every patch of the chat: together they name each blob that any of its manifests needs."""
        rows = await self._db.fetch("SELECT patch FROM manifest_rows WHERE chat_id = ?", chat)
        return [row[0] for row in rows]


def _insert(row: ManifestRow) -> Statement:
    return Statement(_INSERT, [getattr(row, field.name) for field in fields(row)])
