"""Another program swaps what lies at a path, as fast as it can, while the tools are called on it."""

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.calls import Outcome

pytestmark = pytest.mark.slow

Calling = Callable[..., Outcome]

SECRET = "TOP-SECRET-7f3a"
PLAIN = "plain"

# Of the two names `bait` and `other` one is what it seems and one a trap, and they change places without end.
# Traps: "link" to a file outside, "pipe", "directory" (a link to one outside). Counts its swaps into a shared page.
ATTACKER = """
import ctypes, mmap, os, shutil, stat, struct, sys
kind, workspace, outside, page = sys.argv[1:]
os.chdir(workspace)
counter = mmap.mmap(os.open(page, os.O_RDWR), 8)
libc = ctypes.CDLL(None)
swaps = 0

def fill(name):
    with open("next", "w") as opened:
        opened.write("plain\\n")
    os.rename("next", name)

def make_good(name):
    if kind == "directory":
        os.mkdir(name)
    else:
        fill(name)

def make_trap(name):
    if kind == "pipe":
        os.mkfifo(name)
    else:
        os.symlink(outside if kind == "directory" else outside + "/secret.txt", name)

def is_trap(name):
    mode = os.lstat(name).st_mode
    return stat.S_ISFIFO(mode) if kind == "pipe" else stat.S_ISLNK(mode)

def swap():
    for name, opposite in (("bait", "other"), ("other", "bait")):
        if not os.path.lexists(name):
            make_good(name) if os.path.lexists(opposite) and is_trap(opposite) else make_trap(name)
    if is_trap("bait") == is_trap("other"):
        shutil.rmtree("other") if os.path.isdir("other") and not os.path.islink("other") else os.unlink("other")
        return 0
    good = "other" if is_trap("bait") else "bait"
    if kind == "directory" and not os.path.exists(good + "/secret.txt"):
        fill(good + "/secret.txt")
    return int(libc.renameat2(-100, b"bait", -100, b"other", 2) == 0)

while os.path.exists(page):
    try:
        swaps += swap()
    except OSError:
        pass
    counter[:] = struct.pack("q", swaps)
"""


class Attack:
    """The other program, and how often it has swapped so far."""

    def __init__(self, kind: str, workspace: Path, outside: Path) -> None:
        self._page = outside.parent / "page"
        self._page.write_bytes(bytes(8))
        self._file = self._page.open("rb")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", ATTACKER, kind, str(workspace), str(outside), str(self._page)]
        )

    @property
    def swaps(self) -> int:
        assert self._process.poll() is None, "the attacker died"
        return int.from_bytes(os.pread(self._file.fileno(), 8, 0), sys.byteorder)

    def end(self) -> None:
        self._page.unlink()
        self._process.wait()
        self._file.close()


@contextmanager
def attacked(kind: str, workspace: Path, outside: Path) -> Iterator[Attack]:
    attack = Attack(kind, workspace, outside)
    try:
        while attack.swaps == 0:
            pass
        yield attack
    finally:
        attack.end()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text(f"{SECRET}\n")
    return folder


def calls(path: str) -> dict[str, tuple[int, list[tuple[str, dict[str, Any]]]]]:
    """How often each tool is called, and with what; searching starts a process each time."""
    patch = f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{PLAIN}\n+{PLAIN} \n"
    return {
        "list_directory": (
            40,
            [("list_directory", {"path": where, "recursive": True}) for where in (".", "bait", path)],
        ),
        "read_file": (120, [("read_file", {"path": path}), ("read_file", {"path": path, "encoding": "base64"})]),
        "find_files": (80, [("find_files", {"pattern": "*", "path": ".", "type": "any"})]),
        "search_code": (20, [("search_code", {"pattern": ".", "path": "."})]),
        "write_file": (120, [("write_file", {"path": path, "content": PLAIN})]),
        "edit_file": (120, [("edit_file", {"path": path, "edits": [{"oldText": PLAIN, "newText": f"{PLAIN} "}]})]),
        "apply_patch": (80, [("apply_patch", {"patch": patch})]),
        "move_file": (
            40,
            [
                ("move_file", {"from": path, "to": "stolen", "overwrite": True}),
                ("read_file", {"path": "stolen"}),
                ("write_file", {"path": "mine", "content": PLAIN}),
                ("move_file", {"from": "mine", "to": path, "overwrite": True}),
            ],
        ),
        "delete_file": (
            60,
            [("delete_file", {"path": path}), ("delete_file", {"path": "bait", "recursive": True})],
        ),
    }


def snapshot(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    found = {}
    for path in folder.iterdir():
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[path.name] = (status.st_mode, status.st_nlink, status.st_mtime_ns, content)
    return found


@pytest.mark.promise("C1")
@pytest.mark.promise("C6")
@pytest.mark.parametrize("tool", list(calls("x")))
@pytest.mark.parametrize(("kind", "path"), [("link", "bait"), ("directory", "bait/secret.txt"), ("pipe", "bait")])
def test_a_swap_at_the_worst_moment_reaches_nothing_outside(
    call: Calling, workspace: Path, outside: Path, tool: str, kind: str, path: str
) -> None:
    before = snapshot(outside)
    times, made = calls(path)[tool]
    worked = rounds = 0
    with attacked(kind, workspace, outside) as attack:
        while rounds < times or not worked or attack.swaps < 100:
            rounds += 1
            for name, given in made:
                outcome = call(name, confirmed=True, **given)
                assert SECRET not in orjson.dumps([outcome.to_dict(), outcome.content]).decode()
                assert outcome.error is None or outcome.error.status in (400, 404, 409), outcome.error
                worked += outcome.ok and name == tool
    assert snapshot(outside) == before


@pytest.mark.parametrize(("kind", "path"), [("link", "bait"), ("directory", "bait/secret.txt")])
def test_plain_path_code_falls_for_the_same_attack(workspace: Path, outside: Path, kind: str, path: str) -> None:
    read: set[str] = set()
    with attacked(kind, workspace, outside):
        while read != {SECRET, PLAIN}:
            with contextlib.suppress(OSError):
                if not (workspace / "bait").is_symlink():
                    read.add((workspace / path).read_text().strip())


@pytest.mark.promise("C1")
def test_nothing_temporary_is_left_after_a_race(call: Calling, workspace: Path, outside: Path) -> None:
    with attacked("directory", workspace, outside):
        for number in range(100):
            call("write_file", confirmed=True, path="bait/secret.txt", content=str(number))
            call("write_file", path=f"bait/{number}", content="")
    left = [name for _, _, names in os.walk(workspace) for name in names if name.startswith(".toolgate-")]
    assert left == []
    assert os.listdir(outside) == ["secret.txt"]
