"""Code mode: programs that call tools, with consent, failure, cancellation and limits of each call, in both eras."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import async_eventually
from journeys.test_approval import Person, choose, decline
from sources.toolset.writing import require_sandbox

from gateway.admin.health import check_gateway
from gateway.discovery import DESCRIPTION_LIMIT
from gateway.discovery.programs import CALLS_LIMIT, RUN_TOOLS
from gateway.tools import Tool

from .short_lists import ERAS, TEXT, Lab, call, short_lists

pytestmark = [pytest.mark.anyio, pytest.mark.promise("H7")]

ERASE = 'await notes__erase_notes(text="all")'


async def run(client: Any, code: str) -> str:
    return await call(client, "run_tools", code=code)


async def find_inner(lab: Lab) -> list[tuple[str, str]]:
    """Return the tool and the status of every call that a program made, after checking its parent."""
    records = await lab.gateway.records.list_calls(limit=100)
    parents = {record.id for record in records if record.tool_id == "run_tools"}
    inner = [record for record in records if record.parent_call_id is not None]
    assert {record.parent_call_id for record in inner} <= parents
    return [(str(record.tool_id), record.status) for record in reversed(inner)]


@pytest.mark.parametrize("era", ERAS)
async def test_program_calls_tools_as_functions_and_returns_only_its_value(tmp_path: Path, era: str) -> None:
    async with short_lists(tmp_path, "code") as lab, lab.connect(era) as client:
        code = """
import asyncio
one = await notes__read_note("first")
two, three = await asyncio.gather(notes__read_note(text="second"), call_tool("notes__add-note", {"text": "third"}))
print("read", one["text"])
[two["text"], three["tool"], (await read_note("short name"))["text"]]
"""
        assert await run(client, code) == 'read first\n["second","notes:add-note","short name"]'
        assert sorted(await find_inner(lab)) == [("notes:add-note", "success"), *[("notes:read_note", "success")] * 3]
        failed = await run(client, 'print("begun")\nawait notes__break_note()')
        assert failed.startswith("PROGRAM_FAILED") and "RuntimeError: BROKEN: it broke" in failed and "begun" in failed
        caught = "try:\n    await notes__break_note()\nexcept RuntimeError as error:\n    print(error)"
        assert await run(client, caught) == "BROKEN: it broke"
        assert await run(client, "None") == "The program returned nothing."
        found = await call(client, "search_tools", query="read_file", limit=1)
        assert ") -> {content, size, modified, truncated, offset, nextOffset, totalLines} [call_read] " in found


@pytest.mark.parametrize("era", ERAS)
async def test_program_waits_for_consent_to_each_call_and_goes_on_with_the_answer(tmp_path: Path, era: str) -> None:
    person = Person([choose("approve once"), choose("approve once", text="less"), decline])
    async with short_lists(tmp_path, "code") as lab, lab.connect(era, person) as client:
        code = f'print((await notes__read_note(text="x"))["text"])\na = {ERASE}\nb = {ERASE}\n[a["text"], b["text"]]'
        assert await run(client, code) == 'x\n["all","less"]'
        assert len(person.questions) == 2 and person.questions[0].message.startswith("Run notes__erase_notes?")
        assert [each.target.id for each in lab.notes.calls].count("notes:read_note") == 1  # nothing ran twice
        declined = await run(client, ERASE)
        assert "RuntimeError: DECLINED" in declined
        assert [each.arguments["text"] for each in lab.notes.calls if each.target.id == "notes:erase_notes"] == [
            "all",
            "less",
        ]
    async with short_lists(tmp_path / "silent", "code") as lab, lab.connect(era) as client:
        assert "CONFIRMATION_REQUIRED" in await run(client, ERASE)
        assert not lab.notes.calls


@pytest.mark.parametrize("era", ERAS)
async def test_program_that_is_cancelled_ends_with_the_calls_it_made(tmp_path: Path, era: str) -> None:
    async with short_lists(tmp_path, "code") as lab, lab.connect(era) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, client, "await notes__wait_long()")
            await lab.notes.begun.wait()
            tasks.cancel_scope.cancel()

        async def is_recorded() -> bool:
            return await find_inner(lab) == [("notes:wait_long", "error")]

        await async_eventually(is_recorded)
        assert await run(client, "1 + 1") == "2"


@pytest.mark.parametrize("era", ERAS)
async def test_program_whose_process_is_killed_fails_and_the_next_one_runs(tmp_path: Path, era: str) -> None:
    async with short_lists(tmp_path, "code") as lab, lab.connect(era) as client:
        running = asyncio.create_task(run(client, "await notes__wait_long()"))
        await lab.notes.begun.wait()
        discovery = lab.gateway._parts.discovery
        assert discovery is not None and discovery._programs is not None
        (code,) = discovery._programs._monty._running
        assert code._worker is not None
        os.kill(code._worker, signal.SIGKILL)
        lab.gateway.cancel_call(lab.notes.calls[0].id, "a person")
        assert (await running).startswith("PROGRAM_FAILED")
        assert await run(client, "1 + 1") == "2"


async def test_program_works_on_files_and_with_packages_by_code_in_the_sandbox(tmp_path: Path) -> None:
    await require_sandbox()
    development = {"development": {"enabled": True, "permission": "execute"}}
    async with short_lists(tmp_path / "data", "code", categories=development) as lab:
        outside = tmp_path / "data" / "outside.txt"
        outside.write_text("secret")
        code = f"""
await write_file(path="in.csv", content="1\\n2\\n")
inner = "open('sum.txt', 'w').write(str(sum(map(int, open('in.csv')))))\\nprint(open({str(outside)!r}).read())"
ran = await run_code(language="python", code=inner)
[(await read_file(path="sum.txt"))["content"], ran["exitCode"], "secret" in ran["stdout"]]
"""
        outcome = await lab.gateway.call("run_tools", {"code": code}, chat="files")
        assert outcome.error is None and outcome.value["value"] == ["3", 1, False], outcome
        assert await find_inner(lab) == [(tool, "success") for tool in ("write_file", "run_code", "read_file")]


async def test_program_gets_the_same_refusal_for_a_hidden_tool_as_for_an_unknown_one(tmp_path: Path) -> None:
    roles = {"reader": {"permission": "read-only", "tools": {"deny": ["*chart*"]}}}
    async with short_lists(tmp_path, "code", roles=roles) as lab:
        caller = lab.gateway.roles.make_principal("ann", "reader").caller("mcp", "tester 1")
        refusals = []
        for name in ("notes__draw_chart", "notes__drow_chart", "notes__erase_notes", "notes__eraze_notes"):
            outcome = await lab.gateway.call("run_tools", {"code": f"await {name}()"}, caller=caller)
            assert outcome.error is not None
            refusals.append(outcome.error.message.replace(name, "NAME").partition("Error: ")[2])
        assert len({text.partition(";")[0] for text in refusals}) == 1 and "UNKNOWN_TOOL" in refusals[0]
        assert not lab.notes.calls and "draw_chart" not in refusals[1]


async def test_tool_that_only_views_may_call_does_not_exist_for_models(tmp_path: Path) -> None:
    meta = {"ui": {"visibility": ["app"]}}
    hidden = Tool("notes:secret_view", "Secret view.", TEXT, owner="notes", category="upstream", meta=meta)
    async with short_lists(tmp_path, "code", [hidden]) as lab, lab.connect(ERAS[0]) as client:
        assert "secret" not in str(lab.list())
        assert "secret" not in await call(client, "search_tools", query="secret view")
        for answer in (
            await call(client, "describe_tool", name="notes__secret_view"),
            await call(client, "call_dangerous", tool="notes__secret_view"),
            await run(client, "await notes__secret_view()"),
        ):
            assert "UNKNOWN_TOOL: no tool is named 'notes__secret_view'" in answer
        for answer in (
            await call(client, "describe_tool", name="notes:secret_view"),
            await call(client, "describe_tool", name="notes__secret_viev"),
            await call(client, "call_dangerous", tool="secret_viev"),
            await run(client, "await call_tool('notes:secret_view', {})"),
            await run(client, "await notes__secret_viev()"),
            await call(client, "notes__secret_viev"),
        ):
            assert "UNKNOWN_TOOL" in answer and "notes__secret_view'" not in answer
        assert not lab.notes.calls


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("open('/etc/passwd').read()", "PermissionError"),
        ("import socket", "ModuleNotFoundError"),
        ("import os\nos.system('id')", "AttributeError"),
        ("await __import__('os')", "UNKNOWN_TOOL"),
        ("read_note(text='x')", "write: await tool(...)"),
        ("().__class__.__bases__[0].__subclasses__()", "AttributeError"),
        ("eval('1')(2)", "TypeError"),
        ("x = []\nwhile True: x.append('y' * 1000000)", "memory limit"),
        ("while True: pass", "timeout limit"),
        ("import asyncio\nawait asyncio.gather(*[read_note(text='x') for _ in range(600)])", "TOO_MANY_CALLS"),
        ("'x' * 100000", "RESPONSE_TOO_LARGE"),
        ("await run_tools(code='1')", "RECURSIVE_STEPS"),
    ],
)
async def test_program_cannot_leave_its_interpreter_or_exceed_its_limits(
    tmp_path: Path, code: str, reason: str
) -> None:
    async with short_lists(tmp_path, "code", sandbox={"timeout": 1}) as lab:
        outcome = await lab.gateway.call("run_tools", {"code": code})
        assert outcome.error is not None and reason in str(outcome.error), outcome
        assert len(lab.notes.calls) <= CALLS_LIMIT


async def test_doctor_says_that_code_mode_needs_its_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("gateway.admin.health", "gateway.discovery.source"):
        monkeypatch.setattr(f"{module}.is_installed", lambda: False)
    async with short_lists(tmp_path, "code") as lab:
        assert "run_tools" not in [tool["name"] for tool in lab.list()]
        assert [check for check in await check_gateway(lab.gateway) if "toolgate-mcp[monty]" in check.message]


def test_program_is_explained_in_two_kilobytes() -> None:
    assert len(RUN_TOOLS.description) <= DESCRIPTION_LIMIT
    assert json.dumps(RUN_TOOLS.input_schema)
