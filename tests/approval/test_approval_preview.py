"""The preview of changes to files that a person sees before a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.approval.preview import WorkspacePreview
from gateway.calls import Call
from gateway.config.settings import ApprovalRule
from gateway.extensions import stack
from gateway.extensions.approval import Approval
from gateway.sources.builtin.preview import DIFF_BYTES
from gateway.sources.builtin.source import BuiltinSource, FileTools
from gateway.tools import Tool
from gateway.workspace import Workspaces

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C5")]


@pytest.fixture
def workspaces(tmp_path: Path) -> Workspaces:
    workspaces = Workspaces(tmp_path)
    folder = workspaces.path("c")
    (folder / "a.txt").write_text("one\ntwo\n")
    (folder / "large.txt").write_text("x" * (DIFF_BYTES + 1))
    (folder / "binary").write_bytes(b"\0\1")
    (folder / "d").mkdir()
    (folder / "d" / "e").write_text("")
    (folder / "link").symlink_to("/etc/hostname")
    return workspaces


async def preview(workspaces: Workspaces, name: str, message: str | None = None, **arguments: Any) -> str | None:
    tools = {tool.id: tool for tool in await BuiltinSource([FileTools(workspaces)]).list_tools()}
    call = Call(name=name, arguments=arguments, tool=tools[name], chat="c", message=message)
    call.target.check_arguments(arguments)
    return await WorkspacePreview(workspaces).changes(call)


async def test_preview_shows_an_overwritten_or_edited_file_as_a_diff(workspaces: Workspaces) -> None:
    diff = "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"
    assert await preview(workspaces, "write_file", path="a.txt", content="one\nthree\n") == diff
    assert await preview(workspaces, "edit_file", path="a.txt", edits=[{"oldText": "two", "newText": "three"}]) == diff
    assert await preview(workspaces, "apply_patch", patch=diff) == diff


async def test_preview_shows_the_size_of_a_file_that_cannot_be_compared(workspaces: Workspaces) -> None:
    assert (
        await preview(workspaces, "write_file", path="new.txt", content="abc") == "new.txt: a new file of 3 characters"
    )
    assert await preview(workspaces, "write_file", path="binary", content="x") == "binary: 2 bytes are replaced"
    assert await preview(workspaces, "write_file", path="large.txt", content="x") == (
        f"large.txt: {DIFF_BYTES + 1} bytes are replaced"
    )


async def test_preview_of_a_move_or_deletion_names_what_is_lost(workspaces: Workspaces) -> None:
    assert await preview(workspaces, "delete_file", path="a.txt") == "a.txt is deleted (8 bytes)"
    assert await preview(workspaces, "delete_file", path="d", recursive=True) == (
        "d/ is deleted, with 1 files and directories in it"
    )
    assert await preview(workspaces, "move_file", None, **{"from": "binary", "to": "a.txt", "overwrite": True}) == (
        "binary is moved to a.txt, which replaces 8 bytes"
    )


async def test_preview_is_empty_for_paths_and_tools_it_cannot_describe(workspaces: Workspaces) -> None:
    assert await preview(workspaces, "write_file", path="../x", content="") is None
    assert await preview(workspaces, "write_file", path="link", content="x") is None
    assert await preview(workspaces, "delete_file", path="nowhere") is None
    assert await preview(workspaces, "write_file", "m", path="a.txt", content="x") is None
    assert await preview(workspaces, "read_file", path="a.txt") is None


@pytest.mark.parametrize(
    ("path", "asked"), [("a.txt", True), ("/workspace/a.txt", True), ("b.txt", False), ("d", False)]
)
async def test_rule_by_overwrites_asks_only_if_a_file_exists(workspaces: Workspaces, path: str, asked: bool) -> None:
    rule = ApprovalRule.model_validate({"toolset": "mine", "when": {"overwrites": True}})
    tool = Tool("mine:save", "", kind="python", owner="mine")

    async def run(_: Call) -> Any:
        raise ZeroDivisionError

    call_tool = stack([Approval("unsafe_only", [rule], preview=WorkspacePreview(workspaces))], run)
    outcome = await call_tool(Call(name=tool.id, arguments={"to": [path]}, tool=tool, chat="c"))
    assert outcome.error is not None
    assert (outcome.error.code == "CONFIRMATION_REQUIRED") is asked
