"""format_code: what the formatters of the workspace change, or would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .environments import with_pytest, with_ruff
from .tool_client import ToolClient, open_client

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C4")]

UGLY, FINE = "x = {  'a':1 }\n", 'x = {"a": 1}\n'


async def test_a_check_tells_what_would_change_and_changes_nothing(client: ToolClient) -> None:
    with_ruff(client.folder)
    (client.folder / "pkg").mkdir()
    (client.folder / "pkg/ugly.py").write_text(UGLY)
    (client.folder / "fine.py").write_text(FINE)
    (client.folder / "other.go").write_text("package x\n")
    outcome = await client.call("format_code", check=True)
    assert outcome.value == {
        "changed": [{"path": "pkg/ugly.py", "formatter": "ruff"}],
        "unchanged": 1,
        "failed": [],
        "diff": f"--- a/pkg/ugly.py\n+++ b/pkg/ugly.py\n@@ -1,1 +1,1 @@\n-{UGLY}+{FINE}",
        "problems": [],
        "withoutFormatter": [".go"],
        "truncated": False,
    }
    assert (client.folder / "pkg/ugly.py").read_text() == UGLY
    value = await client.value("format_code")
    assert [each["path"] for each in value["changed"]] == ["pkg/ugly.py"]
    assert (client.folder / "pkg/ugly.py").read_text() == FINE
    assert sorted(path.name for path in client.folder.iterdir()) == [".venv", "fine.py", "other.go", "pkg"]
    assert (await client.value("format_code"))["changed"] == []


FAKE_BLACK = """#!/gone/with/the/host/bin/python
import sys
for name in sys.argv[2:]:
    open(name, "w").write("fine\\n")
"""


async def test_a_script_of_the_workspaces_environment_runs_whatever_python_it_names(client: ToolClient) -> None:
    with_pytest(client.folder)  # an environment; black is not here, so a script stands for it
    (client.folder / ".venv/bin/black").write_text(FAKE_BLACK)
    (client.folder / ".venv/bin/black").chmod(0o755)
    (client.folder / "a.py").write_text(UGLY)
    value = await client.value("format_code", paths=["a.py"])
    assert (value["changed"], value["problems"]) == ([{"path": "a.py", "formatter": "black"}], [])
    assert (client.folder / "a.py").read_text() == "fine\n"


async def test_the_projects_own_style_counts(client: ToolClient) -> None:
    with_ruff(client.folder)
    (client.folder / "pyproject.toml").write_text("[tool.ruff.format]\nquote-style = 'single'\n")
    (client.folder / "a.py").write_text(UGLY)
    await client.value("format_code", paths=["a.py"])
    assert (client.folder / "a.py").read_text() == "x = {'a': 1}\n"


async def test_a_file_with_a_mistake_is_told_and_the_others_are_formatted(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        with_ruff(at.folder)
        (at.folder / "pkg").mkdir()
        for name in ("bad.py", "pkg/bad.py"):
            (at.folder / name).write_text("def (:\n")
        (at.folder / "ugly.py").write_text(UGLY)
        (at.folder / "fine.py").write_text(FINE)
        outcome = await at.call("format_code")
        value = outcome.value
        assert [each["path"] for each in value["changed"]] == ["ugly.py"]
        assert (value["unchanged"], value["problems"]) == (1, [])
        assert [(each["path"], each["formatter"]) for each in value["failed"]] == [
            ("bad.py", "ruff"),
            ("pkg/bad.py", "ruff"),
        ]
        for each in value["failed"]:
            assert f"Failed to parse {each['path']}:1:5: " in each["reason"]
        assert (at.folder / "bad.py").read_text() == "def (:\n"
        assert outcome.content is not None
        first, *lines = outcome.content[0]["text"].splitlines()
        assert first == "1 files changed, 1 are already formatted, 2 could not be formatted"
        assert [line for line in lines if line.startswith("could not be formatted: bad.py (ruff): ")]


SAID = {
    "prettier": (
        "[error] ./b 1.js: SyntaxError: Unexpected token (1:5)\n[error] > 1 | x (\n[error]     |    ^\n"
        "[error] sub/b.js: SyntaxError: Unterminated (2:1)",
        ["[error] ./b 1.js: SyntaxError: Unexpected token (1:5)\n[error] > 1 | x (\n[error]     |    ^",
         "[error] sub/b.js: SyntaxError: Unterminated (2:1)"],
    ),
    "rustfmt": (
        "error: unclosed delimiter\n --> $PWD/b 1.js:1:6\n  |\n1 | fn (\n\nerror: other\n --> $PWD/sub/b.js:1:9\n  |",
        ["error: unclosed delimiter\n --> b 1.js:1:6\n  |\n1 | fn (", "error: other\n --> sub/b.js:1:9\n  |"],
    ),
    "gofmt": (
        "b 1.js:1:1: expected 'package'\nb 1.js:2:1: more\nsub/b.js:1:1: expected ';'",
        ["b 1.js:1:1: expected 'package'\nb 1.js:2:1: more", "sub/b.js:1:1: expected ';'"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("formatter", SAID)
async def test_every_formatters_words_go_to_the_file_they_are_about(tmp_path: Path, formatter: str) -> None:
    said, reasons = SAID[formatter]
    async with open_client(tmp_path) as at:
        one_that_says(at, said, 1)
        (at.folder / "sub").mkdir()
        for name in ("b 1.js", "sub/b.js", "b.js"):
            (at.folder / name).write_text("x (\n")
        value = await at.value("format_code")
        assert [(each["path"], each["reason"]) for each in value["failed"]] == [
            ("b 1.js", reasons[0]),
            ("sub/b.js", reasons[1]),
        ]
        assert (value["unchanged"], value["problems"]) == (1, [])


async def test_a_formatter_that_cannot_begin_leaves_no_file_as_it_should_be(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        one_that_says(at, "its settings are broken\nin line 1", 2)
        (at.folder / "a.js").write_text("x\n")
        value = await at.value("format_code")
        assert value["failed"] == [{"path": "a.js", "formatter": "prettier", "reason": "its settings are broken"}]
        assert value["problems"] == [{"formatter": "prettier", "message": "its settings are broken\nin line 1"}]
        assert value["unchanged"] == 0


def one_that_says(at: ToolClient, said: str, code: int) -> None:
    program = at.folder / "node_modules/.bin/prettier"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<END\n{said}\nEND\nexit {code}\n")
    program.chmod(0o755)


async def test_a_formatter_that_is_a_trap_reaches_nothing(tmp_path: Path) -> None:
    """One of the workspace's own making: it gets a copy, and what it leaves there is not followed."""
    (tmp_path / "secret").write_text("hidden")
    async with open_client(tmp_path) as at:
        trap = at.folder / ".venv/bin/ruff"
        trap.parent.mkdir(parents=True)
        trap.write_text(
            "#!/bin/sh\n"
            f"rm a.py; ln -s {tmp_path}/secret a.py\n"
            "echo changed > b.py; echo planted > c.py\n"
            f"echo planted > {at.folder}/planted; echo planted > /workspace/planted\n"
        )
        trap.chmod(0o755)
        for name in ("a.py", "b.py"):
            (at.folder / name).write_text(FINE)
        value = await at.value("format_code")
        assert [each["path"] for each in value["changed"]] == ["b.py"]
        assert (at.folder / "a.py").read_text() == FINE
        assert sorted(path.name for path in at.folder.iterdir()) == [".venv", "a.py", "b.py"]
        assert "hidden" not in str(value)


async def test_without_a_formatter_it_says_what_to_install(tmp_path: Path) -> None:
    async with open_client(tmp_path, sandbox={"network": True}) as at:
        (at.folder / "a.py").write_text(UGLY)
        (at.folder / "a.go").write_text("package x\n")
        error = await at.refusal("format_code", paths=["a.py"])
        assert error.code == "NO_FORMATTER"
        wanted = "no formatter for .py is installed; install ruff or black into the workspace with install_package"
        assert error.message == wanted
        error = await at.refusal("format_code", paths=["a.go"])
        assert "install gofmt on this machine" in error.message and "install_package" not in error.message
        assert (await at.value("format_code"))["withoutFormatter"] == [".go", ".py"]
        assert (await at.refusal("format_code", paths=["none.py"])).code == "FILE_NOT_FOUND"
        assert (await at.refusal("format_code", paths=["../x.py"])).code == "INVALID_PATH"


WRITER: dict[str, Any] = {
    "profiles": {"writer": {"permission": "read-write"}},
    "profile": "writer",
    "sandbox": {"network": True},
}


async def test_without_the_level_execute_no_formatter_of_the_workspace_is_run(tmp_path: Path) -> None:
    async with open_client(tmp_path, **WRITER) as at:
        with_pytest(at.folder)
        (at.folder / ".venv/bin/black").write_text(FAKE_BLACK)
        one_that_says(at, "", 0)
        (at.folder / ".venv/bin/black").chmod(0o755)
        for name in ("a.py", "a.js"):
            (at.folder / name).write_text(UGLY)
            error = await at.refusal("format_code", paths=[name])
            assert (error.code, "the level execute" in error.message) == ("NO_FORMATTER", True)
            assert (at.folder / name).read_text() == UGLY


@pytest.mark.parametrize("settings", [{}, WRITER], ids=["no network", "a profile that may not install"])
async def test_what_is_not_offered_is_not_advised(tmp_path: Path, settings: dict[str, Any]) -> None:
    async with open_client(tmp_path, **settings) as at:
        (at.folder / "a.py").write_text(UGLY)
        error = await at.refusal("format_code", paths=["a.py"])
        assert (error.code, "install_package" in error.message) == ("NO_FORMATTER", False)
        assert "install ruff or black on this machine, in one of /usr/local/bin, /usr/bin, /bin" in error.message
