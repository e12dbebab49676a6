"""The number of processes and threads of a program: held by the kernel, whatever else runs."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path

import pytest

from gateway.sandbox import Exit, Limits, Sandbox
from gateway.sandbox.run import run
from gateway.sandbox.watchdog import TaskLimit, counts_by_namespace

from .busy_machine import running_load
from .conftest import World, make
from .siege import give_to_own_user, python, workspace
from .task_bombs import LIMIT, TASK_BOMBS
from .test_busy_machine import COMBINATIONS_UNDER_LOAD
from .test_table import SANDBOXES, USERS

pytestmark = pytest.mark.anyio


def check_peaks(world: World, backend: str, user: str) -> None:
    program = world.run(user, "-m", "tests.sandbox.task_bombs", backend, str(world.field))
    assert program.returncode == 0, program.stderr[-4000:]
    peaks = json.loads(program.stdout)
    assert peaks.keys() >= TASK_BOMBS.keys()
    for name, peak in peaks.items():
        assert peak["stdout"].startswith("begun"), name
        assert "survived" not in peak["stdout"], name
        assert peak["killed"] == "processes", (name, peak)
        # Under Landlock the gateway itself may have started a few threads since the user's were counted.
        least = LIMIT if backend == "bwrap" else LIMIT // 2
        assert least <= peak["tasks"] <= LIMIT, (name, peak)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "user"), list(product(SANDBOXES, USERS)))
def test_number_of_tasks_never_exceeds_its_limit(backend: str, user: str, world: World) -> None:
    make(backend)
    check_peaks(world, backend, user)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "user"), COMBINATIONS_UNDER_LOAD)
def test_number_of_tasks_never_exceeds_its_limit_on_a_busy_machine(
    backend: str, user: str, world: World, tmp_path: Path
) -> None:
    make(backend)
    with running_load(tmp_path, tmp_path):
        check_peaks(world, backend, user)


async def test_program_that_is_refused_a_process_and_copes_is_left_alone(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
import os, signal, time
children = []
try:
    while True:
        if (child := os.fork()) == 0:
            time.sleep(60)
            os._exit(0)
        children.append(child)
except BlockingIOError:
    time.sleep(0.2)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
time.sleep(2)
print("refused after", len(children) + 1)
"""
    options = workspace(tmp_path / "workspace", sandbox)
    give_to_own_user(tmp_path / "workspace", sandbox)
    finished = await run(sandbox, python(code, limits=Limits(processes=LIMIT), **options), timeout=60)
    assert finished.exit == Exit(0), finished
    if sandbox.name == "bwrap":
        assert finished.stdout == b"refused after %d\n" % LIMIT


def test_task_limit_is_reached_by_the_program_that_has_at_least_half_of_it() -> None:
    """Where the kernel counts all tasks of a user."""
    user = os.getuid()
    used_by_others = TaskLimit(100, others=-99, user=user)  # this process is one of more than one task
    assert not used_by_others.is_reached(49)
    assert used_by_others.is_reached(50)
    assert not TaskLimit(100, others=10**6, user=user).is_reached(50)
    assert not TaskLimit(100, others=1).is_reached(99)
    assert TaskLimit(100, others=1).is_reached(100)


@pytest.mark.parametrize(
    ("release", "counts"), [("5.14.0-362.el9", True), ("6.1-rc3", True), ("5.10.0-28-amd64", False), ("x", False)]
)
def test_kernels_that_count_tasks_by_namespace_are_known_by_their_version(release: str, counts: bool) -> None:
    assert counts_by_namespace(release) is counts
