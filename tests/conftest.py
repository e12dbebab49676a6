"""What every test has: the asyncio backend, and properties tried on fewer examples in the inner loop."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("quick", max_examples=15)
if os.environ.get("TOOLGATE_QUICK"):
    settings.load_profile("quick")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
