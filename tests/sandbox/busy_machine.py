"""Harmless calls through a gateway while other programs fill and free the disk and the memory of the machine.

Two programs, the first of which also runs as another user:

- `python -m tests.sandbox.busy_machine calls BACKEND DIRECTORY COUNT` makes the calls and prints a `Report` as JSON.
  `DIRECTORY` is empty but for `libraries`, where `covalt_toolset` is. Several can run at once, with one load.
- `python -m tests.sandbox.busy_machine load DIRECTORY SECONDS BUILD...` is the load. It ends by itself when the program
  that started it dies, and after so many seconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from gateway import Gateway
from gateway.sandbox import detect
from gateway.sandbox.bwrap import Bubblewrap
from gateway.sandbox.landlock import Landlock

MEBIBYTE = 2**20
GIBIBYTE = 2**30

# More than the default limits of memory and disk, which are 1 GiB each.
FILL_BYTES = 1280 * MEBIBYTE

FREE_DISK = 5 * GIBIBYTE
# What the load leaves free.
FREE_MEMORY = 4 * GIBIBYTE

LOAD_SECONDS = 500.0
CONCURRENCY = 2

_WRITE_BYTES = 256 * MEBIBYTE
_PAUSE = (0.2, 0.5)
_SAMPLE_INTERVAL = 0.01
_PR_SET_PDEATHSIG = 1
_allocating = threading.Lock()
_SHMEM = re.compile(r"^Shmem:\s+(\d+)", re.MULTILINE)
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Report:
    """What became of the calls. `failures` are those that were not ok, each in one line. `increases` says how often
    the use of the disk, the folder and the shared memory rose by more than 1 GiB in all, and `calls_during` how many
    calls ran while it did."""

    calls: int
    seconds: float
    failures: list[str]
    failures_by_kind: dict[str, int]
    increases: dict[str, int]
    calls_during: dict[str, int]


# The load


def run_load(directory: Path, builds: Sequence[Path], seconds: float) -> None:
    """Fill and free the disk, the folders `builds` once they exist and the shared memory, and keep all cores busy,
    until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return  # it died before prctl
    loads: list[Callable[[], None]] = [
        partial(_fill_disk, directory, stop),
        *[partial(_fill_folder, build, stop) for build in builds],
        partial(_fill_shared_memory, stop),
        *[partial(_use_a_core, stop)] * (os.cpu_count() or 1),
    ]
    threads = [threading.Thread(target=load) for load in loads]
    for thread in threads:
        thread.start()
    print("started", flush=True)
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()


def _fill_disk(directory: Path, stop: threading.Event) -> None:
    """Fill an unnamed file, of which nothing is left however the load ends; every third time with real data."""
    fd = os.open(directory, os.O_TMPFILE | os.O_RDWR)
    data = random.Random(0).randbytes(8 * MEBIBYTE)
    for turn in _turns(stop):
        written = 0
        while turn % 3 == 0 and written < _WRITE_BYTES and not stop.is_set():
            written += os.write(fd, data)
        if _allocate(fd):
            _pause(stop)
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)


def _fill_folder(build: Path, stop: threading.Event) -> None:
    """Create and delete a large file in the attached folder, as a compiler or a download does."""
    output = build / "output.bin"
    try:
        for _ in _turns(stop):
            with suppress(FileNotFoundError), output.open("wb") as file:
                if _allocate(file.fileno()):
                    _pause(stop)
                output.unlink()
    finally:
        output.unlink(missing_ok=True)


def _allocate(fd: int) -> bool:
    """Give a file its full size if the disk has room for it."""
    with _allocating:
        found = os.fstatvfs(fd)
        enough = found.f_bavail * found.f_frsize >= FREE_DISK + 2 * FILL_BYTES
        if enough:
            os.posix_fallocate(fd, 0, FILL_BYTES)
        return enough


def _fill_shared_memory(stop: threading.Event) -> None:
    with suppress(PermissionError):  # clearing that much memory takes long beside other work, unless it goes first
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)
    fd = _open_shared_memory()
    for _ in _turns(stop):
        if available_memory() < FREE_MEMORY + 2 * FILL_BYTES:
            continue
        for offset in range(0, FILL_BYTES, 64 * MEBIBYTE):  # in parts, so that SIGTERM takes effect soon
            if not stop.is_set():
                os.posix_fallocate(fd, offset, 64 * MEBIBYTE)
        _pause(stop)
        os.ftruncate(fd, 0)


def _open_shared_memory() -> int:
    """Open an unnamed file in /dev/shm; where that is small, as in a container, a memory file."""
    directory = Path("/dev/shm")
    with suppress(OSError):
        if free_disk(directory) > 2 * FILL_BYTES:
            return os.open(directory, os.O_TMPFILE | os.O_RDWR)
    return os.memfd_create("load")


def _use_a_core(stop: threading.Event) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # the other tests go on
    data = bytes(4 * MEBIBYTE)
    while not stop.is_set():
        hashlib.sha256(data)  # releases the interpreter's lock


def _turns(stop: threading.Event) -> Iterator[int]:
    turn = 0
    while not stop.is_set():
        yield turn
        turn += 1
        _pause(stop)


def _pause(stop: threading.Event) -> None:
    stop.wait(random.uniform(*_PAUSE))


# What the machine has


def free_disk(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def available_memory() -> int:
    return _of_memory(_AVAILABLE)


def _of_memory(line: re.Pattern[str]) -> int:
    found = line.search(Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0


class Observer:
    """Samples how much of the disk, the folder and the shared memory is used, in a thread."""

    def __init__(self, build: Path) -> None:
        self._build = build
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._times: list[float] = []
        self._used: dict[str, list[int]] = {"disk": [], "folder": [], "shared memory": []}

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def increases(self, start: float, end: float) -> dict[str, int]:
        """How often each rose by more than 1 GiB between two times."""
        chosen = [index for index, at in enumerate(self._times) if start <= at <= end]
        return {name: count_increases([used[index] for index in chosen]) for name, used in self._used.items()}

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_INTERVAL):
            found = os.statvfs(self._build)
            self._used["disk"].append((found.f_blocks - found.f_bfree) * found.f_frsize)
            self._used["folder"].append(_folder_bytes(self._build))
            self._used["shared memory"].append(_of_memory(_SHMEM))
            self._times.append(time.monotonic())


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


def count_increases(values: Sequence[int], more_than: int = GIBIBYTE) -> int:
    """Count how often the values rose by more than so much, each time from the lowest since the last rise."""
    count, low = 0, sys.maxsize
    for value in values:
        low = min(low, value)
        if value - low > more_than:
            count, low = count + 1, value
    return count


# The calls

_SLEEP_AND_WRITE = """
import pathlib, random, time
time.sleep(random.uniform(0.15, 0.35))
pathlib.Path("note.txt").write_text(str(time.time()))
time.sleep(random.uniform(0.15, 0.35))
"""

_SHARED_MAPPING = """
import mmap, time
shared = mmap.mmap(-1, 64 * 2**20)
for offset in range(0, len(shared), mmap.PAGESIZE):
    shared[offset] = 1
time.sleep(1)
"""

_WRITE_AND_DELETE = """
import os, time
for _ in range(3):
    with open("scratch.bin", "wb") as file:
        file.write(bytes(4 * 2**20))
    time.sleep(0.1)
    os.unlink("scratch.bin")
    time.sleep(0.1)
"""

_HOLD_A_DELETED_FILE = """
import os, time
with open("deleted.bin", "w+b") as file:
    os.unlink("deleted.bin")
    file.write(bytes(4 * 2**20))
    file.flush()
    time.sleep(0.5)
"""

_DESCRIPTOR_IN_FLIGHT = """
import os, socket, time
ours, theirs = socket.socketpair()
with open("sent.bin", "w+b") as file:
    os.unlink("sent.bin")
    file.write(bytes(2**20))
    file.flush()
    socket.send_fds(ours, [b"x"], [file.fileno()])
time.sleep(0.5)
_, fds, _, _ = socket.recv_fds(theirs, 1, 1)
assert os.fstat(fds[0]).st_size == 2**20
"""

_NOT_DUMPABLE = """
import subprocess, sys
code = "import ctypes, time; assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0; time.sleep(0.5)"
subprocess.run([sys.executable, "-c", code], check=True)
"""

_PROGRAMS = {
    "a small file": _SLEEP_AND_WRITE,
    "a shared mapping": _SHARED_MAPPING,
    "files that are deleted": _WRITE_AND_DELETE,
    "a deleted file that is open": _HOLD_A_DELETED_FILE,
    "a descriptor in flight": _DESCRIPTOR_IN_FLIGHT,
    "a process that is not dumpable": _NOT_DUMPABLE,
}

_MANIFEST = """
id: lab
name: Lab
version: 1.0.0
tools:
  - {id: count_words, entrypoint: notes:count_words}
  - {id: write_note, entrypoint: notes:write_note}
"""

_TOOLS = """
import time
from covalt_toolset import get_context, tool

@tool(access="read")
def count_words(path: str) -> int:
    '''Count the words of a file.'''
    time.sleep(0.4)
    return len((get_context().workspace / path).read_text().split())

@tool(access="write")
def write_note(text: str) -> int:
    '''Write a note.'''
    time.sleep(0.2)
    written = (get_context().workspace / "tool-note.txt").write_text(text)
    time.sleep(0.3)
    return written
"""

_FORMATTER = """#!/bin/sh
sleep 0.4
"""


@dataclass(frozen=True)
class PlannedCall:
    """A call; `find_fault` says what is wrong with the value it returned, if anything."""

    kind: str
    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    chat: str | None = None
    find_fault: Callable[[Any], str | None] = lambda _: None


def plan(count: int) -> list[PlannedCall]:
    """The calls, each kind many times. In one chat, calls that may write wait for each other: half are in a second."""
    status = PlannedCall("git_status", "git_status", find_fault=_fault_of_status)
    diff = PlannedCall("git_diff", "git_diff", find_fault=_fault_of_diff)
    words = PlannedCall("a tool that reads", "lab__count_words", {"path": "README.md"})
    note = PlannedCall("a tool that writes", "lab__write_note", {"text": "a note"})
    formatting = PlannedCall("format_code", "format_code", find_fault=_fault_of_formatting)
    turn: list[PlannedCall] = []
    for index, (name, code) in enumerate(_PROGRAMS.items()):
        run = [
            PlannedCall(
                f"run_code with {name}",
                "run_code",
                {"language": "python", "code": f"{code}\nprint('done')"},
                chat,
                _fault_of_program,
            )
            for chat in (None, "second")
        ]
        turn += [run[0], (status, diff)[index % 2], run[1], (words, formatting, status)[index % 3]]
    turn.append(note)
    return list(islice(cycle(turn), count))


def _fault_of_status(value: Any) -> str | None:
    return None if any(each["path"] == "source.js" for each in value["files"]) else f"not a status: {value}"


def _fault_of_diff(value: Any) -> str | None:
    return None if "+changed" in value["diff"] else f"not a diff: {value}"


def _fault_of_formatting(value: Any) -> str | None:
    wrong = value["failed"] or value["problems"] or not value["unchanged"]
    return f"not formatted: {value}" if wrong else None


def _fault_of_program(value: Any) -> str | None:
    if value["killed"]:
        return f"killed: {value['killed']}"
    if value["exitCode"] or value["stdout"] != "done\n":
        return f"exit code {value['exitCode']}: {value['stderr'][-500:]}"
    return None


def prepare(directory: Path) -> Path:
    """Write a toolset and a small git repository with directories that their owner may not enter; return the latter."""
    workspace = directory / "project"
    files = {
        "lab/toolset.yaml": _MANIFEST,
        "lab/tools/notes.py": _TOOLS,
        "project/.gitignore": "build/\nnode_modules/\n",
        "project/README.md": "a small project\n",
        "project/source.js": "first\n",
        "project/node_modules/.bin/prettier": _FORMATTER,
        "project/build/log.txt": "built\n",
        "project/locked/file.txt": "nobody may list this directory\n",
        "project/listed/file.txt": "nobody may enter this directory\n",
        **{f"project/sources/{number}.txt": f"{number}\n" * 100 for number in range(100)},
    }
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (workspace / "node_modules/.bin/prettier").chmod(0o755)
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    for command in (["init", "--quiet"], ["add", ".gitignore", "README.md", "source.js", "sources"]):
        subprocess.run(["git", "-C", workspace, *command], check=True)
    subprocess.run(["git", "-C", workspace, *identity, "commit", "--quiet", "--message", "Begin"], check=True)
    (workspace / "source.js").write_text("first\nchanged\n")
    for name, mode in (("locked", 0o000), ("listed", 0o400)):
        (workspace / name).chmod(mode)
    return workspace


@contextmanager
def running_load(directory: Path, *builds: Path) -> Iterator[None]:
    argv = [
        sys.executable,
        "-B",
        "-m",
        "tests.sandbox.busy_machine",
        "load",
        str(directory),
        str(LOAD_SECONDS),
        *map(str, builds),
    ]
    root = Path(__file__).parents[2]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=root) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            yield
        finally:
            process.terminate()


async def make_calls(backend: str, directory: Path, count: int) -> Report:
    """Make the calls, a few at a time, and observe the load."""
    use_sandbox(backend)
    workspace = prepare(directory)
    settings = {
        "data_dir": directory / "data",
        "workspace": workspace,
        "categories": {"development": {"enabled": True}},
        "toolsets": [str(directory / "lab")],
    }
    planned = plan(count)
    failures: list[tuple[str, str]] = []
    spans: list[tuple[float, float]] = []
    async with Gateway.open(settings) as gateway:
        pending = iter(planned)

        async def work() -> None:
            for call in pending:
                start = time.monotonic()
                outcome = await gateway.call(call.tool, call.arguments, chat=call.chat, confirmed=True)
                spans.append((start, time.monotonic()))
                if outcome.error is not None:
                    failures.append((call.kind, f"{outcome.error.code}: {outcome.error.message}"))
                elif fault := call.find_fault(outcome.value):
                    failures.append((call.kind, fault))

        with Observer(workspace / "build") as observer:
            began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for _ in range(CONCURRENCY):
                    group.create_task(work())
            ended = time.monotonic()
    during = [observer.increases(*span) for span in spans]
    return Report(
        calls=len(spans),
        seconds=round(ended - began, 1),
        failures=[f"{kind}: {message}" for kind, message in failures],
        failures_by_kind=dict(Counter(f"{kind}: {message[:60]}" for kind, message in failures)),
        increases=(increases := observer.increases(began, ended)),
        calls_during={name: sum(each[name] > 0 for each in during) for name in increases},
    )


def use_sandbox(backend: str) -> None:
    """Make the gateways of this process use one sandbox; they would choose the best of the machine."""
    detect._cached_survey[:] = [detect.Survey({"bwrap": Bubblewrap, "landlock": Landlock}[backend]())]


def main(action: str, *arguments: str) -> None:
    if action == "load":
        directory, seconds, *builds = arguments
        run_load(Path(directory), list(map(Path, builds)), float(seconds))
        return
    backend, name, count = arguments
    sys.path.append(f"{name}/libraries")
    print(json.dumps(asdict(asyncio.run(make_calls(backend, Path(name), int(count))))))


if __name__ == "__main__":
    main(*sys.argv[1:])
