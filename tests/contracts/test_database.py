"""What every database engine promises; adding an engine is one line in ENGINES."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
import uvloop
from eventually import TIMEOUT
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.db import Database, Insert, Statement
from gateway.db.sqlite import SqliteDatabase
from gateway.errors import Conflict, Invalid, Unavailable

TESTS = Path(__file__).parents[1]
Open = Callable[[Path], Awaitable[Database]]


async def open_sqlite(place: Path) -> Database:
    return await SqliteDatabase.open(place / "data" / "toolgate.db")


ENGINES: dict[str, Open] = {"sqlite": open_sqlite}

TABLE = Statement("CREATE TABLE notes (id TEXT PRIMARY KEY, number BIGINT, body TEXT)")
every_engine = pytest.mark.parametrize("engine", ENGINES)


def insert(id: str, number: int | None = 0, body: str | None = None) -> Statement:  # noqa: A002 - the column
    return Statement("INSERT INTO notes (id, number, body) VALUES (?, ?, ?)", (id, number, body))


@asynccontextmanager
async def opened(engine: str, place: Path) -> AsyncIterator[Database]:
    db = await ENGINES[engine](place)
    try:
        yield db
    finally:
        await db.close()


@asynccontextmanager
async def with_notes(engine: str, place: Path) -> AsyncIterator[Database]:
    async with opened(engine, place) as db:
        await db.run(TABLE)
        yield db


def run_on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The coroutine as a plain test that cannot hang."""

    @functools.wraps(test)
    def plain(*arguments: Any, **named: Any) -> None:
        async def main() -> None:
            with anyio.fail_after(TIMEOUT):
                await test(*arguments, **named)

        anyio.run(main)

    return plain


@every_engine
@pytest.mark.promise("T1")
@run_on_loop
async def test_a_transaction_is_written_whole_or_not_at_all(engine: str, tmp_path: Path) -> None:
    async with with_notes(engine, tmp_path) as db:
        await db.run(insert("a", 1))
        with pytest.raises(Conflict):
            await db.run(Statement("UPDATE notes SET number = 99"), insert("b"), insert("a"))
        assert await db.fetch("SELECT id, number FROM notes") == [("a", 1)]


@every_engine
@run_on_loop
async def test_of_64_concurrent_compare_and_swap_increments_none_is_lost(engine: str, tmp_path: Path) -> None:
    async with with_notes(engine, tmp_path) as db:
        await db.run(insert("counter", 0))

        async def increment() -> None:
            while True:
                [(seen,)] = await db.fetch("SELECT number FROM notes WHERE id = ?", "counter")
                swap = "UPDATE notes SET number = ? WHERE id = ? AND number = ?"
                try:
                    await db.run(Statement(swap, (seen + 1, "counter", seen), 1))
                    return
                except Conflict:
                    continue

        await asyncio.gather(*[increment() for _ in range(64)])
        assert await db.fetch("SELECT number FROM notes") == [(64,)]


@every_engine
@run_on_loop
async def test_a_failing_transaction_does_not_hurt_its_neighbours(engine: str, tmp_path: Path) -> None:
    async with with_notes(engine, tmp_path) as db:
        await db.run(insert("taken"))
        wanted = [f"n{number}" if number % 3 else "taken" for number in range(30)]
        outcomes = await asyncio.gather(*[db.run(insert(name)) for name in wanted], return_exceptions=True)
        assert [isinstance(outcome, Conflict) for outcome in outcomes] == [name == "taken" for name in wanted]
        stored = {name for (name,) in await db.fetch("SELECT id FROM notes")}
        assert stored == set(wanted)


@every_engine
@run_on_loop
async def test_each_statement_answers_with_the_rows_it_returned(engine: str, tmp_path: Path) -> None:
    async with with_notes(engine, tmp_path) as db:
        answer = await db.run(
            insert("a", 1),
            Statement("UPDATE notes SET number = number + 1 WHERE id = ? RETURNING number", ("a",), 1),
            Statement("SELECT id, number FROM notes"),
        )
        assert answer == [[], [(2,)], [("a", 2)]]


@every_engine
@run_on_loop
async def test_what_is_journaled_is_there_for_whoever_asks_and_what_is_refused_is_not(
    engine: str, tmp_path: Path
) -> None:
    inserts = (Insert("INSERT INTO notes (id, body) VALUES {rows}", (0, 1)),)
    async with with_notes(engine, tmp_path) as db:
        journaled: list[tuple[str, str | None]] = []
        for number in range(40):
            row = (f"{number:02}", None if number % 3 else "a text")
            journaled += [row] if db.append(inserts, row) else []
            await db.run(insert(f"other {number}"))
        assert await db.fetch("SELECT id, body FROM notes WHERE id < 'other' ORDER BY id") == journaled
    async with opened(engine, tmp_path) as db:
        assert await db.fetch("SELECT id, body FROM notes WHERE id < 'other' ORDER BY id") == journaled


@every_engine
@run_on_loop
async def test_another_number_of_rows_than_expected_is_a_conflict_and_writes_nothing(
    engine: str, tmp_path: Path
) -> None:
    async with with_notes(engine, tmp_path) as db:
        with pytest.raises(Conflict, match="0 rows where 1"):
            await db.run(insert("a"), Statement("UPDATE notes SET number = 1 WHERE id = ?", ("missing",), 1))
        with pytest.raises(Conflict, match="0 rows where 1"):
            await db.run(insert("a"), Statement("SELECT id FROM notes WHERE id = ?", ("missing",), 1))
        assert await db.fetch("SELECT id FROM notes") == []


@every_engine
@run_on_loop
async def test_a_row_that_refers_to_nothing_is_a_conflict(engine: str, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as db:
        orphan = "INSERT INTO messages (id, chat_id, created_at) VALUES (?, ?, ?)"
        with pytest.raises(Conflict):
            await db.run(Statement(orphan, ("m", "no such chat", "now")))


@every_engine
@run_on_loop
async def test_a_read_sees_what_another_process_committed(engine: str, tmp_path: Path) -> None:
    async with with_notes(engine, tmp_path) as db:
        assert await db.fetch("SELECT id FROM notes") == []
        command, env = [sys.executable, __file__, engine, str(tmp_path)], {**os.environ, "PYTHONPATH": str(TESTS)}
        subprocess.run(command, check=True, timeout=TIMEOUT, env=env)  # noqa: ASYNC221
        assert await db.fetch("SELECT id, number FROM notes") == [("from another process", 7)]


@every_engine
@run_on_loop
async def test_closing_finishes_what_is_queued(engine: str, tmp_path: Path) -> None:
    async with with_notes(engine, tmp_path) as db:
        writes = [asyncio.ensure_future(db.run(insert(f"n{number}"))) for number in range(500)]
        await asyncio.sleep(0)
        await db.close()
        await asyncio.gather(*writes)
    async with opened(engine, tmp_path) as db:
        assert await db.fetch("SELECT count(*) FROM notes") == [(500,)]


@every_engine
@run_on_loop
async def test_a_transaction_whose_waiter_was_cancelled_is_still_committed(engine: str, tmp_path: Path) -> None:
    async with with_notes(engine, tmp_path) as db:
        waiter = asyncio.ensure_future(db.run(insert("a")))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await db.run(insert("b"))
        assert await db.fetch("SELECT id FROM notes ORDER BY id") == [("a",), ("b",)]


@every_engine
@run_on_loop
async def test_a_closed_database_says_so_and_may_be_closed_again(engine: str, tmp_path: Path) -> None:
    async with with_notes(engine, tmp_path) as db:
        await db.close()
        with pytest.raises(Unavailable, match="closed"):
            await db.run(insert("a"))
        with pytest.raises(Unavailable, match="closed"):
            await db.fetch("SELECT 1")


@every_engine
@run_on_loop
async def test_what_no_database_can_hold_is_refused_as_the_callers_mistake(engine: str, tmp_path: Path) -> None:
    async with with_notes(engine, tmp_path) as db:
        for impossible in (insert("a", 2**63), insert("a", 0, "lone \ud800 surrogate")):
            with pytest.raises(Invalid):
                await db.run(impossible)
        with pytest.raises(Invalid):
            await db.fetch("SELECT id FROM notes WHERE id = ?", "\ud800")


@every_engine
@run_on_loop
async def test_an_error_of_the_engine_never_leaks(engine: str, tmp_path: Path) -> None:
    async with opened(engine, tmp_path) as db:
        with pytest.raises(Unavailable):
            await db.run(Statement("THIS IS NO SQL"))
        with pytest.raises(Unavailable):
            await db.fetch("SELECT nothing FROM nowhere")
        with pytest.raises(Unavailable):
            await db.run(Statement("INSERT INTO chats (id) VALUES (?)", ("without an owner",)))


texts = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
numbers = st.none() | st.integers(-(2**63), 2**63 - 1)


@every_engine
@settings(max_examples=25, deadline=None)
@given(values=st.lists(st.tuples(numbers, texts), max_size=20))
def test_null_unicode_and_64_bit_integers_come_back_as_they_went(
    engine: str, values: list[tuple[int | None, str | None]]
) -> None:
    @run_on_loop
    async def round_trip() -> None:
        with TemporaryDirectory() as place:
            async with with_notes(engine, Path(place)) as db:
                await db.run(*[insert(f"{key:04}", *value) for key, value in enumerate(values)])
                assert await db.fetch("SELECT number, body FROM notes ORDER BY id") == values

    round_trip()


@every_engine
@run_on_loop
async def test_a_large_text_comes_back_as_it_went(engine: str, tmp_path: Path) -> None:
    async with with_notes(engine, tmp_path) as db:
        large = "höchst " * 1_000_000
        await db.run(insert("large", 0, large))
        assert await db.fetch("SELECT body FROM notes") == [(large,)]


@every_engine
def test_it_works_on_uvloop(engine: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with with_notes(engine, tmp_path) as db:
            await asyncio.gather(*[db.run(insert(f"n{number}")) for number in range(100)])
            assert await db.fetch("SELECT count(*) FROM notes") == [(100,)]

    uvloop.run(main())


async def write_from_another_process(engine: str, place: Path) -> None:
    async with opened(engine, place) as db:
        await db.run(insert("from another process", 7))


if __name__ == "__main__":
    anyio.run(write_from_another_process, sys.argv[1], Path(sys.argv[2]))
