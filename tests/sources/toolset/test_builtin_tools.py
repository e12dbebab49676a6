"""Tools of a toolset that are builtins under another name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import ResourceLink, TextResourceContents

from gateway import Gateway
from gateway.serve.mcp.handlers import Handlers, McpServer

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T9")]

MANIFEST = """
manifest_version: "1"
id: lab
name: Lab
version: "1.0.0"
tools:
  - id: note
    type: builtin
    tool: write_file
    name: Take a note
    category: toolsets
    permission: read-only
    renderer: {type: code, file: "$args.path"}
  - id: wrong
    type: builtin
    tool: no_such_tool
  - {id: run, type: builtin, tool: run_command}
  - {id: page, type: builtin, tool: list_directory, renderer: {type: html, artifact: artifacts/files.html}}
"""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "lab/artifacts").mkdir(parents=True)
    (tmp_path / "lab/artifacts/files.html").write_text("<html><body>Files of the lab</body></html>")
    (tmp_path / "lab/toolset.yaml").write_text(MANIFEST)
    return {"data_dir": tmp_path / "data", "toolsets": [str(tmp_path / "lab")]}


async def test_a_builtin_under_another_name_keeps_its_category_level_and_questions(settings: dict[str, Any]) -> None:
    async with Gateway.open(settings) as gateway:
        note = gateway.catalog.find("lab:note").tool
        builtin = gateway.catalog.find("write_file").tool
        assert (note.category, note.permission, note.title) == (builtin.category, builtin.permission, "Take a note")
        first = await gateway.call("lab__note", {"path": "a.txt", "content": "1"}, chat="c")
        assert first.ok and first.render_plan is not None and first.render_plan["config"]["file"] == "a.txt"
        second = await gateway.call("lab__note", {"path": "a.txt", "content": "2"}, chat="c")
        assert second.error is not None and second.error.code == "CONFIRMATION_REQUIRED"
        assert "overwrites 'a.txt'" in second.error.message


@pytest.mark.parametrize(
    ("tool", "reason"),
    [("lab:wrong", "the gateway has no builtin tool 'no_such_tool'"), ("lab:run", "development")],
)
async def test_a_builtin_that_is_not_offered_is_not_under_another_name(
    settings: dict[str, Any], tool: str, reason: str
) -> None:
    async with Gateway.open(settings) as gateway:
        outcome = await gateway.call(tool, {"command": "true"}, chat="c", confirmed=True)
        assert outcome.error is not None and outcome.error.code == "TOOL_DISABLED"
        assert reason in outcome.error.message


async def test_a_builtin_that_is_turned_off_is_off_under_every_name(settings: dict[str, Any]) -> None:
    async with Gateway.open(settings) as gateway:
        await gateway.switches.enable_builtin("write_file", False)
        await gateway.refresh()
        outcome = await gateway.call("lab__note", {"path": "b.txt", "content": "1"}, chat="c", confirmed=True)
        assert outcome.error is not None and "toolgate tool enable write_file" in outcome.error.message


async def test_a_rule_about_a_builtin_holds_under_every_name(settings: dict[str, Any]) -> None:
    rule = {"tool": "write_file", "when": {"path": "*.env"}, "then": "deny"}
    async with Gateway.open({**settings, "approval": {"rules": [rule]}}) as gateway:
        for tool in ("write_file", "lab__note"):
            outcome = await gateway.call(tool, {"path": "a.env", "content": "1"}, chat="c", confirmed=True)
            assert outcome.error is not None and outcome.error.code == "DENIED_BY_RULE"


async def test_a_rate_limit_of_a_builtin_counts_its_calls_under_every_name(settings: dict[str, Any]) -> None:
    async with Gateway.open({**settings, "limits": {"calls_per_minute": {"write_file": 2}}}) as gateway:
        codes = []
        for number, tool in enumerate(("write_file", "lab__note", "lab__note", "write_file")):
            outcome = await gateway.call(tool, {"path": f"{number}.txt", "content": "1"}, chat="c")
            codes.append(outcome.error.code if outcome.error else None)
        assert codes == [None, None, "RATE_LIMITED", "RATE_LIMITED"]


@pytest.mark.promise("T5")
async def test_a_builtin_under_another_name_is_shown_by_a_page_of_its_toolset(settings: dict[str, Any]) -> None:
    async with Gateway.open(settings) as gateway:
        face = McpServer(Handlers(gateway.executor, gateway.versions, "c", gateway.records))
        async with Client(face.sdk, cache=None) as client:
            link = (await client.call_tool("lab__page", {})).content[-1]
            assert isinstance(link, ResourceLink)
            (view,) = (await client.read_resource(f"{link.uri}/view")).contents
            assert isinstance(view, TextResourceContents) and "Files of the lab" in view.text
