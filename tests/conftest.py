"""What every test has: the asyncio backend, and in the inner loop fewer examples and a memory of what was compiled."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

COMPILED = Path(__file__).parent.parent / ".pytest_cache" / "compiled"

settings.register_profile("quick", max_examples=15)
if os.environ.get("TOOLGATE_QUICK"):
    settings.load_profile("quick")
    if sys.dont_write_bytecode:  # to compile the tests anew is half of what it takes to collect them
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(COMPILED)


def pytest_collection_finish() -> None:
    """What was collected stays until the end, so that nobody need search it for garbage again and again; what a test
    imports while it runs is its own and may be different the next time, so that it is not kept compiled."""
    gc.collect()
    gc.freeze()
    if sys.pycache_prefix == str(COMPILED):
        sys.dont_write_bytecode, sys.pycache_prefix = True, None


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
