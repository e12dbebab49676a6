"""The package as authors get it: small, on its own, and described truly."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import covalt_toolset
from covalt_toolset import describe, load

PACKAGE = Path(covalt_toolset.__file__).parent
MODULES = sorted(PACKAGE.glob("*.py"))
# Pydantic, and what cannot be missing where it is installed.
NEEDED = {"pydantic", "pydantic_core", "typing_extensions"}


def python(*arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_it_needs_pydantic_and_the_standard_library_alone(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) if not node.level}
    assert {name.partition(".")[0] for name in imported} <= NEEDED | sys.stdlib_module_names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_its_modules_and_functions_can_be_read_in_one_sitting(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 350
    assert ast.get_docstring(ast.parse(text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or node.lineno) - node.lineno < 60, node.name


def test_importing_it_brings_little_besides_pydantic() -> None:
    loaded = "import sys, pydantic.fields, pydantic.json_schema, pydantic.main; before = set(sys.modules); "
    new = python("-c", f"{loaded}import covalt_toolset; print(*set(sys.modules) - before)").split()
    assert not {"asyncio", "concurrent.futures", "socket", "subprocess", "email", "gateway", "mcp", "anyio"} & set(new)
    assert len([name for name in new if not name.startswith("covalt_toolset")]) < 25, sorted(new)


def test_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_all_that_is_exported_is_in_the_readme() -> None:
    readme = (PACKAGE / "README.md").read_text()
    words = set(re.findall(r"\w+", readme))
    inner = {"Log", "ToolMetadata", "ToolsetError", "BadDefinition", "BadReturn"}
    assert set(covalt_toolset.__all__) - words <= inner


@pytest.mark.slow
def test_the_readmes_toolset_passes_its_own_tests(tmp_path: Path) -> None:
    for name, text in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert "2 passed" in python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    description = describe(load("tools.words:count_words", tmp_path))
    assert (description.name, description.permission) == ("Count Words", "read-only")
    assert description.description == "Count the words of text files in the workspace."
    assert description.output_schema is not None
    assert description.input_schema["properties"]["top"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 100,
        "default": 10,
        "description": "How many of the most frequent words to return",
    }
