"""Switches of people: one builtin, a category, and the rows that keep them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from click.testing import CliRunner
from eventually import async_eventually as eventually
from mcp import Client
from sources.toolset.writing import install, require_sandbox, write_toolset

from gateway import Gateway
from gateway.admin.switches import change_category
from gateway.admin.toolsets import install_toolset, show_toolset
from gateway.cli import toolgate
from gateway.serve.mcp.handlers import Handlers, McpServer
from gateway.tools import Permission

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])


async def run(data: Path, *arguments: str, status: int = 0) -> str:
    """A command in another thread, as another process would run it."""

    def invoke() -> str:
        done = CliRunner().invoke(toolgate, [*arguments, "--data-dir", str(data)])
        assert done.exit_code == status, done.output
        return done.stdout if status == 0 else str(done.exception)

    return await anyio.to_thread.run_sync(invoke)


def rows(data: Path, sql: str) -> list[Any]:
    with sqlite3.connect(data / "toolgate.db") as db:
        return db.execute(sql).fetchall()


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


@ERAS
@pytest.mark.promise("B4", "T1")
async def test_one_builtin_is_turned_off_and_on_while_the_gateway_runs(tmp_path: Path, era: Any) -> None:
    async with (
        Gateway.open({"data_dir": tmp_path}, follow=True) as gateway,
        Client(McpServer(Handlers(gateway.executor, gateway.versions, "c")).sdk, mode=era, cache=None) as client,
    ):
        assert await run(tmp_path, "tool", "disable", "write_file") == "write_file is off\n"
        await eventually(lambda: gateway.catalog.get("write_file") is None)
        assert await names(client) & {"write_file", "read_file"} == {"read_file"}
        refused = await client.call_tool("write_file", {"path": "a", "content": "x"})
        assert refused.is_error
        assert refused.content[0].text == (  # type: ignore[union-attr]
            "TOOL_DISABLED: write_file: it is turned off; turn it on with: toolgate tool enable write_file"
        )
        assert rows(tmp_path, "SELECT enabled FROM tools WHERE tool_id = 'write_file'") == [(0,)]
        await run(tmp_path, "tool", "enable", "write_file")
        await eventually(lambda: gateway.catalog.get("write_file") is not None)
        assert "write_file" in await names(client)
    for name in ("wrte_file", "nowhere:write_file"):
        assert f"UNKNOWN_TOOL: no tool is named {name!r}" in await run(tmp_path, "tool", "disable", name, status=1)
    renamed = await run(tmp_path, "toolset", "override", "write_file", "--name", "Mine", status=1)
    assert renamed.startswith("BUILTIN_IMMUTABLE: write_file is builtin")


@pytest.mark.promise("T1")
async def test_every_builtin_is_a_row_of_tools_and_keeps_what_a_person_set(tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": tmp_path}) as gateway:
        known = {tool.id for tool in await gateway.builtins.list_tools()}
    stored = rows(
        tmp_path, "SELECT tool_id, name, description, requires_confirmation, enabled, kind, toolset_id FROM tools"
    )
    assert {row[0] for row in stored} == known and {row[5:] for row in stored} == {("builtin", None)}
    [row] = [row for row in stored if row[0] == "delete_file"]
    assert row[1] == "Delete file" and row[2].startswith("Delete a file or a directory") and row[3:5] == (1, 1)
    await run(tmp_path, "tool", "disable", "run_code")
    async with Gateway.open({"data_dir": tmp_path, "tools": {"enable": True}}):
        [row] = rows(tmp_path, "SELECT description, enabled FROM tools WHERE tool_id = 'run_code'")
        assert row[1] == 0


@pytest.mark.promise("T1")
async def test_a_toolset_tool_that_a_person_turns_off_is_off_in_its_row(tmp_path: Path) -> None:
    await require_sandbox()
    manifest = "id: lab\nname: Lab\nversion: 1.0.0\nprefix: x\ntools: [{id: a, type: shell, command: [ls]}]\n"
    folder = write_toolset(tmp_path / "lab", manifest)
    async with Gateway.open({"data_dir": tmp_path / "data"}) as gateway:
        await install(gateway, folder)
        assert gateway.catalog.get("x__a") is not None, "a toolset may set its prefix"
    enabled = "SELECT enabled FROM tools WHERE tool_id = 'lab:a'"
    assert await run(tmp_path / "data", "tool", "disable", "x__a") == "x__a is off\n"
    assert rows(tmp_path / "data", enabled) == [(0,)]
    (folder / "toolset.yaml").write_text((folder / "toolset.yaml").read_text().replace("1.0.0", "1.0.1"))
    async with Gateway.open({"data_dir": tmp_path / "data"}) as gateway:
        await install(gateway, folder)
        assert rows(tmp_path / "data", enabled) == [(0,)], "a new version keeps what a person set"
    for name in ("lab:a", "x__a"):
        assert await run(tmp_path / "data", "tool", "enable", name) == f"{name} is on\n"
        assert rows(tmp_path / "data", enabled) == [(1,)]
        await run(tmp_path / "data", "tool", "disable", name)
    await run(tmp_path / "data", "toolset", "override", "lab:a", "--reset")
    assert rows(tmp_path / "data", enabled) == [(1,)]


@ERAS
@pytest.mark.promise("P1")
async def test_a_category_is_changed_while_the_gateway_runs(tmp_path: Path, era: Any) -> None:
    settings = {"data_dir": tmp_path, "categories": {"editing": {"name": "Files", "description": "Changes files"}}}
    async with (
        Gateway.open(settings, follow=True) as gateway,
        Client(McpServer(Handlers(gateway.executor, gateway.versions, "c")).sdk, mode=era, cache=None) as client,
    ):
        assert (gateway.categories["editing"].title, gateway.categories["editing"].description) == (
            "Files",
            "Changes files",
        )
        assert "git_status" not in await names(client)
        assert (await run(tmp_path, "category", "enable", "development")).startswith("development is on (execute; ")
        await eventually(lambda: gateway.categories["development"].enabled)
        await eventually(lambda: gateway.catalog.refusal("run_code").code != "TOOL_DISABLED")
        await run(tmp_path, "category", "disable", "development")
        await run(tmp_path, "category", "set", "filesystem", "--calls-per-minute", "1", "--name", "Reading")
        await eventually(lambda: gateway.categories["filesystem"].calls_per_minute == 1)
        assert not (await client.call_tool("list_directory", {"path": "."})).is_error
        refused = await client.call_tool("list_directory", {"path": "."})
        assert refused.content[0].text.startswith("RATE_LIMITED")  # type: ignore[union-attr]
        await run(tmp_path, "category", "set", "editing", "--level", "read-only")
        await eventually(lambda: gateway.catalog.get("write_file") is None)
        assert "write_file" not in await names(client)
    listed = {row["id"]: row for row in json.loads(await run(tmp_path, "category", "list", "--json"))}
    assert listed["filesystem"]["name"] == "Reading" and listed["filesystem"]["calls_per_minute"] == 1
    assert listed["filesystem"]["description"] and not listed["development"]["enabled"]
    await run(tmp_path, "category", "set", "editing", "--reset")
    assert "Reads and searches a chat's files" in await run(tmp_path, "category", "list")
    assert "did you mean 'editing'?" in await run(tmp_path, "category", "enable", "editin", status=1)
    await run(tmp_path, "category", "set", "editing", status=2)


@pytest.mark.promise("P1", "T9")
async def test_a_toolset_shows_the_level_of_builtins_whose_category_is_off(tmp_path: Path) -> None:
    source = Path(__file__).parent.parent / "toolsets/app-builder"
    async with Gateway.open({"data_dir": tmp_path}) as gateway:
        info = await install_toolset(gateway, str(source))
        off = {tool.id: (tool.permission, bool(tool.requires_confirmation)) for tool in info.tools}
        assert off["app-builder:start_app"] == (Permission.EXECUTE, True)
        assert any(tool.withheld for tool in info.tools)
        await change_category(gateway, "development", {"enabled": True})
        shown = await show_toolset(gateway, "app-builder")
        assert {tool.id: (tool.permission, bool(tool.requires_confirmation)) for tool in shown.tools} == off


async def test_category_that_a_flag_asks_for_and_a_switch_keeps_off_is_said(tmp_path: Path) -> None:
    settings = {"data_dir": tmp_path, "tools": {"enabled_categories": ["development", "web"]}}
    async with Gateway.open(settings) as gateway:
        assert not gateway.catalog.problems
        await change_category(gateway, "development", {"enabled": False})
        messages = [problem.message for problem in gateway.catalog.problems]
        assert [text.partition(" turn it on with: ")[2] for text in messages] == [
            "toolgate category enable development"
        ]
        await change_category(gateway, "development", {"enabled": True})
        assert not gateway.catalog.problems
