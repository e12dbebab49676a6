"""Forward migrations, numbered by their place in the list; an engine runs the pending ones at start."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.db import schema
from gateway.errors import Unavailable

# Statements that run as one transaction.
Migration = Sequence[str]

INSTALLED_TOOLSETS: Migration = (
    # A row's `spec` is what toolset.yaml says there, whole; the columns beside it say the same to whoever queries.
    # `position` is its place in the list it comes from.
    "ALTER TABLE toolsets ADD COLUMN digest TEXT NOT NULL DEFAULT ''",  # of the content, secrets masked
    "ALTER TABLE toolsets ADD COLUMN live BOOLEAN NOT NULL DEFAULT FALSE",  # its folder is followed
    "ALTER TABLE toolsets ADD COLUMN updated_at TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE toolsets ADD COLUMN spec TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE toolset_files ADD COLUMN executable BOOLEAN NOT NULL DEFAULT FALSE",
    "ALTER TABLE tools ADD COLUMN kind TEXT NOT NULL DEFAULT 'builtin'",  # builtin | python | shell | http | steps
    "ALTER TABLE tools ADD COLUMN position INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE tools ADD COLUMN spec TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE tools ADD COLUMN described TEXT",  # what its code says: schemas, description, flags
    "ALTER TABLE tools ADD COLUMN missing TEXT",  # why it is gone; NULL while it is there
    "CREATE INDEX tools_by_toolset ON tools (toolset_id)",
    "ALTER TABLE tool_overrides ADD COLUMN position INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE tool_overrides ADD COLUMN spec TEXT",  # NULL when only a tool's own 'renderer' says it
    "ALTER TABLE toolset_mcp_servers ADD COLUMN position INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE toolset_mcp_servers ADD COLUMN spec TEXT NOT NULL DEFAULT '{}'",
    # What a person changed about a tool, on top of tool_overrides; no new version of the toolset touches it.
    """
    CREATE TABLE user_overrides (
        toolset_id            TEXT NOT NULL REFERENCES toolsets (id) ON DELETE CASCADE,
        tool_id               TEXT NOT NULL,         -- toolset:tool or server:tool
        renderer              TEXT,
        renderer_config       TEXT,
        name_override         TEXT,
        description_override  TEXT,
        requires_confirmation BOOLEAN,
        enabled               BOOLEAN,
        PRIMARY KEY (toolset_id, tool_id)
    )
    """,
    # A number that grows with every change of a subject, so that other processes notice by reading one row.
    """
    CREATE TABLE revisions (
        subject  TEXT PRIMARY KEY,
        revision BIGINT NOT NULL
    )
    """,
)

UPSTREAMS: Migration = (
    # Servers added by hand, beside those of the settings file and of toolsets; secrets only as ${VAR}.
    """
    CREATE TABLE upstreams (
        name       TEXT PRIMARY KEY,
        settings   TEXT NOT NULL,
        enabled    BOOLEAN NOT NULL DEFAULT TRUE,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL
    )
    """,
    # What any server said when it last answered, so that a list never waits for one that is dead.
    """
    CREATE TABLE upstream_memory (
        server       TEXT PRIMARY KEY,
        era          TEXT,                           -- the protocol version it spoke
        tools        TEXT,                           -- as listed: a JSON array
        prompts      TEXT,
        templates    TEXT,
        instructions TEXT,
        seen_at      TEXT,
        error        TEXT,                           -- why it did not answer; NULL since it did
        error_at     TEXT
    )
    """,
    # Each definition of a server: the one that was accepted, and beside it the one that waits or was refused.
    """
    CREATE TABLE pins (
        server          TEXT NOT NULL,
        kind            TEXT NOT NULL,               -- tool | prompt | template | instructions
        name            TEXT NOT NULL,
        state           TEXT NOT NULL CHECK (state IN ('accepted', 'held', 'rejected')),
        digest          TEXT,                        -- of the accepted one; NULL before any was
        definition      TEXT,
        held_digest     TEXT,
        held_definition TEXT,
        first_seen      TEXT NOT NULL,
        held_at         TEXT,
        decided_at      TEXT,
        decided_by      TEXT,                        -- a principal, or 'first sight'
        PRIMARY KEY (server, kind, name)
    )
    """,
    "CREATE INDEX pins_held ON pins (server, kind, name) WHERE state = 'held'",
)

APPROVALS: Migration = (
    # Every question put to a person, and what came of it; texts and arguments without their secrets.
    """
    CREATE TABLE approvals (
        id          TEXT PRIMARY KEY,
        call_id     TEXT NOT NULL,
        chat_id     TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        principal   TEXT NOT NULL,
        tool_id     TEXT NOT NULL,
        via         TEXT NOT NULL,                   -- elicitation | queue | terminal | callback
        question    TEXT NOT NULL,                   -- a digest of all that was shown
        grounds     TEXT NOT NULL,                   -- what made it ask
        tool_digest TEXT NOT NULL,
        remember    BOOLEAN NOT NULL,                -- whether the answer may count for longer than one call
        reason      TEXT NOT NULL,
        message     TEXT NOT NULL,
        args        TEXT,
        edited_args TEXT,                            -- where the person changed them
        status      TEXT NOT NULL CHECK (
            status IN ('waiting', 'allowed', 'used', 'denied', 'dismissed', 'cancelled', 'expired')
        ),
        scope       TEXT,                            -- once | chat | always
        decided_by  TEXT,
        decided_at  TEXT,
        created_at  TEXT NOT NULL,
        expires_at  TEXT NOT NULL,
        nonce       TEXT NOT NULL                    -- of the one state that may go on with it
    )
    """,
    "CREATE INDEX approvals_open ON approvals (principal) WHERE status = 'waiting'",
    "CREATE INDEX approvals_by_question ON approvals (question)",
    "CREATE INDEX approvals_expiring ON approvals (expires_at) WHERE status IN ('waiting', 'allowed')",
    # Answers that count for longer than one call; chat_id is NULL where they count in every chat.
    """
    CREATE TABLE remembered_approvals (
        id          TEXT PRIMARY KEY,
        principal   TEXT NOT NULL,
        chat_id     TEXT REFERENCES chats (id) ON DELETE CASCADE,
        tool_id     TEXT NOT NULL,
        tool_digest TEXT NOT NULL,
        grounds     TEXT NOT NULL,
        approval_id TEXT NOT NULL,
        created_by  TEXT NOT NULL,
        created_at  TEXT NOT NULL,
        revoked_by  TEXT,
        revoked_at  TEXT
    )
    """,
    "CREATE INDEX remembered_by_tool ON remembered_approvals (tool_id, principal) WHERE revoked_at IS NULL",
)

SERVER_CONSENTS: Migration = (
    # What a person agreed to: a server of a toolset, as it was then. It counts while the server has that digest.
    """
    CREATE TABLE server_consents (
        toolset_id TEXT NOT NULL REFERENCES toolsets (id) ON DELETE CASCADE,
        server_id  TEXT NOT NULL,
        digest     TEXT NOT NULL,
        agreed_by  TEXT NOT NULL,
        agreed_at  TEXT NOT NULL,
        PRIMARY KEY (toolset_id, server_id)
    )
    """,
)

TOOL_NAMES: Migration = (
    # A tool keeps the names it had under an earlier prefix.
    "CREATE TABLE names_of_tools (name TEXT PRIMARY KEY, tool_id TEXT NOT NULL)",
    "INSERT INTO names_of_tools SELECT name, tool_id FROM tool_names",
    "DROP TABLE tool_names",
    "ALTER TABLE names_of_tools RENAME TO tool_names",
)

SWITCHES: Migration = (
    # What a person changed about a category, on top of the settings; NULL leaves it as it is.
    """
    CREATE TABLE categories (
        id               TEXT PRIMARY KEY,
        name             TEXT,
        description      TEXT,
        enabled          BOOLEAN,
        permission       TEXT,
        calls_per_minute INTEGER                     -- 0 for no limit
    )
    """,
    # `tools.enabled` is what applies, a person's choice included.
    """
    UPDATE tools SET enabled = (
        SELECT enabled FROM user_overrides
        WHERE user_overrides.toolset_id = tools.toolset_id AND user_overrides.tool_id = tools.tool_id
    ) WHERE EXISTS (
        SELECT 1 FROM user_overrides
        WHERE user_overrides.toolset_id = tools.toolset_id AND user_overrides.tool_id = tools.tool_id
            AND user_overrides.enabled IS NOT NULL
    )
    """,
)

STEPS_AND_RETRIES: Migration = (
    "ALTER TABLE tool_calls ADD COLUMN parent_call_id TEXT",  # the call whose step it is
    "ALTER TABLE tool_calls ADD COLUMN attempts INTEGER",
    "CREATE INDEX tool_calls_by_parent ON tool_calls (parent_call_id) WHERE parent_call_id IS NOT NULL",
)

API_KEYS: Migration = (
    """
    CREATE TABLE api_keys (
        id           TEXT PRIMARY KEY,
        name         TEXT NOT NULL,                  -- the principal
        role         TEXT NOT NULL,
        profile      TEXT,
        digest       TEXT NOT NULL UNIQUE,           -- SHA-256 of the key, in hex
        hint         TEXT NOT NULL,                  -- its first characters
        created_at   TEXT NOT NULL,
        created_by   TEXT NOT NULL,
        expires_at   TEXT,
        last_used_at TEXT,
        revoked_at   TEXT
    )
    """,
)

OAUTH_GRANTS: Migration = (
    # A client that a person allowed to act as them, and its tokens as SHA-256 in hex. Times in seconds since 1970.
    """
    CREATE TABLE oauth_grants (
        id          TEXT PRIMARY KEY,
        principal   TEXT NOT NULL,
        key_digest  TEXT,                            -- of the key it was given with; it ends with the key
        role        TEXT,                            -- without a key, from an identity assertion
        client_id   TEXT NOT NULL,
        client_name TEXT NOT NULL,
        resource    TEXT NOT NULL,
        permission  TEXT NOT NULL,
        created_at  REAL NOT NULL,
        expires_at  REAL,
        revoked_at  REAL
    )
    """,
    """
    CREATE TABLE oauth_tokens (
        digest     TEXT PRIMARY KEY,
        grant_id   TEXT NOT NULL REFERENCES oauth_grants (id) ON DELETE CASCADE,
        kind       TEXT NOT NULL CHECK (kind IN ('code', 'access', 'refresh', 'assertion')),
        expires_at REAL NOT NULL,
        used_at    REAL,
        details    TEXT NOT NULL                     -- of a code: its challenge and redirect URI
    )
    """,
    "CREATE INDEX oauth_tokens_by_grant ON oauth_tokens (grant_id)",
)

_COUNT_CALL = """
    INSERT INTO tool_usage VALUES (NEW.tool_id, 1, NEW.started_at)
    ON CONFLICT (tool_id) DO UPDATE SET
        call_count = call_count + 1, last_called_at = max(last_called_at, excluded.last_called_at);
"""

REST_BUNDLES: Migration = (
    # The id that a REST client gave the bundle; NULL where one is derived from the toolset's id and first date.
    "ALTER TABLE toolsets ADD COLUMN bundle_id TEXT",
    "CREATE UNIQUE INDEX toolsets_by_bundle ON toolsets (bundle_id)",
    "ALTER TABLE toolsets ADD COLUMN deleted_at TEXT",  # soft-deleted: hidden until it is put again or reaped
    "ALTER TABLE tools ADD COLUMN created_at TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE tools ADD COLUMN modified_at TEXT NOT NULL DEFAULT ''",
    """
    UPDATE tools SET
        created_at = COALESCE(
            (SELECT installed_at FROM toolsets WHERE toolsets.id = tools.toolset_id),
            strftime('%Y-%m-%dT%H:%M:%f+00:00', 'now')
        ),
        modified_at = COALESCE(
            (SELECT updated_at FROM toolsets WHERE toolsets.id = tools.toolset_id),
            strftime('%Y-%m-%dT%H:%M:%f+00:00', 'now')
        )
    """,
    # Calls of each tool. A trigger counts them where their records are written: in groups, after the answers.
    """
    CREATE TABLE tool_usage (
        tool_id        TEXT PRIMARY KEY,
        call_count     BIGINT NOT NULL,
        last_called_at TEXT NOT NULL
    )
    """,
    "INSERT INTO tool_usage SELECT tool_id, count(*), max(started_at) FROM tool_calls GROUP BY tool_id",
    f"CREATE TRIGGER count_call AFTER INSERT ON tool_calls WHEN NEW.category IS NOT NULL BEGIN {_COUNT_CALL} END",
)

_COUNT_USAGE = """
    INSERT INTO call_usage VALUES (
        substr(NEW.started_at, 1, 10), CASE WHEN NEW.category IS NULL THEN '' ELSE NEW.tool_id END, NEW.principal,
        1, NEW.status = 'error', COALESCE(NEW.duration_ms, 0), COALESCE(NEW.duration_ms, 0),
        COALESCE(NEW.args_bytes, 0), COALESCE(NEW.result_bytes, 0)
    ) ON CONFLICT (day, tool_id, principal) DO UPDATE SET
        calls = calls + 1, errors = errors + excluded.errors, duration_ms = duration_ms + excluded.duration_ms,
        longest_ms = max(longest_ms, excluded.longest_ms), args_bytes = args_bytes + excluded.args_bytes,
        result_bytes = result_bytes + excluded.result_bytes;
"""

CALL_USAGE: Migration = (
    "ALTER TABLE tool_calls ADD COLUMN args_bytes BIGINT",  # before they were cut off
    "ALTER TABLE tool_calls ADD COLUMN result_bytes BIGINT",
    # Calls that have ended, by the day (UTC) on which they began. Triggers count them where their records are written:
    # in groups, after the answers. `tool_id` is empty for names that no tool has.
    """
    CREATE TABLE call_usage (
        day          TEXT NOT NULL,
        tool_id      TEXT NOT NULL,
        principal    TEXT NOT NULL,
        calls        BIGINT NOT NULL,
        errors       BIGINT NOT NULL,
        duration_ms  DOUBLE PRECISION NOT NULL,      -- of all together
        longest_ms   DOUBLE PRECISION NOT NULL,
        args_bytes   BIGINT NOT NULL,
        result_bytes BIGINT NOT NULL,
        PRIMARY KEY (day, tool_id, principal)
    ) WITHOUT ROWID
    """,
    """
    INSERT INTO call_usage SELECT
        substr(started_at, 1, 10), CASE WHEN category IS NULL THEN '' ELSE tool_id END, principal,
        count(*), sum(status = 'error'), sum(COALESCE(duration_ms, 0)), max(COALESCE(duration_ms, 0)),
        sum(COALESCE(length(CAST(args AS BLOB)), 0)), sum(COALESCE(length(CAST(result AS BLOB)), 0))
    FROM tool_calls WHERE finished_at IS NOT NULL GROUP BY 1, 2, 3
    """,
    f"""CREATE TRIGGER count_usage AFTER INSERT ON tool_calls WHEN NEW.finished_at IS NOT NULL
    BEGIN {_COUNT_USAGE} END""",
    f"""CREATE TRIGGER count_usage_at_end AFTER UPDATE OF finished_at ON tool_calls
    WHEN OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL BEGIN {_COUNT_USAGE} END""",
    # With the principal, so that calls of one principal to one tool are found in it without looking at the records.
    "DROP INDEX tool_calls_by_tool",
    "CREATE INDEX tool_calls_by_tool ON tool_calls (tool_id, id, principal)",
)

SESSIONS: Migration = (
    """
    CREATE TABLE sessions (
        id           TEXT PRIMARY KEY,
        digest       TEXT NOT NULL UNIQUE,           -- SHA-256 of the cookie, in hex
        principal    TEXT NOT NULL,
        role         TEXT NOT NULL,
        profile      TEXT,
        key_digest   TEXT NOT NULL,                  -- of the key it was opened with; it ends with the key
        browser      TEXT NOT NULL,
        created_at   TEXT NOT NULL,
        expires_at   TEXT NOT NULL,
        last_used_at TEXT
    )
    """,
)

HEALTH_EVENTS: Migration = (
    # Problems of the gateway's parts, from their beginning to their end.
    """
    CREATE TABLE health_events (
        id       TEXT PRIMARY KEY,
        process  TEXT NOT NULL,                      -- the instance that noticed it
        subject  TEXT NOT NULL,                      -- store | journal | sandbox | upstream
        name     TEXT,                               -- of the upstream server
        message  TEXT NOT NULL,
        began_at TEXT NOT NULL,
        ended_at TEXT                                -- NULL while it lasts
    )
    """,
    "CREATE INDEX health_events_open ON health_events (process) WHERE ended_at IS NULL",
)

APPROVAL_DETAILS: Migration = (
    "ALTER TABLE approvals ADD COLUMN changes TEXT",  # what the call would change, for the person
    "ALTER TABLE approvals ADD COLUMN note TEXT",  # the person's reason, for the model
)

CALL_LOG: Migration = (
    # Every write to `tool_calls` as a hash chain with signed checkpoints; see `call_log.py`.
    """
    CREATE TABLE call_log (
        position  INTEGER PRIMARY KEY,
        call_id   TEXT,                              -- NULL for a checkpoint
        before    BLOB,                              -- digest of the record that was changed; NULL for a new one
        digest    BLOB,                              -- of the record; where entries were removed, the last one's hash
        removed   INTEGER,                           -- the position up to which entries were removed
        at        TEXT,                              -- of a checkpoint
        hash      BLOB NOT NULL,                     -- of this entry and the hash before it
        mac       BLOB,                              -- of the hash, with the gateway's key
        signature BLOB                               -- of a checkpoint
    )
    """,
    "CREATE INDEX call_log_updates ON call_log (call_id, position) WHERE before IS NOT NULL",
    "INSERT INTO revisions SELECT 'call_log_import', 1 WHERE EXISTS (SELECT 1 FROM tool_calls)",
)

# Tools of servers that a person turned off; builtins and tools of toolsets have their switch in their own rows.
DISABLED_TOOLS: Migration = ("CREATE TABLE disabled_tools (tool_id TEXT PRIMARY KEY)",)

# A request for a file or a view names a method (`workspace/read`). It is no call of the builtin whose rules it passes.
_IS_CALL = "(NEW.category IS NULL OR instr(NEW.tool_name, '/') = 0 OR instr(NEW.tool_id, ':') > 0)"

USAGE_WITHOUT_REQUESTS: Migration = (
    *(f"DROP TRIGGER {name}" for name in ("count_call", "count_usage", "count_usage_at_end")),
    f"""CREATE TRIGGER count_call AFTER INSERT ON tool_calls WHEN NEW.category IS NOT NULL AND {_IS_CALL}
    BEGIN {_COUNT_CALL} END""",
    f"""CREATE TRIGGER count_usage AFTER INSERT ON tool_calls WHEN NEW.finished_at IS NOT NULL AND {_IS_CALL}
    BEGIN {_COUNT_USAGE} END""",
    f"""CREATE TRIGGER count_usage_at_end AFTER UPDATE OF finished_at ON tool_calls
    WHEN OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL AND {_IS_CALL} BEGIN {_COUNT_USAGE} END""",
)

# Calls that a person, a rule, a limit or a check of the arguments refused, or that were cancelled: no tool failed.
_REFUSALS = """
    ('CONFIRMATION_REQUIRED', 'DECLINED', 'DISMISSED', 'APPROVAL_EXPIRED', 'TOO_MANY_QUESTIONS', 'CONTINUED',
     'DENIED_BY_RULE', 'PROTECTED_FILE', 'PERMISSION_DENIED', 'CHAT_FORBIDDEN', 'WRONG_CALLER', 'CANCELLED',
     'INVALID_ARGUMENTS', 'UNKNOWN_TOOL', 'AMBIGUOUS_TOOL', 'TOOL_DISABLED', 'CATEGORY_TOO_LOW', 'RATE_LIMITED')
"""
_COUNT_REFUSED = f"""
    INSERT INTO call_usage VALUES (
        substr(NEW.started_at, 1, 10), CASE WHEN NEW.category IS NULL THEN '' ELSE NEW.tool_id END, NEW.principal,
        1, NEW.status = 'error', COALESCE(NEW.duration_ms, 0), COALESCE(NEW.duration_ms, 0),
        COALESCE(NEW.args_bytes, 0), COALESCE(NEW.result_bytes, 0),
        NEW.status = 'error' AND COALESCE(NEW.error_code, '') IN {_REFUSALS}
    ) ON CONFLICT (day, tool_id, principal) DO UPDATE SET
        calls = calls + 1, errors = errors + excluded.errors, duration_ms = duration_ms + excluded.duration_ms,
        longest_ms = max(longest_ms, excluded.longest_ms), args_bytes = args_bytes + excluded.args_bytes,
        result_bytes = result_bytes + excluded.result_bytes, refused = refused + excluded.refused;
"""  # noqa: S608 - constants only

REFUSED_CALLS: Migration = (
    "ALTER TABLE call_usage ADD COLUMN refused BIGINT NOT NULL DEFAULT 0",  # of the errors
    f"""
    UPDATE call_usage SET refused = found.refused FROM (
        SELECT substr(started_at, 1, 10) AS day, CASE WHEN category IS NULL THEN '' ELSE tool_id END AS tool_id,
            principal, count(*) AS refused
        FROM tool_calls NEW WHERE status = 'error' AND finished_at IS NOT NULL AND error_code IN {_REFUSALS}
            AND {_IS_CALL} GROUP BY 1, 2, 3
    ) AS found WHERE call_usage.day = found.day AND call_usage.tool_id = found.tool_id
        AND call_usage.principal = found.principal
    """,  # noqa: S608 - constants only
    *(f"DROP TRIGGER {name}" for name in ("count_usage", "count_usage_at_end")),
    f"""CREATE TRIGGER count_usage AFTER INSERT ON tool_calls WHEN NEW.finished_at IS NOT NULL AND {_IS_CALL}
    BEGIN {_COUNT_REFUSED} END""",
    f"""CREATE TRIGGER count_usage_at_end AFTER UPDATE OF finished_at ON tool_calls
    WHEN OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL AND {_IS_CALL} BEGIN {_COUNT_REFUSED} END""",
)

MIGRATIONS: Sequence[Migration] = (
    schema.TABLES,
    INSTALLED_TOOLSETS,
    UPSTREAMS,
    APPROVALS,
    SERVER_CONSENTS,
    TOOL_NAMES,
    SWITCHES,
    STEPS_AND_RETRIES,
    API_KEYS,
    OAUTH_GRANTS,
    REST_BUNDLES,
    CALL_USAGE,
    SESSIONS,
    HEALTH_EVENTS,
    APPROVAL_DETAILS,
    CALL_LOG,
    DISABLED_TOOLS,
    USAGE_WITHOUT_REQUESTS,
    REFUSED_CALLS,
)


def pending(version: int, migrations: Sequence[Migration] = MIGRATIONS) -> list[tuple[int, Migration]]:
    """The migrations a database at `version` lacks, each with the version it leads to; refuses a newer database."""
    if version > len(migrations):
        raise Unavailable(
            f"the database is at version {version}, this toolgate knows up to {len(migrations)}; "
            "upgrade toolgate, or give it another data directory",
            code="DATABASE_TOO_NEW",
            database_version=version,
            known_version=len(migrations),
        )
    return [(number, migrations[number - 1]) for number in range(version + 1, len(migrations) + 1)]
