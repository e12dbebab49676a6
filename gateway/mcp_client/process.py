"""Server processes: their start, output and end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from gateway.errors import Unavailable
from gateway.mcp_client.endpoints import StdioEndpoint
from gateway.mcp_client.messages import Unreachable
from gateway.sandbox import Exit, OutputCallback, Process
from gateway.sandbox.supervisor import start_supervised
from gateway.secrets import KNOWN
from gateway.text import visible

# Variables of our environment that a server gets. All others may hold our secrets. The last ones name files of
# certificates, without which uvx, npx and their servers reach nothing behind a company's proxy.
INHERITED = (
    *("PATH", "HOME", "LANG", "TMPDIR", "USER"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "UV_SYSTEM_CERTS"),
)

# The time a server has to end after its stdin was closed, and again after SIGTERM.
END_SECONDS = 2.0

# The time that a killed one takes at most, also on a busy machine.
_KILL_SECONDS = 30.0

STDERR_LIMIT = 8 * 1024
_STDERR_LINE_LIMIT = 2000

# Bytes of the stderr that is kept of one server, and once more of what came before.
LOG_LIMIT = 1024 * 1024


class ServerProcess:
    """A server's process, in a sandbox or behind a supervisor: it and all it started die with the gateway.

    `output_ended` is set when its stdout is closed. The limits of a sandbox are checked often while it is `busy`.
    """

    def __init__(self, process: Process, label: str, log: Path | None = None) -> None:
        assert process.stdin is not None  # noqa: S101 - it was requested
        self.stdin = process.stdin
        self.busy = True
        self.output_ended = asyncio.Event()
        self.stderr = StderrLog(label, log)
        self._process = process
        loop = asyncio.get_running_loop()
        self._exit: asyncio.Task[Exit] = loop.create_task(process.wait())
        self._reading = loop.create_task(process.stdout.read())
        for task in (self._exit, self._reading):
            task.add_done_callback(lambda _: self.output_ended.set())
        self._exit.add_done_callback(self._note_exit)

    async def listen(self, on_output: OutputCallback) -> None:
        """Hand over what it writes to stdout, and has written."""
        await self._process.listen(on_output, self.stderr.feed)

    def set_busy(self, busy: bool) -> None:
        self.busy = self._process.busy = busy

    async def wait(self, seconds: float | None = None) -> Exit | None:
        """Wait for its end; None when it still runs after so many seconds. `Unavailable` when it never started."""
        await asyncio.wait([self._exit], timeout=seconds)
        return self._exit.result() if self._exit.done() else None

    def _note_exit(self, exit_task: asyncio.Task[Exit]) -> None:
        if not exit_task.cancelled() and exit_task.exception() is None:
            self.stderr.note(f"ended with exit code {exit_task.result().code}")

    async def end(self) -> None:
        """Close its stdin, then send SIGTERM, then kill it and all it started."""
        self.stdin.close()
        for signal_all in (self._process.terminate, self._process.kill):
            if await self._has_ended(END_SECONDS):
                return
            signal_all()
        if not await self._has_ended(_KILL_SECONDS):
            self.stderr.note("was killed and has not ended")

    async def _has_ended(self, seconds: float) -> bool:
        await asyncio.wait([self._exit], timeout=seconds)
        return self._exit.done()


class StderrLog:
    """A server's stderr: written to our log and to a file of bounded size, with its last lines kept in `tail`."""

    def __init__(self, label: str, path: Path | None = None) -> None:
        self._log = logging.getLogger(f"gateway.upstream.{label.replace('.', '_')}")
        self._path = path
        self._lines: deque[str] = deque()
        self._size = 0
        self._rest = b""

    @property
    def tail(self) -> str:
        rest = self._rest[:_STDERR_LINE_LIMIT].decode(errors="replace").rstrip()
        return "\n".join((*self._lines, rest) if rest else self._lines)

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > _STDERR_LINE_LIMIT:
            lines.append(rest)
            rest = b""
        self._rest = rest
        texts = [line[:_STDERR_LINE_LIMIT].decode(errors="replace").rstrip() for line in lines]
        shown = [text for text in texts if text]
        for text in shown:
            self._add(text)
        self._write(shown)

    def note(self, event: str) -> None:
        """Add a line of our own to the file."""
        self._write([f"[toolgate] {event}"])

    def _add(self, line: str) -> None:
        self._log.debug("%s", line)
        self._lines.append(line)
        self._size += len(line)
        while self._size > STDERR_LIMIT:
            self._size -= len(self._lines.popleft())

    def _write(self, lines: Sequence[str]) -> None:
        """Append lines to the file. Several gateways may do so; the one that fills the file starts a new one."""
        if self._path is None or not lines:
            return
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = "".join(f"{moment} {visible(KNOWN.mask(line))}\n" for line in lines)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(self._path, "a", encoding="utf-8", opener=_open_private) as file:
                file.write(text)
                size = file.tell()
            if size > LOG_LIMIT:
                self._path.replace(self._path.with_suffix(".log.1"))
        except OSError as error:  # the server works without its log
            self._log.warning("%s cannot be written: %s", self._path, error.strerror)
            self._path = None


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


async def start_process(endpoint: StdioEndpoint) -> ServerProcess:
    """Start a server, in a sandbox if its endpoint has one. `Unavailable` when it cannot be started."""
    if endpoint.sandbox is None:
        process = await _start_unconfined(endpoint)
    else:
        # Imported when needed: it imports every kind of sandbox.
        from gateway.mcp_client.sandboxed_process import start_sandboxed

        process = await start_sandboxed(endpoint, endpoint.sandbox)
    server = ServerProcess(process, endpoint.label, endpoint.log)
    server.stderr.note(f"started {endpoint.label}")
    return server


async def _start_unconfined(endpoint: StdioEndpoint) -> Process:
    env = {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(endpoint.env)
    cwd = endpoint.cwd or str(Path.cwd())
    program = find_program(endpoint, cwd, env.get("PATH", os.defpath))
    if not Path(cwd).is_dir():
        raise Unreachable(f"{endpoint.label} cannot be started: its working directory {cwd} does not exist")
    try:
        return await start_supervised((program, *endpoint.args), env, cwd)
    except (Unavailable, ValueError) as error:  # `ValueError`: a null character in an argument or variable
        raise Unreachable(f"{endpoint.label} cannot be started: {error}") from None


def find_program(endpoint: StdioEndpoint, cwd: str, path: str) -> str:
    """Return the full path of a program; a relative command is looked up in `cwd`, where the program will start."""
    command = endpoint.command
    program = shutil.which(str(Path(cwd, command)) if os.sep in command else command, path=path)
    words = command.split()
    if program is None and len(words) > 1 and shutil.which(words[0], path=path):
        keys = f"write its arguments apart: command: {words[0]}, args: {json.dumps([*words[1:], *endpoint.args])}"
        advice = f"write it without quotes, as separate words: -- {command}" if endpoint.is_typed else keys
        raise Unreachable(f"{command!r} is not one program: {advice}")
    if program is None:
        raise Unreachable(f"the program {command!r} was not found: install it or give its full path")
    return str(Path(cwd, program))
