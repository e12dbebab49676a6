"""One browser for all tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from browser import open_browser
from playwright.async_api import Browser


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as opened:
        yield opened
