"""The gateway as its users start it: a process that speaks on its pipes, or one that listens on a port."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from eventually import TIMEOUT

# Seconds until an answer counts as missing: far above what any needs, below the suite's own timeout.
PATIENCE = 120.0

# How a gateway says where it listens, on stderr, once it does.
LISTENING = r"http://127\.0\.0\.1:\d+/mcp"

# What every gateway of this run writes to stderr; the end of it is shown with a test that fails.
LOGS: list[Path] = []


def serve_command(data_dir: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "gateway", "serve", "--data-dir", str(data_dir), *options]


def environment(home: Path) -> dict[str, str]:
    """What a desktop client hands on, with a home of its own so that no configuration of ours leaks in."""
    given = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home)}
    # Set when the suite runs in another checkout than the one that is installed.
    return given | ({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {})


class Process:
    """One gateway. Its stderr goes to `log` as it comes; whoever waits for a line there is woken by it."""

    def __init__(self, command: Sequence[str], directory: Path, *, stdin: int = subprocess.PIPE) -> None:
        self.log = directory / "stderr.log"
        self.log.touch()
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._complaints: queue.Queue[bytes | None] = queue.Queue()
        self._process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env=environment(directory),
        )
        self._readers = [
            threading.Thread(target=_drain, args=(self._process.stdout, self._lines)),
            threading.Thread(target=_drain, args=(self._process.stderr, self._complaints, self.log)),
        ]
        LOGS.append(self.log)
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, *messages: dict[str, Any] | bytes) -> None:
        """Write each message as one line; bytes go out as they are."""
        assert self._process.stdin is not None
        for message in messages:
            self._process.stdin.write(message if isinstance(message, bytes) else to_line(message))
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next answer on stdout; notifications on the way are passed over."""
        while True:
            message = self.receive_any()
            if "method" not in message:
                return message

    def receive_any(self, seconds: float = PATIENCE) -> dict[str, Any]:
        """The next message on stdout."""
        line = self._lines.get(timeout=seconds)
        assert line is not None, f"the process closed its stdout; its log:\n{self.log.read_text()}"
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def ask(self, message: dict[str, Any] | bytes) -> dict[str, Any]:
        self.send(message)
        return self.receive()

    def rest(self) -> list[bytes]:
        """Every line stdout still brings until it is closed."""
        return list(iter(lambda: self._lines.get(timeout=PATIENCE), None))

    def complaint(self, pattern: str) -> re.Match[str]:
        """The first line on stderr that matches, waited for."""
        for line in iter(lambda: self._complaints.get(timeout=PATIENCE), None):
            if found := re.search(pattern, line.decode("utf-8", "replace")):
                return found
        raise AssertionError(f"no line like {pattern!r} came on stderr:\n{self.log.read_text()}")

    def close_stdin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit code; a gateway that does not end fails the test."""
        return self._process.wait(timeout=TIMEOUT)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what was still buffered for a gateway that is gone
                    pipe.close()


@contextmanager
def on_stdio(directory: Path, *options: str) -> Iterator[Process]:
    """A gateway on its pipes, spoken to line by line."""
    process = Process(serve_command(directory / "data", *options), directory)
    try:
        yield process
    finally:
        process.end()


class Listening(Process):
    """A gateway on a free port of the loopback; `url` is where it said it listens."""

    def __init__(self, directory: Path, *options: str) -> None:
        command = serve_command(directory / "data", "--transport", "http", "--port", "0", *options)
        super().__init__(command, directory, stdin=subprocess.DEVNULL)
        try:
            self.url = self.complaint(LISTENING).group()
        except BaseException:
            self.end()
            raise


@contextmanager
def on_http(directory: Path, *options: str) -> Iterator[Listening]:
    process = Listening(directory, *options)
    try:
        yield process
    finally:
        process.end()


def to_line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _drain(pipe: IO[bytes], lines: queue.Queue[bytes | None], log: Path | None = None) -> None:
    """Hand over line by line, so that a full pipe never stops the gateway; None when the pipe is closed."""
    for line in pipe:
        if log is not None:
            with log.open("ab") as file:
                file.write(line)
        lines.put(line)
    lines.put(None)
