"""The lab, put behind a gateway: as settings of a program to start, or as a running server to reach."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eventually import async_eventually

LAB = Path(__file__).with_name("lab.py")
TINY = Path(__file__).with_name("tiny.py")
LAB_ERAS = ("modern", "handshake")


def on_stdio(era: str = "modern", **env: str) -> dict[str, Any]:
    """What `mcpServers` says of a lab that is started; `env` is its own, `LAB_FILE` where it notes what happens."""
    return {"command": sys.executable, "args": ["-S", str(LAB), "stdio", era], "env": env}


def tiny(**env: str) -> dict[str, Any]:
    """What `mcpServers` says of the server that starts soonest."""
    return {"command": sys.executable, "args": ["-S", "-E", str(TINY)], "env": env}


@contextmanager
def on_http(era: str = "modern", **env: str) -> Iterator[str]:
    """A lab that runs; where it is reached."""
    argv = [sys.executable, "-S", str(LAB), "http", era]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **env})
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Restarted:
    """A lab over HTTP that whoever runs it starts again, on the port it had, whenever it is killed."""

    def __init__(self, era: str = "modern", **env: str) -> None:
        self._argv = [sys.executable, "-S", str(LAB), "http", era]
        self._env = {**os.environ, **env}
        self._start()
        assert self._process.stdout is not None
        self._env["LAB_PORT"] = port = self._process.stdout.readline().decode().strip()
        self.url = f"http://127.0.0.1:{port}/mcp"

    def kill(self) -> None:
        self.end()
        self._start()

    def end(self) -> None:
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, env=self._env)


def question(server: str, text: str) -> str:
    """A question of a server, as a client shows it to a person."""
    return f"The MCP server {server!r} asks:\n\n> {text}"


def notes(file: Path) -> list[str]:
    """What a lab noted so far."""
    return file.read_text().splitlines() if file.exists() else []


def running(marker: str) -> list[int]:
    """The processes whose command or environment mentions `marker`, our own left out."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                memory = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            except OSError:
                continue
            if marker.encode() in memory and any(name in memory for name in (b"lab.py", b"tiny.py", b"asking.py")):
                found.append(int(process.name))
    return found


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def noted(file: Path, line: str) -> None:
    """Wait until a lab has noted this."""
    await async_eventually(lambda: line in notes(file))


async def gone(marker: str) -> None:
    """Wait until nothing that mentions `marker` runs any more."""
    await async_eventually(lambda: not running(marker))
