"""Short writes: committed by the loop itself where nobody is in the way, and as safely as by the thread."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.db import Statement, sqlite_writer
from gateway.db.sqlite import SqliteDatabase
from gateway.db.sqlite_writer import FEW, SLOW
from gateway.errors import Conflict, GatewayError

pytestmark = pytest.mark.anyio

WITH_CHAT = "INSERT INTO messages (chat_id, id, created_at) VALUES (?, 'm', 'now')"


def remember(chat: Any, principal: str = "local") -> Statement:
    return Statement("INSERT INTO chats (id, principal, created_at) VALUES (?, ?, 'now')", (chat, principal))


class Watched:
    """A database with a log begun, and where each of its statements ran: on the loop or on the thread."""

    def __init__(self, db: SqliteDatabase) -> None:
        self.db = db
        self.seen: list[tuple[str, str]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.held: str | None = None
        self.late = 0.0
        db._writer._connection.set_trace_callback(self._note)

    def _note(self, sql: str) -> None:
        verb = " ".join(sql.split()[:2])
        self.seen.append((verb, "loop" if threading.current_thread() is threading.main_thread() else "thread"))
        if verb == "INSERT INTO":
            time.sleep(self.late)
        if self.held and self.held in sql:
            self.hold.wait(10)

    async def write(self, *chats: str) -> list[str]:
        """Short writes of one turn, and where they were committed; those tried on the loop first count once."""
        self.seen.clear()
        await asyncio.gather(*[self.db.run(remember(chat), short=True) for chat in chats])
        return [where for verb, where in self.seen if verb == "INSERT INTO"][-len(chats) :]

    async def calm(self) -> None:
        """Wait until the thread has put the connection down, shortly after it told what it wrote."""
        with anyio.fail_after(10):
            while self.db._writer._hand.locked():
                await self.db.fetch("SELECT 1")

    async def wait_for(self, verb: str) -> None:
        with anyio.fail_after(10):
            while verb not in [seen for seen, _ in self.seen]:
                await self.db.fetch("SELECT 1")
                await asyncio.sleep(0.005)


@asynccontextmanager
async def opened(place: Path) -> AsyncIterator[Watched]:
    db = await SqliteDatabase.open(place / "toolgate.db")
    try:
        await db.run(remember("the first begins the log"))
        watched = Watched(db)
        await watched.calm()
        watched.seen.clear()
        yield watched
    finally:
        await db.close()


@asynccontextmanager
async def beating(most: float = 0.5) -> AsyncIterator[None]:
    """The loop goes on meanwhile."""
    pauses = [0.0]

    async def beat() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            pauses.append(time.monotonic() - began)

    heart = asyncio.create_task(beat())
    try:
        yield
    finally:
        heart.cancel()
    assert max(pauses) < most


def stored(place: Path, table: str = "chats") -> set[str]:
    with closing(sqlite3.connect(place / "toolgate.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {name for (name,) in connection.execute(f"SELECT id FROM {table}")} - {"the first begins the log"}


async def test_the_loop_commits_it_without_the_thread(tmp_path: Path) -> None:
    async with opened(tmp_path) as watched:
        assert await watched.write("a") == ["loop"]
        assert watched.seen == [("INSERT INTO", "loop")]
        assert await watched.write("b", "c") == ["loop", "loop"]
        assert [verb for verb, _ in watched.seen] == ["BEGIN IMMEDIATE", "INSERT INTO", "INSERT INTO", "COMMIT"]
    assert stored(tmp_path) == {"a", "b", "c"}


async def test_what_is_not_short_and_more_than_a_few_go_to_the_thread(tmp_path: Path) -> None:
    async with opened(tmp_path) as watched:
        await watched.db.run(remember("long"))
        assert ("INSERT INTO", "thread") in watched.seen
        await watched.calm()
        assert set(await watched.write(*[f"few-{number}" for number in range(FEW)])) == {"loop"}
        many = [f"many-{number}" for number in range(FEW + 1)]
        assert await watched.write(*many) == ["thread"] * len(many)
        await watched.calm()
        assert await watched.write("after") == ["loop"]
    assert len(stored(tmp_path)) == FEW * 2 + 3


async def test_rows_it_returns_are_handed_on_and_nothing_stays_open(tmp_path: Path) -> None:
    async with opened(tmp_path) as watched:
        insert = "INSERT INTO chats (id, principal, created_at) VALUES ('a', 'x', 'now'), ('b', 'y', 'now')"
        assert await watched.db.run(Statement(f"{insert} RETURNING id"), short=True) == [[("a",), ("b",)]]
        assert await watched.db.run(Statement("SELECT principal FROM chats WHERE id = 'b'"), short=True) == [[("y",)]]
        assert {where for _, where in watched.seen} == {"loop"}
        foreign = sqlite3.connect(tmp_path / "toolgate.db", timeout=0)
        foreign.execute("DELETE FROM chats WHERE id = 'a'")
        foreign.commit()
        foreign.close()
        assert await watched.write("c") == ["loop"]


HOLDERS = {
    "gate": "f = open(sys.argv[1] + '.gate', 'r+'); fcntl.flock(f, fcntl.LOCK_EX)",
    "write lock": "c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN IMMEDIATE')",
}


@pytest.mark.promise("X3")
@pytest.mark.parametrize("lock", HOLDERS)
async def test_another_program_in_the_way_is_waited_for_by_the_thread_while_the_loop_goes_on(
    lock: str, tmp_path: Path
) -> None:
    program = f"import fcntl, sqlite3, sys, time; {HOLDERS[lock]}; print('held', flush=True); time.sleep(1)"
    async with opened(tmp_path) as watched:
        command = [sys.executable, "-c", program, str(tmp_path / "toolgate.db")]
        holder = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"held\n"
        began = time.monotonic()
        async with beating():
            assert await watched.write("a", "b") == ["thread", "thread"]
        assert time.monotonic() - began > 0.5
        await holder.wait()
        await watched.calm()
        assert await watched.write("c") == ["loop"]
    assert stored(tmp_path) == {"a", "b", "c"}


async def test_a_checkpoint_is_waited_for_by_the_thread_while_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "IDLE_AFTER", 0.05)
    async with opened(tmp_path) as watched:
        watched.hold.clear()
        watched.held = "wal_checkpoint"
        await watched.wait_for("PRAGMA wal_checkpoint(PASSIVE)")
        async with beating():
            writing = asyncio.create_task(watched.write("a"))
            await asyncio.sleep(0.05)
            assert not writing.done()
            watched.hold.set()
            assert await writing == ["thread"]


async def test_the_first_after_the_log_was_brought_home_is_left_to_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SQLite begins the log anew with it, and waits until the disk has it.
    monkeypatch.setattr(sqlite_writer, "IDLE_AFTER", 0.2)
    async with opened(tmp_path) as watched:
        assert await watched.write("a") == ["loop"]
        for round_ in range(3):
            await watched.wait_for("PRAGMA wal_checkpoint(PASSIVE)")
            await watched.calm()
            # By another process: closing the file here would drop the locks of our own connections.
            await anyio.run_process(["cp", str(tmp_path / "toolgate.db"), str(tmp_path / "copy.db")])
            with closing(sqlite3.connect(tmp_path / "copy.db")) as without_log:
                assert len(without_log.execute("SELECT id FROM chats").fetchall()) == 2 + 2 * round_
            assert await watched.write(f"first-{round_}") == ["thread"]
            await watched.calm()
            assert await watched.write(f"second-{round_}") == ["loop"]


async def test_a_slow_disk_is_left_to_the_thread_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "SLOW_FOR", 0.3)
    async with opened(tmp_path) as watched:
        watched.late = SLOW * 1.5
        assert await watched.write("slow") == ["loop"]
        watched.late = 0.0
        assert await watched.write("after it") == ["thread"]
        await asyncio.sleep(0.4)
        await watched.calm()
        assert await watched.write("later") == ["loop"]


FAILING = {
    "taken": remember("taken"),
    "no text": remember("odd \ud800"),
    "too large a number": remember(2**70),
    "missing chat": Statement(WITH_CHAT, ("nobody's",)),
    "other count": Statement("UPDATE chats SET principal = 'x' WHERE id = 'taken'", (), 2),
    "no such table": Statement("INSERT INTO nothing VALUES (1)"),
}


@pytest.mark.promise("T1")
@pytest.mark.parametrize("case", FAILING)
async def test_one_that_fails_says_the_same_as_on_the_thread_and_harms_no_neighbour(case: str, tmp_path: Path) -> None:
    async with opened(tmp_path) as watched:
        db = watched.db
        await db.run(remember("taken"))
        said = []
        for short in (False, True):
            with pytest.raises(GatewayError) as refused:
                await db.run(FAILING[case], short=short)
            said.append((type(refused.value), refused.value.code, refused.value.message))
        assert said[0] == said[1]
        await watched.calm()
        assert not db._writer._connection.in_transaction

        turn = [[remember("one")], [remember("undone"), FAILING[case]], [remember("two")]]
        outcomes = await asyncio.gather(*[db.run(*job, short=True) for job in turn], return_exceptions=True)
        assert [outcomes[0], outcomes[2]] == [[[]], [[]]]
        assert (type(outcomes[1]), getattr(outcomes[1], "message", None)) == (said[0][0], said[0][2])
        await watched.calm()
        assert await watched.write("after") == ["loop"]
        assert await db.fetch("SELECT principal FROM chats WHERE id = 'taken'") == [("local",)]
    assert stored(tmp_path) == {"taken", "one", "two", "after"}


@pytest.mark.promise("X3")
async def test_the_log_does_not_grow_without_end_under_short_writes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_AFTER", 50)
    log = tmp_path / "toolgate.db-wal"
    longest, places = 0, []
    async with opened(tmp_path) as watched:
        for number in range(1000):
            await watched.calm()
            places += await watched.write(f"chat-{number}")
            longest = max(longest, log.stat().st_size)
    assert places.count("loop") > 800
    assert longest < 2_000_000  # without bringing it home: more than 8 MB
    assert len(stored(tmp_path)) == 1000


@pytest.mark.promise("T1")
@pytest.mark.parametrize("number", [1, FEW, FEW * 3])
async def test_closing_finishes_what_waits(number: int, tmp_path: Path) -> None:
    async with opened(tmp_path) as watched:
        writes = [watched.db.run(remember(f"{number}"), short=number % 3 > 0) for number in range(number)]
        waiting = asyncio.gather(*writes)
        await asyncio.sleep(0)  # they are begun, and none is written yet
        await watched.db.close()
        assert await waiting == [[[]]] * number
    assert stored(tmp_path) == {f"{number}" for number in range(number)}


async def test_stopping_hands_over_what_the_loop_has_not_come_to(tmp_path: Path) -> None:
    async with opened(tmp_path) as watched:
        waiting = asyncio.create_task(watched.db.run(remember("a"), short=True))
        asyncio.get_running_loop().call_soon(watched.db._writer.stop)  # before the loop's own turn to write
        assert await waiting == [[]]
        assert ("INSERT INTO", "thread") in watched.seen


async def test_it_is_written_although_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as watched:
        waiting = asyncio.create_task(watched.db.run(remember("a"), short=True))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await watched.write("b") == ["loop"]
    assert stored(tmp_path) == {"a", "b"}


class Interrupting:
    """A value at which a person presses Ctrl-C, once."""

    def __init__(self) -> None:
        self._times = 0

    def __conform__(self, protocol: object) -> str:
        self._times += 1
        if self._times == 1:
            raise KeyboardInterrupt
        return "interrupted"


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_an_interrupt_in_the_midst_of_it_leaves_nobody_waiting(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    db = loop.run_until_complete(SqliteDatabase.open(tmp_path / "toolgate.db"))
    loop.run_until_complete(db.run(remember("a")))
    loop.run_until_complete(Watched(db).calm())
    interrupted = loop.create_task(db.run(remember(Interrupting()), short=True))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(interrupted)
    loop.run_until_complete(asyncio.wait_for(db.run(remember("next"), short=True), 5))
    loop.run_until_complete(asyncio.wait_for(interrupted, 5))
    loop.run_until_complete(db.close())
    assert stored(tmp_path) == {"a", "interrupted", "next"}


async def test_two_of_one_process_do_not_meet(tmp_path: Path) -> None:
    async with opened(tmp_path) as first:
        other = await SqliteDatabase.open(tmp_path / "toolgate.db")
        await other.run(remember("other's first"))
        for number in range(100):
            await asyncio.gather(
                first.db.run(remember(f"first-{number}"), short=True),
                other.run(remember(f"other-{number}"), short=True),
            )
        with pytest.raises(Conflict):
            await other.run(remember("first-1"), short=True)
        await other.close()
    assert len(stored(tmp_path)) == 201


def start_worker(place: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, str(place), name], stdout=subprocess.PIPE, text=True)


@pytest.mark.promise("T1")
def test_several_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    workers = [start_worker(tmp_path, f"p{number}") for number in range(4)]
    told = [line.split() for worker in workers for line in (worker.communicate(timeout=60)[0]).splitlines()]
    assert [worker.returncode for worker in workers] == [0] * 4
    assert len(told) == 4 * WRITES
    assert {where for _, where in told} == {"loop", "thread"}  # which found somebody in the way
    assert stored(tmp_path) == {chat for chat, _ in told}


@pytest.mark.promise("T1")
def test_what_the_loop_committed_is_there_after_a_kill(tmp_path: Path) -> None:
    worker = start_worker(tmp_path, "victim")
    assert worker.stdout is not None
    told = [worker.stdout.readline().split() for _ in range(150)]
    worker.kill()
    told += [line.split() for line in worker.stdout.readlines() if line.endswith("\n")]
    worker.wait()
    worker.stdout.close()
    assert [where for _, where in told].count("loop") > 100
    assert {chat for chat, _ in told} <= stored(tmp_path)


WRITES = 300


async def work(place: Path, name: str) -> None:
    """Write four at a time, and tell of each once it is written."""
    db = await SqliteDatabase.open(place / "toolgate.db")
    await db.run(
        Statement(
            "INSERT INTO chats (id, principal, created_at) VALUES (?, '', 'now') ON CONFLICT DO NOTHING",
            ("the first begins the log",),
        )
    )
    watched = Watched(db)

    async def some(caller: int) -> None:
        for number in range(WRITES // 4):
            chat = f"{name}-{caller}-{number}"
            await db.run(remember(chat), short=True)
            where = [place for verb, place in watched.seen if verb == "INSERT INTO"][-1]
            os.write(1, f"{chat} {where}\n".encode())

    await asyncio.gather(*[some(caller) for caller in range(4)])
    await db.close()


if __name__ == "__main__":
    anyio.run(work, Path(sys.argv[1]), sys.argv[2])
