"""A gateway that is root: its programs are not, and files stay what they were."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
from pathlib import Path

import anyio
import pytest

from gateway.errors import Unavailable
from gateway.sandbox import Exit, Mount, Program, Sandbox, idmap
from gateway.sandbox.process_tree import usage
from gateway.sandbox.run import run
from gateway.sandbox.run_user import UserAccount, is_known

from .conftest import make
from .siege import python, workspace

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.getuid() != 0, reason="only for root")]
SOMEONE = 64002

WORK = """
import os
with open("old", "a") as file:
    file.write(" and new")
print(open("old").read())
os.makedirs("made/within")
open("made/within/file", "w").write("by the program")
os.rename("moved", "made/moved")
os.unlink("removed")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that nobody but its owner may touch."""
    folder = tmp_path / "ws"
    folder.mkdir(0o700)
    for name in ("old", "moved", "removed"):
        (folder / name).write_text("old")
        (folder / name).chmod(0o600)
    return folder


async def test_no_process_of_a_program_is_root(sandbox: Sandbox, tmp_path: Path) -> None:
    code = "import os, time; os.fork(); print('here', flush=True); time.sleep(300)"
    process = await sandbox.start(python(code, **workspace(tmp_path / "ws", sandbox)))
    try:
        with anyio.fail_after(60):
            await process.stdout.readexactly(10)
        pids = usage(process.pid).processes
        assert len(pids) >= 2
        for pid in pids:
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            assert status["Uid"].split() == ["60700"] * 4
            assert status["Gid"].split() == ["60700"] * 4
            assert status["Groups"].split() == []
    finally:
        process.kill()
        await process.wait()


async def test_a_folder_of_roots_is_the_programs_too_and_stays_roots(sandbox: Sandbox, folder: Path) -> None:
    finished = await run(sandbox, python(WORK, **workspace(folder, sandbox)), timeout=60)
    assert (finished.exit, finished.stdout) == (Exit(0), b"old and new\n"), finished
    assert sorted(path.name for path in folder.rglob("*")) == ["file", "made", "moved", "old", "within"]
    for path in (folder, folder / "old", folder / "made/moved"):
        assert path.stat().st_uid == 0
    if sandbox.name == "bwrap":
        assert (folder / "made/within/file").stat().st_uid == 0
    (folder / "made/within/file").write_text("by us")
    (folder / "made/within/new").write_text("by us")


async def test_in_a_folder_of_someones_all_that_is_made_is_theirs(sandbox: Sandbox, folder: Path) -> None:
    for path in (folder, *folder.iterdir()):
        os.chown(path, SOMEONE, SOMEONE)
    finished = await run(sandbox, python(WORK, **workspace(folder, sandbox)), timeout=60)
    assert finished.exit == Exit(0), finished
    assert {(path.stat().st_uid, path.stat().st_gid) for path in folder.rglob("*")} == {(SOMEONE, SOMEONE)}


async def test_what_we_write_meanwhile_is_the_programs_too(sandbox: Sandbox, folder: Path) -> None:
    code = """
import sys
print("ready", flush=True)
sys.stdin.readline()
with open("written", "a") as file:
    file.write(" and changed")
"""
    process = await sandbox.start(python(code, **workspace(folder, sandbox)), stdin=True)
    with anyio.fail_after(60):
        await process.stdout.readline()
        (folder / "written").write_text("by us")
        (folder / "written").chmod(0o600)
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        assert await process.wait() == Exit(0)
    assert (folder / "written").read_text() == "by us and changed"


async def test_nothing_of_the_lending_is_seen_outside(folder: Path) -> None:
    sandbox = make("bwrap")
    before = Path("/proc/self/mountinfo").read_text()
    runs = [run(sandbox, python("print(1)", **workspace(folder, sandbox)), timeout=60) for _ in range(3)]
    assert {finished.stdout for finished in await asyncio.gather(*runs)} == {b"1\n"}
    assert Path("/proc/self/mountinfo").read_text() == before
    assert Path("/sys/kernel").is_dir()
    assert (os.getresuid(), os.getresgid()) == ((0, 0, 0), (0, 0, 0))


def held(status: str) -> dict[str, list[str]]:
    """Who a process is and what it may, as the kernel tells it."""
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return {name: fields[name].split() for name in ("Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapAmb")}


def have_more() -> None:
    """Have a group, and a capability that programs would inherit, as a service can be given by its manager."""
    idmap._set_groups([SOMEONE])
    libc, chown = ctypes.CDLL(None), 1 << 0
    header, everything = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, everything) == 0
    everything[2] |= chown
    assert libc.capset(header, everything) == 0
    assert libc.prctl(47, 2, 0, 0, 0) == 0


def test_what_is_started_for_a_user_has_nothing_of_roots() -> None:
    idmap._thread.submit(have_more).result()
    before = held(Path("/proc/self/status").read_text())
    dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
    seen: list[dict[str, list[str]]] = []

    def start() -> str:
        seen.append(held(Path("/proc/self/status").read_text()))
        return subprocess.run(["/bin/cat", "/proc/self/status"], stdout=subprocess.PIPE, text=True, check=True).stdout

    nothing = ["0" * 16]
    user, nobody = ["64002"] * 4, UserAccount(SOMEONE, SOMEONE)
    assert held(idmap.start_with_idmapped_mounts([], nobody, start)) == {
        "Uid": user, "Gid": user, "Groups": [], "CapPrm": nothing, "CapEff": nothing, "CapAmb": nothing
    }  # fmt: skip
    assert seen == [before], "all other threads are root meanwhile"
    assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == dumpable
    assert idmap._thread.submit(os.getgroups).result() == [SOMEONE]
    idmap._thread.submit(idmap._set_groups, os.getgroups()).result()


def test_who_starts_nothing_is_root_again() -> None:
    def fail() -> None:
        raise ValueError("no")

    mine = idmap._thread.submit(lambda: held(Path("/proc/thread-self/status").read_text()))
    with pytest.raises(ValueError, match="no"):
        idmap.start_with_idmapped_mounts([], UserAccount(SOMEONE, SOMEONE), fail)
    again = idmap._thread.submit(lambda: held(Path("/proc/thread-self/status").read_text()))
    assert {**again.result(), "CapAmb": []} == {**mine.result(), "CapAmb": []}


async def test_where_a_file_system_cannot_lend_the_owner_runs_and_root_never(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = make("bwrap")
    monkeypatch.setitem(idmap._idmap_support, folder.stat().st_dev, False)
    mount = Mount(folder, "/workspace", writable=True)
    program = Program(("/bin/cat", "old"), mounts=(mount,), cwd="/workspace")
    with pytest.raises(Unavailable, match="normal user"):
        await run(sandbox, program, timeout=60)
    for path in (folder, *folder.iterdir()):
        os.chown(path, SOMEONE, SOMEONE)
    assert idmap.choose_user(program, UserAccount(1, 1)) == UserAccount(SOMEONE, SOMEONE)
    assert (await run(sandbox, program, timeout=60)).stdout == b"old"


async def test_a_root_who_is_a_normal_user_outside_needs_no_other(tmp_path: Path) -> None:
    known = tmp_path / "uid_map"
    known.write_text("         0       1000          1\n")
    assert not is_known(60700, known)
    known.write_text("         0       1000          1\n         1     100000      65536\n")
    assert is_known(60700, known)
    assert is_known(60700, tmp_path / "nothing")
