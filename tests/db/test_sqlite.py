from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from eventually import async_eventually

from gateway.db import Statement, sqlite
from gateway.db.sqlite import CHECKPOINT_AFTER, LOG_LIMIT, SqliteDatabase, require_local
from gateway.errors import Unavailable


def remember(chat: str, principal: str = "local") -> Statement:
    return Statement("INSERT INTO chats (id, principal, created_at) VALUES (?, ?, 'now')", (chat, principal))


@pytest.mark.promise("T1")
def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    path = tmp_path / "data" / "toolgate.db"

    async def main() -> dict[str, str]:
        db = await SqliteDatabase.open(path)
        await db.run(remember("a"))
        modes = {found.name: stat.filemode(found.stat().st_mode) for found in path.parent.iterdir()}
        await db.close()
        return modes

    before = os.umask(0)
    try:
        modes = anyio.run(main)
    finally:
        os.umask(before)
    names = ["toolgate.db", "toolgate.db-shm", "toolgate.db-wal", "toolgate.db.gate"]
    assert modes == dict.fromkeys(names, "-rw-------")
    assert stat.filemode(path.parent.stat().st_mode) == "drwx------"


def test_the_last_one_to_close_leaves_no_log_behind(tmp_path: Path) -> None:
    async def main() -> None:
        first = await SqliteDatabase.open(tmp_path / "toolgate.db")
        second = await SqliteDatabase.open(tmp_path / "toolgate.db")
        await first.run(remember("a"))
        await first.close()
        await second.run(remember("b"))
        await second.close()

    anyio.run(main)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toolgate.db", "toolgate.db.gate"]


def test_a_long_log_is_brought_home_while_we_work(tmp_path: Path) -> None:
    path = tmp_path / "toolgate.db"
    copy = tmp_path / "copy.db"

    async def main() -> None:
        db = await SqliteDatabase.open(path)
        await asyncio.gather(*[db.run(remember(f"chat-{number}")) for number in range(CHECKPOINT_AFTER + 300)])
        await db.run(remember("one more"))
        await async_eventually(lambda: not (thread := db._writer._checkpointing) or not thread.is_alive())
        # By another process: closing the file here would drop the locks of our own connections.
        await anyio.run_process(["cp", str(path), str(copy)])
        await db.close()

    anyio.run(main)
    without_log = sqlite3.connect(copy)
    [(count,)] = without_log.execute("SELECT count(*) FROM chats").fetchall()
    without_log.close()
    assert count >= CHECKPOINT_AFTER


def test_an_idle_process_leaves_no_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "IDLE_AFTER", 0.2)
    log = tmp_path / "toolgate.db-wal"

    async def main() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        await db.run(remember("large", "x" * LOG_LIMIT))
        assert log.stat().st_size > LOG_LIMIT

        async def is_short() -> bool:
            await db.fetch("SELECT 1")
            return log.stat().st_size == 0

        await async_eventually(is_short)
        await db.close()

    anyio.run(main)


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "toolgate.db"
    path.write_text("something else entirely, and long enough to be looked at " * 100)
    with pytest.raises(Unavailable, match=r"toolgate\.db: file is not a database") as refused:
        anyio.run(SqliteDatabase.open, path)
    assert refused.value.code == "STORAGE_UNAVAILABLE"


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused_with_the_way_out(kind: str, tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"36 35 {os.major(device)}:{os.minor(device)} / /mnt rw,noatime shared:1 - {kind} server:/ rw\n")
    with pytest.raises(Unavailable, match=f"is on {kind}, .* choose a data directory on a local disk"):
        require_local(tmp_path, mounts)


@pytest.mark.parametrize("kind", ["ext4", "btrfs", "tmpfs", "overlay", "fuseblk"])
def test_a_local_file_system_is_welcome(kind: str, tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"36 35 {os.major(device)}:{os.minor(device)} / / rw,noatime - {kind} /dev/vda rw\n")
    require_local(tmp_path, mounts)
    require_local(tmp_path, tmp_path / "missing, as on macOS")


@pytest.mark.promise("T1")
def test_on_a_full_disk_nothing_is_acknowledged_that_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "toolgate.db"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    child = subprocess.run([sys.executable, __file__, str(path)], capture_output=True, text=True, timeout=300, env=env)
    assert child.stderr == ""
    printed = set(child.stdout.split())
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert {chat for (chat,) in connection.execute("SELECT id FROM chats")} == printed
    connection.close()


async def write_on_a_full_disk(path: Path) -> None:
    """Tell what was acknowledged before the disk is full, while it is, and when there is room again."""
    db = await SqliteDatabase.open(path)
    before = await acknowledged(db, [f"before-{number}" for number in range(20)])
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    meanwhile = await acknowledged(db, [f"full-{number}" for number in range(100)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    after = await acknowledged(db, [f"after-{number}" for number in range(20)])
    await db.close()
    assert (len(before), len(meanwhile) < 100, len(after)) == (20, True, 20)
    print(*before, *meanwhile, *after)


async def acknowledged(db: SqliteDatabase, chats: list[str]) -> list[str]:
    writes = [db.run(remember(chat, "x" * 5_000)) for chat in chats]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert {getattr(refusal, "code", refusal) for refusal in refused} <= {"STORAGE_UNAVAILABLE"}
    return [chat for chat, outcome in zip(chats, outcomes, strict=True) if outcome not in refused]


if __name__ == "__main__":
    anyio.run(write_on_a_full_disk, Path(sys.argv[1]))
