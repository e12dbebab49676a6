"""The specification's own toolsets are bundles, load, describe, run and are shown, all without a change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covalt_toolset import context, describe, invoke, load
from gateway.bundles import PythonTool, read_folder
from gateway.render import Scope, declare, interpolate

from . import seeds

# Arguments that each tool of the specification accepts.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "write_file": {"path": "a.py", "content": ""},
    "read_file": {"path": "a.py"},
    "run_command": {"command": "true"},
    "analyze_data": {"filename": "data.csv"},
    "transform_file": {"config": {"input": "a.py", "output": "b.py", "template": "c"}},
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


def call(folder: Path, tool_id: str, arguments: dict[str, Any], workspace: Path) -> Any:
    tool = next(tool for tool in read_folder(folder).spec.tools if tool.id == tool_id)
    assert isinstance(tool, PythonTool)
    with context(workspace):
        return invoke(load(tool.entrypoint, folder), arguments)


def test_the_app_builder_of_the_specification_runs(tmp_path: Path, workspace: Path) -> None:
    folder = seeds.app_builder(tmp_path / "app-builder")
    for tool in read_folder(folder).spec.tools:
        assert isinstance(tool, PythonTool)
        assert describe(load(tool.entrypoint, folder), tool.input_schema).input_schema == tool.input_schema
    written = call(folder, "write_file", {"path": "src/a.txt", "content": "hi"}, workspace)
    assert written == {"written": "src/a.txt", "size": 2}
    assert call(folder, "read_file", {"path": "src/a.txt"}, workspace) == {
        "path": "src/a.txt",
        "content": "hi",
        "size": 2,
    }
    assert call(folder, "run_command", {"command": "cat src/a.txt; exit 3"}, workspace) == {
        "command": "cat src/a.txt; exit 3",
        "output": "hi",
        "exit_code": 3,
    }


def test_my_toolset_of_the_specification_runs(tmp_path: Path, workspace: Path) -> None:
    folder = seeds.my_toolset(tmp_path / "my-toolset")
    (workspace / "data.csv").write_text("a\nb\n")
    assert call(folder, "analyze_data", {"filename": "data.csv"}, workspace) == {
        "summary": "Processed 100 rows",
        "output_file": "output.json",
        "stats": {"rows": 100, "columns": 5},
    }
    assert (workspace / "output.json").read_text() == '{"rows": 2}'
    assert call(folder, "transform_file", ARGUMENTS["transform_file"], workspace) is None


def test_their_renderers_are_filled_in(tmp_path: Path) -> None:
    bundles = [read_folder(seeds.app_builder(tmp_path / "a")), read_folder(seeds.my_toolset(tmp_path / "b"))]
    shown = {
        override.tool_id: interpolate(
            declare(override.renderer, override.renderer_config or {}).config,
            Scope(ARGUMENTS[override.tool_id.partition(":")[2]], {"output": "ran", "n": 1}),
        )
        for bundle in bundles
        for override in bundle.spec.overrides()
        if override.renderer
    }
    assert shown == {
        "app-builder:write_file": {"file": "a.py", "language": "auto", "editable": True},
        "app-builder:read_file": {"file": "a.py", "language": "auto"},
        "app-builder:run_command": {"content": "ran", "language": "shell"},
        "my-toolset:analyze_data": {"artifact": "artifacts/results.html", "data": {"output": "ran", "n": 1}},
        "my-toolset:transform_file": {"file": "b.py", "language": "auto", "editable": True},
    }
