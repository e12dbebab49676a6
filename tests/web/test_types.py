"""The types in the comments of the console and the views, checked by the TypeScript compiler."""

from __future__ import annotations

import subprocess

import pytest

from gateway.serve.web.inline import WEB
from web.hosts import MODULES, require_bridge


@pytest.mark.parametrize("project", ["tsconfig.json", "console/tsconfig.json"], ids=["core and views", "console"])
def test_types_of_the_web_surface_are_sound(project: str) -> None:
    require_bridge()
    run = subprocess.run([MODULES / ".bin/tsc", "-p", WEB / project], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout
