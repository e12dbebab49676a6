"""What the README says is so."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import COMMANDS, toolgate
from gateway.config import DEFAULT_CATEGORIES, LimitSettings, Settings
from gateway.sources.builtin import BUILTINS
from gateway.sources.development.source import TOOLS as DEVELOPMENT
from gateway.sources.web.source import WEB

README = (Path(__file__).parent.parent / "README.md").read_text()


def section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def table(title: str) -> list[list[str]]:
    rows = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_every_setting_has_a_row_and_every_row_is_a_setting() -> None:
    named = {name for row in table("Settings") for name in re.findall(r"`(\w+)`", row[0])}
    assert named == {field.alias or name for name, field in Settings.model_fields.items()}


def test_the_limits_shown_are_the_limits() -> None:
    shown = next(row[2] for row in table("Settings") if row[0] == "`limits`")
    for name, field in LimitSettings.model_fields.items():
        if isinstance(field.default, int):
            assert f"{name}: {field.default}" in shown


def test_the_tools_stand_in_the_categories_shown() -> None:
    shown = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[3])) for row in table("Tools")}
    actual: dict[str, set[str]] = {}
    for builtin in (*BUILTINS, *WEB, *DEVELOPMENT):
        actual.setdefault(builtin.tool.category, set()).add(builtin.tool.id)
    assert shown == actual
    for row in table("Tools"):
        category = DEFAULT_CATEGORIES[row[0].strip("`")]
        assert (row[1], row[2]) == (category.permission.value, "yes" if category.enabled else "no")


def test_every_command_has_a_row() -> None:
    assert {row[0].split("`")[1].split()[1] for row in table("Commands")} == set(COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_its_help(command: str) -> None:
    run = CliRunner().invoke(toolgate, [command, "--help"], prog_name="toolgate")
    assert (run.exit_code, run.stderr) == (0, "")
    assert run.stdout.startswith(f"Usage: toolgate {command}")


@pytest.mark.parametrize(
    "command",
    [name if name == "call" else pytest.param(name, marks=pytest.mark.slow) for name in sorted(COMMANDS)],
)
def test_every_command_explains_itself(command: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "gateway", command, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(f"Usage: toolgate {command}")


@pytest.mark.promise("X1", "X2")
def test_the_snippet_of_a_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toolgate.yaml").write_text("data_dir: ./data\n")
    snippet = section("In a program").partition("```python\n")[2].partition("```")[0]
    imports, _, body = snippet.partition("\n\n")
    scope: dict[str, object] = {}
    exec(f"{imports}\nasync def main():\n{textwrap.indent(body, '    ')}\n    return outcome", scope)
    outcome = asyncio.run(scope["main"]())  # type: ignore[operator]
    assert outcome.value["path"] == "a.txt"
