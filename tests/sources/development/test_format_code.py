"""format_code: what the formatters of the workspace change, or would."""

from __future__ import annotations

from pathlib import Path

import pytest

from .desks import Desk, desk
from .environments import with_ruff

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C4")]

UGLY, FINE = "x = {  'a':1 }\n", 'x = {"a": 1}\n'


async def test_a_check_tells_what_would_change_and_changes_nothing(desk: Desk) -> None:
    with_ruff(desk.folder)
    (desk.folder / "pkg").mkdir()
    (desk.folder / "pkg/ugly.py").write_text(UGLY)
    (desk.folder / "fine.py").write_text(FINE)
    (desk.folder / "other.go").write_text("package x\n")
    outcome = await desk.call("format_code", check=True)
    assert outcome.value == {
        "changed": [{"path": "pkg/ugly.py", "formatter": "ruff"}],
        "unchanged": 1,
        "diff": f"--- a/pkg/ugly.py\n+++ b/pkg/ugly.py\n@@ -1,1 +1,1 @@\n-{UGLY}+{FINE}",
        "problems": [],
        "withoutFormatter": [".go"],
        "truncated": False,
    }
    assert (desk.folder / "pkg/ugly.py").read_text() == UGLY
    value = await desk.value("format_code")
    assert [each["path"] for each in value["changed"]] == ["pkg/ugly.py"]
    assert (desk.folder / "pkg/ugly.py").read_text() == FINE
    assert sorted(path.name for path in desk.folder.iterdir()) == [".venv", "fine.py", "other.go", "pkg"]
    assert (await desk.value("format_code"))["changed"] == []


async def test_the_projects_own_style_counts(desk: Desk) -> None:
    with_ruff(desk.folder)
    (desk.folder / "pyproject.toml").write_text("[tool.ruff.format]\nquote-style = 'single'\n")
    (desk.folder / "a.py").write_text(UGLY)
    await desk.value("format_code", paths=["a.py"])
    assert (desk.folder / "a.py").read_text() == "x = {'a': 1}\n"


async def test_a_file_with_a_mistake_is_told_and_the_others_are_formatted(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        with_ruff(at.folder)
        (at.folder / "bad.py").write_text("def (:\n")
        (at.folder / "ugly.py").write_text(UGLY)
        value = await at.value("format_code")
        assert [each["path"] for each in value["changed"]] == ["ugly.py"]
        assert [(each["formatter"], "bad.py" in each["message"]) for each in value["problems"]] == [("ruff", True)]
        assert (at.folder / "bad.py").read_text() == "def (:\n"


async def test_a_formatter_that_is_a_trap_reaches_nothing(tmp_path: Path) -> None:
    """One of the workspace's own making: it gets a copy, and what it leaves there is not followed."""
    (tmp_path / "secret").write_text("hidden")
    async with desk(tmp_path) as at:
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
    async with desk(tmp_path) as at:
        (at.folder / "a.py").write_text(UGLY)
        error = await at.refusal("format_code", paths=["a.py"])
        assert (error.code, "install_package" in error.message) == ("NO_FORMATTER", True)
        assert (await at.value("format_code"))["withoutFormatter"] == [".py"]
        assert (await at.refusal("format_code", paths=["none.py"])).code == "FILE_NOT_FOUND"
        assert (await at.refusal("format_code", paths=["../x.py"])).code == "INVALID_PATH"
