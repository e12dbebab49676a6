"""One world for all tests of logins; each finds it as new."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .world import Behaviour, World


@pytest.fixture(scope="session")
def _world() -> Iterator[World]:
    running = World()
    yield running
    running.stop()


@pytest.fixture
def world(_world: World) -> World:
    _world.now = Behaviour()
    return _world
