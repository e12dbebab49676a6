"""Search mode: the short list, finding, describing and calling tools by it, and whom it is for."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from journeys.test_approval import Person, choose, decline
from opcodes import count_opcodes

from gateway.access import AccessPolicy, AccessRule, ListPolicy
from gateway.admin.health import check_gateway
from gateway.calls import ClientInfo
from gateway.discovery import AUTO_TOOLS, CALLERS, DESCRIPTION_LIMIT, count_tokens, is_caller
from gateway.serve.mcp.request import Request
from gateway.tools import Permission, Tool

from .short_lists import ERAS, TEXT, call, short_lists

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G6")]

DATA = Path(os.environ.get("TOOLGATE_TOOLS_DATA", Path(__file__).parents[3] / "shared/data/tools")) / "tools.jsonl"
SHORT = ["search_tools", "describe_tool", "call_read", "call_write", "call_dangerous"]


@pytest.mark.parametrize("era", ERAS)
async def test_short_list_finds_describes_and_calls_every_tool(tmp_path: Path, era: str) -> None:
    async with short_lists(tmp_path) as lab, lab.connect(era) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(listed) == [*SHORT, "notes__draw_chart"]
        assert "notes (6)" in (listed["search_tools"].description or "")
        found = await call(client, "search_tools", query="read a note", limit=3)
        assert found.splitlines()[0] == "notes__read_note(text?: str) [call_read] Read one note by its text."
        described = json.loads(await call(client, "describe_tool", name="notes__read_note"))
        assert (described["inputSchema"], described["call"]) == (TEXT, "call_read")
        expected = {"tool": "notes:read_note", "text": "x"}
        for arguments in (
            {"tool": "notes__read_note", "arguments": {"text": "x"}},
            {"tool": "read_note", "arguments": '{"text": "x"}'},
            {"tool": "notes:read_note", "text": "x"},
        ):
            assert json.loads(await call(client, "call_read", **arguments)) == expected
        assert json.loads(await call(client, "notes__read_note", text="x")) == expected
        records = await lab.gateway.records.list_calls(limit=10)
        assert [record.tool_id for record in records[:4]] == ["notes:read_note"] * 4
        assert {record.tool_id for record in records[4:]} == {"search_tools", "describe_tool"}


async def test_modern_clients_may_keep_a_list_as_long_as_the_settings_say(tmp_path: Path) -> None:
    rarely = {"mode": "search", "list_seconds": 60}
    async with short_lists(tmp_path, tools=rarely) as lab, lab.connect("2026-07-28") as client:
        listed = await client.list_tools()
        assert (listed.ttl_ms, listed.cache_scope) == (60_000, "private")
    async with short_lists(tmp_path / "other") as lab, lab.connect("2026-07-28") as client:
        assert (await client.list_tools()).ttl_ms == 0
    limited = ListPolicy("full", fresh_seconds=60).override(ListPolicy("search"))
    assert limited == ListPolicy("search", fresh_seconds=60)


async def test_call_by_a_short_list_never_does_more_than_its_annotations_say(tmp_path: Path) -> None:
    async with short_lists(tmp_path) as lab, lab.connect(ERAS[0]) as client:
        listed = {tool["name"]: tool["annotations"] for tool in lab.list()}
        assert [listed[name]["readOnlyHint"] for name in CALLERS] == [True, False, False]
        assert [listed[name]["destructiveHint"] for name in CALLERS] == [False, False, True]
        for caller, tool, code in (
            ("call_read", "notes__add-note", "WRONG_CALLER"),
            ("call_write", "notes__erase_notes", "WRONG_CALLER"),
            ("call_write", "notes__read_note", None),
            ("call_dangerous", "notes__add-note", None),
            ("call_read", "nosuch", "UNKNOWN_TOOL"),
            ("call_read", 5, "INVALID_ARGUMENTS"),
        ):
            answer = await call(client, caller, tool=tool, arguments={"text": "x"})
            assert answer.partition(":")[0] == (code or '{"tool"'), answer
        assert (await call(client, "call_read", tool="notes__read_note", arguments="[")).startswith("INVALID_JSON")
        assert (await call(client, "call_read", tool="notes__read_note", arguments="[]")).startswith("INVALID_ARG")
        assert [each.target.id for each in lab.notes.calls] == ["notes:read_note", "notes:add-note"]
        refused = [record for record in await lab.gateway.records.list_calls(limit=20) if record.status == "error"]
        assert len(refused) == 6


@pytest.mark.parametrize("era", ERAS)
async def test_call_by_a_short_list_asks_about_the_tool_it_calls(tmp_path: Path, era: str) -> None:
    person = Person([choose("approve once", text="less"), decline])
    async with short_lists(tmp_path) as lab, lab.connect(era, person) as client:
        erased = await call(client, "call_dangerous", tool="notes__erase_notes", arguments={"text": "all"})
        assert json.loads(erased) == {"tool": "notes:erase_notes", "text": "less"}
        assert person.questions[0].message.startswith("Run notes__erase_notes?")
        declined = await call(client, "call_dangerous", tool="notes__erase_notes", arguments={"text": "all"})
        assert declined.startswith("DECLINED") and len(lab.notes.calls) == 1


async def test_short_list_of_a_profile_has_what_it_may_call_and_what_it_pins(tmp_path: Path) -> None:
    profiles = {
        "small": {"mode": "search", "permission": "read-only", "pinned": ["notes:read_*"], "description_limit": 40},
        "whole": {"mode": "full"},
    }
    async with short_lists(tmp_path, "auto", profiles=profiles) as lab:
        small = lab.gateway.roles.make_principal("ann", "user", "small")
        names = [tool["name"] for tool in lab.list(small)]
        assert names == ["search_tools", "describe_tool", "call_read", "notes__draw_chart", "notes__read_note"]
        assert "add_note" not in str(lab.list(small)) and "add-note" not in str(lab.list(small))
        whole = lab.gateway.roles.make_principal("ann", "user", "whole")
        assert len(lab.list(whole)) == len(lab.gateway.catalog)
        assert lab.gateway.catalog.for_principal(whole.access).get("search_tools") is None
        limited = lab.gateway.roles.make_principal("ann", "user")
        view = lab.gateway.catalog.for_principal(small.access)
        assert view.get("search_tools") is not None and view.get("add-note") is None
        assert len(lab.list(limited)) == len(lab.gateway.catalog)  # few tools: listed whole in the mode `auto`


async def test_denied_tools_of_discovery_do_not_exist_and_programs_only_in_code_mode(tmp_path: Path) -> None:
    profiles = {
        "denied": {"mode": "code", "tools": {"deny": ["run_tools", "call_dangerous"]}},
        "search": {"mode": "search"},
        "code": {"mode": "code"},
    }
    async with short_lists(tmp_path, "auto", profiles=profiles) as lab:
        views, listed = {}, {}
        for name in profiles:
            principal = lab.gateway.roles.make_principal("ann", "user", name)
            views[name] = lab.gateway.catalog.for_principal(principal.access)
            listed[name] = {tool["name"] for tool in lab.list(principal)}
        assert {name for name in profiles if "run_tools" in listed[name]} == {"code"}
        assert {name for name in profiles if views[name].get("run_tools") is not None} == {"code"}
        assert {name for name in profiles if "call_dangerous" in listed[name]} == {"search", "code"}
        assert [is_caller(views["denied"], name) for name in CALLERS] == [True, True, False]
        assert views["denied"].refusal("run_tools").code == "UNKNOWN_TOOL"


async def test_doctor_names_tools_whose_descriptions_clients_cut(tmp_path: Path) -> None:
    long = Tool("notes:long", "x" * (DESCRIPTION_LIMIT + 1), TEXT, owner="notes", category="upstream")
    async with short_lists(tmp_path, more=[long]) as lab:
        (check,) = [each for each in await check_gateway(lab.gateway) if "clients cut" in each.message]
        assert check.state == "note" and check.message.endswith(": notes__long")


def test_list_policies_combine_to_the_one_that_lists_least() -> None:
    rules = [AccessRule(lists=ListPolicy("search", ("a",), 100)), AccessRule(lists=ListPolicy("full", ("b",), 80))]
    assert AccessPolicy(rules).lists == ListPolicy("search", ("a", "b"), 80)
    assert AccessPolicy([AccessRule()]).lists is None
    assert ListPolicy("search").override(ListPolicy(None, ("a",))) == ListPolicy("search", ("a",))
    assert ListPolicy("search").override(ListPolicy("full")) == ListPolicy("full")


async def test_mode_auto_is_short_for_clients_that_do_not_defer_many_tools(tmp_path: Path) -> None:
    many = [Tool(f"notes:many_{number}", "One of many.", TEXT, owner="notes") for number in range(AUTO_TOOLS)]
    async with short_lists(tmp_path, "auto", many, categories={"toolsets": {"permission": "execute"}}) as lab:
        assert len(lab.list(client="claude-code 2.1")) == len(lab.list(client="Visual Studio Code 1.9")) > AUTO_TOOLS
        assert [tool["name"] for tool in lab.list(client="cursor 1")][:2] == SHORT[:2]
        assert [tool["name"] for tool in lab.list(client=None)][:2] == SHORT[:2]


async def test_call_by_a_short_list_costs_at_most_a_tenth_more_than_a_direct_one(tmp_path: Path) -> None:
    async with short_lists(tmp_path) as lab:
        direct = {"name": "notes__read_note", "arguments": {"text": "x"}}
        redirected = {"name": "call_read", "arguments": {"tool": "notes__read_note", "arguments": {"text": "x"}}}
        caller, client = lab.gateway.roles.make_principal("local", "admin").caller("mcp", None), ClientInfo(modern=True)

        def answer(params: dict[str, Any]) -> Callable[[], Awaitable[object]]:
            return lambda: lab.handlers.answer(Request("tools/call", params, ERAS[0], caller, "c", client))

        whole, short = [await count_opcodes(answer(params)) for params in (direct, redirected)]
        assert whole < short <= 1.1 * whole


@pytest.mark.skipif(not DATA.is_file(), reason="the definitions of real tools are not here")
async def test_short_list_of_3704_tools_has_less_than_2000_tokens(tmp_path: Path) -> None:
    tools = [_make(json.loads(line)) for line in DATA.read_text().splitlines()]
    async with short_lists(tmp_path, "code", tools) as lab, lab.connect(ERAS[0]) as client:
        assert len(lab.gateway.catalog) > 3700
        assert lab.tokens() < 2000
        description = lab.list()[0]["description"]
        assert len(description) <= DESCRIPTION_LIMIT and "zotero (43)" in description
        for query in ("create an issue", "search", "send a message to a person with many attachments"):
            assert count_tokens(await call(client, "search_tools", query=query, limit=20)) < 1200


def _make(row: dict[str, Any]) -> Tool:
    read = (row.get("annotations") or {}).get("readOnlyHint")
    permission = Permission.READ_ONLY if read else Permission.EXECUTE
    schema = row["inputSchema"] or {"type": "object"}
    options: dict[str, Any] = {"owner": row["server"], "category": "upstream", "permission": permission}
    return Tool(row["id"], row.get("description") or "", schema, **options)
