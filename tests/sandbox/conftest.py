"""The sandboxes of this machine, each in turn."""

from __future__ import annotations

import os

import pytest

from gateway.errors import GatewayError
from gateway.sandbox import Sandbox

from .siege import BACKENDS

REQUIRED = bool(os.environ.get("TOOLGATE_REQUIRE_SANDBOX"))


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("landlock", "unconfined")]
"""Tried with the whole: the inner loop keeps to the sandbox most machines use."""


@pytest.fixture(params=["bwrap", OTHERS[0]])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return make(request.param)


@pytest.fixture(params=["bwrap", *OTHERS])
def any_sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return make(request.param)


def make(name: str) -> Sandbox:
    """The sandbox of that name; a machine that has none of it is no reason to fail, unless it is said to be."""
    try:
        return BACKENDS[name]()
    except GatewayError as error:
        if REQUIRED:
            raise
        pytest.skip(error.message)
