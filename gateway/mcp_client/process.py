"""Server processes: their start, output and end."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

import anyio

from gateway.mcp_client.endpoints import StdioEndpoint
from gateway.mcp_client.errors import Unreachable
from gateway.sandbox import Exit, OutputCallback
from gateway.sandbox.process import call_on_exit, widen_pipe

KEPT = 8 * 1024
_LINE = 2000


class Stderr:
    def __init__(self, label: str) -> None:
        self._log = logging.getLogger(f"gateway.upstream.{label.replace('.', '_')}")
        self._lines: deque[str] = deque()
        self._size = 0
        self._rest = b""

    @property
    def tail(self) -> str:
        rest = self._rest[:_LINE].decode(errors="replace").rstrip()
        return "\n".join((*self._lines, rest) if rest else self._lines)

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > _LINE:
            lines.append(rest)
            rest = b""
        self._rest = rest
        for line in lines:
            self._note(line[:_LINE].decode(errors="replace").rstrip())

    def _note(self, line: str) -> None:
        if not line:
            return
        self._log.debug("%s", line)
        self._lines.append(line)
        self._size += len(line)
        while self._size > KEPT:
            self._size -= len(self._lines.popleft())


# What a program gets of our environment. Everything else of it, our secrets above all, is ours.
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "USER")

# How long a server has to end after its stdin was closed, and again after SIGTERM and SIGKILL.
LEAVE_SECONDS = 2.0

_RUN_DRY = 0.2
_KEEPER = str(Path(__file__).with_name("supervisor_main.py"))


class Child(ABC):
    """A program, however it is held. `over` is set when its output has ended. Where limits hold for it, they are
    looked at often while it is `busy`."""

    stdin: asyncio.StreamWriter
    busy = True
    _exit: asyncio.Future[Exit]

    def __init__(self, label: str) -> None:
        self.over = asyncio.Event()
        self._stderr = Stderr(label)
        self._loop = asyncio.get_running_loop()

    @property
    def last_words(self) -> str:
        return self._stderr.tail

    async def wait(self, seconds: float | None = None) -> Exit | None:
        """How it ended, once all it wrote is read; None when it still runs after so long. `Unavailable` when it
        never began."""
        await asyncio.wait([self._exit], timeout=seconds)
        return self._exit.result() if self._exit.done() else None

    async def end(self) -> None:
        """Ask it to leave, then tell it, then make it."""
        self.stdin.close()
        for insist in (self.terminate, self.kill, self.kill):
            if await self._dead():
                return
            insist()
        await self._dead()

    @abstractmethod
    def terminate(self) -> None:
        """Ask all of it to end, by SIGTERM."""

    @abstractmethod
    def kill(self) -> None:
        """End all of it now; a second time with more force."""

    async def _dead(self) -> bool:
        await asyncio.wait([self._exit], timeout=LEAVE_SECONDS)
        return self._exit.done()


class KeptChild(Child):
    """The program runs behind a keeper, which holds it in a group of its own and kills all that it started
    when it ends or the gateway does, `kill -9` included. It lives as long as its `lifeline` is open."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int, status: int, label: str) -> None:
        super().__init__(label)
        self._process = process
        self._lifeline = lifeline
        self._status = status
        self._said = b""
        self._exit = self._loop.create_future()
        self._connecting: asyncio.Task[None]
        self._transports: list[asyncio.BaseTransport] = []
        self._pipes: list[_Pipe] = []

    @classmethod
    async def start(cls, endpoint: StdioEndpoint, hear: OutputCallback) -> KeptChild:
        """Start it; `hear` gets what it writes, and `over` is set when that ends. `Unreachable` when it
        cannot be started."""
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(endpoint.env)
        cwd = endpoint.cwd or str(Path.cwd())
        program = find_program(endpoint.command, cwd, environment.get("PATH", os.defpath))
        lifeline_read, lifeline = os.pipe()
        status, status_write = os.pipe()
        os.set_blocking(status, False)
        kept = (str(lifeline_read), str(status_write), program, *endpoint.args)
        process: subprocess.Popen[bytes] | None = None
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - a moment, and from the loop's own thread
                (sys.executable, "-I", "-S", _KEEPER, *kept),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=cwd,
                pass_fds=(lifeline_read, status_write),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise Unreachable(f"{endpoint.label} cannot be started: {error}") from None
        finally:
            for fd in (lifeline_read, status_write, *(() if process else (lifeline, status))):
                os.close(fd)
        child = cls(process, lifeline, status, endpoint.label)
        call_on_exit(child._loop, process, child._died)
        child._connecting = child._loop.create_task(child._connect(hear))
        try:
            await asyncio.shield(child._connecting)  # so that all that is open has an owner
        except asyncio.CancelledError:
            child.kill()
            with anyio.CancelScope(shield=True):
                await child._dead()
            raise
        return child

    async def wait(self, seconds: float | None = None) -> Exit | None:
        found = await super().wait(seconds)
        _, _, problem = self._listen().partition(b"\n")
        if found is not None and problem:
            raise Unreachable(problem.decode(errors="replace").strip())
        return found

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        if not self._cut():  # the keeper did not answer
            self._signal(signal.SIGKILL)
            self._process.kill()

    def _cut(self) -> bool:
        """Close the lifeline; False if that was done before."""
        fd, self._lifeline = self._lifeline, -1
        if fd >= 0:
            os.close(fd)
        return fd >= 0

    async def _connect(self, hear: OutputCallback) -> None:
        process, loop = self._process, self._loop
        widen_pipe(cast(IO[bytes], process.stdout))
        for pipe, take in ((process.stdout, hear), (process.stderr, self._stderr.feed)):
            transport, reading = await loop.connect_read_pipe(_Pipe(take).itself, cast(IO[bytes], pipe))
            self._transports.append(transport)
            self._pipes.append(reading)
        self._pipes[0].over.add_done_callback(lambda _: self.over.set())
        # A writer asks its protocol whether it may go on, and this is the public one that answers.
        writing, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), cast(IO[bytes], process.stdin)
        )
        self._transports.append(writing)
        self.stdin = asyncio.StreamWriter(writing, protocol, None, loop)

    def _died(self) -> None:
        code = self._process.wait()
        if code < 0:  # the keeper itself was killed, and so could not clear up
            self._signal(signal.SIGKILL)
        self._cut()
        self._settling = self._loop.create_task(self._settle(code if code >= 0 else 128 - code))

    async def _settle(self, code: int) -> None:
        """What it wrote last is still read, unless someone else holds its pipes."""
        await self._connecting
        await asyncio.wait([pipe.over for pipe in self._pipes], timeout=_RUN_DRY)
        for transport in self._transports:
            transport.close()
        self._listen()
        os.close(self._status)
        self._status = -1
        self.over.set()
        self._exit.set_result(Exit(code))

    def _signal(self, number: int) -> None:
        """To the program's whole group."""
        pid = self._listen().partition(b"\n")[0]
        if pid:
            with suppress(OSError):
                os.killpg(int(pid), number)

    def _listen(self) -> bytes:
        """What the keeper said so far: the program's process id, and why it did not start."""
        with suppress(BlockingIOError):
            while self._status >= 0 and (more := os.read(self._status, 4096)):
                self._said += more
        return self._said


class _Pipe(asyncio.Protocol):
    def __init__(self, take: OutputCallback) -> None:
        self._take = take
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def itself(self) -> _Pipe:
        return self

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


def find_program(command: str, cwd: str, path: str) -> str:
    """The program's full path; a relative one starts where the program will."""
    found = shutil.which(str(Path(cwd, command)) if os.sep in command else command, path=path)
    if found is None:
        raise Unreachable(f"the program {command!r} is not there: install it or give its full path")
    return str(Path(cwd, found))
