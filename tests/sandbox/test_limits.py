"""A program that uses more than it may is ended, and nothing of it is left."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import anyio
import pytest

from gateway.sandbox import Exit, Limits, Mount, Sandbox
from gateway.sandbox.run import FinishedProgram, run
from gateway.sandbox.supervisor_main import remove
from gateway.workspace.tree import EMPTY
from gateway.workspace.versions import OpenChat
from gateway.workspace.workspaces import Workspaces

from .bombs import (
    DEEP_BOMB,
    DISK_BOMB,
    FILE_BOMB,
    FORK_BOMB,
    HIDDEN_BOMB,
    LEADERLESS_MEMORY_BOMB,
    MEMORY_BOMB,
    MEMORY_BOMB_OF_MANY,
    MIB,
    NAMELESS_BOMB,
    ORPHAN,
    PAGE_TABLES,
    SHARED_MEMORY,
    SPINNERS,
    THREAD_BOMB,
)
from .siege import give_to_own_user, python, run_out_of_time, running, workspace

pytestmark = pytest.mark.anyio


async def let_loose(
    sandbox: Sandbox, folder: Path, code: str, limits: Limits, *, endless: bool = False
) -> FinishedProgram:
    token = uuid.uuid4().hex
    folder.mkdir(exist_ok=True)
    program = python(code, token, limits=limits, **workspace(folder / "workspace", sandbox))
    finished = await (run_out_of_time(sandbox, program, b"begun") if endless else run(sandbox, program, timeout=60))
    assert finished.stdout.startswith(b"begun"), finished
    assert running(token) == []
    return finished


async def test_a_fork_bomb_is_bounded(any_sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    give_to_own_user(tmp_path / "workspace", any_sandbox)
    finished = await let_loose(any_sandbox, tmp_path, FORK_BOMB, Limits(processes=64))
    assert finished.exit == Exit(137, "processes")


async def test_threads_are_bounded(sandbox: Sandbox, tmp_path: Path) -> None:
    finished = await let_loose(sandbox, tmp_path, THREAD_BOMB, Limits(processes=8))
    assert finished.exit == Exit(137, "processes") or finished.stdout == b"begun\nrefused\n"


@pytest.mark.parametrize(
    "bomb",
    [MEMORY_BOMB, MEMORY_BOMB_OF_MANY, SHARED_MEMORY, LEADERLESS_MEMORY_BOMB],
    ids=["one", "many", "shared", "leaderless"],
)
async def test_a_memory_bomb_is_ended(any_sandbox: Sandbox, tmp_path: Path, bomb: str) -> None:
    finished = await let_loose(any_sandbox, tmp_path, bomb, Limits(memory=96 * MIB))
    assert finished.exit == Exit(137, "memory")
    assert b"survived" not in finished.stdout


async def test_page_tables_are_memory_too(sandbox: Sandbox, tmp_path: Path) -> None:
    finished = await let_loose(sandbox, tmp_path, PAGE_TABLES, Limits(memory=96 * MIB))
    assert finished.exit == Exit(137, "memory")


async def test_memory_that_processes_share_counts_once(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
import os, time
kept = bytearray(b"x") * (48 << 20)
print("begun", flush=True)
children = []
for _ in range(4):
    if (child := os.fork()) == 0:
        time.sleep(0.4)
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""
    finished = await let_loose(sandbox, tmp_path, code, Limits(memory=128 * MIB))
    assert finished.exit == Exit(0)


@pytest.mark.parametrize(
    "bomb",
    [DISK_BOMB, FILE_BOMB, DEEP_BOMB, HIDDEN_BOMB, NAMELESS_BOMB],
    ids=["bytes", "files", "depth", "hidden", "nameless"],
)
async def test_a_disk_bomb_is_ended(any_sandbox: Sandbox, tmp_path: Path, bomb: str) -> None:
    finished = await let_loose(any_sandbox, tmp_path, bomb, Limits(disk=8 * MIB, files=500))
    remove(str(tmp_path / "workspace"))
    assert finished.exit == Exit(137, "disk")
    assert b"survived" not in finished.stdout


async def test_what_was_there_before_is_not_growth(sandbox: Sandbox, tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    for number in range(8):
        (folder / f"old{number}").write_bytes(os.urandom(2 * MIB))
    code = "import time; print('begun', flush=True); open('new', 'w').write('x'); time.sleep(0.8)"
    finished = await let_loose(sandbox, tmp_path, code, Limits(disk=8 * MIB))
    assert finished.exit == Exit(0)


async def test_one_file_has_a_size(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
import os
print("begun", flush=True)
for attempt in (lambda: os.write(os.open("big", os.O_CREAT | os.O_WRONLY), bytes(4 << 20)),
                lambda: os.truncate(os.open("sparse", os.O_CREAT | os.O_WRONLY), 1 << 40)):
    try:
        print(attempt())
    except OSError as error:
        print(error.strerror)
"""
    finished = await let_loose(sandbox, tmp_path, code, Limits(file_bytes=MIB))
    assert finished.stdout.splitlines()[1:] == [str(MIB).encode(), b"File too large"]
    assert (tmp_path / "workspace/big").stat().st_size == MIB


async def test_its_own_tmp_is_bounded_and_gone_afterwards(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
import os, tempfile, time
print("begun", flush=True)
print(tempfile.gettempdir(), flush=True)
try:
    for number in range(40):
        with open(f"{tempfile.gettempdir()}/{number}", "wb") as file:
            file.write(os.urandom(1 << 20))
        time.sleep(0.02)
    print("survived", flush=True)
except OSError as error:
    print(error.strerror)
"""
    finished = await let_loose(sandbox, tmp_path, code, Limits(tmp_bytes=8 * MIB))
    assert finished.exit.killed == "disk" or b"No space left on device" in finished.stdout
    assert b"survived" not in finished.stdout
    place = finished.stdout.splitlines()[1].decode()
    assert place == "/tmp" or not Path(place).exists()


async def test_a_program_that_computes_too_long_is_ended_by_the_kernel(sandbox: Sandbox, tmp_path: Path) -> None:
    code = "print('begun', flush=True)\nwhile True: pass"
    finished = await let_loose(sandbox, tmp_path, code, Limits(cpu_seconds=1))
    assert finished.exit.code in (137, 152)


async def test_one_that_waits_is_looked_at_again_when_it_works(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
import sys, time
for line in sys.stdin:
    kept = bytearray(b"x") * (160 << 20)
    time.sleep(300)
"""
    process = await sandbox.start(python(code, limits=Limits(memory=96 * MIB)), stdin=True)
    process.busy = False
    await anyio.sleep(0.2)
    process.busy = True
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    with anyio.fail_after(60):
        assert await process.wait() == Exit(137, "memory")


@pytest.mark.slow
async def test_eight_that_spin_end_on_time(any_sandbox: Sandbox, tmp_path: Path) -> None:
    finished = await let_loose(any_sandbox, tmp_path, SPINNERS, Limits(), endless=True)
    assert finished.exit == Exit(137, "timeout")


async def test_one_that_closes_its_output_is_still_waited_for_and_ended(any_sandbox: Sandbox, tmp_path: Path) -> None:
    code = "import os, time; print('begun', flush=True); os.close(1); os.close(2); time.sleep(300)"
    finished = await let_loose(any_sandbox, tmp_path, code, Limits(), endless=True)
    assert finished.exit == Exit(137, "timeout")
    assert finished.duration >= 1


async def test_memory_in_files_of_no_disk_is_bounded(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
import os
print("begun", flush=True)
for place in ("/dev/shm", "/run", "/dev", "/"):
    try:
        with open(f"{place}/filled", "wb") as file:
            for _ in range(64):
                file.write(os.urandom(1 << 20))
        print("open", place)
    except OSError as error:
        print("stopped")
"""
    finished = await let_loose(sandbox, tmp_path, code, Limits())
    assert finished.stdout == b"begun\n" + b"stopped\n" * 4


@pytest.mark.slow
async def test_nothing_is_left_when_its_end_is_told(any_sandbox: Sandbox, tmp_path: Path) -> None:
    for number in range(12):  # bubblewrap itself ends an instant before what is still inside
        await let_loose(any_sandbox, tmp_path / str(number), ORPHAN, Limits())


async def test_a_program_that_locks_its_folder_locks_nobody_out(sandbox: Sandbox, tmp_path: Path) -> None:
    """Tried as a normal user too, whom modes bind; as root it is the next program that could not begin."""
    workspaces = Workspaces(tmp_path.resolve())
    opened = OpenChat("chat", workspaces.directory("chat"), workspaces.path("chat"), attached=False)
    code = """
import os
for folder in ("", "below"):
    os.makedirs(folder or ".", exist_ok=True)
    open(f"./{folder}/file", "a").write("x")
for folder in ("below", "."):
    os.chmod(folder, 0)
print("begun", flush=True)
"""
    for number in (1, 2):
        mount = Mount(workspaces.path("chat"), "/workspace", writable=True)
        finished = await run(sandbox, python(code, mounts=(mount,), cwd=sandbox.inside(mount)), timeout=60)
        assert finished.stdout == b"begun\n", finished
        tree, _ = opened.diff_since(EMPTY)
        assert tree.files.keys() == {"file", "below/file"}
        assert (workspaces.path("chat") / "below/file").stat().st_size == number
