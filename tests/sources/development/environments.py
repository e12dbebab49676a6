"""An environment in a workspace, as install_package would make one, of packages that are here already."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

PYTHON = "/usr/bin/python3"
_OF_PYTEST = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")


def with_pytest(workspace: Path) -> None:
    """A `.venv` with pytest in it."""
    made = subprocess.run(
        [PYTHON, "-m", "venv", "--without-pip", workspace / ".venv"], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("the system's python3 makes no environments")
    [packages] = (workspace / ".venv/lib").glob("python*/site-packages")
    for name in _OF_PYTEST:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        if spec.submodule_search_locations is None:
            shutil.copy(spec.origin, packages)
        else:
            shutil.copytree(Path(spec.origin).parent, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    (workspace / ".venv/bin/pytest").touch()


def with_ruff(workspace: Path) -> None:
    """A `.venv` that has ruff, which is a program of its own."""
    here = shutil.which("ruff", path=str(Path(pytest.__file__).parents[4] / "bin"))
    if here is None:
        pytest.skip("ruff is not installed beside pytest")
    (workspace / ".venv/bin").mkdir(parents=True)
    shutil.copy(here, workspace / ".venv/bin/ruff")
