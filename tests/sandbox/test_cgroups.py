"""Groups of the kernel's, as far as folders can stand for them; that it holds what it is told is its own affair."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.sandbox import Exit, Limits, Sandbox
from gateway.sandbox.cgroups import Cgroups, _own, claim
from gateway.sandbox.run import finish, run

from .siege import python

pytestmark = pytest.mark.anyio


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A cgroup that was given to us, with us alone in it."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    return tmp_path


async def test_we_step_aside_in_a_cgroup_of_our_own(base: Path) -> None:
    assert claim(base)
    assert (base / "toolgate-gateway/cgroup.procs").read_text() == str(os.getpid())
    assert (base / "cgroup.subtree_control").read_text() == "+memory +pids"


async def test_one_that_is_ready_is_used_as_it_is(base: Path) -> None:
    (base / "cgroup.subtree_control").write_text("memory pids\n")
    (base / "cgroup.procs").write_text("")
    assert claim(base)
    assert not (base / "toolgate-gateway").exists()


@pytest.mark.parametrize(
    ("file", "text"),
    [("cgroup.controllers", "cpu pids"), ("cgroup.procs", f"1\n{os.getpid()}\n"), ("cgroup.procs", "")],
    ids=["without memory", "with others in it", "without us"],
)
async def test_one_that_is_not_ours_is_left_alone(base: Path, file: str, text: str) -> None:
    (base / file).write_text(text)
    assert not claim(base)
    assert not claim(base / "nowhere")
    assert (base / "cgroup.subtree_control").read_text() == ""


async def test_a_program_is_held_in_its_group(sandbox: Sandbox, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_cgroups", Cgroups(base))
    program = python("input()", limits=Limits(memory=2**26, processes=10))
    process = await sandbox.start(program, stdin=True)
    (group,) = base.glob("toolgate-*")
    held = {file.name: file.read_text() for file in group.iterdir()}
    (group / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    finished = await finish(process, input=b"\n", timeout=60)
    assert finished.exit == Exit(0, "memory")  # as the kernel told
    assert int(held.pop("cgroup.procs")) > 1
    assert held == {"memory.max": str(2**26), "pids.max": "11", "memory.oom.group": "1", "memory.swap.max": "0"}


async def test_a_group_that_cannot_be_made_is_done_without(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_cgroups", Cgroups(tmp_path / "nowhere"))
    assert (await run(sandbox, python(""), timeout=60)).exit == Exit(0)


def test_the_own_group_is_found_in_version_two_only(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("1:cpu:/x\n0::/system.slice/toolgate.service\n")
    (tmp_path / "mountinfo").write_text("30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n")
    assert _own(tmp_path) == Path("/sys/fs/cgroup/system.slice/toolgate.service")
    (tmp_path / "cgroup").write_text("0::/system.slice/toolgate.service/toolgate-gateway\n")
    assert _own(tmp_path) == Path("/sys/fs/cgroup/system.slice/toolgate.service")
    (tmp_path / "mountinfo").write_text("30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n")
    assert _own(tmp_path) is None
