from __future__ import annotations

import asyncio
from pathlib import Path

import anyio

from gateway.db.chats import Chats
from gateway.db.sqlite import SqliteDatabase
from gateway.db.tool_names import ToolNames


def test_a_chat_belongs_to_whoever_claimed_it_first(tmp_path: Path) -> None:
    async def main() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        chats = Chats(db)
        assert await chats.owner("c") is None
        owners = await asyncio.gather(*[chats.claim("c", principal) for principal in ("ada", "bob", "eve")])
        assert owners == ["ada"] * 3
        assert await chats.claim("c", "bob") == "ada"
        assert await chats.owner("c") == "ada"
        await db.close()

    anyio.run(main)


def test_a_public_name_keeps_its_meaning_across_restarts(tmp_path: Path) -> None:
    async def assign(wanted: dict[str, str]) -> dict[str, str]:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        try:
            return (await ToolNames(db).assign(wanted))[0]
        finally:
            await db.close()

    assert anyio.run(assign, {"b:x": "x"}) == {"b:x": "x"}
    later = anyio.run(assign, {"a:x": "x", "b:x": "x"})
    assert later["b:x"] == "x"
    assert later["a:x"].startswith("x_")
    assert anyio.run(assign, {"a:x": "x"}) == {"a:x": later["a:x"]}


def test_two_that_hand_out_names_at_once_agree(tmp_path: Path) -> None:
    async def main() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        wanted = {f"t{number}:x": "x" for number in range(10)}
        names = [ToolNames(db) for _ in range(5)]
        answers = await asyncio.gather(*[one.assign(dict(list(wanted.items())[k:])) for k, one in enumerate(names)])
        stored = {tool_id: name for name, tool_id in (await ToolNames(db).load()).items()}
        assert len(set(stored.values())) == len(wanted)
        for answer, _ in answers:
            assert answer == {tool_id: stored[tool_id] for tool_id in answer}
        await db.close()

    anyio.run(main)


def test_tool_that_gets_another_name_keeps_the_old_one_too(tmp_path: Path) -> None:
    async def main() -> None:
        db = await SqliteDatabase.open(tmp_path / "toolgate.db")
        await ToolNames(db).assign({"a:x": "old__x"})
        assert await ToolNames(db).assign({"a:x": "new__x"}) == ({"a:x": "new__x"}, {"old__x": "a:x", "new__x": "a:x"})
        await db.close()

    anyio.run(main)
