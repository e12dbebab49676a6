"""Builtin tools as rows of `tools`; tools that a person turned off, and a person's changes to categories."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from gateway.db import Database, Row, Statement, bump_revision, load_revision, timestamp
from gateway.errors import Conflict
from gateway.tools import Tool
from gateway.value import Value

SUBJECT = "switches"


class CategoryRow(Value):
    """A person's changes to a category; None leaves it as settings have it. No limit on calls is 0."""

    id: str
    name: str | None = None
    description: str | None = None
    enabled: bool | None = None
    permission: str | None = None
    calls_per_minute: int | None = None


class BuiltinState(NamedTuple):
    """The switch of a builtin, its first date and the date of its last change."""

    enabled: bool
    created_at: str
    modified_at: str


_CATEGORY_COLUMNS = [*CategoryRow.__annotations__]
_CATEGORIES = f"SELECT {', '.join(_CATEGORY_COLUMNS)} FROM categories ORDER BY id"  # noqa: S608 - own names
_SET_CATEGORY = (
    f"INSERT INTO categories ({', '.join(_CATEGORY_COLUMNS)}) VALUES ({', '.join('?' * len(_CATEGORY_COLUMNS))}) "  # noqa: S608
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _CATEGORY_COLUMNS[1:])}"
)
_BUILTINS = """SELECT tool_id, name, description, requires_confirmation, position, enabled FROM tools
    WHERE toolset_id IS NULL"""
_PUT_BUILTIN = """INSERT INTO tools
    (tool_id, name, description, requires_confirmation, position, created_at, modified_at)
    VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tool_id) DO UPDATE SET name = excluded.name,
    description = excluded.description, requires_confirmation = excluded.requires_confirmation,
    position = excluded.position, modified_at = excluded.modified_at"""
_ENABLE = "UPDATE tools SET enabled = ? WHERE tool_id = ? AND toolset_id IS NULL"
_DISABLED = "SELECT tool_id FROM disabled_tools"
_DISABLE_TOOL = "INSERT INTO disabled_tools (tool_id) VALUES (?) ON CONFLICT (tool_id) DO NOTHING"
_ENABLE_TOOL = "DELETE FROM disabled_tools WHERE tool_id = ?"
_BUMP = bump_revision(SUBJECT)


class Switches:
    """The builtins and the switches of one database. Every change by a person makes the revision grow."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def revision(self) -> int:
        """A number that grows with every change, by any process."""
        return await load_revision(self._db, SUBJECT)

    async def load_categories(self) -> dict[str, CategoryRow]:
        """The changed categories, by id."""
        return {row.id: row for row in map(_parse_category, await self._db.fetch(_CATEGORIES))}

    async def sync_builtins(self, tools: Iterable[Tool]) -> frozenset[str]:
        """Store the builtins, and return the ids of those, and of tools of servers, that a person turned off. A builtin
        without a description was not loaded, since its category is off; its row stays as it is."""
        builtins, disabled = await self._db.run(Statement(_BUILTINS), Statement(_DISABLED))
        known = {row[0]: row[1:] for row in builtins}
        changed, moment = [], timestamp(time.time())
        for position, tool in enumerate(tools):
            row = (tool.title or tool.id, tool.description or None, bool(tool.requires_confirmation), position)
            if tool.id not in known or (tool.description and known[tool.id][:3] != row[:3]):
                changed.append(Statement(_PUT_BUILTIN, (tool.id, *row, moment, moment)))
        if changed:
            await self._db.run(*changed)
        return frozenset([*(tool_id for tool_id, row in known.items() if not row[-1]), *(row[0] for row in disabled)])

    async def load_builtin_states(self) -> dict[str, BuiltinState]:
        """The switch and dates of every builtin, by id."""
        sql = "SELECT tool_id, enabled, created_at, modified_at FROM tools WHERE toolset_id IS NULL"
        rows = await self._db.fetch(sql)
        return {tool_id: BuiltinState(bool(enabled), *times) for tool_id, enabled, *times in rows}

    async def enable_builtin(self, tool_id: str, enabled: bool) -> bool:
        """Turn a builtin on or off; False when there is none of that id."""
        try:
            await self._db.run(Statement(_ENABLE, (enabled, tool_id), 1), _BUMP)
        except Conflict:
            return False
        return True

    async def enable_server_tool(self, tool_id: str, enabled: bool) -> None:
        """Turn a tool of a server on or off, wherever the server is set up."""
        await self._db.run(Statement(_ENABLE_TOOL if enabled else _DISABLE_TOOL, (tool_id,)), _BUMP)

    async def set_category(self, row: CategoryRow) -> None:
        """Store a person's changes to a category, in place of earlier ones."""
        await self._db.run(Statement(_SET_CATEGORY, [getattr(row, name) for name in _CATEGORY_COLUMNS]), _BUMP)

    async def reset_category(self, category_id: str) -> None:
        """Drop a person's changes to a category."""
        await self._db.run(Statement("DELETE FROM categories WHERE id = ?", (category_id,)), _BUMP)


def _parse_category(row: Row) -> CategoryRow:
    values: dict[str, Any] = dict(zip(_CATEGORY_COLUMNS, row, strict=True))
    enabled = values["enabled"]
    return CategoryRow(**{**values, "enabled": None if enabled is None else bool(enabled)})
