"""What a person is told of the files a call would change."""

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


async def told(workspaces: Workspaces, name: str, message: str | None = None, **arguments: Any) -> str | None:
    tools = {tool.id: tool for tool in await BuiltinSource([FileTools(workspaces)]).list_tools()}
    call = Call(name=name, arguments=arguments, tool=tools[name], chat="c", message=message)
    call.target.check_arguments(arguments)
    return await WorkspacePreview(workspaces).changes(call)


async def test_a_file_that_is_overwritten_or_edited_is_shown_as_a_diff(workspaces: Workspaces) -> None:
    diff = "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"
    assert await told(workspaces, "write_file", path="a.txt", content="one\nthree\n") == diff
    assert await told(workspaces, "edit_file", path="a.txt", edits=[{"oldText": "two", "newText": "three"}]) == diff
    assert await told(workspaces, "apply_patch", patch=diff) == diff


async def test_what_cannot_be_compared_is_told_by_its_size(workspaces: Workspaces) -> None:
    assert await told(workspaces, "write_file", path="new.txt", content="abc") == "new.txt: a new file of 3 characters"
    assert await told(workspaces, "write_file", path="binary", content="x") == "binary: 2 bytes are replaced"
    assert await told(workspaces, "write_file", path="large.txt", content="x") == (
        f"large.txt: {DIFF_BYTES + 1} bytes are replaced"
    )


async def test_what_goes_or_moves_is_named_with_what_it_takes_along(workspaces: Workspaces) -> None:
    assert await told(workspaces, "delete_file", path="a.txt") == "a.txt is deleted (8 bytes)"
    assert await told(workspaces, "delete_file", path="d", recursive=True) == (
        "d/ is deleted, with 1 files and directories in it"
    )
    assert await told(workspaces, "move_file", None, **{"from": "binary", "to": "a.txt", "overwrite": True}) == (
        "binary is moved to a.txt, which replaces 8 bytes"
    )


async def test_nothing_is_said_of_what_cannot_be_looked_at(workspaces: Workspaces) -> None:
    assert await told(workspaces, "write_file", path="../x", content="") is None
    assert await told(workspaces, "write_file", path="link", content="x") is None
    assert await told(workspaces, "delete_file", path="nowhere") is None
    assert await told(workspaces, "write_file", "m", path="a.txt", content="x") is None
    assert await told(workspaces, "read_file", path="a.txt") is None


@pytest.mark.parametrize(
    ("path", "asked"), [("a.txt", True), ("/workspace/a.txt", True), ("b.txt", False), ("d", False)]
)
async def test_a_rule_may_ask_only_where_a_file_is_overwritten(workspaces: Workspaces, path: str, asked: bool) -> None:
    rule = ApprovalRule.model_validate({"toolset": "mine", "when": {"overwrites": True}})
    tool = Tool("mine:save", "", kind="python", owner="mine")

    async def run(_: Call) -> Any:
        raise ZeroDivisionError

    road = stack([Approval("unsafe_only", [rule], preview=WorkspacePreview(workspaces))], run)
    outcome = await road(Call(name=tool.id, arguments={"to": [path]}, tool=tool, chat="c"))
    assert outcome.error is not None
    assert (outcome.error.code == "CONFIRMATION_REQUIRED") is asked
