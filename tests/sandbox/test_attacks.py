"""Ways out of the sandbox: each works without it, and none in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import idna
import pytest
import typing_extensions

import gateway

from . import attacks, bombs, siege
from .conftest import make
from .siege import Verdicts, besiege

DEPENDS_ON_THE_MACHINE = {
    "become_root",
    "change_an_attribute_of_a_file",
    "clone_into_a_user_namespace",
    "gain_privileges",
    "join_a_keyring",
    "keep_a_capability",
    "make_a_bpf_map",
    "make_a_disk",
    "mount_something",
    "nest_a_user_namespace",
    "open_a_disk",
    "open_perf_events",
    "open_the_sysrq_trigger",
    "read_the_passwords",
    "run_a_setuid_program",
    "set_up_io_uring",
    "trace_another",
    "watch_page_faults",
    "write_the_core_pattern",
}
"""Attacks that a normal user, a container or the kernel may be refused without our help."""

CLOSED_IN_ANY_CASE = {"find_a_secret_in_its_own_environment", "use_a_descriptor_that_was_left_open"}

NORMAL_USER = 64001

_fought: dict[str, Verdicts] = {}


@pytest.fixture
def verdicts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """All attacks in one program for each sandbox, however many tests ask."""
    name = request.param
    make(name)
    if name not in _fought:
        _fought[name] = besiege(name, tmp_path_factory.mktemp(name))
    return _fought[name]


@pytest.mark.parametrize("verdicts", ["bwrap", "landlock"], indirect=True)
@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_an_attack_is_stopped(verdicts: Verdicts, name: str) -> None:
    assert verdicts[name][0] == "stopped", verdicts[name]


@pytest.mark.parametrize("verdicts", ["unconfined"], indirect=True)
@pytest.mark.parametrize("name", sorted(attacks.ATTACKS.keys() - DEPENDS_ON_THE_MACHINE - CLOSED_IN_ANY_CASE))
def test_the_attack_works_where_nothing_stops_it(verdicts: Verdicts, name: str) -> None:
    assert verdicts[name][0] == "open", verdicts[name]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
def test_a_normal_user_is_as_safe(backend: str, world: Path) -> None:
    make(backend)
    verdicts: Verdicts = _as_a_normal_user(world, backend)
    assert verdicts.keys() == attacks.ATTACKS.keys()
    assert {name: verdict for name, verdict in verdicts.items() if verdict[0] != "stopped"} == {}


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
def test_a_normal_users_bombs_are_ended_too(backend: str, world: Path) -> None:
    make(backend)
    expected: dict[str, list[Any]] = {name: [killed, True, []] for name, (_, _, killed) in bombs.BOMBS.items()}
    assert _as_a_normal_user(world, backend, "bombs") == expected


def _as_a_normal_user(world: Path, *arguments: str) -> Any:
    backend, *rest = arguments
    told = subprocess.run(
        [_interpreter(), "-B", str(world / "siege.py"), backend, str(world / "field"), *rest],
        capture_output=True,
        text=True,
        user=NORMAL_USER,
        group=NORMAL_USER,
        extra_groups=[],
        env={"PYTHONPATH": str(world), "TMPDIR": str(world / "field")},
        cwd="/",
        timeout=90,
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


@pytest.fixture
def world() -> Iterator[Path]:
    """The code under test, where a stranger may read it, and a folder that is the stranger's."""
    source = Path(gateway.__file__).parent
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for room in ("sandbox", "net"):
            shutil.copytree(source / room, folder / "gateway" / room, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(source / "errors.py", folder / "gateway/errors.py")
        (folder / "gateway/__init__.py").touch()
        for module in (anyio, idna):
            shutil.copytree(Path(module.__file__ or "").parent, folder / module.__name__)
        shutil.copy(typing_extensions.__file__, folder)
        for path in (siege.__file__, attacks.__file__, bombs.__file__):
            shutil.copy(path, folder)
        (folder / "field").mkdir()
        os.chown(folder / "field", NORMAL_USER, NORMAL_USER)
        yield folder


def _interpreter() -> str:
    """A Python that every user can run."""
    found = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if found is not None:
        code = "import sys; print(sys.version_info >= (3, 11))"
        if subprocess.run([found, "-c", code], capture_output=True, text=True).stdout.strip() == "True":
            return found
    pytest.skip("no Python of the system's own that is new enough")
