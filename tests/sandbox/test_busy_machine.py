"""Harmless calls on a busy machine: no program is ended for what other programs use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from amounts import NIGHTLY
from eventually import eventually

from .attacks import ATTACKS
from .bombs import BOMBS
from .busy_machine import (
    FILL_BYTES,
    FREE_DISK,
    FREE_MEMORY,
    LOAD_SECONDS,
    Report,
    available_memory,
    count_increases,
    free_disk,
    running_load,
)
from .conftest import World, make, require_packages
from .test_table import SANDBOXES, USERS, besiege_as

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the load and both sandboxes need Linux")

COMBINATIONS = list(product(SANDBOXES, USERS))
# The load slows every other test, so that attacks and bombs are tried in two of them; at night in all.
COMBINATIONS_UNDER_LOAD = COMBINATIONS if NIGHTLY else [("bwrap", "root"), ("landlock", "user")]
# For each combination: 500 in all.
CALLS = 125

LEAST_INCREASES = 5
# The load was effective if the disk, the folder and the shared memory each rose by more than 1 GiB so often, and
# while so many calls ran.
LEAST_CALLS = 5


@pytest.mark.slow
def test_harmless_calls_succeed_on_a_busy_machine(world: World) -> None:
    """All combinations at once, so that one load serves them all."""
    _require_room(world.field)
    worlds = {(backend, user): _make_world(world, backend, user) for backend, user in COMBINATIONS if _can_become(user)}
    builds = [each.field / "project/build" for each in worlds.values()]
    with running_load(world.field, *builds), ThreadPoolExecutor(len(worlds)) as threads:
        running = {chosen: threads.submit(_make_calls, each, *chosen) for chosen, each in worlds.items()}
        programs = {chosen: program.result() for chosen, program in running.items()}
    during = Counter[str]()
    for program in programs.values():
        assert program.returncode == 0, program.stderr[-8000:]
        report = Report(**json.loads(program.stdout))
        assert min(report.increases.values()) >= LEAST_INCREASES, f"{report.increases}\n{program.stderr[-4000:]}"
        during.update(report.calls_during)
        assert report.calls == CALLS
        if report.failures:
            pytest.fail(_describe(report))
    assert min(during[name] for name in report.increases) >= LEAST_CALLS, during
    assert not [file for build in builds for file in build.glob("*.bin")], "the load left a file"


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "user"), COMBINATIONS_UNDER_LOAD)
def test_attacks_and_bombs_are_stopped_on_a_busy_machine(backend: str, user: str, world: World, tmp_path: Path) -> None:
    make(backend)
    _require_room(world.field)
    with running_load(tmp_path, tmp_path):
        verdicts = besiege_as(world, backend, user)
    assert verdicts.keys() == ATTACKS.keys() | BOMBS.keys()
    assert {name: verdict for name, verdict in verdicts.items() if verdict[0] != "stopped"} == {}


@pytest.mark.slow
def test_load_ends_and_removes_its_file_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Else a test run that is killed would leave the load to the machine."""
    _require_room(tmp_path)
    output = tmp_path / "output.bin"
    load = [sys.executable, "-m", "tests.sandbox.busy_machine", "load", str(tmp_path), "60", str(tmp_path)]
    code = f"import subprocess; child = subprocess.Popen({load!r}); print(child.pid, flush=True); child.wait()"
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=root) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        eventually(output.exists)
        parent.send_signal(signal.SIGKILL)
        eventually(lambda: _has_ended(child))
    assert not output.exists()


def test_increases_are_counted_from_the_lowest_value_before_each() -> None:
    assert count_increases([5, 0, 4, 8, 9, 3, 9], more_than=5) == 2
    assert count_increases([0, 5, 0, 5], more_than=5) == 0
    assert count_increases([], more_than=5) == 0


def _can_become(user: str) -> bool:
    return user == "user" or os.getuid() == 0


def _make_world(world: World, backend: str, user: str) -> World:
    make(backend)
    world.field.chmod(0o711)
    own = World(world.code, world.field / f"{backend}-{user}")
    own.field.mkdir()
    require_packages(own, user)
    return own


def _make_calls(world: World, backend: str, user: str) -> subprocess.CompletedProcess[str]:
    arguments = ("calls", backend, str(world.field), str(CALLS))
    return world.run(user, "-m", "tests.sandbox.busy_machine", *arguments, timeout=LOAD_SECONDS)


def _require_room(directory: Path) -> None:
    # Twice what the load takes, as another of these tests may run at the same time.
    if free_disk(directory) < FREE_DISK + 4 * FILL_BYTES:
        pytest.skip("the disk has too little free space for the load")
    if available_memory() < FREE_MEMORY + 2 * FILL_BYTES:
        pytest.skip("the machine has too little memory for the load")


def _describe(report: Report) -> str:
    kinds = "\n".join(f"{count} x {kind}" for kind, count in sorted(report.failures_by_kind.items()))
    first = "\n".join(report.failures[:5])
    return f"{len(report.failures)} of {report.calls} calls failed:\n{kinds}\nThe first ones:\n{first}"


def _has_ended(process: int) -> bool:
    try:
        return not Path(f"/proc/{process}/cmdline").read_bytes()  # empty once it is a zombie
    except OSError:
        return True
