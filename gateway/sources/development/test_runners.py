"""Which tests a project has, and how they are run and read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.sources.builtin.list_files import passed_over
from gateway.sources.development import test_reports
from gateway.sources.development.call_context import VENV, Bench
from gateway.sources.development.test_reports import Report
from gateway.workspace import Entry, Parts

Name = Literal["pytest", "unittest", "npm", "go", "cargo", "make"]

_FILE = 1024 * 1024
_DEPTH = 3
_PYTEST_FILES = ("pytest.ini", ".pytest.ini", "conftest.py")
_PYTEST_SECTIONS = (("pyproject.toml", b"[tool.pytest"), ("setup.cfg", b"[tool:pytest]"), ("tox.ini", b"[pytest]"))

# Python's own tests, told to the channel that is the last argument.
UNITTEST = """
import json, sys, unittest

class Result(unittest.TextTestResult):
    out = open(sys.argv.pop(), "w", encoding="utf-8")
    def tell(self, kind, test, message=""):
        self.out.write(json.dumps([kind, str(test), message]) + "\\n")
        self.out.flush()
    def addSuccess(self, test):
        super().addSuccess(test); self.tell("passed", test)
    def addFailure(self, test, error):
        super().addFailure(test, error); self.tell("failure", test, self.failures[-1][1])
    def addError(self, test, error):
        super().addError(test, error); self.tell("error", test, self.errors[-1][1])
    def addSkip(self, test, reason):
        super().addSkip(test, reason); self.tell("skipped", test, reason)
    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error); self.tell("passed", test)
    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test); self.tell("failure", test, "it passed unexpectedly")

ran = unittest.main(module=None, argv=["unittest", *sys.argv[1:]], exit=False,
                    testRunner=unittest.TextTestRunner(resultclass=Result)).result
Result.out.write('["end"]\\n')
Result.out.close()
sys.exit(not ran.wasSuccessful())
"""


@dataclass(frozen=True)
class Tests:
    """How to run a project's tests: a command to which the path of the channel is added where `told` reads it,
    and who reads the results: what was told there, or what was printed."""

    runner: Name
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    readable: tuple[Path, ...] = ()
    channel: str | None = None
    told: Callable[[bytes], Report | None] | None = None
    printed: Callable[[str], Report | None] | None = None


def detect(bench: Bench, here: Parts) -> Name:
    """The runner of the project in a directory; blocks, for a thread."""
    for runner, fits in _DETECTED:
        if fits(bench, here):
            return runner
    raise Invalid(
        "no tests were found here: no pytest or unittest files, no package.json with a test script, "
        "go.mod, Cargo.toml or Makefile with a test target; name the directory",
        code="NO_TESTS",
    )


def prepare(bench: Bench, runner: Name, only: Sequence[str]) -> Tests:
    """How to run them; refused when the runner is not here, naming what to install."""
    if any(each.startswith("-") or "\0" in each for each in only):
        raise Invalid("what to run is named by files and tests, not by options", code="INVALID_ARGUMENTS")
    return _PREPARED[runner](bench, tuple(only))


def _pytest(bench: Bench, only: tuple[str, ...]) -> Tests:
    options = ("-q", "--color=no", "-p", "no:cacheprovider", "-o", "junit_family=xunit1")
    python = bench.python()
    if _has_pytest(bench):
        command: tuple[str, ...] = (python.path, "-m", "pytest")
    elif (found := bench.machine.programs.get("pytest")) is not None:
        command = (found,)
    else:
        raise _missing("pytest", bench.to_get("pytest"))
    return Tests(
        "pytest",
        (*command, *options, *only),
        {"PYTHONDONTWRITEBYTECODE": "1"},
        python.readable,
        channel="--junitxml={}",
        told=test_reports.junit,
    )


def _unittest(bench: Bench, only: tuple[str, ...]) -> Tests:
    python = bench.python()
    names = tuple(each.removesuffix(".py").replace("/", ".") for each in only) or ("discover",)
    command = (python.path, "-B", "-c", UNITTEST, *names)
    return Tests("unittest", command, {}, python.readable, channel="{}", told=test_reports.lines)


def _npm(bench: Bench, only: tuple[str, ...]) -> Tests:
    if "npm" not in bench.machine.programs:
        raise _missing("npm", "install Node.js")
    env = {"npm_config_update_notifier": "false", "npm_config_cache": "/tmp/npm", "CI": "1"}  # noqa: S108 - the sandbox's
    argv = (bench.machine.programs["npm"], "test", "--silent", *(("--", *only) if only else ()))
    return Tests("npm", argv, env, printed=test_reports.tap)


def _go(bench: Bench, only: tuple[str, ...]) -> Tests:
    if "go" not in bench.machine.programs:
        raise _missing("go", "install Go")
    env = {"GOTOOLCHAIN": "local", "GOCACHE": "/tmp/go", **({} if bench.network else {"GOPROXY": "off"})}  # noqa: S108
    argv = (bench.machine.programs["go"], "test", "-json", *(only or ("./...",)))
    return Tests("go", argv, env, printed=test_reports.go)


def _cargo(bench: Bench, only: tuple[str, ...]) -> Tests:
    if "cargo" not in bench.machine.programs:
        raise _missing("cargo", "install Rust")
    env = {"CARGO_TERM_COLOR": "never", "CARGO_HOME": "/tmp/cargo"}  # noqa: S108 - the sandbox's
    if bench.network is None:
        env["CARGO_NET_OFFLINE"] = "true"
    argv = (bench.machine.programs["cargo"], "test", "--no-fail-fast", *only)
    return Tests("cargo", argv, env, printed=test_reports.cargo)


def _make(bench: Bench, only: tuple[str, ...]) -> Tests:
    if "make" not in bench.machine.programs:
        raise _missing("make", "install it")
    return Tests("make", (bench.machine.programs["make"], *(only or ("test",))), printed=test_reports.tap)


_PREPARED = {"pytest": _pytest, "unittest": _unittest, "npm": _npm, "go": _go, "cargo": _cargo, "make": _make}


def _is_pytest(bench: Bench, here: Parts) -> bool:
    """A project set up for it, or Python tests where it is installed."""
    named = any(bench.found((*here, name)) for name in _PYTEST_FILES)
    named = named or any(section in _read(bench, (*here, name)) for name, section in _PYTEST_SECTIONS)
    there = _has_pytest(bench) or "pytest" in bench.machine.programs
    return named or (there and _has_python_tests(bench, here))


def _is_npm(bench: Bench, here: Parts) -> bool:
    try:
        said = json.loads(_read(bench, (*here, "package.json")) or b"{}")
    except (ValueError, RecursionError):
        return False
    scripts = said.get("scripts") if isinstance(said, dict) else None
    test = scripts.get("test") if isinstance(scripts, dict) else None
    return isinstance(test, str) and "no test specified" not in test


def _has_python_tests(bench: Bench, here: Parts) -> bool:
    def is_test(entry: Entry) -> bool:
        name = entry.name
        return entry.kind == "file" and name.endswith(".py") and (name.startswith("test") or name.endswith("_test.py"))

    with bench.root.walk(here, _DEPTH, lambda entry: not passed_over(entry)) as walk:
        return any(is_test(entry) for entry in walk)


def _has_pytest(bench: Bench) -> bool:
    return bench.has_venv() and bench.found((VENV, "bin", "pytest")) is not None


# In this order: the first that fits.
_DETECTED: Sequence[tuple[Name, Callable[[Bench, Parts], bool]]] = (
    ("pytest", _is_pytest),
    ("npm", _is_npm),
    ("cargo", lambda bench, here: bench.found((*here, "Cargo.toml")) is not None),
    ("go", lambda bench, here: bench.found((*here, "go.mod")) is not None),
    ("unittest", _has_python_tests),
    ("make", lambda bench, here: b"\ntest:" in b"\n" + _read(bench, (*here, "Makefile"))),
)


def _read(bench: Bench, parts: Parts) -> bytes:
    try:
        with bench.root.open(parts) as file:
            return file.read(_FILE)
    except GatewayError:
        return b""


def _missing(program: str, fix: str) -> Unavailable:
    return Unavailable(f"the tests need {program}, which is not here; {fix}", code="PROGRAM_NOT_FOUND")
