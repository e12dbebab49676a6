"""Toolsets to install, and a gateway to install them in; needs a sandbox, as the gateway does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway import Gateway

from .writing import require_sandbox


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    await require_sandbox()
    settings = {"data_dir": str(tmp_path / "data"), "approval": {"mode": "never"}}
    async with Gateway.open(settings) as gateway:
        yield gateway
