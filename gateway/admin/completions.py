"""Names and ids that a shell completes: read from the database file as it is, because opening a gateway takes longer
than a person at a prompt should wait."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Literal

from gateway.admin.workspaces import short_id
from gateway.calls import DEFAULT_CHAT
from gateway.config import Settings
from gateway.db import DATABASE_FILE
from gateway.workspace.workspaces import default_chat

Kind = Literal[
    "tool",
    "toolset",
    "toolset tool",
    "server",
    "category",
    "profile",
    "chat",
    "version",
    "call",
    "approval",
    "decision",
]

# Each with a text to show beside it; `?` is the chat.
_QUERIES: dict[Kind, str] = {
    "tool": """
        SELECT n.name, t.description FROM tool_names n LEFT JOIN tools t USING (tool_id)
        WHERE (t.missing IS NULL AND t.tool_id IS NOT NULL)
            OR substr(n.tool_id, 1, instr(n.tool_id, ':') - 1) IN (SELECT server FROM upstream_memory)
        ORDER BY n.name
    """,
    "toolset": "SELECT id, name FROM toolsets ORDER BY id",
    "toolset tool": "SELECT tool_id, description FROM tools WHERE toolset_id IS NOT NULL ORDER BY tool_id",
    "server": """
        SELECT name, '' FROM upstreams UNION SELECT id, 'of the toolset ' || toolset_id FROM toolset_mcp_servers
    """,
    "chat": "SELECT id, created_at FROM chats ORDER BY created_at DESC LIMIT 200",
    "version": """
        SELECT id, source || ', ' || created_at FROM manifest_rows WHERE chat_id = ? ORDER BY id DESC LIMIT 50
    """,
    "call": "SELECT id, tool_name || ', ' || status FROM tool_calls ORDER BY id DESC LIMIT 50",
    "approval": "SELECT id, tool_id || ': ' || reason FROM approvals WHERE status = 'waiting' ORDER BY id DESC",
    "decision": "SELECT id, tool_id FROM remembered_approvals WHERE revoked_at IS NULL ORDER BY id DESC LIMIT 50",
}


def find_known(settings: Settings, kind: Kind) -> Iterator[tuple[str, str]]:
    """Yield the known names or ids of a kind, each with a text that explains it. Nothing is created or locked."""
    if kind == "category":
        yield from ((name, category.name) for name, category in settings.effective_categories().items())
    elif kind == "profile":
        yield from ((name, "") for name in settings.profiles)
    elif kind == "server":
        yield from ((name, "of the settings") for name in settings.upstreams)
    if kind in _QUERIES:
        parameters = (default_chat(settings) or DEFAULT_CHAT,) if kind == "version" else ()
        for name, text in _fetch(settings, _QUERIES[kind], parameters):
            yield short_id(name) if kind == "version" else name, " ".join((text or "").split("\n")[0].split())


def _fetch(settings: Settings, query: str, parameters: tuple[str, ...]) -> list[tuple[str, str | None]]:
    try:
        file = (settings.data_dir / DATABASE_FILE).absolute().as_uri()
        with closing(sqlite3.connect(f"{file}?mode=ro", uri=True, timeout=0.2)) as connection:
            return connection.execute(query, parameters).fetchall()
    except sqlite3.Error:  # no gateway has run yet, or one of another version
        return []
