"""A desk in each sandbox; the inner loop keeps to the one most machines use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .desks import Desk
from .desks import desk as open_desk


@pytest.fixture(params=["bwrap", pytest.param("landlock", marks=pytest.mark.slow)])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path, request.param) as opened:
        yield opened
