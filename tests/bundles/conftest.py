"""The inspector that installs in these tests are made with; a sandboxed one can stand in for it."""

from __future__ import annotations

import pytest

from .libraries import Reading


@pytest.fixture
def inspector() -> Reading:
    return Reading()
