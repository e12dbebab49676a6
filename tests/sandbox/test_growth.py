"""How much folders and file systems have grown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.sandbox import growth
from gateway.sandbox.growth import DEPTH_LIMIT, Filled, Growth, Size
from gateway.sandbox.launcher import remove
from gateway.sandbox.nameless import Nameless, is_blind

NOTHING = Size(-1, -1)

HOLDS = {
    "descriptor": "kept = file",
    "mapping": "libc.mmap(None, 4096, 1, 1, file.fileno(), 0); file.close()",
    "message": "pair = socket.socketpair(); socket.send_fds(pair[0], [b'x'], [file.fileno()]); file.close()",
    "thread": """
ready = threading.Event()
def hold(fd):
    libc.unshare(0x400)  # descriptors of its own
    ready.set()
    time.sleep(60)
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
    time.sleep(60)
threading.Thread(target=end, daemon=True).start()
libc.syscall(93 if os.uname().machine == "aarch64" else 60, 0)
""",
}
"""Ways for a process to keep a file that has no name."""

QUIET: dict[str, Any] = {
    "stdout": subprocess.PIPE,
    "stderr": subprocess.DEVNULL,  # that of the tests is a file without a name
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
time.sleep(60)
"""

NAMELESS = """
file = open("gone", "w+b", buffering=0)
os.unlink("gone")
file.write(os.urandom(3 << 20))
"""


def is_full_soon(gauge: Growth) -> bool:
    """What hides is looked at twice, and nobody looks more often than is worth it."""
    for _ in range(200):
        if gauge.full():
            return True
        time.sleep(0.01)
    return False


def test_a_file_system_counts_once_it_is_the_programs_own(tmp_path: Path) -> None:
    assert not Filled(tmp_path, NOTHING, host=tmp_path).full()
    assert not Filled(tmp_path / "gone", NOTHING, host=Path("/proc")).full()
    assert Filled(tmp_path, NOTHING, host=Path("/proc")).full()
    assert not Filled(tmp_path, Size(2**62, 2**62), host=Path("/proc")).full()


@pytest.fixture
def own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that nobody else uses: what others free on the real one hides what was taken."""

    def free(_: Sequence[Path]) -> Size:
        found = [path.lstat() for path in tmp_path.rglob("*")]
        blocks = {(each.st_ino, each.st_blocks) for each in found}
        return Size(2**40 - sum(count for _, count in blocks) * 512, 2**20 - len(blocks))

    monkeypatch.setattr(growth, "_free", free)


@pytest.mark.usefixtures("own_disk")
def test_growth_is_seen_without_waiting_for_a_walk(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(os.urandom(2**20))
    gauge = Growth([tmp_path], Size(2**20, 1000))
    assert not gauge.full()
    (tmp_path / "new").write_bytes(os.urandom(2**21))
    assert gauge.full()
    gauge.renew()
    assert not gauge.full()
    assert not gauge.full()


@pytest.mark.usefixtures("own_disk")
def test_links_are_counted_once_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "outside").write_bytes(os.urandom(2**22))
    gauge = Growth([tmp_path / "folder"], Size(2**21, 30))
    (tmp_path / "folder/file").write_bytes(os.urandom(2**20))
    for number in range(8):
        os.link(tmp_path / "folder/file", tmp_path / f"folder/hard{number}")
        os.symlink(tmp_path / "outside", tmp_path / f"folder/soft{number}")
    assert not gauge.full()
    for number in range(40):
        (tmp_path / f"folder/{number}").touch()
    time.sleep(4 * gauge._effort)  # it does not walk more often than is worth it
    assert gauge.full()


@pytest.mark.parametrize("place", ["folder", "folder/dark"])
@pytest.mark.parametrize("mode", [0o300, 0o400, 0])
def test_what_is_hidden_counts_as_all_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, place: str
) -> None:
    left = [2**40]
    monkeypatch.setattr(growth, "_free", lambda _: Size(left[0], 2**20))
    (tmp_path / "folder/dark").mkdir(parents=True)
    gauge = Growth([tmp_path / "folder"], Size(2**20, 1000))
    (tmp_path / "folder/dark/file").write_bytes(b"x")
    (tmp_path / place).chmod(mode)
    left[0] -= 2**20
    assert not gauge.full()  # as much as it may
    (tmp_path / place).chmod(0o700)
    (tmp_path / "folder/dark/file").write_bytes(os.urandom(2**21))
    (tmp_path / place).chmod(mode)
    left[0] -= 2**20
    assert is_full_soon(gauge)
    (tmp_path / place).chmod(0o700)


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Starts a program that says when it holds something in `tmp_path`; the number of the process above it."""
    started: list[subprocess.Popen[str]] = []

    def hold(code: str) -> int:
        process = subprocess.Popen([sys.executable, "-I", "-c", HOLDER.replace("HOLD\n", code), tmp_path], **QUIET)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        return process.pid

    yield hold
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize("how", HOLDS)
def test_files_without_a_name_count_however_they_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holding: Callable[[str], int], how: str
) -> None:
    """Who is not root cannot look into some of them: then what is gone from the disk counts, as it is for a message."""
    left = [2**40]
    monkeypatch.setattr(growth, "_free", lambda _: Size(left[0], 2**20))
    (tmp_path / "folder").mkdir()
    gauge = Growth([tmp_path / "folder"], Size(2**21, 1000))
    root = holding(f"{NAMELESS}{HOLDS[how]}\n")
    left[0] -= 3 << 20
    assert not gauge.full()  # as long as nobody looks who holds what
    looking = Growth([tmp_path / "folder"], Size(2**21, 1000), Nameless(root, [tmp_path]))
    looking._since, looking._free_first, looking._free_then = gauge._since, *[Size(2**40, 2**20)] * 2
    assert is_full_soon(looking)
    files, hidden = Nameless(root, [tmp_path]).look()
    assert [found.st_size for found in files] == [3 << 20] * (not hidden)
    assert bool(hidden) == (how == "message") or os.geteuid() != 0
    assert Nameless(root, [tmp_path], elsewhere=[tmp_path]).look() == ([], set())
    assert Nameless(root, [Path("/proc")]).look()[0] == []


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_what_a_program_holds_by_name_or_no_longer_is_not_counted_again(
    tmp_path: Path, holding: Callable[[str], int]
) -> None:
    root = holding("""
if (ended := os.fork()) == 0:
    os._exit(0)
while "State:\\tZ" not in open(f"/proc/{ended}/status").read():
    time.sleep(0.001)  # until there is a process that has ended, and nobody has asked how
named = open("named", "w+b", buffering=0)
named.write(bytes(1 << 20))
mapped = mmap.mmap(named.fileno(), 4096)
shared = mmap.mmap(-1, 4096)
open("gone", "wb").close()
os.unlink("gone")
""")
    held = Nameless(root, [tmp_path])
    assert held.look() == ([], set())
    os.killpg(root, signal.SIGKILL)
    assert held.look()[0] == []


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_root_that_may_not_look_at_others_says_so() -> None:
    """A normal user sees its own programs."""
    drop = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 19, 0, 0, 0); os.execv(sys.executable, sys.argv[1:])"
    code = "from gateway.sandbox.nameless import is_blind; print(is_blind())"
    argv = [sys.executable, "-c", drop, sys.executable, "-B", "-c", code]
    told = subprocess.run(argv, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert told.stdout == f"{os.geteuid() == 0}\n", told.stderr
    assert not is_blind()


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


def test_nothing_is_buried_too_deep(pit: Path) -> None:
    assert DEPTH_LIMIT < 1500
    gauge = Growth([pit], Size(2**30, 10**6))
    gauge._walked -= 60
    gauge._since -= 60
    assert gauge.full()


def test_whatever_a_program_leaves_can_be_removed(pit: Path) -> None:
    remove(str(pit))
    assert not pit.exists()
