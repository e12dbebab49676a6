"""A new toolset: what is written can be installed, tested and called, and nothing is ever half written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from covalt_toolset import context, describe, invoke, load
from gateway.bundles import PythonTool, read_folder
from gateway.bundles.field_types import Id
from gateway.bundles.scaffold import make_id, write_scaffold
from gateway.errors import Conflict, Invalid

FILES = ["README.md", "artifacts/words.html", "pytest.ini", "tests/test_text.py", "tools/text.py", "toolset.yaml"]


def test_what_is_written_is_a_bundle_whose_tools_run(tmp_path: Path) -> None:
    folder = tmp_path / "not/yet/Word Games"
    written = write_scaffold(folder)
    assert sorted(path.relative_to(folder).as_posix() for path in written) == FILES
    bundle = read_folder(folder)
    assert (bundle.spec.id, bundle.spec.name) == ("word-games", "Word Games")
    assert sorted([*bundle.files, "toolset.yaml"]) == FILES
    functions = {tool.id: load(tool.entrypoint, folder) for tool in bundle.spec.tools if isinstance(tool, PythonTool)}
    assert {name: describe(function).permission for name, function in functions.items()} == {
        "count_words": "read-only",
        "replace_text": "read-write",
    }
    (tmp_path / "a.txt").write_text("one two two")
    with context(tmp_path):
        assert invoke(functions["count_words"], {"path": "a.txt", "top": 1})["common"] == [{"word": "two", "count": 2}]
    assert "{{" not in "".join(path.read_text() for path in written)


@pytest.mark.slow
def test_its_own_tests_pass(tmp_path: Path) -> None:
    write_scaffold(tmp_path / "fresh")
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [Path(sys.executable).with_name("pytest"), "-q"],
        cwd=tmp_path / "fresh",
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout
    read_folder(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("name", "toolset_id"),
    [
        ("My Shiny Töols!", "my-shiny-tools"),
        ("snake_case", "snake_case"),
        ("v1.2", "v1-2"),
        ("mcp", "my-mcp"),
        ("toolset", "my-toolset"),
        ("CON", "my-con"),
        ("日本", "my-toolset"),
        ("null", "null"),
        ("0", "0"),
        ("1e5", "1e5"),
        ("x" * 80, "x" * 64),
    ],
)
def test_a_folder_of_any_name_gives_an_id(name: str, toolset_id: str, tmp_path: Path) -> None:
    write_scaffold(tmp_path / name)
    assert read_folder(tmp_path / name).spec.id == toolset_id


@given(st.text())
def test_no_name_gives_an_id_that_is_none(name: str) -> None:
    TypeAdapter[str](Id).validate_python(make_id(name))


def test_an_id_of_ones_own_is_taken_or_refused(tmp_path: Path) -> None:
    write_scaffold(tmp_path / "a", "word-lab")
    assert read_folder(tmp_path / "a").spec.id == "word-lab"
    for wrong, told in [("Word Lab", "'Word Lab' is no id: lower-case letters"), ("mcp", "'mcp' is reserved")]:
        with pytest.raises(Invalid) as refused:
            write_scaffold(tmp_path / "b", wrong)
        assert refused.value.message.startswith(told)
    assert not (tmp_path / "b").exists()


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(Conflict) as refused:
        write_scaffold(tmp_path)
    assert refused.value.message == f"{str(tmp_path)!r} is not empty: it holds 'mine.txt'; name a new folder"
    with pytest.raises(Conflict, match="is a file; name a new folder"):
        write_scaffold(tmp_path / "mine.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_filled_and_what_git_keeps_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "new" / ".git").mkdir(parents=True)
    write_scaffold(tmp_path / "new")
    assert read_folder(tmp_path / "new").spec.id == "new"


@pytest.mark.parametrize("is_there", [False, True])
def test_what_cannot_be_written_whole_is_not_written(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_there:
        (tmp_path / "deep" / "new" / ".git").mkdir(parents=True)
    write_text = Path.write_text

    def full(path: Path, text: str, encoding: str | None = None) -> int:
        if path.name == "text.py":
            raise OSError(28, "No space left on device")
        return write_text(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(Invalid, match="No space left on device; choose another folder"):
        write_scaffold(tmp_path / "deep" / "new")
    left = [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))]
    assert left == (["deep", "deep/new", "deep/new/.git"] if is_there else [])
