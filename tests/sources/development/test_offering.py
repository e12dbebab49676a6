"""Which development tools are offered, and why the others are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway import Gateway
from gateway.errors import Unavailable
from gateway.sandbox import Sandbox
from gateway.sources.builtin.code.tools import CodeTools
from gateway.sources.builtin.source import BUILTINS, BuiltinSource, load
from gateway.tools import Access, Permission
from gateway.workspace import Workspaces

from .tool_client import open_client, opened, settings

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C4")]

READING = {"git_status", "git_diff", "git_log", "git_show"}
WATCHING = {"list_processes", "process_output"}
RUNNING = {"run_code", "run_command", "run_tests", "install_package", "git_push", "start_process", "stop_process"}
NAMES, TOOLS = set(BUILTINS["code"]), load("code")
ONLINE = {"git_push", "install_package"}


@pytest.mark.parametrize("kind", BUILTINS)
def test_listed_names_of_builtins_are_the_ids_of_their_tools(kind: Any) -> None:
    assert [builtin.tool.id for builtin in load(kind)] == list(BUILTINS[kind])


def test_what_only_looks_is_read_only_and_what_runs_strangers_code_is_execute() -> None:
    for tool in (each.tool for each in TOOLS):
        assert tool.category == "development"
        if tool.id in READING | WATCHING:
            expected = Access.READ if tool.id in READING else Access.NONE
            assert (tool.permission, tool.access) == (Permission.READ_ONLY, expected)
        else:
            assert tool.permission == (Permission.EXECUTE if tool.id in RUNNING else Permission.READ_WRITE)
            assert tool.access is Access.WRITE


@pytest.mark.parametrize("builtin", TOOLS, ids=lambda each: each.tool.id)
def test_schemas_compile_and_say_only_what_matters(builtin: object) -> None:
    tool = builtin.tool  # type: ignore[attr-defined]
    tool.compile()
    assert tool.input_schema["additionalProperties"] is False
    assert all("description" in each for each in tool.input_schema["properties"].values())
    assert "'title':" not in str(tool.input_schema) + str(tool.output_schema)
    assert tool.title
    assert 80 < len(tool.description) < 600


async def test_while_the_category_is_off_all_of_them_say_so(tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": tmp_path / "data"}) as gateway:
        assert not {entry.name for entry in gateway.catalog} & NAMES
        for name in NAMES:
            outcome = await gateway.call(name, {})
            assert outcome.error is not None and outcome.error.code == "TOOL_DISABLED"
            assert "toolgate category enable development" in outcome.error.message
        assert await gateway.builtins.problems() == []


def test_while_the_category_is_off_nothing_is_looked_for(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from gateway import Gateway\n"
        "async def main():\n"
        f"    async with Gateway.open({{'data_dir': {str(tmp_path)!r}}}): pass\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if 'sandbox' in name and name != 'gateway.config.settings'])\n"
        "print([name for name in sys.modules if name.startswith('gateway.sources.builtin.code.')])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert ran.stdout == "[]\n[]\n"


async def test_with_the_category_on_they_are_offered_but_for_those_that_need_the_network(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        assert {entry.name for entry in gateway.catalog} >= NAMES - ONLINE - {"format_code"}
        for name in ONLINE:
            outcome = await gateway.call(name, {})
            assert outcome.error is not None and outcome.error.code == "TOOL_DISABLED"
            assert "sandbox.network: true" in outcome.error.message
        assert "sandbox.network: true" in str(await gateway.builtins.problems())
        schema = gateway.catalog.find("run_code").tool.input_schema
        assert schema["properties"]["language"]["enum"] == ["python", "bash"]


async def test_without_a_sandbox_nothing_runs_and_everyone_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.sources.builtin.code.call_context.is_installed", lambda: False)

    async def none() -> Sandbox:
        raise Unavailable("this machine offers no sandbox", code="SANDBOX_UNAVAILABLE")

    source = BuiltinSource([CodeTools(Workspaces(tmp_path), settings(tmp_path), none)])
    tools = await source.list_tools()
    assert {tool.withheld for tool in tools} == {"this machine offers no sandbox"}
    assert [problem.message for problem in await source.problems()] == ["this machine offers no sandbox"]
    await source.close()


async def test_only_what_is_installed_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setattr("gateway.sources.builtin.code.call_context.SEARCH_PATH", str(programs))
    async with open_client(tmp_path) as at:
        assert at.tools["run_code"].input_schema["properties"]["language"]["enum"] == ["python"]
        assert at.tools["git_status"].withheld == "git is not installed on this machine; install the package 'git'"
        assert at.tools["run_command"].withheld == "there is no shell on this machine"
        assert at.tools["run_tests"].withheld is None
    (programs / "git").symlink_to("/usr/bin/git")
    (programs / "bash").symlink_to("/bin/bash")
    async with open_client(tmp_path) as at:
        assert at.tools["run_code"].input_schema["properties"]["language"]["enum"] == ["python", "bash"]
        assert at.tools["git_status"].withheld is None
        assert (await at.refusal("run_code", language="ruby", code="")).code == "INVALID_ARGUMENTS"


@pytest.mark.parametrize("where", ["machine", "attached", "network", "nowhere"])
async def test_format_code_is_offered_only_where_a_formatter_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setattr("gateway.sources.builtin.code.call_context.SEARCH_PATH", str(programs))
    (programs / "bash").symlink_to("/bin/bash")
    folder = tmp_path / "mine"
    for place in {"machine": [programs], "attached": [folder / "node_modules/.bin"]}.get(where, []):
        place.mkdir(parents=True, exist_ok=True)
        (place / "prettier").touch(mode=0o755)
    more: dict[str, Any] = {"workspace": folder} if where == "attached" else {}
    more |= {"sandbox": {"network": True}} if where == "network" else {}
    async with open_client(tmp_path, **more) as at:
        withheld = at.tools["format_code"].withheld
    assert withheld is None if where != "nowhere" else "no formatter is installed" in str(withheld)


async def test_a_program_may_take_all_the_time_the_operator_allows_it(tmp_path: Path) -> None:
    async with open_client(tmp_path, sandbox={"timeout": 600}) as at:
        assert all((tool.timeout or 0) > 600 for tool in at.tools.values())
    async with open_client(tmp_path, limits={"timeout": 900}) as at:
        assert all(tool.timeout == 900 for tool in at.tools.values())


async def test_a_profile_that_only_reads_sees_only_what_reads(tmp_path: Path) -> None:
    reader = {"profiles": {"reader": {"permission": "read-only"}}, "profile": "reader"}
    async with opened(tmp_path, **reader) as gateway:
        assert {entry.name for entry in gateway.catalog} & NAMES == READING | WATCHING
