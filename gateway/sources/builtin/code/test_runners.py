"""Which tests a project has, and how they are run and read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.sources.builtin.code.call_context import VENV, CodeContext
from gateway.sources.builtin.read_files import passed_over
from gateway.workspace import Entry, Parts

# Characters kept of what a test said when it failed.
MESSAGE = 2000

_TAP = re.compile(r"^(\s*)(not )?ok\b\s*(\d+)?\s*-?\s*(.*?)\s*(?:#\s*(skip|todo)\b.*)?$", re.IGNORECASE)
_CARGO = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", re.MULTILINE)
_CARGO_SAID = re.compile(r"^---- (.+?) stdout ----\n(.*?)(?=^---- |^failures:|\Z)", re.MULTILINE | re.DOTALL)
_STRAY = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Failed:
    name: str
    message: str


@dataclass(frozen=True)
class Report:
    """How many tests there were of each kind, and the failures. `errors` are tests that could not be run."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    errors: int = 0
    failures: tuple[Failed, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there were none at all, which is no success."""
        return not (self.passed or self.failed or self.skipped or self.errors or self.failures)


def junit(content: bytes) -> Report | None:
    """From JUnit XML, as pytest writes it; None for what is none."""
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:  # nobody honest declares entities here
        return None
    try:
        root = ElementTree.fromstring(content)  # noqa: S314 - of bounded size, and without entities
    except ElementTree.ParseError:
        return None
    return _counted(map(_case, root.iter("testcase")))


def _case(case: ElementTree.Element) -> tuple[str, str, str]:
    for kind in ("failure", "error", "skipped"):
        if (found := case.find(kind)) is not None:
            return kind, _test_name(case), found.text or found.get("message") or ""
    return "passed", _test_name(case), ""


def _test_name(case: ElementTree.Element) -> str:
    """As pytest itself names a test, where the file is told."""
    file, owner, name = case.get("file"), case.get("classname", ""), case.get("name", "")
    if file:
        module = re.sub(r"\.py$", "", file).replace("/", ".")
        owner = owner.removeprefix(module).strip(".")
        return "::".join(part for part in (file, owner.replace(".", "::"), name) if part)
    return "::".join(part for part in (owner, name) if part)


def lines(content: bytes) -> Report | None:
    """From lines of `[kind, name, message]`, as our own runner for unittest writes them; None without an end."""
    found = [entry for entry in _json_lines(content.decode("utf-8", "replace")) if isinstance(entry, list)]
    if not found or found.pop() != ["end"]:
        return None
    return _counted((str(entry[0]), str(entry[1]), str(entry[2])) for entry in found if len(entry) == 3)


def go(text: str) -> Report | None:
    """From `go test -json`; None when it could not even be built."""
    said: dict[tuple[str, str], list[str]] = {}
    ended: dict[tuple[str, str], str] = {}
    for event in _json_lines(text):
        if not isinstance(event, dict) or "Test" not in event:
            continue
        test = (str(event.get("Package", "")), str(event["Test"]))
        if event.get("Action") == "output":
            said.setdefault(test, []).append(str(event.get("Output", "")))
        elif event.get("Action") in ("pass", "fail", "skip"):
            ended[test] = {"pass": "passed", "fail": "failure", "skip": "skipped"}[event["Action"]]
    if not ended:
        return None
    return _counted((kind, ".".join(test), "".join(said.get(test, ()))) for test, kind in ended.items())


def cargo(text: str) -> Report | None:
    """From what `cargo test` prints for people; None when it could not even be built."""
    said = {match[1]: match[2] for match in _CARGO_SAID.finditer(text)}
    kinds = {"ok": "passed", "FAILED": "failure", "ignored": "skipped"}
    found = [(kinds[match[2]], match[1], said.get(match[1], "")) for match in _CARGO.finditer(text)]
    return _counted(found) if found else None


def tap(text: str) -> Report | None:
    """From the Test Anything Protocol, subtests counted and not their sums; None where nobody speaks it."""
    found: list[tuple[str, str, list[str]]] = []
    last, said = 0, list[str]()
    for line in text.splitlines():
        match = _TAP.match(line)
        if match is None:
            said.append(line.strip())
            continue
        depth, kind = len(match[1]), "skipped" if match[5] else "failure" if match[2] else "passed"
        said = []
        if depth >= last:  # else it sums up the subtests just told
            found.append((kind, match[4] or f"test {match[3] or len(found) + 1}", said))
        last = depth
    return _counted((kind, name, "\n".join(more)) for kind, name, more in found) if found else None


def _counted(cases: Iterable[tuple[str, str, str]]) -> Report:
    counts = {"passed": 0, "failure": 0, "skipped": 0, "error": 0}
    failures = []
    for kind, name, message in cases:
        counts[kind if kind in counts else "error"] += 1
        if kind not in ("passed", "skipped"):
            failures.append(Failed(_clean(name)[:500], _clean(message).strip()[-MESSAGE:]))
    return Report(counts["passed"], counts["failure"], counts["skipped"], counts["error"], tuple(failures))


def _json_lines(text: str) -> Iterator[Any]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _clean(text: str) -> str:
    return _STRAY.sub("", text)


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


def detect(context: CodeContext, here: Parts) -> Name:
    """The runner of the project in a directory; blocks, for a thread."""
    for runner, fits in _DETECTED:
        if fits(context, here):
            return runner
    raise Invalid(
        "no tests were found here: no pytest or unittest files, no package.json with a test script, "
        "go.mod, Cargo.toml or Makefile with a test target; name the directory",
        code="NO_TESTS",
    )


def prepare(context: CodeContext, runner: Name, only: Sequence[str]) -> Tests:
    """How to run them; refused when the runner is not here, naming what to install."""
    if any(each.startswith("-") or "\0" in each for each in only):
        raise Invalid("what to run is named by files and tests, not by options", code="INVALID_ARGUMENTS")
    return _PREPARED[runner](context, tuple(only))


def _pytest(context: CodeContext, only: tuple[str, ...]) -> Tests:
    options = ("-q", "--color=no", "-p", "no:cacheprovider", "-o", "junit_family=xunit1")
    python = context.python()
    if _has_pytest(context):
        command: tuple[str, ...] = (python.path, "-m", "pytest")
    elif (found := context.host.programs.get("pytest")) is not None:
        command = (found,)
    else:
        raise _missing("pytest", context.install_hint("pytest"))
    return Tests(
        "pytest",
        (*command, *options, *only),
        {"PYTHONDONTWRITEBYTECODE": "1"},
        python.readable,
        channel="--junitxml={}",
        told=junit,
    )


def _unittest(context: CodeContext, only: tuple[str, ...]) -> Tests:
    python = context.python()
    names = tuple(each.removesuffix(".py").replace("/", ".") for each in only) or ("discover",)
    command = (python.path, "-B", "-c", UNITTEST, *names)
    return Tests("unittest", command, {}, python.readable, channel="{}", told=lines)


def _npm(context: CodeContext, only: tuple[str, ...]) -> Tests:
    if "npm" not in context.host.programs:
        raise _missing("npm", "install Node.js")
    env = {"npm_config_update_notifier": "false", "npm_config_cache": "/tmp/npm", "CI": "1"}  # noqa: S108 - the sandbox's
    argv = (context.host.programs["npm"], "test", "--silent", *(("--", *only) if only else ()))
    return Tests("npm", argv, env, printed=tap)


def _go(context: CodeContext, only: tuple[str, ...]) -> Tests:
    if "go" not in context.host.programs:
        raise _missing("go", "install Go")
    env = {"GOTOOLCHAIN": "local", "GOCACHE": "/tmp/go", **({} if context.network else {"GOPROXY": "off"})}  # noqa: S108
    argv = (context.host.programs["go"], "test", "-json", *(only or ("./...",)))
    return Tests("go", argv, env, printed=go)


def _cargo(context: CodeContext, only: tuple[str, ...]) -> Tests:
    if "cargo" not in context.host.programs:
        raise _missing("cargo", "install Rust")
    env = {"CARGO_TERM_COLOR": "never", "CARGO_HOME": "/tmp/cargo"}  # noqa: S108 - the sandbox's
    if context.network is None:
        env["CARGO_NET_OFFLINE"] = "true"
    argv = (context.host.programs["cargo"], "test", "--no-fail-fast", *only)
    return Tests("cargo", argv, env, printed=cargo)


def _make(context: CodeContext, only: tuple[str, ...]) -> Tests:
    if "make" not in context.host.programs:
        raise _missing("make", "install it")
    return Tests("make", (context.host.programs["make"], *(only or ("test",))), printed=tap)


_PREPARED = {"pytest": _pytest, "unittest": _unittest, "npm": _npm, "go": _go, "cargo": _cargo, "make": _make}


def _is_pytest(context: CodeContext, here: Parts) -> bool:
    """A project set up for it, or Python tests where it is installed."""
    named = any(context.find((*here, name)) for name in _PYTEST_FILES)
    named = named or any(section in _read(context, (*here, name)) for name, section in _PYTEST_SECTIONS)
    there = _has_pytest(context) or "pytest" in context.host.programs
    return named or (there and _has_python_tests(context, here))


def _is_npm(context: CodeContext, here: Parts) -> bool:
    try:
        said = json.loads(_read(context, (*here, "package.json")) or b"{}")
    except (ValueError, RecursionError):
        return False
    scripts = said.get("scripts") if isinstance(said, dict) else None
    test = scripts.get("test") if isinstance(scripts, dict) else None
    return isinstance(test, str) and "no test specified" not in test


def _has_python_tests(context: CodeContext, here: Parts) -> bool:
    def is_test(entry: Entry) -> bool:
        name = entry.name
        return entry.kind == "file" and name.endswith(".py") and (name.startswith("test") or name.endswith("_test.py"))

    with context.root.walk(here, _DEPTH, lambda entry: not passed_over(entry)) as walk:
        return any(is_test(entry) for entry in walk)


def _has_pytest(context: CodeContext) -> bool:
    return context.has_venv() and context.find((VENV, "bin", "pytest")) is not None


# In this order: the first that fits.
_DETECTED: Sequence[tuple[Name, Callable[[CodeContext, Parts], bool]]] = (
    ("pytest", _is_pytest),
    ("npm", _is_npm),
    ("cargo", lambda context, here: context.find((*here, "Cargo.toml")) is not None),
    ("go", lambda context, here: context.find((*here, "go.mod")) is not None),
    ("unittest", _has_python_tests),
    ("make", lambda context, here: b"\ntest:" in b"\n" + _read(context, (*here, "Makefile"))),
)


def _read(context: CodeContext, parts: Parts) -> bytes:
    try:
        with context.root.open(parts) as file:
            return file.read(_FILE)
    except GatewayError:
        return b""


def _missing(program: str, fix: str) -> Unavailable:
    return Unavailable(f"the tests need {program}, which is not here; {fix}", code="PROGRAM_NOT_FOUND")
