"""Servers added by hand hold no secret, and what a server said outlives both it and us."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.db.sqlite import SqliteDatabase
from gateway.db.upstreams import ERROR_LIMIT, LIST_LIMIT, SETTINGS_LIMIT, LastListing, Upstreams
from gateway.errors import Conflict, Invalid, NotFound

pytestmark = [pytest.mark.anyio]

SETTINGS = {"url": "https://host/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}, "prefix": ""}


@asynccontextmanager
async def opened(place: Path) -> AsyncIterator[Upstreams]:
    db = await SqliteDatabase.open(place / "toolgate.db")
    try:
        yield Upstreams(db)
    finally:
        await db.close()


async def test_a_server_is_added_changed_switched_and_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as upstreams, opened(tmp_path) as other:
        assert await upstreams.load() == (0, [])
        await upstreams.add("docs", SETTINGS)
        row = await other.find("docs")
        assert (row.settings, row.enabled, row.created_at) == (SETTINGS, True, row.updated_at)
        await upstreams.change("docs", {"command": "docs"})
        await upstreams.enable("docs", False)
        row = await other.find("docs")
        assert (row.settings, row.enabled) == ({"command": "docs"}, False)
        await upstreams.add("another", {"command": "x"}, enabled=False)
        revision, rows = await other.load()
        assert (revision, [each.name for each in rows]) == (4, ["another", "docs"])
        await upstreams.save_listing("docs", tools=[])
        await upstreams.remove("docs")
        assert (await other.revision(), await other.load_listing("docs")) == (5, LastListing("docs"))


async def test_a_name_is_taken_once_and_what_is_not_there_is_not_changed(tmp_path: Path) -> None:
    async with opened(tmp_path) as upstreams:
        await upstreams.add("docs", SETTINGS)
        with pytest.raises(Conflict) as taken:
            await upstreams.add("docs", SETTINGS)
        assert taken.value.code == "UPSTREAM_EXISTS"
        for change in (
            upstreams.change("nothing", {}),
            upstreams.enable("nothing", True),
            upstreams.remove("nothing"),
            upstreams.find("nothing"),
        ):
            with pytest.raises(NotFound):
                await change
        assert await upstreams.revision() == 1


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"headers": {"Authorization": "Bearer abc"}}, "headers.Authorization"),
        ({"headers": {"Authorization": "Bearer ${TOKEN} abc"}}, "headers.Authorization"),
        ({"headers": {"X-Api-Key": "abc"}}, "headers.X-Api-Key"),
        ({"headers": {"Cookie": "sid=1"}}, "headers.Cookie"),
        ({"headers": {"X-Thing": "ghp_0123456789abcdefghijklmn"}}, "headers.X-Thing"),
        ({"env": {"GITHUB_TOKEN": "abc"}}, "env.GITHUB_TOKEN"),
        ({"env": {"DB_PASSWORD": "abc"}}, "env.DB_PASSWORD"),
        ({"url": "https://ada:abc@host/"}, "url.password"),
        ({"url": "https://host/?api_key=abc"}, "url.api_key"),
        ({"args": ["--token=abc"]}, "args.token"),
        ({"args": ["-y", "--api-key", "abc"]}, "args.api-key"),
        ({"args": ["sk-0123456789abcdefghij"]}, "args.token"),
    ],
)
async def test_a_secret_is_refused_with_the_fix(settings: dict[str, Any], key: str, tmp_path: Path) -> None:
    async with opened(tmp_path) as upstreams:
        with pytest.raises(Invalid) as refused:
            await upstreams.add("docs", settings)
        assert (refused.value.code, refused.value.details["key"]) == ("LITERAL_SECRET", key)
        assert "${" in refused.value.message
        assert "abc" not in refused.value.message
        assert await upstreams.load() == (0, [])


@pytest.mark.parametrize(
    "settings",
    [
        {"command": "npx", "args": ["-y", "@org/server", "--token", "${TOKEN}", "--port=3000", "--key-file", "a.pem"]},
        {"env": {"LOG_LEVEL": "debug", "API_KEY": "${API_KEY}"}, "command": "x"},
        {"url": "https://host/mcp?token=${TOKEN}&page=2", "headers": {"Accept": "text/plain", "X-Api-Key": "${K}"}},
        {"url": "https://${USER}:${PASSWORD}@host/"},
    ],
)
async def test_references_and_plain_values_are_taken(settings: dict[str, Any], tmp_path: Path) -> None:
    async with opened(tmp_path) as upstreams:
        await upstreams.add("docs", settings)
        assert (await upstreams.find("docs")).settings == settings


async def test_settings_without_end_are_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as upstreams:
        with pytest.raises(Invalid):
            await upstreams.add("docs", {"command": "x" * SETTINGS_LIMIT})


async def test_what_a_server_said_is_there_after_a_restart_and_after_it_fails(tmp_path: Path) -> None:
    tools = [{"name": "a", "description": "\ud800 \x00", "inputSchema": {"type": "object"}, "n": 2**70}]
    async with opened(tmp_path) as upstreams:
        assert await upstreams.load_listing("docs") == LastListing("docs")
        await upstreams.record_failure("docs", "refused")
        memory = await upstreams.load_listing("docs")
        assert (memory.error, memory.tools, memory.seen_at) == ("refused", None, None)
        await upstreams.save_listing("docs", era="2026-07-28", tools=tools, prompts=[], instructions="Be kind.")
    async with opened(tmp_path) as upstreams:
        memory = await upstreams.load_listing("docs")
        assert (memory.era, memory.tools, memory.prompts, memory.templates) == ("2026-07-28", tools, [], None)
        assert (memory.instructions, memory.error, memory.error_at) == ("Be kind.", None, None)
        await upstreams.record_failure("docs", "it is gone\x00 \ud800")
        failed = await upstreams.load_listing("docs")
        assert (failed.tools, failed.seen_at, failed.error) == (tools, memory.seen_at, "it is gone  ?")
        assert await upstreams.revision() == 0


async def test_a_part_that_is_not_said_again_stays_and_an_empty_one_goes(tmp_path: Path) -> None:
    async with opened(tmp_path) as upstreams:
        await upstreams.save_listing("docs", era="2025-11-25", tools=[{"name": "a"}], instructions="Be kind.")
        await upstreams.save_listing("docs", prompts=[{"name": "p"}])
        memory = await upstreams.load_listing("docs")
        assert (memory.era, memory.tools, memory.prompts) == ("2025-11-25", [{"name": "a"}], [{"name": "p"}])
        await upstreams.save_listing("docs", tools=[], instructions="")
        memory = await upstreams.load_listing("docs")
        assert (memory.tools, memory.prompts, memory.instructions) == ([], [{"name": "p"}], None)
        await upstreams.forget("docs")
        assert await upstreams.load_listing("docs") == LastListing("docs")


async def test_memory_is_bounded(tmp_path: Path) -> None:
    async with opened(tmp_path) as upstreams:
        await upstreams.save_listing("docs", tools=[{"name": "a"}])
        with pytest.raises(Invalid) as refused:
            await upstreams.save_listing("docs", tools=["x" * LIST_LIMIT])
        assert refused.value.code == "TOO_LARGE"
        await upstreams.record_failure("docs", "x" * 10 * ERROR_LIMIT)
        memory = await upstreams.load_listing("docs")
        assert (memory.tools, len(memory.error or "")) == ([{"name": "a"}], ERROR_LIMIT + 1)
