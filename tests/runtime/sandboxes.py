"""The sandboxes there are, each tried once: those that do not work on this machine are skipped, with the reason."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import pytest

from gateway.errors import GatewayError
from gateway.sandbox import Program, Sandbox
from gateway.sandbox.detect import Unconfined
from gateway.sandbox.run import run

MAKERS: dict[str, Callable[[], Sandbox]] = {"unconfined": Unconfined}

if sys.platform == "linux":
    from gateway.sandbox.bwrap import Bubblewrap
    from gateway.sandbox.landlock import Landlock

    MAKERS |= {"bwrap": Bubblewrap, "landlock": Landlock}


@functools.cache
def _made(name: str) -> tuple[Sandbox | None, str]:
    try:
        return MAKERS[name](), ""
    except GatewayError as error:
        return None, error.message


_proven: set[str] = set()


async def sandbox(name: str) -> Sandbox:
    """The sandbox of this name; the test is skipped where it does not work."""
    made, reason = _made(name)
    if made is not None and name not in _proven:
        try:
            await run(made, Program(("/bin/true",)), timeout=20)
            _proven.add(name)
        except GatewayError as error:
            made, reason = None, error.message
    if made is None:
        pytest.skip(f"no {name} here: {reason}")
    return made
