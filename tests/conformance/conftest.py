"""The suite, where this machine has it."""

from __future__ import annotations

import os

import pytest

from .suite import Missing, Suite


@pytest.fixture(scope="session")
def suite() -> Suite:
    try:
        return Suite.find()
    except Missing as missing:
        if os.environ.get("TOOLGATE_REQUIRE_NODE") == "1":
            pytest.fail(f"{missing}, and TOOLGATE_REQUIRE_NODE=1 says it must be there")
        pytest.skip(str(missing))
