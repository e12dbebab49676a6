"""Kills gateways while they start programs, and prints what is left of those as JSON.

`python -m tests.sandbox.killed_gateway BACKEND FOLDER ROUNDS`
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from .siege import BACKENDS, python, running, workspace

_PROGRAMS = 4
_PATIENCE = 30.0
"""Seconds a busy machine may take to end what was killed."""


async def start_programs(backend: str, folder: str, token: str) -> None:
    sandbox = BACKENDS[backend]()
    program = python("import time; time.sleep(300)", token, **workspace(Path(folder), sandbox))
    print("ready", flush=True)
    processes = await asyncio.gather(*(sandbox.start(program) for _ in range(_PROGRAMS)))
    await asyncio.gather(*(process.wait() for process in processes))


def left_after_kill(backend: str, folder: str) -> list[int]:
    """Kill a gateway up to 0.2 s after it began to start programs; return the processes it leaves."""
    token = uuid.uuid4().hex
    argv = [sys.executable, "-B", "-m", "tests.sandbox.killed_gateway", backend, folder, token]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        assert gateway.stdout.readline() == b"ready\n"
        time.sleep(random.uniform(0, 0.2))
        gateway.kill()
    deadline = time.monotonic() + _PATIENCE
    while (left := running(token)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


if __name__ == "__main__":
    backend, folder, last = sys.argv[1:]
    if last.isdecimal() and len(last) < 6:
        print(json.dumps([left_after_kill(backend, f"{folder}/{number}") for number in range(int(last))]))
    else:
        asyncio.run(start_programs(backend, folder, last))
