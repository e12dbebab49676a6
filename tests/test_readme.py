"""The README and the pages in docs/ agree with the program."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner
from eventually import eventually

from gateway.cli import COMMANDS, toolgate
from gateway.config import Settings
from gateway.sources.builtin.source import BUILTINS, load
from gateway.tools import ADMIN_CATEGORY, DEFAULT_CATEGORIES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def table(page: str) -> list[list[str]]:
    """Return the rows of the first table of a page of the documentation."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), lines[start:]))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_every_setting_is_documented() -> None:
    named = {name for row in table("settings.md") for name in re.findall(r"`(\w+)`", row[0])}
    assert named == {field.alias or name for name, field in Settings.model_fields.items()}


def test_every_key_of_a_documented_section_is_there_with_its_default() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    sections = re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert "limits" in dict(sections)
    for section, text in sections:
        rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE))
        annotation = Settings.model_fields[section].annotation
        model = (get_args(annotation) or (annotation,))[-1]
        assert list(rows) == list(model.model_fields), section
        for name, field in model.model_fields.items():
            default = getattr(field.default, "value", field.default)
            if isinstance(default, str | int | float):
                shown = str(default).lower() if isinstance(default, bool) else str(default)
                assert rows[name] == f"`{shown}`", f"{section}.{name}"


def test_documented_tools_are_in_their_categories() -> None:
    shown = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[3])) for row in table("tools.md")}
    actual: dict[str, set[str]] = {}
    for builtin in (builtin for kind in BUILTINS for builtin in load(kind)):
        actual.setdefault(builtin.tool.category, set()).add(builtin.tool.id)
    assert shown == {**actual, ADMIN_CATEGORY: set()}  # whose tools are listed apart
    for row in table("tools.md"):
        category = DEFAULT_CATEGORIES[row[0].strip("`")]
        assert (row[1], row[2]) == (category.permission.value, "yes" if category.enabled else "no")


def test_every_command_is_documented() -> None:
    assert {row[0].split("`")[1].split()[1] for row in table("commands.md")} == set(COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command: str) -> None:
    run = CliRunner().invoke(toolgate, [command, "--help"], prog_name="toolgate")
    assert (run.exit_code, run.stderr) == (0, "")
    assert run.stdout.startswith(f"Usage: toolgate {command}")


@pytest.mark.parametrize(
    "command",
    [name if name == "call" else pytest.param(name, marks=pytest.mark.slow) for name in sorted(COMMANDS)],
)
def test_every_command_prints_help_as_a_process(command: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "gateway", command, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(f"Usage: toolgate {command}")


@pytest.mark.promise("X1", "X2")
def test_library_snippet_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toolgate.yaml").write_text("data_dir: ./data\n")
    snippet = section("In a program").partition("```python\n")[2].partition("```")[0]
    imports, _, body = snippet.partition("\n\n")
    scope: dict[str, object] = {}
    exec(f"{imports}\nasync def main():\n{textwrap.indent(body, '    ')}\n    return outcome", scope)
    outcome = asyncio.run(scope["main"]())  # type: ignore[operator]
    assert outcome.value["path"] == "a.txt"


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_between_pages_lead_to_files(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert [target for target in targets if not ((ROOT / page).parent / target).exists()] == []


def run_make(*arguments: str) -> subprocess.Popen[str]:
    """Start make with the environment of this process, as it is."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    command = ["make", f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.runtime", *arguments]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_make_alone_lists_its_targets() -> None:
    with run_make() as make:
        printed, _ = make.communicate()
    assert make.returncode == 0 and "make serve\t" in printed and "make test\t" in printed


def test_the_server_of_make_ends_with_it(tmp_path: Path) -> None:
    with run_make("serve", f"ARGS=--port 0 --data-dir {tmp_path}") as make:
        assert make.stdout is not None
        port = next(found[1] for line in make.stdout if (found := re.search(r"http://127\.0\.0\.1:(\d+)/mcp", line)))
        make.terminate()
        make.stdout.read()  # ends once no process has the pipe
        make.wait()

    def is_closed() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", int(port))) != 0

    assert eventually(is_closed)
