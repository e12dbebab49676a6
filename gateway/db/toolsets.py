"""Installed toolsets as rows: what each says, its files, and what the person changed about its tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any

from gateway.db import REVISION, Database, Row, Statement, bump_revision, load_revision
from gateway.errors import Conflict
from gateway.value import Value

SUBJECT = "toolsets"


class ToolsetRow(Value):
    """One row of `toolsets`; `spec` is the JSON of everything in toolset.yaml that is no list of other rows."""

    id: str
    name: str
    version: str
    description: str | None
    enabled: bool
    installed_at: str
    source_type: str
    source_ref: str | None
    manifest_version: str
    digest: str
    live: bool
    updated_at: str
    spec: str
    bundle_id: str | None = None
    deleted_at: str | None = None


class FileRow(Value):
    toolset_id: str
    path: str
    kind: str
    sha256: str
    size: int
    stored_path: str
    executable: bool


class ToolRow(Value):
    """One row of `tools`; `missing` says why the tool is no longer there, `described` what its code said."""

    tool_id: str
    toolset_id: str
    name: str
    description: str | None
    input_schema: str | None
    requires_confirmation: bool
    enabled: bool
    entrypoint: str | None
    kind: str
    position: int
    spec: str
    described: str | None
    missing: str | None
    created_at: str = ""
    modified_at: str = ""


class OverrideRow(Value):
    """One row of `tool_overrides`; without `spec` it only repeats a tool's own renderer."""

    id: str
    toolset_id: str
    tool_id: str
    renderer: str | None
    renderer_config: str | None
    name_override: str | None
    description_override: str | None
    requires_confirmation: bool | None
    enabled: bool
    position: int
    spec: str | None


class ServerRow(Value):
    id: str
    toolset_id: str
    server_type: str
    enabled: bool
    command: str | None
    args: str | None
    cwd: str | None
    url: str | None
    headers: str | None
    env: str | None
    requires_confirmation: bool
    created_at: str
    position: int
    spec: str


class UserOverrideRow(Value):
    """Changes a person made to a tool; None leaves it as the toolset has it."""

    toolset_id: str
    tool_id: str
    renderer: str | None = None
    renderer_config: str | None = None
    name_override: str | None = None
    description_override: str | None = None
    requires_confirmation: bool | None = None
    enabled: bool | None = None


class ConsentRow(Value):
    """A person's consent to one server of a toolset, as it was when it had this digest."""

    toolset_id: str
    server_id: str
    digest: str
    agreed_by: str
    agreed_at: str


class StoredToolset(Value):
    """Everything the database holds of one toolset, of one moment."""

    toolset: ToolsetRow
    files: tuple[FileRow, ...] = ()
    tools: tuple[ToolRow, ...] = ()
    overrides: tuple[OverrideRow, ...] = ()
    servers: tuple[ServerRow, ...] = ()
    user_overrides: tuple[UserOverrideRow, ...] = ()
    consents: tuple[ConsentRow, ...] = ()


# The columns of each kind of row, and which of them are switches.
_COLUMNS: dict[type[Any], dict[str, bool]] = {
    kind: {name: annotation.startswith("bool") for name, annotation in kind.__annotations__.items()}
    for kind in (ToolsetRow, FileRow, ToolRow, OverrideRow, ServerRow, UserOverrideRow, ConsentRow)
}

# The tables of a toolset in the order of `StoredToolset`, each with its order.
_PARTS: tuple[tuple[str, type[Any], str], ...] = (
    ("toolset_files", FileRow, "path"),
    ("tools", ToolRow, "position, tool_id"),
    ("tool_overrides", OverrideRow, "position, tool_id"),
    ("toolset_mcp_servers", ServerRow, "position, id"),
    ("user_overrides", UserOverrideRow, "tool_id"),
    ("server_consents", ConsentRow, "server_id"),
)

_REPLACED = ("toolset_files", "tools", "tool_overrides", "toolset_mcp_servers")
_BUMP = bump_revision(SUBJECT)
_UPDATE = (
    "UPDATE toolsets SET name = ?, version = ?, description = ?, source_type = ?, source_ref = ?, "
    "manifest_version = ?, digest = ?, live = ?, updated_at = ?, spec = ?, deleted_at = NULL "
    "WHERE id = ? AND digest = ?"
)
_SET_ENABLED = "UPDATE tools SET enabled = ? WHERE tool_id = ?"
_AGREE = (
    "INSERT INTO server_consents (toolset_id, server_id, digest, agreed_by, agreed_at) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (toolset_id, server_id) DO UPDATE SET digest = excluded.digest, agreed_by = excluded.agreed_by, "
    "agreed_at = excluded.agreed_at"
)


class Toolsets:
    """The installed toolsets of one database. Every change is one transaction and makes the revision grow."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def revision(self) -> int:
        """A number that grows with every change, by any process."""
        return await load_revision(self._db, SUBJECT)

    async def load(self) -> tuple[int, list[StoredToolset]]:
        """Every toolset by id, and the revision at which they were so."""
        return await self._read("WHERE {} IS NOT NULL")

    async def find(self, toolset_id: str) -> StoredToolset | None:
        _, found = await self._read("WHERE {} = ?", toolset_id)
        return found[0] if found else None

    async def digests(self) -> dict[str, str]:
        """The digest of each toolset's content: `{id: digest}`."""
        return dict(await self._db.fetch("SELECT id, digest FROM toolsets ORDER BY id"))

    async def tool_ids(self) -> frozenset[str]:
        """The full ids of all tools of toolsets, those that are gone among them."""
        rows = await self._db.fetch("SELECT tool_id FROM tools WHERE toolset_id IS NOT NULL")
        return frozenset(tool_id for (tool_id,) in rows)

    async def servers(self) -> dict[str, str]:
        """The toolset that brings each MCP server: `{server id: toolset id}`."""
        return dict(await self._db.fetch("SELECT id, toolset_id FROM toolset_mcp_servers ORDER BY toolset_id DESC"))

    async def put(self, stored: StoredToolset, over: str | None, removed: Sequence[str] = ()) -> None:
        """Store a version whole, over the one with the digest given, or as a new toolset; `Conflict` when
        that is not what is there. The switch, the first date and what the person changed stay, but not those of the
        `removed` tools."""
        row = stored.toolset
        head = _insert("toolsets", row)
        if over is not None:
            first = (row.name, row.version, row.description, row.source_type, row.source_ref)
            rest = (row.manifest_version, row.digest, row.live, row.updated_at, row.spec)
            head = Statement(_UPDATE, (*first, *rest, row.id, over), 1)
        gone = [Statement(f"DELETE FROM {table} WHERE toolset_id = ?", (row.id,)) for table in _REPLACED]  # noqa: S608
        parts = (stored.files, stored.tools, stored.overrides, stored.servers)
        new = [_insert(table, entry) for table, rows in zip(_REPLACED, parts, strict=True) for entry in rows]
        gone += [_unset(row.id, tool_id) for tool_id in removed]
        gone += [Statement("DELETE FROM tool_usage WHERE tool_id = ?", (tool_id,)) for tool_id in removed]
        await self._db.run(head, *gone, *new, _BUMP)

    async def set_source(self, toolset_id: str, source_type: str, source_ref: str | None, live: bool) -> None:
        """Note that the same content now comes from elsewhere."""
        sql = "UPDATE toolsets SET source_type = ?, source_ref = ?, live = ? WHERE id = ?"
        await self._db.run(Statement(sql, (source_type, source_ref, live, toolset_id), 1), _BUMP)

    async def enable(self, toolset_id: str, enabled: bool) -> bool:
        """Switch a toolset on or off; False when there is none."""
        return await self._try(Statement("UPDATE toolsets SET enabled = ? WHERE id = ?", (enabled, toolset_id), 1))

    async def set_override(self, row: UserOverrideRow, enabled: bool) -> None:
        """Store what the person changed about a tool, in place of what they had changed before. `enabled` is whether
        the tool is on with that."""
        set_enabled = Statement(_SET_ENABLED, (enabled, row.tool_id))
        await self._db.run(_unset(row.toolset_id, row.tool_id), _insert("user_overrides", row), set_enabled, _BUMP)

    async def remove_override(self, toolset_id: str, tool_id: str, enabled: bool) -> bool:
        """Drop a person's changes; False when there were none. `enabled` is whether the tool is on without them."""
        return await self._try(_unset(toolset_id, tool_id, 1), Statement(_SET_ENABLED, (enabled, tool_id)))

    async def remove(self, toolset_id: str, deleted_at: str | None = None) -> bool:
        """Remove every row of a toolset, or only one that was soft-deleted at that moment; False when there is none."""
        sql = "DELETE FROM toolsets WHERE id = ? AND COALESCE(deleted_at, '') = COALESCE(?, deleted_at, '')"
        usage = "DELETE FROM tool_usage WHERE tool_id IN (SELECT tool_id FROM tools WHERE toolset_id = ?)"
        return await self._try(Statement(usage, (toolset_id,)), Statement(sql, (toolset_id, deleted_at), 1))

    async def soft_delete(self, toolset_id: str, moment: str) -> bool:
        """Hide a toolset until it is put again or removed; False when there is none."""
        sql = "UPDATE toolsets SET deleted_at = ? WHERE id = ? AND deleted_at IS NULL"
        return await self._try(Statement(sql, (moment, toolset_id), 1))

    async def usage(self) -> dict[str, tuple[int, str]]:
        """The number of calls of each tool that was called, builtins included, and when the last one began."""
        rows = await self._db.fetch("SELECT tool_id, call_count, last_called_at FROM tool_usage")
        return {tool_id: (count, last) for tool_id, count, last in rows}

    async def recency(self) -> dict[str, tuple[str, str]]:
        """Return when each tool was changed, as far as it is stored here, and called last; empty if never."""
        both = (
            "SELECT tool_id, modified_at, '' AS called_at FROM tools "
            "UNION ALL SELECT tool_id, '', last_called_at FROM tool_usage"
        )
        sql = f"SELECT tool_id, max(modified_at), max(called_at) FROM ({both}) GROUP BY tool_id"  # noqa: S608
        return {tool_id: (modified, called) for tool_id, modified, called in await self._db.fetch(sql)}

    async def agree(self, rows: Sequence[ConsentRow]) -> None:
        """Store consents, each in place of the one before. What is remembered of a server of that name is forgotten,
        since it may come from another server; `Conflict` when the toolset is gone."""
        agreed = [Statement(_AGREE, astuple(row)) for row in rows]
        forgotten = [Statement("DELETE FROM upstream_memory WHERE server = ?", (row.server_id,)) for row in rows]
        await self._db.run(*agreed, *forgotten, _BUMP)

    async def withdraw(self, toolset_id: str) -> None:
        """Remove every consent to servers of a toolset."""
        await self._db.run(Statement("DELETE FROM server_consents WHERE toolset_id = ?", (toolset_id,)), _BUMP)

    async def _try(self, *statements: Statement) -> bool:
        try:
            await self._db.run(*statements, _BUMP)
        except Conflict:
            return False
        return True

    async def _read(self, where: str, *parameters: str) -> tuple[int, list[StoredToolset]]:
        """As one transaction: between two reads another process could switch to another version."""
        selects = [Statement(_select("toolsets", ToolsetRow, where.format("id"), "id"), parameters)]
        for table, kind, order in _PARTS:
            selects.append(Statement(_select(table, kind, where.format("toolset_id"), order), parameters))
        revision, heads, *parts = await self._db.run(Statement(REVISION, (SUBJECT,)), *selects)
        sorted_parts = [_by_toolset(kind, rows) for (_, kind, _), rows in zip(_PARTS, parts, strict=True)]
        found = [_entry(ToolsetRow, row) for row in heads]
        stored = [StoredToolset(row, *(part.get(row.id, ()) for part in sorted_parts)) for row in found]
        return int(revision[0][0]) if revision else 0, stored


def _by_toolset(kind: type[Any], rows: Iterable[Row]) -> dict[str, tuple[Any, ...]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        entry = _entry(kind, row)
        found.setdefault(entry.toolset_id, []).append(entry)
    return {toolset_id: tuple(entries) for toolset_id, entries in found.items()}


def _entry(kind: type[Any], row: Row) -> Any:
    """The row with its switches as such: SQLite has only numbers for them."""
    switches = _COLUMNS[kind].values()
    return kind(
        *(bool(value) if switch and value is not None else value for value, switch in zip(row, switches, strict=True))
    )


def _select(table: str, kind: type[Any], where: str, order: str) -> str:
    return f"SELECT {', '.join(_COLUMNS[kind])} FROM {table} {where} ORDER BY {order}"  # noqa: S608 - own names


def _insert(table: str, entry: Any) -> Statement:
    columns = _COLUMNS[type(entry)]
    sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
    return Statement(sql, [getattr(entry, column) for column in columns])


def _unset(toolset_id: str, tool_id: str, expect: int | None = None) -> Statement:
    sql = "DELETE FROM user_overrides WHERE toolset_id = ? AND tool_id = ?"
    return Statement(sql, (toolset_id, tool_id), expect)
