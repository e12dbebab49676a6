"""The examples of the specification, unchanged."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from covalt_toolset import BadArguments, ToolMetadata, context, describe, get_tool_metadata, invoke, load

ANALYZE = '''\
from covalt_toolset import tool, get_context

@tool(
    name="Analyze Data",
    description="Analyze a data file and return statistics",
)
def analyze_data(filename: str) -> dict:
    """
    Args:
        filename: File to analyze

    Returns:
        JSON-serializable dict. This becomes $return for renderer interpolation.
    """
    ctx = get_context()  # Access workspace, chat_id, toolset_id

    input_file = ctx.workspace / filename
    data = input_file.read_text()
    result = process(data)

    output_file = ctx.workspace / "output.json"
    output_file.write_text(json.dumps(result))

    return {
        "summary": "Processed 100 rows",
        "output_file": "output.json",
        "stats": {"rows": 100, "columns": 5}
    }
'''

TRANSFORM = """\
from pydantic import BaseModel, Field
from covalt_toolset import tool

class TransformConfig(BaseModel):
    input: str = Field(description="Input file path")
    output: str = Field(description="Output file path")
    template: str = Field(description="Template to apply")

@tool(name="Transform File", description="Transform a file using a template")
def transform_file(config: TransformConfig) -> dict:
    ctx = get_context()
    # ... implementation
"""

APP_BUILDER = """\
manifest_version: "1"

id: app-builder
name: App Builder
version: "1.0.0"
description: Build and preview web applications

tools:
  - id: write_file
    name: Write File
    description: Write content to a file in the workspace
    entrypoint: tools.files:write_file
    input_schema:
      type: object
      properties:
        path:
          type: string
          description: File path relative to workspace
        content:
          type: string
          description: File content
      required: [path, content]
    renderer:
      type: code
      file: "$args.path"
      language: auto
      editable: true

  - id: read_file
    name: Read File
    description: Read a file from the workspace
    entrypoint: tools.files:read_file
    input_schema:
      type: object
      properties:
        path:
          type: string
      required: [path]
    renderer:
      type: code
      file: "$args.path"
      language: auto

  - id: run_command
    name: Run Command
    description: Run a shell command in the workspace
    entrypoint: tools.shell:run_command
    input_schema:
      type: object
      properties:
        command:
          type: string
      required: [command]
    requires_confirmation: true
    renderer:
      type: code
      content: "$return.output"
      language: shell
"""

FILES = """\
from pathlib import Path

def write_file(workspace: Path, path: str, content: str) -> dict:
    target = workspace / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content)
    return {"written": path, "size": len(content)}

def read_file(workspace: Path, path: str) -> dict:
    target = workspace / path
    content = target.read_text()
    return {"path": path, "content": content, "size": len(content)}
"""

SHELL = """\
import subprocess
from pathlib import Path

def run_command(workspace: Path, command: str) -> dict:
    result = subprocess.run(
        command,
        shell=True,
        cwd=workspace,
        capture_output=True,
        text=True
    )
    return {
        "command": command,
        "output": result.stdout + result.stderr,
        "exit_code": result.returncode
    }
"""

# What the first example uses and leaves to the reader.
SURROUNDINGS = """\
import json

def process(data):
    return {"rows": len(data.splitlines())}

"""


@pytest.fixture
def my_toolset(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/analyze.py").write_text(SURROUNDINGS + ANALYZE + TRANSFORM)
    return tmp_path


@pytest.fixture
def app_builder(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "toolset.yaml").write_text(APP_BUILDER)
    (tmp_path / "tools/files.py").write_text(FILES)
    (tmp_path / "tools/shell.py").write_text(SHELL)
    return tmp_path


@pytest.fixture
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workspace")


def test_analyze_data_runs(my_toolset: Path, workspace: Path) -> None:
    analyze_data = load("tools.analyze:analyze_data", my_toolset)
    assert get_tool_metadata(analyze_data) == ToolMetadata(
        name="Analyze Data", description="Analyze a data file and return statistics"
    )
    assert describe(analyze_data).input_schema == {
        "type": "object",
        "properties": {"filename": {"type": "string", "description": "File to analyze"}},
        "required": ["filename"],
        "additionalProperties": False,
    }
    (workspace / "data.csv").write_text("a\nb\n")
    with context(workspace):
        assert invoke(analyze_data, {"filename": "data.csv"}) == {
            "summary": "Processed 100 rows",
            "output_file": "output.json",
            "stats": {"rows": 100, "columns": 5},
        }
    assert (workspace / "output.json").read_text() == '{"rows": 2}'


def test_transform_file_runs_with_its_model(my_toolset: Path, workspace: Path) -> None:
    transform_file = load("analyze:transform_file", my_toolset)
    schema = describe(transform_file).input_schema
    assert schema["properties"] == {"config": {"$ref": "#/$defs/TransformConfig"}}
    assert schema["$defs"]["TransformConfig"]["properties"] == {
        "input": {"type": "string", "description": "Input file path"},
        "output": {"type": "string", "description": "Output file path"},
        "template": {"type": "string", "description": "Template to apply"},
    }
    with context(workspace):
        assert invoke(transform_file, {"config": {"input": "a", "output": "b", "template": "c"}}) is None
        with pytest.raises(BadArguments) as refused:
            invoke(transform_file, {"config": {"input": "a", "output": 1}})
    assert str(refused.value) == (
        "transform_file: 'config.output' should be a valid string; 'config.template' is required"
    )


def test_the_app_builder_toolset_runs(app_builder: Path, workspace: Path) -> None:
    manifest = yaml.safe_load((app_builder / "toolset.yaml").read_text())
    tools: dict[str, Any] = {each["id"]: load(each["entrypoint"], app_builder) for each in manifest["tools"]}
    for each in manifest["tools"]:
        assert describe(tools[each["id"]], each["input_schema"]).input_schema == each["input_schema"]
    with context(workspace):
        assert invoke(tools["write_file"], {"path": "src/a.txt", "content": "hi"}) == {
            "written": "src/a.txt",
            "size": 2,
        }
        assert invoke(tools["read_file"], {"path": "src/a.txt"}) == {"path": "src/a.txt", "content": "hi", "size": 2}
        assert invoke(tools["run_command"], {"command": "cat src/a.txt; exit 3"}) == {
            "command": "cat src/a.txt; exit 3",
            "output": "hi",
            "exit_code": 3,
        }
    assert (workspace / "src/a.txt").read_text() == "hi"


def test_the_examples_are_the_specifications_own_functions(app_builder: Path) -> None:
    write_file = load("tools.files:write_file", app_builder)
    assert get_tool_metadata(write_file) is None
    assert describe(write_file).input_schema["required"] == ["path", "content"]
