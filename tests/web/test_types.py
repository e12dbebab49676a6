"""The types in the comments of the shared modules, checked by the TypeScript compiler."""

from __future__ import annotations

import subprocess

from gateway.serve.web.inline import WEB
from web.hosts import MODULES, require_bridge


def test_types_of_core_and_views_are_sound() -> None:
    require_bridge()
    run = subprocess.run(
        [MODULES / ".bin/tsc", "-p", WEB / "tsconfig.json"], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout
