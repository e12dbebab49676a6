"""What clients are told about the builtins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.calls import Call, Outcome
from gateway.errors import GatewayError, Invalid
from gateway.sources import Source
from gateway.sources.builtin.decorator import SCHEMAS
from gateway.sources.builtin.source import BuiltinSource, FileTools, derive_schemas, load
from gateway.tools import Access, Permission, Tool
from gateway.workspace import Workspaces

READING = {"list_directory", "read_file", "find_files", "search_code"}
EDITING = {"write_file", "edit_file", "apply_patch", "move_file", "delete_file"}


def listed(tmp_path: Path) -> dict[str, Tool]:
    source: Source = BuiltinSource([FileTools(Workspaces(tmp_path))])
    return {tool.id: tool for tool in anyio.run(source.list_tools)}


@pytest.mark.promise("C1")
@pytest.mark.promise("P1")
def test_reading_is_read_only_and_editing_is_read_write(tmp_path: Path) -> None:
    tools = listed(tmp_path)
    assert set(tools) == READING | EDITING
    for name in READING:
        tool = tools[name]
        assert (tool.category, tool.permission, tool.access) == ("filesystem", Permission.READ_ONLY, Access.READ)
        assert (tool.destructive, tool.requires_confirmation) == (False, False)
    for name in EDITING:
        tool = tools[name]
        assert (tool.category, tool.permission, tool.access) == ("editing", Permission.READ_WRITE, Access.WRITE)
        assert tool.destructive


@pytest.mark.promise("P1")
@pytest.mark.promise("T2")
def test_looking_at_versions_is_read_only_and_going_back_is_read_write() -> None:
    shown = {builtin.tool.id: builtin.tool for builtin in load("versions")}
    assert {name: (tool.category, tool.permission) for name, tool in shown.items()} == {
        "workspace_history": ("filesystem", Permission.READ_ONLY),
        "workspace_diff": ("filesystem", Permission.READ_ONLY),
        "workspace_restore": ("editing", Permission.READ_WRITE),
        "workspace_branch": ("editing", Permission.READ_WRITE),
    }
    # They take the chat's lock themselves, and it cannot be taken twice.
    assert {tool.access for tool in shown.values()} == {Access.NONE}


@pytest.mark.promise("C1")
def test_arguments_are_spelled_as_the_seed_spells_them(tmp_path: Path) -> None:
    tools = listed(tmp_path)
    spelled = {name: set(tool.input_schema["properties"]) for name, tool in tools.items()}
    assert spelled["list_directory"] >= {"path", "recursive", "includeHidden"}
    assert spelled["read_file"] >= {"path", "encoding", "offset", "limit"}
    assert spelled["write_file"] >= {"path", "content", "encoding", "createDirs"}
    assert spelled["move_file"] >= {"from", "to", "overwrite"}
    assert spelled["delete_file"] == {"path", "recursive"}
    assert tools["move_file"].output_schema is not None
    assert set(tools["move_file"].output_schema["properties"]) == {"from", "to"}


@pytest.mark.parametrize("builtin", [*load("files"), *load("versions")], ids=lambda each: each.tool.id)
def test_schemas_compile_and_say_only_what_matters(builtin: Any) -> None:
    tool = builtin.tool
    tool.compile()
    assert tool.input_schema["additionalProperties"] is False
    assert all("description" in each for each in tool.input_schema["properties"].values())
    assert "'title':" not in str(tool.input_schema) + str(tool.output_schema)
    assert tool.title
    assert 80 < len(tool.description) < 600


def test_the_stored_schemas_are_those_of_the_functions() -> None:
    assert SCHEMAS.read_text() == derive_schemas(), "run: make schemas"


def test_an_unknown_argument_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="did you mean 'includeHidden'"):
        listed(tmp_path)["list_directory"].check_arguments({"path": ".", "include_hidden": True})


@pytest.mark.promise("C6")
def test_half_a_surrogate_pair_is_refused_wherever_it_stands(call: Callable[..., Outcome]) -> None:
    outcome = call("write_file", path="a", content="\ud800")
    assert outcome.error is not None
    assert outcome.error.status == 400


def test_each_chat_has_its_own_files(tmp_path: Path) -> None:
    source = BuiltinSource([FileTools(Workspaces(tmp_path))])

    async def talk() -> None:
        tools = {tool.id: tool for tool in await source.list_tools()}
        await source.call_tool(
            Call(name="w", tool=tools["write_file"], arguments={"path": "a", "content": "x"}, chat="one")
        )
        with pytest.raises(GatewayError, match="FILE_NOT_FOUND"):
            await source.call_tool(Call(name="r", tool=tools["read_file"], arguments={"path": "a"}, chat="two"))

    anyio.run(talk)


def test_a_cancelled_walk_ends_at_once(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    for number in range(200):
        (workspace / str(number)).mkdir(parents=True)
    source = BuiltinSource([FileTools(Workspaces(tmp_path / "data", {"demo": workspace}))])

    async def cancelled() -> bool:
        tools = {tool.id: tool for tool in await source.list_tools()}
        with anyio.CancelScope() as scope:
            scope.cancel()
            await source.call_tool(
                Call(name="l", tool=tools["list_directory"], arguments={"recursive": True}, chat="demo")
            )
        return scope.cancelled_caught

    assert anyio.run(cancelled)
