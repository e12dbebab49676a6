"""Each promise that is claimed has a test, and each test's promise is claimed."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("promises", TESTS / "promises.py")
assert _spec is not None and _spec.loader is not None
promises = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(promises)


def marked(path: Path) -> set[str]:
    """The rows named in `promise` marks of a file, on functions or on the whole module."""
    text = path.read_text()
    if "promise" not in text:
        return set()
    return {
        argument.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "promise"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


MARKED = {row for path in TESTS.rglob("test_*.py") for row in marked(path)}


@pytest.mark.parametrize("row", [row for row, promise in promises.PROMISES.items() if promise.state != "later"])
def test_what_is_claimed_is_held_by_a_test(row: str) -> None:
    assert row in MARKED


@pytest.mark.parametrize("row", sorted(MARKED))
def test_what_a_test_holds_is_claimed(row: str) -> None:
    assert promises.PROMISES[row].state != "later"


def test_what_is_only_partly_built_says_which_part() -> None:
    for promise in promises.PROMISES.values():
        assert bool(promise.so_far) == (promise.state == "partly")
