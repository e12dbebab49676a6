"""The first migration: the tables as they were at first. Never change it; add a migration instead.

A time is ISO 8601 text, a document is JSON text, an id is text. The view uses JSON functions of SQLite.
"""

from __future__ import annotations

TABLES = (
    # Installed packages of tools, each under one switch.
    """
    CREATE TABLE toolsets (
        id               TEXT PRIMARY KEY,
        name             TEXT NOT NULL,
        version          TEXT NOT NULL,
        description      TEXT,
        enabled          BOOLEAN NOT NULL DEFAULT TRUE,
        installed_at     TEXT NOT NULL,
        source_type      TEXT NOT NULL,              -- zip | local | url
        source_ref       TEXT,                       -- where it came from, for updates
        manifest_version TEXT NOT NULL
    )
    """,
    """
    CREATE TABLE toolset_files (
        toolset_id  TEXT NOT NULL REFERENCES toolsets (id) ON DELETE CASCADE,
        path        TEXT NOT NULL,
        kind        TEXT NOT NULL,                   -- python | artifact | asset | config
        sha256      TEXT NOT NULL,
        size        BIGINT NOT NULL,
        stored_path TEXT NOT NULL,
        PRIMARY KEY (toolset_id, path)
    )
    """,
    # Every tool known by its stable id; toolset_id is NULL for builtins.
    """
    CREATE TABLE tools (
        tool_id               TEXT PRIMARY KEY,
        toolset_id            TEXT REFERENCES toolsets (id) ON DELETE CASCADE,
        name                  TEXT NOT NULL,
        description           TEXT,
        input_schema          TEXT,                  -- only for tools whose schema code does not give
        requires_confirmation BOOLEAN NOT NULL DEFAULT FALSE,
        enabled               BOOLEAN NOT NULL DEFAULT TRUE,
        entrypoint            TEXT                   -- python tools: module:function
    )
    """,
    # What a toolset changes about a tool, its own or an MCP server's; NULL leaves it as it is.
    """
    CREATE TABLE tool_overrides (
        id                    TEXT PRIMARY KEY,
        toolset_id            TEXT NOT NULL REFERENCES toolsets (id) ON DELETE CASCADE,
        tool_id               TEXT NOT NULL,         -- toolset:tool or server:tool
        renderer              TEXT,                  -- code | document | html | frame
        renderer_config       TEXT,
        name_override         TEXT,
        description_override  TEXT,
        requires_confirmation BOOLEAN,
        enabled               BOOLEAN NOT NULL DEFAULT TRUE,
        UNIQUE (toolset_id, tool_id)
    )
    """,
    # MCP servers a toolset declares; values of env and headers are kept as ${VAR}, never resolved.
    """
    CREATE TABLE toolset_mcp_servers (
        id                    TEXT NOT NULL,
        toolset_id            TEXT NOT NULL REFERENCES toolsets (id) ON DELETE CASCADE,
        server_type           TEXT NOT NULL,         -- stdio | sse | streamable-http
        enabled               BOOLEAN NOT NULL DEFAULT TRUE,
        command               TEXT,
        args                  TEXT,
        cwd                   TEXT,
        url                   TEXT,
        headers               TEXT,
        env                   TEXT,
        requires_confirmation BOOLEAN NOT NULL DEFAULT FALSE,
        created_at            TEXT NOT NULL,
        PRIMARY KEY (toolset_id, id)
    )
    """,
    # A conversation. It belongs to the principal that first used it.
    """
    CREATE TABLE chats (
        id                     TEXT PRIMARY KEY,
        principal              TEXT NOT NULL,
        active_leaf_message_id TEXT,
        active_manifest_id     TEXT,
        materializing          TEXT,                 -- the manifest being written to disk; set only meanwhile
        created_at             TEXT NOT NULL
    )
    """,
    # A conversation's messages, as far as calls have named them; the files of one are its own manifest's or,
    # where it has none, those of the nearest message above it.
    """
    CREATE TABLE messages (
        chat_id     TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        id          TEXT NOT NULL,
        parent_id   TEXT,
        manifest_id TEXT,
        created_at  TEXT NOT NULL,
        PRIMARY KEY (chat_id, id)
    )
    """,
    # One immutable version of a chat's files; parents form branches. Kept as a merge patch (RFC 7396) against
    # the parent, or against nothing at depth 0; `workspace_manifests` shows each whole.
    """
    CREATE TABLE manifest_rows (
        id          TEXT PRIMARY KEY,
        chat_id     TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        parent_id   TEXT,
        depth       INTEGER NOT NULL,                -- patches to apply on the whole one this chain starts from
        chain_bytes BIGINT NOT NULL,                 -- what those patches weigh together
        full_bytes  BIGINT NOT NULL,                 -- what the whole one would weigh
        patch       TEXT NOT NULL,                   -- {path: sha256 | null}
        meta_patch  TEXT NOT NULL,                   -- {path: x | l | d | null}: executable, link, empty directory
        created_at  TEXT NOT NULL,
        source      TEXT NOT NULL,                   -- user_upload | tool_run | branch | edit | interrupted | undone
        source_ref  TEXT                             -- the message or tool call behind it
    )
    """,
    "CREATE INDEX manifest_rows_by_chat ON manifest_rows (chat_id, id)",
    """
    CREATE VIEW workspace_manifests AS
    SELECT r.id, r.chat_id, r.parent_id, (
        WITH RECURSIVE chain (id, parent_id, depth, patch) AS (
            SELECT id, parent_id, depth, patch FROM manifest_rows WHERE id = r.id
            UNION ALL
            SELECT m.id, m.parent_id, m.depth, m.patch
            FROM chain JOIN manifest_rows m ON m.id = chain.parent_id WHERE chain.depth > 0
        )
        SELECT json_group_object(key, value) FROM (
            SELECT entry.key AS key, entry.value AS value, max(chain.depth)
            FROM chain, json_each(chain.patch) entry GROUP BY entry.key
        ) WHERE value IS NOT NULL
    ) AS files, r.created_at, r.source, r.source_ref
    FROM manifest_rows r
    """,
    # Every call, refused ones and unknown names included. Ids sort by time.
    """
    CREATE TABLE tool_calls (
        id                TEXT PRIMARY KEY,
        chat_id           TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        message_id        TEXT,
        parent_message_id TEXT,
        tool_id           TEXT NOT NULL,             -- the name as called when no tool has it
        tool_name         TEXT NOT NULL,             -- the name as called
        category          TEXT,                      -- NULL when no tool has that name
        principal         TEXT NOT NULL,
        surface           TEXT NOT NULL,             -- mcp | cli | library | rest | console
        client            TEXT,
        args              TEXT,
        result            TEXT,
        render_plan       TEXT,
        status            TEXT NOT NULL CHECK (status IN ('pending', 'running', 'success', 'error')),
        error             TEXT,
        error_code        TEXT,
        started_at        TEXT NOT NULL,
        finished_at       TEXT,
        duration_ms       DOUBLE PRECISION,
        pre_manifest_id   TEXT,
        post_manifest_id  TEXT,
        process           TEXT                       -- the instance that runs it
    )
    """,
    "CREATE INDEX tool_calls_by_chat ON tool_calls (chat_id, id)",
    "CREATE INDEX tool_calls_by_tool ON tool_calls (tool_id, id)",
    "CREATE INDEX tool_calls_by_principal ON tool_calls (principal, id)",
    "CREATE INDEX tool_calls_running ON tool_calls (process) WHERE status = 'running'",
    "CREATE INDEX tool_calls_failed ON tool_calls (id) WHERE status = 'error'",
    # Public names once handed out, so that a name never changes its meaning.
    """
    CREATE TABLE tool_names (
        name    TEXT PRIMARY KEY,
        tool_id TEXT NOT NULL UNIQUE
    )
    """,
)
