"""run_tests: the runner found, the tests run in the sandbox, and what each of them told."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway.sources.builtin.code import test_runners
from gateway.sources.builtin.code.test_runners import FailedTest, RunnerReport

from .environments import with_pytest
from .tool_client import ToolClient, open_client

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C4")]

PYTEST = """
import pytest

class TestThings:
    def test_wrong(self):
        assert 1 + 1 == 3, "sums"

@pytest.mark.parametrize("n", [1, 2])
def test_right(n):
    print("right")

@pytest.mark.skip(reason="later")
def test_later():
    pass

@pytest.fixture
def broken():
    raise RuntimeError("no fixture")

def test_broken(broken):
    pass
"""

UNITTEST = """
import unittest

class Things(unittest.TestCase):
    def test_right(self):
        print("noise ... FAIL")
    def test_wrong(self):
        self.assertEqual(1, 2)
    def test_broken(self):
        raise RuntimeError("oh")
    @unittest.skip("later")
    def test_later(self):
        pass
"""


def counts(value: Any) -> tuple[Any, ...]:
    return tuple(value.get(name) for name in ("runner", "passed", "failed", "errors", "skipped"))


@pytest.mark.slow
async def test_pytest_of_the_workspace_is_found_and_read(client: ToolClient) -> None:
    with_pytest(client.folder)
    (client.folder / "tests").mkdir()
    (client.folder / "tests/test_things.py").write_text(PYTEST)
    value = await client.value("run_tests")
    assert counts(value) == ("pytest", 2, 1, 1, 1)
    assert value["exitCode"] == 1
    wrong, broken = value["failures"]
    assert wrong["name"] == "tests/test_things.py::TestThings::test_wrong"
    assert "AssertionError: sums" in wrong["message"]
    assert (broken["name"], "no fixture" in broken["message"]) == ("tests/test_things.py::test_broken", True)
    assert "1 failed, 2 passed" in value["output"]
    assert not list(client.folder.rglob("tests/__pycache__")) + list(client.folder.rglob(".pytest_cache"))
    one = await client.value("run_tests", only=["tests/test_things.py::test_right"])
    assert (counts(one), one["exitCode"], one["failures"]) == (("pytest", 2, 0, 0, 0), 0, [])


async def test_unittest_needs_nothing_installed(client: ToolClient) -> None:
    (client.folder / "test_things.py").write_text(UNITTEST)
    outcome = await client.call("run_tests", runner="unittest")
    assert counts(outcome.value) == ("unittest", 1, 1, 1, 1)
    names = [each["name"].split()[0] for each in outcome.value["failures"]]
    assert sorted(names) == ["test_broken", "test_wrong"]
    assert outcome.content is not None
    assert "unittest: 1 passed, 1 failed, 1 errors, 1 skipped" in outcome.content[0]["text"]
    one = await client.value("run_tests", runner="unittest", only=["test_things.Things.test_right"])
    assert (counts(one), one["exitCode"]) == (("unittest", 1, 0, 0, 0), 0)


@pytest.mark.slow
async def test_npm_is_read_where_it_speaks_tap(client: ToolClient) -> None:
    if shutil.which("npm", path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip("npm is not installed")
    (client.folder / "package.json").write_text('{"scripts": {"test": "node --test --test-reporter=tap"}}')
    code = """
const {test, describe, it} = require('node:test');
describe('many', () => { it('right', () => {}); it('wrong', () => { throw new Error('oh') }); });
test('alone', () => {});
test('later', {skip: true}, () => {});
"""
    (client.folder / "a.test.js").write_text(code)
    value = await client.value("run_tests")
    assert counts(value) == ("npm", 2, 1, 0, 1), value["output"]
    assert [(each["name"], "oh" in each["message"]) for each in value["failures"]] == [("wrong", True)]


async def test_make_tells_by_its_exit_code_alone(client: ToolClient) -> None:
    if shutil.which("make", path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip("make is not installed")
    (client.folder / "Makefile").write_text("all:\n\ntest:\n\t@echo tested; exit 3\n")
    value = await client.value("run_tests")
    assert counts(value) == ("make", None, None, None, None)
    assert (value["exitCode"], value["output"].splitlines()[0]) == (2, "tested")


async def test_tests_that_take_too_long_are_ended_and_what_was_told_counts(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        code = "import time, unittest\nclass T(unittest.TestCase):\n    def test_slow(self): time.sleep(60)\n"
        (at.folder / "test_slow.py").write_text(code)
        value = await at.value("run_tests", timeout=1)
        assert (value["exitCode"], value["timedOut"], value["killed"]) == (124, True, "timeout")
        assert "passed" not in value


async def test_a_missing_runner_is_installed_by_the_tool_that_can_where_there_is_one(tmp_path: Path) -> None:
    async with open_client(tmp_path, sandbox={"network": True}) as at:
        (at.folder / "conftest.py").touch()
        error = await at.refusal("run_tests")
        assert (error.code, "with install_package" in error.message) == ("PROGRAM_NOT_FOUND", True)


async def test_what_cannot_be_run_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        assert (await at.refusal("run_tests")).code == "NO_TESTS"
        (at.folder / "conftest.py").touch()
        error = await at.refusal("run_tests")
        assert (error.code, "install_package" in error.message) == ("PROGRAM_NOT_FOUND", False)
        assert "install pytest on this machine, in one of /usr/local/bin, /usr/bin, /bin" in error.message
        (at.folder / "sub").mkdir()
        (at.folder / "sub/package.json").write_text('{"scripts": {"test": "echo Error: no test specified && exit 1"}}')
        assert (await at.refusal("run_tests", directory="sub")).code == "NO_TESTS"
        assert (await at.refusal("run_tests", runner="unittest", only=["--locals"])).code == "INVALID_ARGUMENTS"


async def test_a_program_that_lies_on_the_channel_cannot_make_us_stumble(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        code = (
            "import os, unittest\n"
            "for number in range(3, 64):\n"
            "    try: os.write(number, b'[1]\\n{}\\nnonsense\\n[\"passed\"]\\n')\n"
            "    except OSError: pass\n"
            "class T(unittest.TestCase):\n    def test_a(self): pass\n"
        )
        (at.folder / "test_lies.py").write_text(code)
        value = await at.value("run_tests")
        assert value["runner"] == "unittest"


def test_entities_and_other_than_xml_are_not_read() -> None:
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><testsuite><testcase name="&b;"/></testsuite>'
    assert test_runners.parse_junit(bomb) is None
    assert test_runners.parse_junit(b"no xml") is None
    assert test_runners.parse_junit(b"<testsuites/>") == RunnerReport()


def test_go_is_read_from_its_events() -> None:
    text = "\n".join(
        [
            '{"Action":"run","Package":"x/y","Test":"TestA"}',
            '{"Action":"output","Package":"x/y","Test":"TestB","Output":"b_test.go:3: oh\\n"}',
            '{"Action":"pass","Package":"x/y","Test":"TestA"}',
            '{"Action":"fail","Package":"x/y","Test":"TestB"}',
            '{"Action":"skip","Package":"x/y","Test":"TestC"}',
            '{"Action":"fail","Package":"x/y"}',
            "FAIL",
        ]
    )
    assert test_runners.parse_go(text) == RunnerReport(1, 1, 1, 0, (FailedTest("x/y.TestB", "b_test.go:3: oh"),))
    assert test_runners.parse_go("x.go:1: syntax error") is None


def test_cargo_is_read_from_what_it_prints() -> None:
    text = """
running 3 tests
test tests::right ... ok
test tests::later ... ignored
test tests::wrong ... FAILED

failures:

---- tests::wrong stdout ----
thread 'tests::wrong' panicked at src/lib.rs:9:9:
oh

failures:
    tests::wrong

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out
"""
    message = "thread 'tests::wrong' panicked at src/lib.rs:9:9:\noh"
    assert test_runners.parse_cargo(text) == RunnerReport(1, 1, 1, 0, (FailedTest("tests::wrong", message),))
    assert test_runners.parse_cargo("error: could not compile") is None


def test_tap_counts_what_is_nested_once() -> None:
    text = """TAP version 13
# Subtest: many
    # Subtest: one
    ok 1 - one
    not ok 2 - two
      ---
      error: 'oh'
      ...
    1..2
not ok 1 - many
ok 2 - after
ok 3 - later # SKIP not today
1..3
"""
    found = test_runners.parse_tap(text)
    assert found is not None
    assert (found.passed, found.failed, found.skipped, [each.name for each in found.failures]) == (2, 1, 1, ["two"])
    assert "error: 'oh'" in found.failures[0].message
    assert test_runners.parse_tap("all is well\n") is None


async def test_where_nothing_was_tested_nothing_is_right(client: ToolClient) -> None:
    (client.folder / "test_plain.py").write_text("def test_wrong():\n    assert False\n")
    outcome = await client.call("run_tests", runner="unittest")
    assert outcome.error is not None and outcome.error.code == "NO_TESTS"
    assert "need pytest" in outcome.error.message
