from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import IO

import anyio
import pytest

from gateway.db.migrations import MIGRATIONS
from gateway.db.sqlite import SqliteDatabase, connect, migrate
from gateway.errors import Unavailable

WORKER = Path(__file__).with_name("opening_worker.py")
SEED = {
    "toolsets": "id name version description enabled installed_at source_type source_ref manifest_version",
    "toolset_files": "toolset_id path kind sha256 size stored_path",
    "tools": "tool_id toolset_id name description input_schema requires_confirmation enabled entrypoint",
    "tool_overrides": "id toolset_id tool_id renderer renderer_config name_override description_override "
    "requires_confirmation enabled",
    "toolset_mcp_servers": "id toolset_id server_type enabled command args cwd url headers env requires_confirmation "
    "created_at",
    "workspace_manifests": "id chat_id parent_id files created_at source source_ref",
    "tool_calls": "id chat_id message_id tool_id args result render_plan status error started_at finished_at "
    "pre_manifest_id post_manifest_id",
    "chats": "id active_leaf_message_id active_manifest_id",
}


@pytest.mark.promise("T1")
@pytest.mark.parametrize("table", SEED)
def test_every_table_has_the_columns_of_the_specification(table: str, tmp_path: Path) -> None:
    connection = connect(tmp_path / "toolgate.db")
    columns = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
    connection.close()
    assert set(SEED[table].split()) - columns == set()


@pytest.mark.promise("T1")
@pytest.mark.slow
def test_ten_processes_that_open_an_empty_directory_at_one_instant_all_succeed(tmp_path: Path) -> None:
    command = [sys.executable, str(WORKER), str(tmp_path / "data" / "toolgate.db")]
    processes = [
        subprocess.Popen([*command, f"chat-{number}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(10)
    ]
    for process in processes:
        assert _pipe(process.stdout).readline() == "ready\n"
    for process in processes:
        _pipe(process.stdin).close()
    assert [process.wait(timeout=60) for process in processes] == [0] * 10
    for process in processes:
        _pipe(process.stdout).close()
    connection = sqlite3.connect(tmp_path / "data" / "toolgate.db")
    assert connection.execute("SELECT count(*) FROM chats").fetchone() == (10,)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    connection.close()


@pytest.mark.promise("T1")
def test_a_newer_database_is_refused_naming_both_versions_and_the_fix(tmp_path: Path) -> None:
    path = tmp_path / "toolgate.db"
    connection = connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(Unavailable) as refused:
        anyio.run(SqliteDatabase.open, path)
    assert refused.value.code == "DATABASE_TOO_NEW"
    assert re.search(rf"version 99.* up to {len(MIGRATIONS)}; upgrade toolgate", refused.value.message)


@pytest.mark.promise("T1")
def test_an_older_database_is_brought_forward_and_keeps_its_rows(tmp_path: Path) -> None:
    connection = connect(tmp_path / "toolgate.db")
    connection.execute("INSERT INTO tool_names (name, tool_id) VALUES ('a', 'b')")
    migrate(connection, [*MIGRATIONS, ["ALTER TABLE tool_names ADD COLUMN note TEXT"]])
    assert connection.execute("SELECT * FROM tool_names").fetchall() == [("a", "b", None)]
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    connection.close()


@pytest.mark.promise("T1")
def test_a_database_of_the_first_version_keeps_its_toolsets(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "toolgate.db", isolation_level=None)
    migrate(connection, MIGRATIONS[:1])
    connection.execute(
        "INSERT INTO toolsets (id, name, version, installed_at, source_type, manifest_version) "
        "VALUES ('demo', 'Demo', '1.0.0', '2026-01-01', 'zip', '1')"
    )
    connection.execute("INSERT INTO tools (tool_id, toolset_id, name) VALUES ('demo:a', 'demo', 'A')")
    connection.execute("INSERT INTO tools (tool_id, name) VALUES ('read_file', 'Read')")
    connection.execute("INSERT INTO tool_overrides (id, toolset_id, tool_id) VALUES ('o', 'demo', 'demo:a')")
    connection.close()
    connection = connect(tmp_path / "toolgate.db")
    assert connection.execute("SELECT id, name, enabled, digest, live, spec FROM toolsets").fetchall() == [
        ("demo", "Demo", 1, "", 0, "{}")
    ]
    assert connection.execute("SELECT tool_id, kind, missing FROM tools ORDER BY tool_id").fetchall() == [
        ("demo:a", "builtin", None),
        ("read_file", "builtin", None),
    ]
    assert connection.execute("SELECT tool_id, spec FROM tool_overrides").fetchall() == [("demo:a", None)]
    assert connection.execute("SELECT * FROM revisions").fetchall() == []
    connection.close()


@pytest.mark.promise("T6")
def test_servers_of_toolsets_installed_before_consent_was_asked_have_none(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "toolgate.db", isolation_level=None)
    migrate(connection, MIGRATIONS[:4])
    connection.execute(
        "INSERT INTO toolsets (id, name, version, installed_at, source_type, manifest_version) "
        "VALUES ('demo', 'Demo', '1.0.0', '2026-01-01', 'zip', '1')"
    )
    connection.execute(
        "INSERT INTO toolset_mcp_servers (id, toolset_id, server_type, created_at) VALUES ('s', 'demo', 'stdio', '')"
    )
    connection.close()
    connection = connect(tmp_path / "toolgate.db")
    assert connection.execute("SELECT id FROM toolset_mcp_servers").fetchall() == [("s",)]
    assert connection.execute("SELECT * FROM server_consents").fetchall() == []
    connection.close()


def test_a_failed_migration_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    connection = connect(tmp_path / "toolgate.db")
    before = connection.execute("SELECT sql FROM sqlite_master").fetchall()
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, [*MIGRATIONS, ["CREATE TABLE half (id TEXT)", "ALTER TABLE missing ADD COLUMN note TEXT"]])
    assert connection.execute("SELECT sql FROM sqlite_master").fetchall() == before
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    connection.close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
