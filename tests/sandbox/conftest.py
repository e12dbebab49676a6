"""The sandboxes of this machine, each in turn; and a world in which someone else can try them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest

from gateway.errors import GatewayError
from gateway.sandbox import Sandbox

from .siege import BACKENDS, plant

REQUIRED = bool(os.environ.get("TOOLGATE_REQUIRE_SANDBOX"))

# One for each process that runs tests: the kernel counts the processes of a user, whoever started them.
NORMAL_USER = 64001 + os.getpid() % 1400

_ROOT = Path(__file__).parents[2]
_LIBRARY = _ROOT / "toolsets/covalt_toolset"
# What is heavy and not needed, and what another process is just writing.
_LEFT_OUT = ("pip", "setuptools", "mypy*", "*mypyc*", "*.pyc.*")

# Tried with the whole: the inner loop keeps to the sandbox most machines use.
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("landlock", "unconfined")]


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
        missing(error.message)


def missing(what: str) -> NoReturn:
    if REQUIRED:
        pytest.fail(f"{what}, and TOOLGATE_REQUIRE_SANDBOX says it must be there")
    pytest.skip(what)


@dataclass(frozen=True)
class World:
    """The code under test where everyone may read it, and a folder of one's own in it."""

    code: Path
    field: Path

    def run(self, user: str, *arguments: str, timeout: float = 580) -> subprocess.CompletedProcess[str]:
        """A Python program as `root` or as a normal `user`."""
        stranger = user == "user" and os.getuid() == 0
        if user == "root" and os.getuid() != 0:
            pytest.skip("only root can try what root can")
        if stranger:
            os.chown(self.field, NORMAL_USER, NORMAL_USER)
        identity: dict[str, Any] = {"user": NORMAL_USER, "group": NORMAL_USER, "extra_groups": []} if stranger else {}
        return subprocess.run(
            [_interpreter() if stranger else sys.executable, "-B", *arguments],
            capture_output=True,
            text=True,
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "PYTHONPATH": f"{self.code}:{self.code}/packages",
                "TMPDIR": str(self.field),
                "TOOLGATE_REQUIRE_SANDBOX": "1",
            },
            cwd=self.code,
            timeout=timeout,
            **identity,
        )


@pytest.fixture
def world(_code: Path) -> Iterator[World]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        plant(Path(name))  # while the folder is ours
        yield World(_code, Path(name))


@pytest.fixture(scope="session")
def _code() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        for source, target in (
            (Path(anyio.__file__).parents[1], "packages"),
            (_ROOT / "gateway", "gateway"),
            (_ROOT / "tests/sandbox", "tests/sandbox"),
        ):
            shutil.copytree(source, folder / target, copy_function=_give, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        for file in ("pyproject.toml", "tests/conftest.py", "tests/amounts.py", "tests/eventually.py"):
            _give(str(_ROOT / file), str(folder / file))
        for path, _, _ in os.walk(folder):
            os.chmod(path, 0o755)
        yield folder


def require_packages(world: World, user: str) -> None:
    """Put the library that toolsets import where every user can read it; skip where a user has no Python of ours."""
    if world.run(user, "-c", "import orjson, pydantic_core").returncode != 0:
        pytest.skip("the system's own Python is of another version than ours")
    folder = world.field / "libraries"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_LIBRARY, folder / _LIBRARY.name, copy_function=_give, ignore=ignored)
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o755)


def _give(source: str, target: str) -> None:
    """The same file once more; a copy where everyone may not read it, or where it is too far away."""
    try:
        if os.stat(source).st_mode & 0o004:
            os.link(source, target)
            return
    except OSError:
        pass
    shutil.copyfile(source, target)
    os.chmod(target, 0o644)


def _interpreter() -> str:
    """A Python that every user can run, of our own version if there is one."""
    code = "import sys; print(sys.version_info >= (3, 11))"
    for name in (f"python3.{sys.version_info.minor}", "python3"):
        found = shutil.which(name, path="/usr/local/bin:/usr/bin")
        if found and subprocess.run([found, "-c", code], capture_output=True, text=True).stdout.strip() == "True":
            return found
    missing("there is no Python of the system's own that is new enough")
