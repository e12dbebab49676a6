"""A client of the development tools in each sandbox; the inner loop keeps to the one most machines use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .tool_client import ToolClient, open_client


@pytest.fixture(params=["bwrap", pytest.param("landlock", marks=pytest.mark.slow)])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ToolClient]:
    async with open_client(tmp_path, request.param) as opened:
        yield opened
