"""Rows of toolsets: switched whole, kept apart from what the person changed, and counted by a revision."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.db import Statement
from gateway.db.sqlite import SqliteDatabase
from gateway.db.toolsets import (
    FileRow,
    OverrideRow,
    ServerRow,
    StoredToolset,
    ToolRow,
    ToolsetRow,
    Toolsets,
    UserOverrideRow,
)
from gateway.errors import Conflict

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T1")]

HEAD = ToolsetRow(
    "demo", "Demo", "1.0.0", "d", True, "2026-01-01", "zip", "a.zip", "1", "d1", False, "2026-01-01", "{}"
)
STORED = StoredToolset(
    HEAD,
    (FileRow("demo", "tools/a.py", "python", "0" * 64, 3, "/data/tools/a.py", True),),
    (
        ToolRow("demo:b", "demo", "B", None, None, False, True, "a:b", "python", 0, "{}", '{"x":1}', None),
        ToolRow("demo:a", "demo", "A", "a", "{}", True, False, None, "shell", 1, "{}", None, "it is gone"),
    ),
    (OverrideRow("o1", "demo", "demo:a", "code", "{}", "A", None, None, True, 0, None),),
    (ServerRow("srv", "demo", "stdio", True, "npx", "[]", None, None, "{}", "{}", False, "2026-01-01", 0, "{}"),),
)
CHANGE = UserOverrideRow("demo", "demo:a", enabled=False)


@asynccontextmanager
async def opened(place: Path) -> AsyncIterator[tuple[SqliteDatabase, Toolsets]]:
    db = await SqliteDatabase.open(place / "toolgate.db")
    try:
        yield db, Toolsets(db)
    finally:
        await db.close()


async def test_what_is_put_is_found_whole_and_in_order(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, toolsets):
        assert (await toolsets.revision(), await toolsets.load()) == (0, (0, []))
        await toolsets.put(STORED, None)
        other = StoredToolset(replace(HEAD, id="another", digest="x"))
        await toolsets.put(other, None)
        assert await toolsets.find("demo") == STORED
        assert await toolsets.find("nothing") is None
        assert await toolsets.load() == (2, [other, STORED])
        assert await toolsets.digests() == {"another": "x", "demo": "d1"}
        assert await toolsets.tool_ids() == {"demo:a", "demo:b"}
        assert await toolsets.servers() == {"srv": "demo"}


async def test_a_new_version_replaces_the_rows_and_leaves_the_switch_the_date_and_the_changes(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, toolsets):
        await toolsets.put(STORED, None)
        await toolsets.set_override(CHANGE, False)
        assert await toolsets.enable("demo", False)
        newer = replace(HEAD, version="2.0.0", digest="d2", installed_at="2030-01-01", updated_at="2030-01-01")
        await toolsets.put(StoredToolset(newer), "d1")
        kept = replace(newer, enabled=False, installed_at=HEAD.installed_at)
        assert await toolsets.find("demo") == StoredToolset(kept, user_overrides=(CHANGE,))


async def test_whoever_expects_another_version_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, toolsets):
        await toolsets.put(STORED, None)
        for over in (None, "d0"):
            with pytest.raises(Conflict):
                await toolsets.put(StoredToolset(replace(HEAD, digest="d9")), over)
        assert (await toolsets.find("demo"), await toolsets.revision()) == (STORED, 1)


async def test_a_change_is_replaced_and_taken_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, toolsets):
        await toolsets.put(STORED, None)
        await toolsets.set_override(CHANGE, False)
        again = replace(CHANGE, enabled=None, name_override="Mine", requires_confirmation=True)
        await toolsets.set_override(again, True)
        found = await toolsets.find("demo")
        assert found is not None and found.user_overrides == (again,)
        assert await toolsets.remove_override("demo", "demo:a", True)
        assert not await toolsets.remove_override("demo", "demo:a", True)
        with pytest.raises(Conflict):
            await toolsets.set_override(replace(CHANGE, toolset_id="nothing"), True)


async def test_removing_leaves_no_row_and_every_change_raises_the_revision(tmp_path: Path) -> None:
    async with opened(tmp_path) as (db, toolsets):
        await toolsets.put(STORED, None)
        seen = [await toolsets.revision()]
        for change in (
            lambda: toolsets.set_override(CHANGE, False),
            lambda: toolsets.enable("demo", False),
            lambda: toolsets.set_source("demo", "local", "/src", True),
            lambda: toolsets.remove("demo"),
        ):
            await change()
            seen.append(await toolsets.revision())
        assert seen == [1, 2, 3, 4, 5]
        assert not await toolsets.remove("demo")
        assert not await toolsets.enable("demo", True)
        assert await toolsets.revision() == 5
        tables = ("toolsets", "toolset_files", "tools", "tool_overrides", "toolset_mcp_servers", "user_overrides")
        counts = await db.run(*(Statement(f"SELECT count(*) FROM {table}") for table in tables))
        assert counts == [[(0,)]] * len(tables)


async def test_another_process_sees_a_change_by_the_revision(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, one), opened(tmp_path) as (_, other):
        before = await other.revision()
        await one.put(STORED, None)
        assert await other.revision() == before + 1
