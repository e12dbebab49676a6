"""The toolsets that ship: what their manifests say is what their functions are, and their own tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from covalt_toolset import ToolDescription, context, describe, invoke, load
from gateway.bundles import BuiltinTool, Bundle, PythonTool, read_folder, read_zip, write_zip
from gateway.render import declare
from gateway.sources.builtin.source import BUILTINS
from gateway.tools import DEFAULT_CATEGORIES, Permission, Tool

TOOLSETS = Path(__file__).parent.parent.parent / "toolsets"
SHIPPED = ["app-builder", "data-lab"]
NEEDS = {"data-lab": "charset_normalizer"}


@pytest.fixture(params=SHIPPED)
def folder(request: pytest.FixtureRequest) -> Path:
    return found(request.param)


def found(name: str) -> Path:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"the dependency of {name} is not installed: {NEEDS[name]}")
    return TOOLSETS / name


def descriptions(folder: Path, bundle: Bundle) -> dict[str, ToolDescription]:
    tools = [tool for tool in bundle.spec.tools if isinstance(tool, PythonTool)]
    return {tool.id: describe(load(tool.entrypoint, folder), tool.input_schema) for tool in tools}


def test_a_manifest_and_its_functions_agree(folder: Path) -> None:
    bundle = read_folder(folder)
    described = descriptions(folder, bundle)
    for tool in bundle.spec.tools:
        if isinstance(tool, BuiltinTool):
            assert any(tool.tool in names for names in BUILTINS.values())
            continue
        function, level = described[tool.id], tool.permission or bundle.spec.permission
        assert function.permission is not None and level is not None
        assert level.allows(Permission(function.permission)), f"{tool.id} needs more than the toolset says"
        assert (tool.requires_confirmation or False) == function.requires_confirmation
        assert function.access == ("read" if function.permission == "read-only" else "write")
        assert function.name == tool.id.replace("_", " ").title()


def test_a_tool_stands_in_a_category_that_allows_it(folder: Path) -> None:
    bundle = read_folder(folder)
    for tool in bundle.spec.tools:
        if isinstance(tool, BuiltinTool):  # its category is the builtin's
            continue
        needed = Permission(descriptions(folder, bundle)[tool.id].permission)
        category = DEFAULT_CATEGORIES[tool.category or bundle.spec.category or "toolsets"]
        assert category.permission.allows(needed), tool.id
        assert category.enabled == (needed is not Permission.EXECUTE), tool.id


def test_a_model_is_told_what_each_tool_and_argument_is_for(folder: Path) -> None:
    for tool_id, function in descriptions(folder, read_folder(folder)).items():
        assert 60 < len(function.description) < 800, tool_id
        for name, schema in function.input_schema["properties"].items():
            assert schema.get("description"), f"{tool_id}: {name} is not described"
        tool = Tool(
            id=tool_id,
            description=function.description,
            input_schema=function.input_schema,
            output_schema=function.output_schema,
        )
        tool.compile()
        assert function.output_schema is not None, tool_id


def test_every_tool_has_a_renderer_that_can_be_shown(folder: Path) -> None:
    bundle = read_folder(folder)
    overrides = {override.tool_id: override for override in bundle.spec.overrides()}
    assert set(overrides) == {f"{bundle.spec.id}:{tool.id}" for tool in bundle.spec.tools}
    for override in overrides.values():
        assert override.renderer is not None
        declare(override.renderer, override.renderer_config or {})


def test_a_toolset_survives_being_packed(folder: Path) -> None:
    bundle, file = read_folder(folder), BytesIO()
    write_zip(bundle, file)
    assert read_zip(file).digest == bundle.digest


def test_nothing_of_this_place_is_in_it(folder: Path) -> None:
    for path, file in read_folder(folder).files.items():
        text = file.read().decode()
        assert "/" + "work/" not in text, path
        assert "TO" + "DO" not in text, path


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_its_own_tests_pass(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=found(name),
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_app_builder_builds(tmp_path: Path) -> None:
    folder = TOOLSETS / "app-builder"
    tools = {tool.id: tool for tool in read_folder(folder).spec.tools if isinstance(tool, PythonTool)}

    def call(tool_id: str, **arguments: Any) -> Any:
        return invoke(load(tools[tool_id].entrypoint, folder), arguments)

    with context(tmp_path):
        source = "print(sum(range(5)))\n"
        assert call("write_file", path="app/main.py", content=source) == {
            "written": "app/main.py",
            "size": len(source),
            "created": True,
        }
        assert call("read_file", path="app/main.py")["content"] == source
        ran = call("run_command", command=f"{sys.executable} app/main.py")
    assert (ran["output"], ran["exit_code"]) == ("10\n", 0)
    assert describe(load(tools["run_command"].entrypoint, folder)).requires_confirmation is True


def test_the_data_lab_looks_charts_and_converts(tmp_path: Path) -> None:
    folder = found("data-lab")
    tools = {tool.id: tool for tool in read_folder(folder).spec.tools if isinstance(tool, PythonTool)}
    (tmp_path / "a.csv").write_text("day,n\n2024-01-01,1\n2024-01-02,3\n")

    def call(tool_id: str, **arguments: Any) -> Any:
        return invoke(load(tools[tool_id].entrypoint, folder), arguments)

    with context(tmp_path):
        profile = call("profile_data", path="a.csv")
        assert [column["type"] for column in profile["columns"]] == ["date", "integer"]
        chart = call("chart_data", path="a.csv", x="day", y="n")
        assert chart["series"] == [{"name": "n", "points": [["2024-01-01", 1], ["2024-01-02", 3]]}]
        assert call("convert_data", path="a.csv", output="a.jsonl")["rows"] == 2
    assert (tmp_path / "a.jsonl").read_text() == '{"day": "2024-01-01", "n": 1}\n{"day": "2024-01-02", "n": 3}\n'
