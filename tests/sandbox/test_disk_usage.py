"""What a program has added to folders and file systems, told apart from what others add."""

from __future__ import annotations

import math
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually

from gateway.sandbox import disk_usage, process_tree
from gateway.sandbox.disk_usage import DEPTH_LIMIT, DiskSize, DiskUsage, TmpfsUsage, cannot_inspect_programs
from gateway.sandbox.process_tree import ClosedProcesses, DeletedFiles, SharedMemory, measure_work
from gateway.sandbox.supervisor_main import remove

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
NOTHING = DiskSize(-1, -1)

# Ways for a process to keep a deleted file.
HOLDS = {
    "descriptor": "kept = file",
    "mapping": "libc.mmap(None, 4096, 1, 1, file.fileno(), 0); file.close()",
    "message": "pair = socket.socketpair(); socket.send_fds(pair[0], [b'x'], [file.fileno()]); file.close()",
    "thread": """
ready = threading.Event()
def hold(fd):
    libc.unshare(0x400)  # descriptors of its own
    ready.set()
    time.sleep(600)
threading.Thread(target=hold, args=(file.fileno(),), daemon=True).start()
ready.wait()
file.close()
""",
    "lock": "kept = file; libc.prctl(4, 0, 0, 0, 0)",
    "no first thread": """
def end():
    while "State:\\tZ" not in open(f"/proc/self/task/{os.getpid()}/status").read():
        time.sleep(0.001)
    print("held", flush=True)
    time.sleep(600)
threading.Thread(target=end, daemon=True).start()
libc.syscall(93 if os.uname().machine == "aarch64" else 60, 0)
""",
}

QUIET: dict[str, Any] = {
    "stdout": subprocess.PIPE,
    "stderr": subprocess.DEVNULL,  # that of the tests is a deleted file
    "text": True,
    "start_new_session": True,
}

HOLDER = """
import ctypes, mmap, os, socket, sys, threading, time
if os.fork():
    os.wait()
    sys.exit()
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None)
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
HOLD
print("held", flush=True)
time.sleep(600)
"""

DELETED = """
file = open("gone", "w+b", buffering=0)
os.unlink("gone")
file.write(os.urandom(3 << 20))
while time.process_time() < 0.03:  # the kernel tells the CPU time of other users' processes in ticks of 0.01 s
    pass
"""


def is_full_when_walked(gauge: DiskUsage) -> bool:
    """Two walks, whatever the gauge thinks of the need."""
    full = False
    for _ in range(2):
        gauge._walked = -math.inf
        full = gauge.is_full() or full
    return full


def gauge_of(folder: Path, limit: DiskSize, root: int | None = None, *, deleted: bool = False) -> DiskUsage:
    """A gauge of what a process tree, by default that of the tests, adds from now on."""
    root = os.getpid() if root is None else root
    gauge = DiskUsage([folder], limit, root, DeletedFiles(root, [folder]) if deleted else None)
    gauge.is_full()
    gauge.reset()
    return gauge


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a file system whose writes the kernel counts."""
    for place in (tempfile.gettempdir(), "/var/tmp", Path(__file__).parent):
        if disk_usage._file_system(Path(place)) in disk_usage._COUNTED_FILE_SYSTEMS and os.access(place, os.W_OK):
            with tempfile.TemporaryDirectory(dir=place) as name:
                yield Path(name)
            return
    pytest.skip("there is no file system here whose writes are counted")


@pytest.fixture
def idle() -> Iterator[int]:
    """A program that does nothing."""
    argv = [sys.executable, "-I", "-c", "print(flush=True); input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process.pid
        process.kill()


def test_tmpfs_counts_once_it_is_the_programs_own(tmp_path: Path) -> None:
    assert not TmpfsUsage(tmp_path, NOTHING, host=tmp_path).is_full()
    assert not TmpfsUsage(tmp_path / "gone", NOTHING, host=Path("/proc")).is_full()
    assert TmpfsUsage(tmp_path, NOTHING, host=Path("/proc")).is_full()
    assert not TmpfsUsage(tmp_path, DiskSize(2**62, 2**62), host=Path("/proc")).is_full()


@LINUX
def test_disk_usage_sees_growth_without_waiting_for_a_periodic_walk(disk: Path) -> None:
    (disk / "old").write_bytes(os.urandom(2**20))
    gauge = gauge_of(disk, DiskSize(2**20, 1000))
    assert not gauge.is_full()
    (disk / "new").write_bytes(os.urandom(2**21))
    assert gauge.is_full()
    gauge.reset()
    assert not gauge.is_full()
    assert not gauge.is_full()


@LINUX
def test_disk_usage_of_others_in_the_same_folder_does_not_count(disk: Path, idle: int) -> None:
    gauge = gauge_of(disk, DiskSize(2**20, 20_000), idle)
    (disk / "large").write_bytes(os.urandom(2**23))
    for number in range(21_000):
        (disk / str(number)).touch()
    assert not is_full_when_walked(gauge)
    (disk / "larger").write_bytes(os.urandom(2**24))
    assert not is_full_when_walked(gauge)


@LINUX
def test_disk_usage_of_a_program_that_deletes_what_it_wrote_is_not_that_of_others(disk: Path) -> None:
    code = """
import os, sys
print(flush=True)
input()
with open(sys.argv[1], "wb") as file:
    file.write(bytes(4 << 20))
os.unlink(sys.argv[1])
print(flush=True)
input()
"""
    argv = [sys.executable, "-I", "-c", code, str(disk / "deleted")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        gauge = gauge_of(disk, DiskSize(2**21, 20_000), process.pid)
        (disk / "of others").write_bytes(os.urandom(2**23))
        assert not is_full_when_walked(gauge)
        process.stdin.write(b"\n")
        process.stdout.readline()
        assert not is_full_when_walked(gauge)
        process.kill()


@LINUX
@pytest.mark.parametrize("mode", [0o300, 0o400, 0])
def test_disk_usage_ignores_a_closed_folder_that_is_older_than_the_program(
    disk: Path, monkeypatch: pytest.MonkeyPatch, idle: int, mode: int
) -> None:
    (disk / "closed").mkdir(mode=0o700)
    (disk / "closed/file").touch()
    (disk / "closed").chmod(mode)
    time.sleep(2 * disk_usage._CLOCK_TICK)
    free = [2**40]
    monkeypatch.setattr(disk_usage, "_free_space", lambda _: DiskSize(free[0], free[0]))
    gauge = gauge_of(disk, DiskSize(2**20, 20_000), idle)
    free[0] -= 2**30
    assert not is_full_when_walked(gauge)
    (disk / "closed").chmod(0o700)


@LINUX
def test_disk_usage_of_a_program_that_drops_the_counters_of_its_children_is_all_growth(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else's counters tell who wrote, and others may free more of the disk meanwhile than the program takes."""
    free = [2**40]
    monkeypatch.setattr(disk_usage, "_free_space", lambda _: DiskSize(free[0], free[0]))
    code = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print(flush=True); input()"
    argv = [sys.executable, "-I", "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        gauge = gauge_of(disk, DiskSize(2**20, 100), process.pid)
        assert measure_work(process.pid) is None
        assert not gauge.is_full()
        (disk / "large").write_bytes(os.urandom(2**22))
        free[0] += 2**30
        eventually(gauge.is_full)  # folders are not walked more often than is worth it
        process.kill()


@LINUX
def test_disk_usage_counts_links_once_and_follows_none(disk: Path) -> None:
    (disk / "folder").mkdir()
    (disk / "outside").write_bytes(os.urandom(2**22))
    gauge = gauge_of(disk / "folder", DiskSize(2**21, 30))
    (disk / "folder/file").write_bytes(os.urandom(2**20))
    for number in range(8):
        os.link(disk / "folder/file", disk / f"folder/hard{number}")
        os.symlink(disk / "outside", disk / f"folder/soft{number}")
    assert not is_full_when_walked(gauge)
    for number in range(40):
        (disk / f"folder/{number}").touch()
    assert is_full_when_walked(gauge)


@LINUX
@pytest.mark.parametrize("place", ["folder", "folder/dark"])
@pytest.mark.parametrize("mode", [0o300, 0o400, 0])
def test_disk_usage_of_a_closed_folder_is_all_that_the_program_wrote(disk: Path, mode: int, place: str) -> None:
    (disk / "folder/dark").mkdir(parents=True)
    gauge = gauge_of(disk / "folder", DiskSize(2**20, 1000))
    (disk / "folder/dark/file").write_bytes(b"x")
    (disk / place).chmod(mode)
    assert not is_full_when_walked(gauge)
    (disk / place).chmod(0o700)
    (disk / "folder/dark/file").write_bytes(os.urandom(2**21))
    (disk / place).chmod(mode)
    eventually(gauge.is_full)  # folders are not walked more often than is worth it
    (disk / place).chmod(0o700)


@LINUX
def test_work_of_ended_children_counts_once(disk: Path) -> None:
    write = "import os, sys; open(sys.argv[1], 'wb').write(os.urandom(4 << 20))"
    code = f"""
import subprocess, sys
for number in range(3):
    subprocess.run([sys.executable, "-I", "-c", {write!r}, f"{{sys.argv[1]}}/{{number}}"])
print(flush=True)
input()
"""
    argv = [sys.executable, "-I", "-c", code, str(disk)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        work = measure_work(process.pid)
        assert work is not None and work.exact
        assert 12 << 20 <= work.written < 14 << 20
        process.kill()


@LINUX
def test_shared_memory_of_others_does_not_count(idle: int) -> None:
    limit = 16 << 20
    memory = SharedMemory(limit)
    with mmap.mmap(-1, 8 * limit) as others:  # the tests' own is someone else's to the program
        others.write(bytes(8 * limit))
        assert not memory.exceeds_limit((idle,), mapped=2**40)
        memory = SharedMemory(limit)
        assert not memory.exceeds_limit((os.getpid(),), mapped=0)
        assert memory.exceeds_limit((os.getpid(),), mapped=2**40)


@pytest.fixture
def holding(disk: Path) -> Iterator[Callable[[str], int]]:
    """Start a program that says when it holds something in `disk`; return the number of the process above it."""
    started: list[subprocess.Popen[str]] = []

    def hold(code: str) -> int:
        process = subprocess.Popen([sys.executable, "-I", "-c", HOLDER.replace("HOLD\n", code), disk], **QUIET)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        return process.pid

    yield hold
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@LINUX
@pytest.mark.parametrize("how", HOLDS)
def test_deleted_files_count_however_they_are_held(
    disk: Path, monkeypatch: pytest.MonkeyPatch, holding: Callable[[str], int], how: str
) -> None:
    """Some of them only root can inspect, and a message nobody: then all that the program wrote counts."""
    free = [2**40]
    monkeypatch.setattr(disk_usage, "_free_space", lambda _: DiskSize(free[0], 2**20))
    root = holding(f"{DELETED}{HOLDS[how]}\n")
    meters = [DiskUsage([disk], DiskSize(2**21, 1000), root, deleted) for deleted in (None, DeletedFiles(root, [disk]))]
    for gauge in meters:
        gauge._start.time -= 60  # the program began before it wrote
    free[0] -= 3 << 20  # where the kernel's counters are closed, the disk decides whether there is a need to look
    assert not is_full_when_walked(meters[0])
    eventually(meters[1].is_full)  # hidden files are looked at twice
    files, hidden = DeletedFiles(root, [disk]).find()
    assert [found.st_size for found in files] == [3 << 20] * (not hidden)
    assert bool(hidden) == (how == "message") or os.geteuid() != 0
    assert DeletedFiles(root, [disk], elsewhere=[disk]).find() == ([], set())
    assert DeletedFiles(root, [Path("/proc")]).find()[0] == []


@LINUX
@pytest.mark.parametrize("how", HOLDS)
def test_deleted_files_within_the_limit_are_allowed_while_others_fill_the_disk(
    disk: Path, monkeypatch: pytest.MonkeyPatch, holding: Callable[[str], int], how: str
) -> None:
    free = [2**40]
    monkeypatch.setattr(disk_usage, "_free_space", lambda _: DiskSize(free[0], free[0]))
    root = holding(f"{DELETED}{HOLDS[how]}\n")
    gauge = DiskUsage([disk], DiskSize(2**30, 10**6), root, DeletedFiles(root, [disk]))
    gauge._start.time -= 60  # the program began before it wrote
    free[0] -= 2**35
    assert not is_full_when_walked(gauge)


@LINUX
def test_deleted_files_are_neither_named_ones_nor_those_of_ended_processes(
    disk: Path, holding: Callable[[str], int]
) -> None:
    root = holding("""
if (ended := os.fork()) == 0:
    os._exit(0)
while "State:\\tZ" not in open(f"/proc/{ended}/status").read():
    time.sleep(0.001)  # until there is a process that has ended, and nobody has waited for it
named = open("named", "w+b", buffering=0)
named.write(bytes(1 << 20))
mapped = mmap.mmap(named.fileno(), 4096)
shared = mmap.mmap(-1, 4096)
open("gone", "wb").close()
os.unlink("gone")
""")
    held = DeletedFiles(root, [disk])
    assert held.find() == ([], set())
    os.killpg(root, signal.SIGKILL)
    assert held.find()[0] == []


@LINUX
def test_root_that_may_not_inspect_programs_says_so() -> None:
    """A normal user can inspect its own programs."""
    drop = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 19, 0, 0, 0); os.execv(sys.executable, sys.argv[1:])"
    code = "from gateway.sandbox.disk_usage import cannot_inspect_programs; print(cannot_inspect_programs())"
    argv = [sys.executable, "-c", drop, sys.executable, "-B", "-c", code]
    output = subprocess.run(argv, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert output.stdout == f"{os.geteuid() == 0}\n", output.stderr
    assert not cannot_inspect_programs()


@pytest.fixture
def pit(tmp_path: Path) -> Iterator[Path]:
    """A folder too deep for a path, with what should not be readable in it."""
    folder = tmp_path / "pit"
    folder.mkdir()
    fd = os.open(folder, os.O_DIRECTORY)
    for _ in range(1500):
        os.mkdir("d" * 20, dir_fd=fd)
        below = os.open("d" * 20, os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT, dir_fd=fd))
    os.mkdir("locked", 0, dir_fd=fd)
    os.close(fd)
    yield folder
    remove(str(folder))


def test_disk_usage_refuses_folders_too_deep_to_measure(pit: Path) -> None:
    assert DEPTH_LIMIT < 1500
    gauge = DiskUsage([pit], DiskSize(2**30, 10**6), os.getpid())
    gauge._start.time += 60
    assert not is_full_when_walked(gauge)  # they are older than the program
    gauge._start.time -= 120
    assert is_full_when_walked(gauge)


def test_whatever_a_program_leaves_can_be_removed(pit: Path) -> None:
    remove(str(pit))
    assert not pit.exists()


@LINUX
def test_disk_usage_of_an_ended_program_is_not_that_of_others(disk: Path) -> None:
    """The watchdog may look once more before it hears of the end."""
    process = subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE)
    gauge = gauge_of(disk, DiskSize(2**20, 20_000), process.pid)
    (disk / "of others").write_bytes(os.urandom(2**22))
    process.kill()
    process.communicate()
    assert not is_full_when_walked(gauge)


@LINUX
def test_work_of_a_tree_with_an_ended_child_that_nobody_waited_for_is_exact(disk: Path) -> None:
    """A normal user cannot read the counters of such a child."""
    code = """
import os
if (child := os.fork()) == 0:
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        work = measure_work(process.pid)
        assert work is not None and work.exact
        process.kill()


@LINUX
def test_work_of_a_tree_is_known_while_the_first_process_of_a_namespace_ends() -> None:
    """The kernel makes that process ignore SIGCHLD, as a program does that drops the counters of its children."""
    code = """
import ctypes, os
unshared = ctypes.CDLL(None).unshare(0x20000000 | (0x10000000 if os.geteuid() else 0))
if unshared == 0:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print(unshared, flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline() == b"0\n":
            assert measure_work(process.pid) is not None
        process.kill()


@LINUX
def test_work_of_a_tree_is_known_while_the_first_process_of_a_namespace_and_its_threads_end() -> None:
    """Such a process is seen with threads, and at first with its memory, although it ignores SIGCHLD."""
    code = """
import ctypes, os, threading, time
if ctypes.CDLL(None).unshare(0x10000000 if os.geteuid() else 0):
    raise SystemExit
while True:
    if (parent := os.fork()) == 0:
        if ctypes.CDLL(None).unshare(0x20000000) == 0 and os.fork() == 0:
            for _ in range(3):
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            os._exit(0)
        os.wait()
        os._exit(0)
    os.waitpid(parent, 0)
"""
    with subprocess.Popen([sys.executable, "-I", "-c", code]) as process:
        try:
            end = time.monotonic() + 3
            while time.monotonic() < end and process.poll() is None:
                with suppress(ProcessLookupError):
                    assert measure_work(process.pid) is not None
        finally:
            process.kill()


@LINUX
@pytest.mark.parametrize("has_ended", [True, False])
def test_work_of_a_process_that_is_closed_for_a_moment_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    code = f"""
import os
if (child := os.fork()) == 0:
    while os.times().user < 0.2:
        pass
    {"os._exit(0)" if has_ended else "os.read(0, 1)"}
{"os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)" if has_ended else "pass"}
print(child, flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        eventually(lambda: (process_tree._cpu_ticks(child) or 0) >= 20)
        readable = process_tree._written_bytes

        def refuse_child(pid: int) -> int:
            if pid == child:
                raise PermissionError
            return readable(pid)

        monkeypatch.setattr(process_tree, "_written_bytes", refuse_child)
        closed = ClosedProcesses()
        checks = [measure_work(process.pid, closed) for _ in range(2)]
        assert [work is not None and work.exact for work in checks] == [True, has_ended]
        monkeypatch.setattr(process_tree, "_ENDED_SECONDS", 0)
        work = measure_work(process.pid, closed)
        assert work is not None and not work.exact and work.written > 2**30
        process.kill()


@LINUX
def test_disk_usage_of_a_program_that_only_waits_costs_no_walks(disk: Path) -> None:
    process = subprocess.Popen([sys.executable, "-I", "-c", GROW, str(disk / "mine")], stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        limit = DiskSize(2**20, 20_000)
        gauge = DiskUsage([disk], limit, process.pid, DeletedFiles(process.pid, [disk]), sparing=True)
        assert not is_full_when_walked(gauge)
        walk = gauge._last
        assert not is_full_when_walked(gauge)
        assert gauge._last is walk
        process.stdin.write(b"grow\n")
        process.stdin.flush()
        eventually(lambda: (disk / "mine").exists() and (disk / "mine").stat().st_size >= 2**22)
        eventually(lambda: is_full_when_walked(gauge))
    finally:
        process.kill()
        process.communicate()


GROW = """
import os, sys, time
sys.stdin.readline()
with open(sys.argv[1], "wb") as file:
    file.write(os.urandom(2**22))
    file.flush()
    os.fsync(file.fileno())
time.sleep(300)
"""
