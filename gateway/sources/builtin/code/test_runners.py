"""Test runners: detecting a project's runner, its command, and parsing its report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.sources.builtin.code.call_context import VENV, CodeContext
from gateway.sources.builtin.read_files import is_skipped
from gateway.value import Value
from gateway.workspace import Entry, Parts

# Characters of a failure message.
MESSAGE_LENGTH = 2000

_TAP = re.compile(r"^(\s*)(not )?ok\b\s*(\d+)?\s*-?\s*(.*?)\s*(?:#\s*(skip|todo)\b.*)?$", re.IGNORECASE)
_CARGO = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", re.MULTILINE)
_CARGO_OUTPUT = re.compile(r"^---- (.+?) stdout ----\n(.*?)(?=^---- |^failures:|\Z)", re.MULTILINE | re.DOTALL)
_CONTROL_CODES = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\x1b\[[0-9;]*m")


class FailedTest(Value):
    name: str
    message: str


class RunnerReport(Value):
    """Numbers of tests by result, and the failures. `errors` are tests that could not be run."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    errors: int = 0
    failures: tuple[FailedTest, ...] = ()

    @property
    def empty(self) -> bool:
        """True if there were no tests at all, which is not a success."""
        return not (self.passed or self.failed or self.skipped or self.errors or self.failures)


def parse_junit(content: bytes) -> RunnerReport | None:
    """Parse JUnit XML as pytest writes it; None for other content."""
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:  # test runners declare no entities
        return None
    try:
        root = ElementTree.fromstring(content)  # noqa: S314 - of bounded size, and without entities
    except ElementTree.ParseError:
        return None
    return _count(map(_case, root.iter("testcase")))


def _case(case: ElementTree.Element) -> tuple[str, str, str]:
    for kind in ("failure", "error", "skipped"):
        if (element := case.find(kind)) is not None:
            return kind, _test_name(case), element.text or element.get("message") or ""
    return "passed", _test_name(case), ""


def _test_name(case: ElementTree.Element) -> str:
    """Return the name of a test as pytest prints it, if the report names the file."""
    file, owner, name = case.get("file"), case.get("classname", ""), case.get("name", "")
    if file:
        module = re.sub(r"\.py$", "", file).replace("/", ".")
        owner = owner.removeprefix(module).strip(".")
        return "::".join(part for part in (file, owner.replace(".", "::"), name) if part)
    return "::".join(part for part in (owner, name) if part)


def parse_lines(content: bytes) -> RunnerReport | None:
    """Parse lines of `[kind, name, message]`, as our unittest script writes them; None for an incomplete report."""
    entries = [entry for entry in _json_lines(content.decode("utf-8", "replace")) if isinstance(entry, list)]
    if not entries or entries.pop() != ["end"]:
        return None
    return _count((str(entry[0]), str(entry[1]), str(entry[2])) for entry in entries if len(entry) == 3)


def parse_go(text: str) -> RunnerReport | None:
    """Parse the output of `go test -json`; None if the build failed."""
    output: dict[tuple[str, str], list[str]] = {}
    results: dict[tuple[str, str], str] = {}
    for event in _json_lines(text):
        if not isinstance(event, dict) or "Test" not in event:
            continue
        test = (str(event.get("Package", "")), str(event["Test"]))
        if event.get("Action") == "output":
            output.setdefault(test, []).append(str(event.get("Output", "")))
        elif event.get("Action") in ("pass", "fail", "skip"):
            results[test] = {"pass": "passed", "fail": "failure", "skip": "skipped"}[event["Action"]]
    if not results:
        return None
    return _count((kind, ".".join(test), "".join(output.get(test, ()))) for test, kind in results.items())


def parse_cargo(text: str) -> RunnerReport | None:
    """Parse the output of `cargo test`; None if the build failed."""
    output = {match[1]: match[2] for match in _CARGO_OUTPUT.finditer(text)}
    kinds = {"ok": "passed", "FAILED": "failure", "ignored": "skipped"}
    cases = [(kinds[match[2]], match[1], output.get(match[1], "")) for match in _CARGO.finditer(text)]
    return _count(cases) if cases else None


def parse_tap(text: str) -> RunnerReport | None:
    """Parse the Test Anything Protocol. Subtests are counted, their parents are not. None for other output."""
    cases: list[tuple[str, str, list[str]]] = []
    last, output = 0, list[str]()
    for line in text.splitlines():
        match = _TAP.match(line)
        if match is None:
            output.append(line.strip())
            continue
        depth, kind = len(match[1]), "skipped" if match[5] else "failure" if match[2] else "passed"
        output = []
        if depth >= last:  # else it is the parent of the preceding subtests
            cases.append((kind, match[4] or f"test {match[3] or len(cases) + 1}", output))
        last = depth
    return _count((kind, name, "\n".join(more)) for kind, name, more in cases) if cases else None


def _count(cases: Iterable[tuple[str, str, str]]) -> RunnerReport:
    counts = {"passed": 0, "failure": 0, "skipped": 0, "error": 0}
    failures = []
    for kind, name, message in cases:
        counts[kind if kind in counts else "error"] += 1
        if kind not in ("passed", "skipped"):
            failures.append(FailedTest(_clean(name)[:500], _clean(message).strip()[-MESSAGE_LENGTH:]))
    return RunnerReport(counts["passed"], counts["failure"], counts["skipped"], counts["error"], tuple(failures))


def _json_lines(text: str) -> Iterator[Any]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _clean(text: str) -> str:
    return _CONTROL_CODES.sub("", text)


RunnerName = Literal["pytest", "unittest", "npm", "go", "cargo", "make"]

_FILE_BYTES = 1024 * 1024
_SEARCH_DEPTH = 3
_PYTEST_FILES = ("pytest.ini", ".pytest.ini", "conftest.py")
_PYTEST_SECTIONS = (("pyproject.toml", b"[tool.pytest"), ("setup.cfg", b"[tool:pytest]"), ("tox.ini", b"[pytest]"))

# Runs unittest and writes a report to the path that is the last argument.
UNITTEST = """
import json, sys, unittest

class Result(unittest.TextTestResult):
    out = open(sys.argv.pop(), "w", encoding="utf-8")
    def report(self, kind, test, message=""):
        self.out.write(json.dumps([kind, str(test), message]) + "\\n")
        self.out.flush()
    def addSuccess(self, test):
        super().addSuccess(test); self.report("passed", test)
    def addFailure(self, test, error):
        super().addFailure(test, error); self.report("failure", test, self.failures[-1][1])
    def addError(self, test, error):
        super().addError(test, error); self.report("error", test, self.errors[-1][1])
    def addSkip(self, test, reason):
        super().addSkip(test, reason); self.report("skipped", test, reason)
    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error); self.report("passed", test)
    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test); self.report("failure", test, "unexpected success")

result = unittest.main(module=None, argv=["unittest", *sys.argv[1:]], exit=False,
                    testRunner=unittest.TextTestRunner(resultclass=Result)).result
Result.out.write('["end"]\\n')
Result.out.close()
sys.exit(not result.wasSuccessful())
"""


class RunnerCommand(Value):
    """The command that runs a project's tests. With a `report_option` the runner writes a report to the path that is
    filled in there, for `parse_report`; else `parse_output` reads what it prints."""

    runner: RunnerName
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    readable: tuple[Path, ...] = ()
    report_option: str | None = None
    parse_report: Callable[[bytes], RunnerReport | None] | None = None
    parse_output: Callable[[str], RunnerReport | None] | None = None


def detect(context: CodeContext, directory: Parts) -> RunnerName:
    """Return the runner of the project in a directory. Blocks."""
    for runner, matches in _DETECTORS:
        if matches(context, directory):
            return runner
    raise Invalid(
        "no tests found: no pytest or unittest files, no package.json with a test script, go.mod, Cargo.toml or "
        "Makefile with a test target; give the project's directory",
        code="NO_TESTS",
    )


def prepare(context: CodeContext, runner: RunnerName, only: Sequence[str]) -> RunnerCommand:
    """Return the command for a runner; refuse one that is not installed, with what to install."""
    if any(name.startswith("-") or "\0" in name for name in only):
        raise Invalid("'only' takes files and tests, not options", code="INVALID_ARGUMENTS")
    return _COMMANDS[runner](context, tuple(only))


def _pytest(context: CodeContext, only: tuple[str, ...]) -> RunnerCommand:
    options = ("-q", "--color=no", "-p", "no:cacheprovider", "-o", "junit_family=xunit1")
    python = context.python()
    if _has_pytest(context):
        command: tuple[str, ...] = (python.path, "-m", "pytest")
    elif (path := context.host.programs.get("pytest")) is not None:
        command = (path,)
    else:
        raise _missing_error("pytest", context.install_hint("pytest"))
    return RunnerCommand(
        "pytest",
        (*command, *options, *only),
        {"PYTHONDONTWRITEBYTECODE": "1"},
        python.readable,
        report_option="--junitxml={}",
        parse_report=parse_junit,
    )


def _unittest(context: CodeContext, only: tuple[str, ...]) -> RunnerCommand:
    python = context.python()
    names = tuple(name.removesuffix(".py").replace("/", ".") for name in only) or ("discover",)
    command = (python.path, "-B", "-c", UNITTEST, *names)
    return RunnerCommand("unittest", command, {}, python.readable, report_option="{}", parse_report=parse_lines)


def _npm(context: CodeContext, only: tuple[str, ...]) -> RunnerCommand:
    if "npm" not in context.host.programs:
        raise _missing_error("npm", "install Node.js")
    env = {"npm_config_update_notifier": "false", "npm_config_cache": "/tmp/npm", "CI": "1"}  # noqa: S108 - the sandbox's
    argv = (context.host.programs["npm"], "test", "--silent", *(("--", *only) if only else ()))
    return RunnerCommand("npm", argv, env, parse_output=parse_tap)


def _go(context: CodeContext, only: tuple[str, ...]) -> RunnerCommand:
    if "go" not in context.host.programs:
        raise _missing_error("go", "install Go")
    env = {"GOTOOLCHAIN": "local", "GOCACHE": "/tmp/go", **({} if context.network else {"GOPROXY": "off"})}  # noqa: S108
    argv = (context.host.programs["go"], "test", "-json", *(only or ("./...",)))
    return RunnerCommand("go", argv, env, parse_output=parse_go)


def _cargo(context: CodeContext, only: tuple[str, ...]) -> RunnerCommand:
    if "cargo" not in context.host.programs:
        raise _missing_error("cargo", "install Rust")
    env = {"CARGO_TERM_COLOR": "never", "CARGO_HOME": "/tmp/cargo"}  # noqa: S108 - the sandbox's
    if context.network is None:
        env["CARGO_NET_OFFLINE"] = "true"
    argv = (context.host.programs["cargo"], "test", "--no-fail-fast", *only)
    return RunnerCommand("cargo", argv, env, parse_output=parse_cargo)


def _make(context: CodeContext, only: tuple[str, ...]) -> RunnerCommand:
    if "make" not in context.host.programs:
        raise _missing_error("make", "install it")
    return RunnerCommand("make", (context.host.programs["make"], *(only or ("test",))), parse_output=parse_tap)


_COMMANDS = {"pytest": _pytest, "unittest": _unittest, "npm": _npm, "go": _go, "cargo": _cargo, "make": _make}


def _is_pytest(context: CodeContext, directory: Parts) -> bool:
    """Return whether a project is configured for pytest, or has Python tests and pytest is installed."""
    configured = any(context.find((*directory, name)) for name in _PYTEST_FILES)
    configured = configured or any(section in _read(context, (*directory, name)) for name, section in _PYTEST_SECTIONS)
    installed = _has_pytest(context) or "pytest" in context.host.programs
    return configured or (installed and _has_python_tests(context, directory))


def _is_npm(context: CodeContext, directory: Parts) -> bool:
    try:
        package = json.loads(_read(context, (*directory, "package.json")) or b"{}")
    except (ValueError, RecursionError):
        return False
    scripts = package.get("scripts") if isinstance(package, dict) else None
    test = scripts.get("test") if isinstance(scripts, dict) else None
    return isinstance(test, str) and "no test specified" not in test


def _has_python_tests(context: CodeContext, directory: Parts) -> bool:
    def is_test(entry: Entry) -> bool:
        name = entry.name
        return entry.kind == "file" and name.endswith(".py") and (name.startswith("test") or name.endswith("_test.py"))

    with context.root.walk(directory, _SEARCH_DEPTH, lambda entry: not is_skipped(entry)) as walk:
        return any(is_test(entry) for entry in walk)


def _has_pytest(context: CodeContext) -> bool:
    return context.has_venv() and context.find((VENV, "bin", "pytest")) is not None


# The first that matches is used.
_DETECTORS: Sequence[tuple[RunnerName, Callable[[CodeContext, Parts], bool]]] = (
    ("pytest", _is_pytest),
    ("npm", _is_npm),
    ("cargo", lambda context, directory: context.find((*directory, "Cargo.toml")) is not None),
    ("go", lambda context, directory: context.find((*directory, "go.mod")) is not None),
    ("unittest", _has_python_tests),
    ("make", lambda context, directory: b"\ntest:" in b"\n" + _read(context, (*directory, "Makefile"))),
)


def _read(context: CodeContext, parts: Parts) -> bytes:
    try:
        with context.root.open(parts) as file:
            return file.read(_FILE_BYTES)
    except GatewayError:
        return b""


def _missing_error(program: str, fix: str) -> Unavailable:
    return Unavailable(f"the tests need {program}, which is not installed; {fix}", code="PROGRAM_NOT_FOUND")
