"""The shape of the code: rooms in reading order, modules and functions one can read, imports at the top."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GATEWAY = ROOT / "gateway"
MODULE_LINES = 400
FUNCTION_LINES = 60

ROOMS = (
    "errors",
    "names",
    "tools",
    "config",
    "calls",
    "db",
    "net",
    "sandbox",
    "workspace",
    "bundles",
    "runtime",
    "render",
    "sources",
    "exports",
    "catalog",
    "extensions",
    "executor",
    "serve",
    "app",
    "cli",
    "__main__",
)
"""The reading order: a module imports its own room and rooms above it, never below."""

FORBIDDEN = {"serve": {"db", "sources"}}
"""Rooms that may not be imported although they stand above."""

LAZY = {
    "gateway/__init__.py": 1,
    "gateway/app.py": 3,
    "gateway/cli/serve.py": 2,
    "gateway/serve/renders.py": 1,
    "gateway/sources/development/__init__.py": 1,
    "gateway/sources/upstream/login/bearer.py": 1,
    "gateway/sources/web/__init__.py": 2,
}
"""Imports inside functions, for the start-up time of the command; each has a comment that says so."""

MODULES = sorted(GATEWAY.rglob("*.py"))

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)), scope="module")
"""All that is asked of a module stands together by its scope, so that whoever asks parses it once."""


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parsed(path)))


def room(path: Path) -> str:
    return path.relative_to(GATEWAY).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> Iterator[tuple[str, int]]:
    package = ["gateway", *path.relative_to(GATEWAY).parent.parts]
    typing_only = {
        id(inner)
        for node in nodes(path)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in nodes(path):
        if not isinstance(node, ast.ImportFrom) or id(node) in typing_only:
            continue
        if node.level:
            base = package[: len(package) - node.level + 1]
        elif (node.module or "").split(".")[0] == "gateway":
            base = []
        else:
            continue
        target = [*base, *(node.module or "").split(".")] if node.module else base
        for name in [target[1]] if len(target) > 1 else [alias.name for alias in node.names]:
            if name in ROOMS:
                yield name, node.lineno


@each_module
def test_a_module_imports_only_its_own_room_and_rooms_above(path: Path) -> None:
    here = room(path)
    if here == "__init__":
        return
    for other, line in imported_rooms(path):
        assert ROOMS.index(other) <= ROOMS.index(here), f"{path}:{line} imports {other}, which stands below {here}"
        assert other not in FORBIDDEN.get(here, ()), f"{path}:{line}: {here} may not import {other}"


def test_every_module_stands_in_a_room_of_the_reading_order() -> None:
    assert {room(path) for path in MODULES} - {"__init__"} <= set(ROOMS)


@each_module
def test_modules_and_functions_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MODULE_LINES
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{node.name} has {length} lines"


@each_module
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(parsed(path)), f"{path} has no docstring"


@each_module
def test_imports_stand_at_the_top(path: Path) -> None:
    inner = [
        node
        for function in nodes(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert len(inner) == LAZY.get(str(path.relative_to(ROOT)), 0)


def test_the_project_speaks_of_itself_alone() -> None:
    words = ("/" + "root/", "/" + "work/", "TO" + "DO", "FIX" + "ME")
    for path in [*MODULES, *(ROOT / "tests").rglob("*.py"), ROOT / "README.md", ROOT / "CHANGELOG.md"]:
        text = path.read_text()
        assert not [word for word in words if word in text], path
