"""What every test has: the asyncio backend, and in the inner loop fewer examples, more workers and files in memory."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from pathlib import Path

import pytest
from amounts import NIGHTLY
from hypothesis import HealthCheck, settings

QUICK = bool(os.environ.get("TOOLGATE_QUICK"))
MEMORY = Path("/dev/shm")
# What the files of all tests take at most, several times over; a container's /dev/shm has far less.
ROOM = 2 * 1024**3

# The time an example takes says little on a busy machine, so no test fails for it. Examples are the same in every run,
# so that a change is not blamed for what chance found; `make nightly` looks for new ones.
settings.register_profile("full", deadline=None, derandomize=not NIGHTLY, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("full"), max_examples=15)
settings.load_profile("quick" if QUICK else "full")
if QUICK and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(optionalhook=True)  # without xdist nobody asks
def pytest_xdist_auto_num_workers() -> int:
    """Three workers per core: tests spend most of their time waiting, for processes to start and for limits to pass."""
    return 3 * (os.cpu_count() or 1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each worker begins with modules that have slow tests, so that none begins a long one when the others are done.

    With `--dist=worksteal` each gets an equal share of the list at first, one after the other.
    """
    paths = {item.path for item in items if "slow" in item.keywords}
    slow, fast = ([item for item in items if (item.path in paths) is first] for first in (True, False))
    items.clear()
    for workers in range(getattr(config, "workerinput", {}).get("workercount", 1), 0, -1):
        slow_share = len(slow) // workers
        fast_share = (len(slow) + len(fast)) // workers - slow_share
        items += slow[:slow_share] + fast[:fast_share]
        del slow[:slow_share], fast[:fast_share]


def pytest_collection_finish() -> None:
    """What was collected stays until the end, so that nobody need search it for garbage again and again; what a test
    imports while it runs is its own and may be different the next time, so that it is not kept compiled."""
    gc.collect()
    gc.freeze()
    if sys.pycache_prefix is not None:
        sys.dont_write_bytecode, sys.pycache_prefix = True, None


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
