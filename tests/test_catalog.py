"""The catalog: what is offered, under which name, and why the rest is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gateway.calls import Call, Outcome
from gateway.catalog import Catalog, CatalogPolicy, Draft
from gateway.config import Settings
from gateway.errors import GatewayError
from gateway.names import assign
from gateway.tools import Permission, Tool


class Box:
    name = "box"

    def __init__(self, *tools: Tool) -> None:
        self._tools = tools

    async def list_tools(self) -> Sequence[Tool]:
        return self._tools

    async def call_tool(self, call: Call) -> Outcome:
        return Outcome(value=call.target.id)


def catalog(
    *tools: Tool,
    permission: Permission = Permission.EXECUTE,
    limit: int = 100,
    taken: Mapping[str, str] | None = None,
) -> Catalog:
    draft = Draft(CatalogPolicy(Settings().effective_categories(), permission, limit))
    source = Box(*tools)
    for tool in tools:
        draft.consider(source, tool)
    given = assign(draft.wishes, taken or {})
    return draft.finish(given, {**(taken or {}), **{name: tool_id for tool_id, name in given.items()}})


READ = Tool("read", "Read.", category="filesystem", permission=Permission.READ_ONLY, tags=("files",))
WRITE = Tool("box:write", "Write.", kind="python", permission=Permission.READ_WRITE, owner="box", destructive=True)


def test_a_tool_is_found_by_its_name_and_by_its_id() -> None:
    merged = catalog(READ, WRITE)
    assert [entry.name for entry in merged] == ["box__write", "read"]
    assert merged.find("box:write") is merged.find("box__write")


@pytest.mark.promise("P2")
@pytest.mark.parametrize(
    ("tool", "code", "words"),
    [
        (Tool("sh", "", category="filesystem"), "CATEGORY_TOO_LOW", "sh needs execute, but its category 'filesystem'"),
        (Tool("run", "", category="development"), "TOOL_DISABLED", "toolgate category enable development"),
        (Tool("x", "", category="filesytem"), "UNKNOWN_CATEGORY", "did you mean 'filesystem'"),
        (Tool("x", "", {"type": "objct"}, category="upstream"), "INVALID_SCHEMA", "no JSON Schema"),
    ],
)
def test_a_tool_that_cannot_be_offered_is_left_out_alone_with_the_reason(tool: Tool, code: str, words: str) -> None:
    merged = catalog(READ, tool)
    assert [entry.name for entry in merged] == ["read"]
    with pytest.raises(GatewayError) as refused:
        merged.find(tool.id)
    assert refused.value.code == code
    assert words in refused.value.message


@pytest.mark.promise("P2")
def test_a_profile_withholds_what_needs_more() -> None:
    merged = catalog(READ, WRITE, permission=Permission.READ_ONLY)
    assert [entry.name for entry in merged] == ["read"]
    assert merged.refusal("box__write").code == "PERMISSION_DENIED"


def test_two_tools_that_wish_for_one_name_both_get_one_and_it_is_reported() -> None:
    merged = catalog(Tool("a:x", "", category="upstream", prefix=""), Tool("b:x", "", category="upstream", prefix=""))
    assert [entry.tool.id for entry in merged] == ["a:x", "b:x"]
    assert [problem.code for problem in merged.problems] == ["NAME_TAKEN"]
    assert merged.find("x").tool.id == "a:x"


@pytest.mark.promise("B11")
def test_no_more_tools_are_offered_than_the_limit_and_the_rest_is_told_why() -> None:
    off = Tool("off", "", category="development")
    merged = catalog(*(Tool(f"u:{n}", "", category="upstream") for n in range(4)), off, limit=3)
    assert len(merged) == 3
    assert "more than 3 tools" in merged.refusal("u:3").message
    assert "which is off" in merged.refusal("off").message


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    assert str(catalog(READ).refusal("raed")) == "UNKNOWN_TOOL: no tool is named 'raed'; did you mean 'read'?"
    names = ("edit_file", "find_files", "write_file")
    files = catalog(*(Tool(n, "", category="filesystem", permission=Permission.READ_ONLY) for n in names))
    assert "did you mean 'find_files'?" in files.refusal("list_files").message
    assert "did you mean 'write_file'?" in files.refusal("writ_files").message


@pytest.mark.promise("X1")
def test_tools_are_filtered_by_kind_category_and_tag() -> None:
    merged = catalog(READ, WRITE)
    assert [entry.name for entry in merged.filter(kind="python")] == ["box__write"]
    assert [entry.name for entry in merged.filter(category="filesystem", tag="files")] == ["read"]
    assert len(merged.filter(kind="python", tag="files")) == 0


@pytest.mark.promise("X1")
def test_tools_are_exported_in_three_shapes() -> None:
    merged = catalog(WRITE)
    schema = {"type": "object"}
    assert merged.to_openai_tools() == [
        {"type": "function", "function": {"name": "box__write", "description": "Write.", "parameters": schema}}
    ]
    assert merged.to_anthropic_tools() == [{"name": "box__write", "description": "Write.", "input_schema": schema}]
    assert merged.to_mcp_tools() == [
        {
            "name": "box__write",
            "description": "Write.",
            "inputSchema": schema,
            "annotations": {
                "readOnlyHint": False,
                "destructiveHint": True,
                "idempotentHint": False,
                "openWorldHint": False,
            },
        }
    ]


def upstream_tool(tool_id: str, **more: Any) -> Tool:
    return Tool(tool_id, "", category="upstream", kind="mcp", owner=tool_id.partition(":")[0], wire={}, **more)


def test_bare_name_means_a_tool_only_if_one_source_has_it() -> None:
    merged = catalog(READ, upstream_tool("a:get-time"), upstream_tool("a:search"), upstream_tool("b:search"))
    assert merged.find("get-time").tool.id == "a:get-time"
    with pytest.raises(GatewayError, match="2 tools are named 'search'; call one of: a__search, b__search") as refused:
        merged.find("search")
    assert refused.value.code == "AMBIGUOUS_TOOL"


def test_bare_name_of_a_withheld_tool_reaches_no_other_tool() -> None:
    held = upstream_tool("a:search", withheld="its definition changed")
    with pytest.raises(GatewayError, match="b__search"):
        catalog(held, upstream_tool("b:search")).find("search")
    with pytest.raises(GatewayError, match="its definition changed") as refused:
        catalog(held).find("search")
    assert refused.value.code == "TOOL_DISABLED"
    off = Tool("run", "", category="development")
    with pytest.raises(GatewayError, match="toolgate category enable development"):
        catalog(off, upstream_tool("b:run")).find("run")


def test_bare_name_is_never_one_that_was_given_to_another_tool() -> None:
    merged = catalog(upstream_tool("b:a__run"), taken={"a__run": "a:run"})
    with pytest.raises(GatewayError, match="no tool is named 'a__run'"):
        merged.find("a__run")


def test_tool_with_a_new_prefix_keeps_its_old_name_as_an_alias() -> None:
    merged = catalog(upstream_tool("a:x", prefix="new"), taken={"old__x": "a:x"})
    assert [entry.name for entry in merged] == ["new__x"]
    assert merged.find("old__x").name == "new__x"
    assert merged.problems == ()
    taken = catalog(upstream_tool("b:x", prefix="old"), taken={"old__x": "a:x"})
    [problem] = taken.problems
    assert "'old__x' belongs to a:x" in problem.message
