"""Each promise that is claimed has a test, and each test's promise is claimed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("promises", TESTS / "promises.py")
assert _spec is not None and _spec.loader is not None
promises = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(promises)

MARK = "mark.promise("
NAMED = re.compile(r'"([^"]*)"')


def marked(path: Path) -> set[str]:
    """The rows named in `promise` marks of a file, on functions or on the whole module."""
    lines = [line.partition("#")[0] for line in path.read_text().splitlines() if MARK in line]
    return {row for line in lines for mark in line.split(MARK)[1:] for row in NAMED.findall(mark.partition(")")[0])}


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
