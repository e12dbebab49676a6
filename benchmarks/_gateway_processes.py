"""Servers and gateways as processes: started, found by the address they say, weighed, and ended whatever happens."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

PATIENCE = 60.0
GRACE = 8.0
_LISTENING = re.compile(r"http://127\.0\.0\.1:[1-9]\d*")


@dataclass(frozen=True)
class Running:
    """A process that listens."""

    origin: str
    pid: int

    def cpu(self) -> float:
        """Seconds of processor time it has used, in all its threads, without its children's."""
        # The clock of another process, as clock_getcpuclockid(3) makes it: the sum of utime and stime, but exact.
        return time.clock_gettime((~self.pid << 3) | 2)

    def memory(self) -> int:
        """Bytes in memory that are its own."""
        rollup = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Private_"))


class Processes:
    """Every process of a run. Leaving ends them and what they started."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end(*self._started)

    def start(
        self,
        command: Sequence[str],
        directory: Path,
        variables: Mapping[str, str] | None = None,
        within: float = PATIENCE,
    ) -> Running:
        """Start a command and wait until it says where it listens."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, **(variables or {})},
            start_new_session=True,
        )
        self._started.append(process)
        assert process.stdout is not None
        said: deque[str] = deque(maxlen=8)
        found: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_follow, args=(process.stdout, said, found), daemon=True).start()
        try:
            origin = found.get(timeout=within)
        except queue.Empty:
            origin = None
        if origin is None:
            self.end(process)
            raise RuntimeError(f"{Path(command[0]).name} did not listen within {within:g} s: {' / '.join(said)[-500:]}")
        return Running(origin, process.pid)

    def piped(self, command: Sequence[str], directory: Path) -> subprocess.Popen[bytes]:
        """Start a command that speaks over stdio."""
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=directory, start_new_session=True
        )
        self._started.append(process)
        return process

    def stop(self, running: Running) -> None:
        self.end(*(process for process in self._started if process.pid == running.pid))

    def end(self, *processes: subprocess.Popen[bytes]) -> None:
        for process in processes:
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            _signal(process, signal.SIGKILL)
            process.wait()
        self._started = [process for process in self._started if process not in processes]


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # the whole group has ended
        os.killpg(process.pid, number)


def _follow(pipe: IO[bytes], said: deque[str], found: queue.Queue[str | None]) -> None:
    """Read to the end, so that a full pipe stops nobody."""
    with pipe:
        for line in pipe:
            text = line.decode("utf-8", "replace").rstrip()
            said.append(text)
            if listening := _LISTENING.search(text):
                found.put(listening.group())
    found.put(None)
