"""What test runners tell of their tests, as numbers and failures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

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
