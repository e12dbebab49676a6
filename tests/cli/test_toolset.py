"""`toolgate toolset`, as it is typed: what it prints, writes, refuses, and leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import anyio
import pytest
from sources.toolset.writing import require_sandbox, write_toolset

pytestmark = [pytest.mark.timeout(600), pytest.mark.promise("T3")]

MANIFEST = dedent(
    """
    id: lab
    name: Lab
    version: 1.2.0
    secrets: [LAB_TOKEN]
    tools:
      - {id: say, entrypoint: "code:say", requires_confirmation: true}
    mcp_servers:
      - {id: docs, url: "https://docs.example.org/mcp", headers: {Authorization: "Bearer abcdef0123456789"}}
    """
)
CODE = "def say(workspace, text: str = '') -> dict:\n    '''Say it.'''\n    return {'said': text}\n"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def toolgate(tmp_path: Path) -> Run:
    anyio.run(require_sandbox)

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "gateway", *arguments],
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr or done.stdout
        return done

    return run


@pytest.mark.slow
def test_a_toolsets_whole_life(toolgate: Run, tmp_path: Path) -> None:
    folder = write_toolset(tmp_path / "lab", MANIFEST, code=CODE)
    checked = toolgate("toolset", "check", "lab")
    assert "lab 1.2.0 can be installed" in checked.stdout
    assert toolgate("toolset", "list", "--json").stdout.strip() == "[]"

    installed = toolgate("toolset", "install", "lab").stdout
    assert "lab 1.2.0 is installed" in installed
    assert "set in the environment: DOCS_AUTHORIZATION" in installed
    assert "not set in the environment: LAB_TOKEN" in installed
    assert "unchanged" in toolgate("toolset", "install", "lab").stdout
    [shown] = json.loads(toolgate("toolset", "list", "--json").stdout)
    assert (shown["id"], shown["live"], shown["source_ref"]) == ("lab", True, str(folder))
    assert [tool["requires_confirmation"] for tool in shown["tools"]] == [True]

    refused = toolgate("tool", "call", "lab:say", "text=hi", code=1)
    assert "CONFIRMATION_REQUIRED" in refused.stderr
    assert json.loads(toolgate("tool", "call", "lab:say", "text=hi", "--yes").stdout) == {"said": "hi"}
    toolgate("toolset", "override", "lab:say", "--no-ask", "--description", "Mine.")
    assert json.loads(toolgate("tool", "call", "lab__say", "text=hi").stdout) == {"said": "hi"}
    toolgate("toolset", "disable", "lab")
    assert "toolset enable lab" in toolgate("tool", "call", "lab:say", code=1).stderr
    toolgate("toolset", "enable", "lab")

    assert toolgate("toolset", "export", "lab").stdout.strip() == "lab-1.2.0.zip"
    first = (tmp_path / "lab-1.2.0.zip").read_bytes()
    assert b"abcdef0123456789" not in first
    toolgate("toolset", "uninstall", "lab")
    assert not list((tmp_path / ".local/share/toolgate/toolsets").iterdir())
    toolgate("toolset", "install", "lab-1.2.0.zip")
    toolgate("toolset", "export", "lab", "-o", "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == first


@pytest.mark.slow
def test_refusals_are_one_line_that_names_the_fix(toolgate: Run, tmp_path: Path) -> None:
    write_toolset(tmp_path / "lab", MANIFEST.replace("entrypoint", "entrypiont"), code=CODE)
    refused = toolgate("toolset", "install", "lab", code=1).stderr
    assert [line for line in refused.splitlines() if not line.startswith("… ")] == refused.splitlines()[-1:]
    assert "toolset.yaml line 7" in refused
    assert "did you mean 'entrypoint'?" in refused
    assert "no folder or ZIP file" in toolgate("toolset", "install", "nowhere", code=1).stderr
    assert "did you mean" not in toolgate("toolset", "show", "nothing", code=1).stderr
    assert toolgate("toolset", "override", "lab:say", code=2).stderr.startswith("toolgate: USAGE:")
    private = toolgate("toolset", "install", "https://127.0.0.1:9/x.zip", code=1).stderr
    assert "http.allow_private" in private


@pytest.mark.slow
def test_a_new_toolset_passes_its_check_and_its_own_tests(toolgate: Run, tmp_path: Path) -> None:
    written = toolgate("toolset", "new", "my tools").stdout
    assert "toolset.yaml" in written
    for path in ("my tools", "my tools/toolset.yaml"):
        assert "can be installed" in toolgate("toolset", "check", path).stdout
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path / "my tools", capture_output=True, text=True
    )
    assert tests.returncode == 0, tests.stdout
    assert "FOLDER_NOT_EMPTY" in toolgate("toolset", "new", "my tools", code=1).stderr


def test_a_tool_above_its_category_is_withheld_and_the_install_says_how_to_have_it(
    toolgate: Run, tmp_path: Path
) -> None:
    tools = ["{id: say, entrypoint: 'code:say', permission: execute}", "{id: more, entrypoint: 'code:say'}"]
    tools += [f"{{id: {name}, entrypoint: 'code:say', category: development}}" for name in ("run", "test")]
    write_toolset(tmp_path / "lab", "id: lab\nname: Lab\nversion: 1.0.0\ntools:\n- " + "\n- ".join(tools), code=CODE)
    for command in ("check", "install", "show"):
        shown = toolgate("toolset", command, "lab").stdout.splitlines()
        output = {line.split()[0]: line for line in shown if line}
        assert output["lab__say"].split()[1:3] == ["toolsets", "execute"]
        assert [name for name, line in output.items() if "(off)" in line] == ["lab__say", "lab__run", "lab__test"]
        level, category = (line.removeprefix("withheld: ") for line in shown if line.startswith("withheld: "))
        assert level.startswith("lab__say needs execute, but its category 'toolsets' allows only read-write")
        assert level.endswith("toolgate category set toolsets --level execute")
        assert category == (
            "lab__run is in category 'development', which is off; turn it on with: toolgate category enable "
            "development (and 1 more)"
        )
    enabled = toolgate("toolset", "check", "lab", "--enable-tool-categories", "development", "--json").stdout
    assert [bool(tool["withheld"]) for tool in json.loads(enabled)["tools"]] == [True, False, False, False]
    assert "CATEGORY_TOO_LOW" in toolgate("tool", "call", "lab__say", code=1).stderr


def test_commands_count_problems_with_tools_where_they_list_them_and_say_nothing_elsewhere(
    toolgate: Run, tmp_path: Path
) -> None:
    settings = {"categories": {"editing": {"permission": "read-only"}}, "data_dir": str(tmp_path / "data")}
    (tmp_path / "toolgate.yaml").write_text(json.dumps(settings))
    for command in ("call list", "approval list", "toolset list", "upstream list", "tool call list_directory"):
        assert toolgate(*command.split()).stderr.partition("add one with: ")[0] in ("", "(none)\n"), command
    for command in ("tool list", "tool show read_file"):
        output = toolgate(*command.split()).stderr
        assert output == "toolgate: 7 problems with tools; 'toolgate doctor' lists them\n", command
