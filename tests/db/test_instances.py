from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from gateway.calls import Call, Outcome
from gateway.db.call_records import CallRecords
from gateway.db.chats import Instance, settle_interrupted
from gateway.db.sqlite import SqliteDatabase


@pytest.mark.promise("P3")
def test_running_calls_are_settled_only_when_their_process_is_dead(tmp_path: Path) -> None:
    async def main() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        alive, dying = Instance(tmp_path / "run"), Instance(tmp_path / "run")
        kept, lost, done = (Call(name="t", arguments={}) for _ in range(3))
        await CallRecords(db, alive.id).record_running(kept)
        records = CallRecords(db, dying.id)
        await records.record_running(lost)
        await records.record_finished(done, Outcome(value=1))
        assert await settle_interrupted(db, tmp_path / "run") == []

        die(dying)
        assert await settle_interrupted(db, tmp_path / "run") == [lost.id]
        assert await settle_interrupted(db, tmp_path / "run") == []
        settled = await records.get(lost.id)
        assert (settled.status, settled.error_code) == ("error", "INTERRUPTED")
        assert "ended before the call did" in (settled.error or "")
        assert settled.finished_at is not None
        assert (await records.get(kept.id)).status == "running"
        assert (await records.get(done.id)).status == "success"
        assert lock_files(tmp_path) == [f"{alive.id}.lock"]
        alive.close()
        await db.close()

    anyio.run(main)


def test_calls_left_by_an_instance_that_closed_are_settled_too(tmp_path: Path) -> None:
    async def main() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        instance = Instance(tmp_path / "run")
        left = Call(name="t", arguments={})
        await CallRecords(db, instance.id).record_running(left)
        instance.close()
        assert lock_files(tmp_path) == []
        assert await settle_interrupted(db, tmp_path / "run") == [left.id]
        await db.close()

    anyio.run(main)


def test_a_call_that_ends_after_all_is_recorded_as_it_ended(tmp_path: Path) -> None:
    async def main() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        records = CallRecords(db, "an instance whose lock file someone removed")
        call = Call(name="t", arguments={})
        await records.record_running(call)
        assert await settle_interrupted(db, tmp_path / "run") == [call.id]
        await records.record_finished(call, Outcome(value=1))
        record = await records.get(call.id)
        assert (record.status, record.error, record.error_code) == ("success", None, None)
        await db.close()

    anyio.run(main)


def test_several_processes_may_settle_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        lost = [Call(name="t", arguments={}) for _ in range(20)]
        for call in lost:
            instance = Instance(tmp_path / "run")
            await CallRecords(db, instance.id).record_running(call)
            die(instance)
        settled: list[str] = []

        async def settle() -> None:
            settled.extend(await settle_interrupted(db, tmp_path / "run"))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(settle)
        assert sorted(settled) == sorted(call.id for call in lost)
        assert lock_files(tmp_path) == []
        await db.close()

    anyio.run(main)


def die(instance: Instance) -> None:
    """What the kernel does for a killed process: its lock is gone, its file is not."""
    os.close(instance._descriptor)


def lock_files(place: Path) -> list[str]:
    return [path.name for path in (place / "run").iterdir()]
