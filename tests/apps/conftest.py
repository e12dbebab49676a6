"""One event loop for a module, so that its tests share a gateway and a browser."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"
