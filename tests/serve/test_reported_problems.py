"""Problems of the settings: reported at start and by the doctor, and they stop nothing else."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from journeys.servers import labs
from mcp import Client
from sources.toolset.writing import install, require_sandbox, write_toolset

from gateway import Gateway
from gateway.approval.rules import check_tool_patterns
from gateway.cli import main
from gateway.config import Settings
from gateway.serve.mcp.handlers import Handlers, McpServer
from gateway.sources.builtin.source import load
from gateway.tools import Permission

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
LOWERED = {"editing": {"permission": "read-only"}}
EDITING = {
    builtin.tool.id
    for kind in ("files", "versions")
    for builtin in load(kind)
    if builtin.tool.permission is Permission.READ_WRITE
}


@ERAS
@pytest.mark.anyio
@pytest.mark.promise("P2")
async def test_a_lowered_category_withholds_its_tools_above_the_level(
    tmp_path: Path, era: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with (
            Gateway.open({"data_dir": str(tmp_path), "categories": LOWERED}) as gateway,
            Client(McpServer(Handlers(gateway.executor, gateway.versions, "c")).sdk, mode=era, cache=None) as client,
        ):
            names = {tool.name for tool in (await client.list_tools()).tools}
            refused = await client.call_tool("write_file", {"path": "a", "content": "x"})
    assert "read_file" in names and not names & EDITING
    assert refused.is_error and isinstance(refused.content[0], types.TextContent)
    assert refused.content[0].text.startswith("CATEGORY_TOO_LOW: write_file needs read-write, but its category")
    reported = [line for line in caplog.messages if line.startswith("CATEGORY_TOO_LOW")]
    assert len(reported) == len(EDITING) and all("\n" not in line for line in reported)


@ERAS
@pytest.mark.anyio
@pytest.mark.promise("P2")
async def test_a_toolset_is_installed_without_its_tool_above_the_category(tmp_path: Path, era: Any) -> None:
    await require_sandbox()
    tools = "[{id: run, entrypoint: 'code:run', permission: execute}, {id: say, entrypoint: 'code:run'}]"
    manifest = f"id: lab\nname: Lab\nversion: 1.0.0\ntools: {tools}\n"
    write_toolset(tmp_path / "lab", manifest, code="def run() -> dict:\n    return {}\n")
    async with (
        Gateway.open({"data_dir": str(tmp_path / "data")}) as gateway,
        Client(McpServer(Handlers(gateway.executor, gateway.versions, "c")).sdk, mode=era, cache=None) as client,
    ):
        await install(gateway, tmp_path / "lab")
        names = {tool.name for tool in (await client.list_tools()).tools}
        refused = await client.call_tool("lab__run", {})
    assert "lab__say" in names and "lab__run" not in names
    assert refused.is_error and "CATEGORY_TOO_LOW: lab:run needs execute, but its category" in str(refused.content)
    [problem] = gateway.catalog.problems
    assert "toolgate category set toolsets --level execute" in problem.message


@pytest.mark.anyio
async def test_a_category_that_is_off_reports_no_level(tmp_path: Path) -> None:
    off = {"editing": {"permission": "read-only", "enabled": False}}
    async with Gateway.open({"data_dir": str(tmp_path), "categories": off}) as gateway:
        assert gateway.catalog.problems == ()
        assert gateway.catalog.refusal("write_file").code == "TOOL_DISABLED"


def test_the_doctor_reports_lowered_categories_and_rules_without_a_tool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "toolgate.yaml"
    rules = [{"tool": ["wriet_file", "read_file"]}, {"tool": "wirte_f*", "then": "deny"}]
    approval = {"rules": rules, "out_of_band": "run_comand"}
    settings.write_text(json.dumps({"data_dir": str(tmp_path / "data"), "categories": LOWERED, "approval": approval}))
    with pytest.raises(SystemExit):
        main(["doctor", "--json", "--config", str(settings)])
    findings = json.loads(capsys.readouterr().out)
    notes = [each["message"] for each in findings if (each["subject"], each["state"]) == ("tools", "note")]
    assert sum(note.startswith("CATEGORY_TOO_LOW: ") for note in notes) == len(EDITING)
    assert [note for note in notes if note.startswith("NO_SUCH_TOOL")] == [
        "NO_SUCH_TOOL: rule 1 of approval.rules: no tool has the id 'wriet_file'; did you mean 'write_file'?",
        "NO_SUCH_TOOL: rule 2 of approval.rules: no tool has the id 'wirte_f*'; did you mean 'write_file'?",
        "NO_SUCH_TOOL: approval.out_of_band: no tool has the id 'run_comand'; did you mean 'run_command'?",
    ]
    assert not [each for each in findings if each["subject"] == "gateway"]


@pytest.mark.anyio
async def test_a_rule_without_a_tool_is_logged_at_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    approval = {"rules": [{"tool": "wriet_file"}, {"tool": ["run_command", "web_*", "*", "workspace_diff"]}]}
    with caplog.at_level(logging.WARNING):
        async with Gateway.open({"data_dir": str(tmp_path), "approval": approval}):
            pass
    assert [line for line in caplog.messages if "no tool has the id" in line] == [
        "NO_SUCH_TOOL: rule 1 of approval.rules: no tool has the id 'wriet_file'; did you mean 'write_file'?"
    ]


@pytest.mark.anyio
async def test_a_problem_is_reported_once_however_often_the_catalog_is_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    approval = {"rules": [{"tool": "wriet_file"}], "out_of_band": ["wriet_file", "wriet_file"]}
    with caplog.at_level(logging.WARNING):
        async with Gateway.open({"data_dir": str(tmp_path), "approval": approval}) as gateway:
            await gateway.refresh()
            problems = [str(problem) for problem in gateway.catalog.problems]
    assert len(problems) == len(set(problems)) == 2
    assert [line for line in caplog.messages if "no tool has the id" in line] == problems


@pytest.mark.anyio
async def test_rules_about_a_server_are_reported_only_once_its_tools_are_known(tmp_path: Path) -> None:
    absent = {"command": sys.executable, "args": ["-c", "raise SystemExit(1)"]}
    settings = {
        "data_dir": str(tmp_path),
        "approval": {"rules": [{"tool": ["lab:ehco", "away:push", "away__push", "off:push", "of*", "nobody:push"]}]},
        "mcpServers": {"lab": labs.on_stdio(), "away": absent, "off": {**absent, "enabled": False}},
    }
    async with Gateway.open(settings) as gateway:
        found = [problem.message for problem in gateway.catalog.problems if problem.code == "NO_SUCH_TOOL"]
    assert found == [
        "rule 1 of approval.rules: no tool has the id 'lab:ehco'; did you mean 'lab:echo'?",
        "rule 1 of approval.rules: no tool has the id 'nobody:push'",
    ]


def test_rules_about_toolsets_are_not_reported_while_any_is_being_installed() -> None:
    def made_of(*patterns: str) -> Settings:
        return Settings.model_validate({"approval": {"rules": [{"tool": patterns}]}})

    settings = made_of("later:say", "la*", "wriet_file")
    assert len(list(check_tool_patterns(settings, {"write_file": None}, ()))) == 3
    assert not list(check_tool_patterns(made_of("lab:prompts/get", "lab:resources/*"), {"lab:echo": None}, ()))
    [problem] = check_tool_patterns(settings, {"write_file": None}, None)
    assert "'wriet_file'" in problem.message


MISSPELT = {
    "limits": {"calls_per_minute": {"writefile": 30, "write_*": 30, "write_file": 30}},
    "tools": {
        "retry": {"wirte_f*": {"attempts": 2}, "read_*": {"attempts": 2}},
        "first": ["reed_file", "read_*"],
        "pinned": ["reed_file", "search_tools"],
    },
    "profiles": {"p": {"pinned": ["reed_file"], "tools": {"allow": ["reed_file", "run_*"], "deny": ["run_comand"]}}},
    "roles": {"r": {"tools": {"deny": ["run_comand", "*__delete_*", "toolgate__*"]}}},
}
FOUND = [
    "limits.calls_per_minute: no tool has the id 'writefile'; did you mean 'write_file'?",
    "limits.calls_per_minute: no tool has the id 'write_*'; did you mean 'write_file'?",
    "tools.retry: no tool has the id 'wirte_f*'; did you mean 'write_file'?",
    "tools.first: no tool has the name or id 'reed_file'; did you mean 'read_file'?",
    "tools.pinned: no tool has the name or id 'reed_file'; did you mean 'read_file'?",
    "profiles.p.pinned: no tool has the name or id 'reed_file'; did you mean 'read_file'?",
    "profiles.p.tools.allow: no tool has the name or id 'reed_file'; did you mean 'read_file'?",
    "profiles.p.tools.deny: no tool has the name or id 'run_comand'; did you mean 'run_command'?",
    "roles.r.tools.deny: no tool has the name or id 'run_comand'; did you mean 'run_command'?",
]


@pytest.mark.anyio
async def test_misspelt_tools_in_limits_lists_and_profiles_are_reported(tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": str(tmp_path), **MISSPELT}) as gateway:
        assert [problem.message for problem in gateway.catalog.problems] == FOUND


@pytest.mark.anyio
async def test_names_of_servers_tools_are_known_however_they_are_made(tmp_path: Path) -> None:
    deny = ["lab:echo", "own__echo", "own__e*", "own__resources_read", "own__ehco", "away__push", "awa*", "far__x"]
    settings = {
        "data_dir": str(tmp_path),
        "profiles": {"p": {"tools": {"deny": deny}}},
        "profile": "p",
        "mcpServers": {
            "lab": {**labs.on_stdio(), "prefix": "own"},
            "away": {"command": sys.executable, "enabled": False},
            "other": {"command": sys.executable, "enabled": False, "prefix": "far"},
        },
    }
    async with Gateway.open(settings) as gateway:
        [problem] = [problem for problem in gateway.catalog.problems if problem.code == "NO_SUCH_TOOL"]
    assert problem.message.startswith(
        "profiles.p.tools.deny: no tool has the name or id 'own__ehco'; did you mean 'own"
    )


def test_config_check_names_the_line_of_a_misspelt_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "toolgate.yaml"
    settings.write_text("limits:\n  calls_per_minute:\n    writefile: 30\n")
    with pytest.raises(SystemExit):
        main(["config", "check", "--config", str(settings)])
    assert f"line 3: {FOUND[0]}" in capsys.readouterr().err
