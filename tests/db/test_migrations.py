from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import IO

import anyio
import pytest
from eventually import async_eventually

from gateway import Gateway
from gateway.admin import audit, switches
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
    assert [process.wait(timeout=300) for process in processes] == [0] * 10
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


MIGRATE = """
import sqlite3, sys
from gateway.db.migrations import MIGRATIONS
from gateway.db.sqlite import migrate
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
migrate(connection, [*MIGRATIONS, [sys.argv[2]]])
"""


@pytest.mark.promise("T1")
@pytest.mark.parametrize(
    "migration",
    ["ALTER TABLE tool_calls ADD COLUMN note TEXT", "UPDATE chats SET active_leaf_message_id = NULL"],
    ids=["of the schema", "of rows"],
)
def test_gateway_writes_nothing_after_a_newer_version_has_migrated_its_database(tmp_path: Path, migration: str) -> None:
    path = tmp_path / "toolgate.db"

    async def run() -> None:
        async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
            assert (await gateway.call("write_file", {"path": "a.txt", "content": "1"})).ok
            await gateway.records.list_calls()
            command = [sys.executable, "-c", MIGRATE, str(path), migration]
            await anyio.run_process(command)
            refused = await gateway.call("write_file", {"path": "b.txt", "content": "2"})
            assert refused.error is not None and refused.error.code == "DATABASE_TOO_NEW"
            assert "restart this gateway" in refused.error.message
            assert (await gateway.call("list_directory", {"path": "."})).ok
            with pytest.raises(Unavailable, match="restart this gateway"):
                await switches.enable_tool(gateway, "read_file", False)
            await async_eventually(lambda: "restart this gateway" in str(gateway.records._db.failure))
        assert read("SELECT tool_name, status FROM tool_calls") == [("write_file", "success")]

    def read(sql: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()

    anyio.run(run)
    read(f"PRAGMA user_version = {len(MIGRATIONS)}")  # stands for the newer version, which knows the database
    anyio.run(open_once, tmp_path)
    calls = read("SELECT tool_name, error_code FROM tool_calls ORDER BY id")
    assert calls == [("write_file", None), ("write_file", "DATABASE_TOO_NEW"), ("list_directory", None)]
    assert audit.verify(tmp_path).problems == []


async def open_once(data_dir: Path) -> None:
    async with Gateway.open({"data_dir": str(data_dir)}) as gateway:
        assert len(await gateway.records.list_calls()) == 3


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
