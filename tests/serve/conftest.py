"""A gateway in this process, for what stands in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway import Gateway


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with Gateway.open({"data_dir": str(tmp_path / "data")}) as gateway:
        yield gateway
