"""Processes that share a data directory are killed at any moment, and nothing they told is lost."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import anyio
import pytest
from amounts import amount
from eventually import TIMEOUT

from gateway.admin import audit
from gateway.db.chats import settle_interrupted
from gateway.db.sqlite import SqliteDatabase

WORKERS = 5
ROUNDS = amount(10, nightly=20)
WORKER = Path(__file__).with_name("storm_worker.py")


class Worker:
    """A process that writes, and the ids it told so far."""

    def __init__(self, data: Path) -> None:
        command = [sys.executable, str(WORKER), str(data)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.reported: list[str] = []
        self.complaints = b""
        self._ended = False
        self._news = threading.Condition()
        self._listeners = [threading.Thread(target=listen) for listen in (self._hear, self._hear_complaints)]
        for listener in self._listeners:
            listener.start()

    def wait_for(self, reported: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.reported) >= reported or self._ended, timeout=TIMEOUT)

    def kill(self) -> None:
        self.process.kill()
        for listener in self._listeners:
            listener.join()
        self.process.wait()
        _pipe(self.process.stdout).close()
        _pipe(self.process.stderr).close()

    def _hear(self) -> None:
        for line in _pipe(self.process.stdout):
            with self._news:
                self.reported += [line.decode().strip()] if line.endswith(b"\n") else []
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _hear_complaints(self) -> None:
        self.complaints = _pipe(self.process.stderr).read()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


@pytest.mark.slow
@pytest.mark.promise("T1")
@pytest.mark.promise("P3")
def test_no_told_call_is_lost_when_processes_are_killed_at_any_moment(tmp_path: Path) -> None:
    workers = [Worker(tmp_path) for _ in range(WORKERS)]
    try:
        _storm(tmp_path, workers)
    finally:
        for worker in workers:
            worker.kill()

    assert [worker.complaints for worker in workers] == [b""] * len(workers)
    reported = {call for worker in workers for call in worker.reported}
    unfinished = {worker.reported[0] for worker in workers}
    assert len(reported) > 1000
    _settle(tmp_path)
    _check(tmp_path / "toolgate.db", reported, unfinished)
    log = audit.verify(tmp_path)
    assert log.problems == []
    assert log.records >= len(reported)


def _storm(data: Path, workers: list[Worker]) -> None:
    dice = random.Random(7463)
    living = list(workers)
    for _ in range(ROUNDS):
        for victim in dice.sample(living, k=dice.choice([1, 1, 2])):
            victim.wait_for(dice.randrange(1, 400))
            victim.kill()
            workers.append(Worker(data))
            living[living.index(victim)] = workers[-1]
    for worker in living:
        worker.wait_for(1)


def _settle(data: Path) -> None:
    async def main() -> None:
        db = await SqliteDatabase.open(data / "toolgate.db")
        await settle_interrupted(db, data / "run")
        await db.close()

    anyio.run(main)


def _check(path: Path, reported: set[str], unfinished: set[str]) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    states = {
        call: (status, code)
        for call, status, code in connection.execute("SELECT id, status, error_code FROM tool_calls")
    }
    connection.close()
    assert reported - states.keys() == set()
    assert {states[call] for call in unfinished} == {("error", "INTERRUPTED")}
    assert {states[call] for call in reported - unfinished} == {("success", None)}
    assert not [call for call, state in states.items() if state[0] == "running"]
    assert not list((path.parent / "run").glob("*.lock"))
    assert not list(path.parent.glob("toolgate.db.promised-*"))
