"""Programs that start as many tasks as they can, and the highest number of tasks that was seen of each.

`python -m tests.sandbox.task_bombs BACKEND DIRECTORY` prints a `Peak` for each of them as JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gateway.sandbox import Killed, Limits, Process, Sandbox
from gateway.sandbox.prestart import PrestartedSandboxes
from gateway.sandbox.process_tree import usage
from gateway.sandbox.run import finish

from .siege import BACKENDS, INTERPRETER, give_to_own_user, python, workspace

LIMIT = 48

# Each keeps all it started, so that a look at the tree never counts a task that ends meanwhile.
_START = {
    "forks": """
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
""",
    "vforks": "os.posix_spawn('/bin/sleep', ['sleep', '60'], {})",
    "threads": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
}
_BOMB = """
import os, threading, time
print("begun", flush=True)
for _ in range({parents} - 1):
    if os.fork() == 0:
        break
time.sleep(0.2)
try:
    for _ in range(400):
{start}
    print("survived", flush=True)
except (OSError, RuntimeError):
    pass
time.sleep(60)
"""


def _bomb(kind: str, parents: int) -> str:
    start = "\n".join(f"        {line}" for line in _START[kind].strip().splitlines())
    return _BOMB.format(parents=parents, start=start)


TASK_BOMBS = {f"{kind} of {parents}": _bomb(kind, parents) for kind in _START for parents in (1, 6)}


@dataclass(frozen=True)
class Peak:
    """The highest number of tasks, what the program was ended for, and what it printed."""

    tasks: int
    killed: Killed | None
    stdout: str


class Counter:
    """Counts the tasks of a program as often as it can, in a thread."""

    def __init__(self, sandbox: Sandbox, process: Process) -> None:
        self._root = process.pid
        self._own = 1 if sandbox.name == "bwrap" else 0  # the first process of the namespace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.highest = 0

    def __enter__(self) -> Counter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            self.highest = max(self.highest, usage(self._root).tasks - self._own)


async def watch(sandbox: Sandbox, process: Process) -> Peak:
    with Counter(sandbox, process) as counter:
        finished = await finish(process, timeout=60)
    return Peak(counter.highest, finished.exit.killed, finished.stdout.decode())


async def explode(sandbox: Sandbox, folder: Path, code: str) -> Peak:
    options = workspace(folder, sandbox)
    give_to_own_user(folder, sandbox)
    return await watch(sandbox, await sandbox.start(python(code, limits=Limits(processes=LIMIT), **options)))


async def explode_prestarted(sandbox: Sandbox, folder: Path, code: str) -> Peak:
    """The same in a sandbox that waited for the code."""
    program = python("", limits=Limits(processes=LIMIT), **workspace(folder, sandbox))
    program = replace(program, argv=(INTERPRETER, "-I", "-S", "-u"))
    spares = PrestartedSandboxes(sandbox)
    try:
        spares.expect(program, now=True)
        while not spares.waiting:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        return await watch(sandbox, await spares.start(program, code))
    finally:
        await spares.close()


@contextmanager
def other_tasks(count: int) -> Iterator[None]:
    """Processes of the same user beside the sandboxes."""
    others = [subprocess.Popen(["/bin/sleep", "300"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


async def main(backend: str, directory: Path) -> dict[str, Peak]:
    sandbox = BACKENDS[backend]()
    peaks = {name: await explode(sandbox, directory / name, code) for name, code in TASK_BOMBS.items()}
    if backend == "bwrap":  # where the kernel counts each sandbox by itself
        peaks["prestarted"] = await explode_prestarted(sandbox, directory / "prestarted", TASK_BOMBS["forks of 1"])
        with other_tasks(2 * LIMIT):
            together = [explode(sandbox, directory / f"{n}", TASK_BOMBS["forks of 6"]) for n in range(3)]
            peaks |= {f"beside others {n}": peak for n, peak in enumerate(await asyncio.gather(*together))}
    return peaks


if __name__ == "__main__":
    peaks = asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
    print(json.dumps({name: asdict(peak) for name, peak in peaks.items()}))
