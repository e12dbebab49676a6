"""A running program: its streams, its end, and the limit it was killed for."""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import IO, Protocol, cast

import anyio

from gateway.errors import Unavailable
from gateway.sandbox import Exit, Killed, OutputCallback
from gateway.sandbox.watchdog import Watch

_KILL_INTERVAL = 0.02
_DRAIN_TIMEOUT = 0.2
_END_TIMEOUT = 10.0
_BEGINNING = 2048
# Seconds in which what is left in the pipes of an ended program can still be read, also by a busy event loop.
_CLOSE_DELAY = 10.0

# Bytes a program may write ahead of us; all pipes of a user together may have 64 MiB on Linux.
PIPE_SIZE = 256 * 1024


class TreeControl(Protocol):
    """Control over the process tree of one program, implemented by each sandbox."""

    def terminate(self) -> None:
        """Send SIGTERM to the program."""
        ...

    def end(self) -> None:
        """Kill the whole tree; called repeatedly until it has ended."""
        ...

    def killed(self) -> Killed | None:
        """Return the limit for which the kernel killed it; called once, after the end."""
        ...

    async def settle(self) -> str | None:
        """Clean up after the end. Return why the program never started, if so; empty if only stderr tells."""
        ...


def spawn(
    argv: Sequence[str],
    pass_fds: Sequence[int],
    *,
    stdin: bool,
    process_group: int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str = "/",
) -> subprocess.Popen[bytes]:
    """Start a process with pipes, the given descriptors, and nothing else of ours, in a session of its own or in a
    process group of ours."""
    try:
        return subprocess.Popen(
            argv,
            bufsize=0,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env or {},
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=process_group is None,
            process_group=process_group,
        )
    except OSError as error:
        raise unavailable(f"{argv[0]} does not start: {error.strerror}") from error


def create_data_fd(data: bytes) -> int:
    """A descriptor from which a child can read the data."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("toolgate")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def unavailable(message: str) -> Unavailable:
    return Unavailable(message, code="SANDBOX_UNAVAILABLE")


def widen_pipe(pipe: IO[bytes]) -> None:
    """Enlarge a pipe for large results: with the usual 64 KiB, writer and reader wait for each other at every piece."""
    # Not available everywhere, limited for each user, and the pipe of an ended process is closed (ValueError).
    with suppress(OSError, AttributeError, ValueError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_SIZE)


class _OutputPipe(asyncio.StreamReaderProtocol):
    """The stdout or stderr of a program. The first bytes of stderr say why a program did not start."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self.beginning = bytearray()
        self.over = asyncio.Event()
        self._reader = reader
        self._received = 0
        self._callback: OutputCallback | None = None

    def data_received(self, data: bytes) -> None:
        if self._callback is not None:
            self._callback(data)
            return
        self._keep_beginning(data)
        self._received += len(data)
        super().data_received(data)

    def _keep_beginning(self, data: bytes) -> None:
        if len(self.beginning) < _BEGINNING:
            self.beginning += data[: _BEGINNING - len(self.beginning)]

    async def hand_over(self, callback: OutputCallback, *, keep_beginning: bool = False) -> None:
        """Pass all data to a callback from now on, with what was received already."""
        if self._received:
            callback(await self._reader.readexactly(self._received))  # does not wait: all of it is there

        def keep_and_pass(data: bytes) -> None:
            self._keep_beginning(data)
            callback(data)

        self._callback = keep_and_pass if keep_beginning else callback

    def eof_received(self) -> bool | None:
        self.over.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()
        super().connection_lost(exc)


class RunningProgram:
    """One program, from its start to its end."""

    def __init__(self, child: subprocess.Popen[bytes], tree: TreeControl) -> None:
        self.pid = child.pid
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        self._child = child
        self._tree = tree
        self._loop = asyncio.get_running_loop()
        self._killed: Killed | None = None
        self._dead = False
        self._death = asyncio.Event()
        self._watch: Watch | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        self._streams: list[tuple[asyncio.ReadTransport, _OutputPipe]] = []
        self._exit: asyncio.Future[Exit] = self._loop.create_future()
        self._exit.add_done_callback(_retrieve_exception)
        self._connecting = self._loop.create_task(self._connect())
        self._living: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, child: subprocess.Popen[bytes], tree: TreeControl) -> RunningProgram:
        """Return the program with its streams connected."""
        running = cls(child, tree)
        call_on_exit(running._loop, child, running._on_death)
        async with running.ended_on_failure():
            try:
                await asyncio.shield(running._connecting)  # so that every open descriptor has an owner
            finally:
                running._living = running._loop.create_task(running._live())
        return running

    @asynccontextmanager
    async def ended_on_failure(self) -> AsyncIterator[None]:
        """Kill the program if the body fails or is cancelled."""
        try:
            yield
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        """Kill it and wait for its end, even in a cancelled task."""
        self.kill()
        with anyio.move_on_after(_END_TIMEOUT, shield=True), suppress(Unavailable):
            await self.wait()

    @property
    def busy(self) -> bool:
        return self._watch is not None and self._watch.busy

    @busy.setter
    def busy(self, busy: bool) -> None:
        if self._watch is not None:
            self._watch.busy = busy

    def guard(self, watch: Watch) -> None:
        """Start checking the limits; called by the sandbox that started it."""
        self._watch = watch
        if self._dead:
            watch.stop()
        else:
            watch.start(self._loop, self.kill)

    def kill(self, reason: Killed | None = None) -> None:
        if self._dead:
            return
        self._killed = self._killed or reason
        self._end()

    async def listen(self, stdout: OutputCallback, stderr: OutputCallback) -> None:
        widen_pipe(cast(IO[bytes], self._child.stdout))
        (_, output), (_, errors) = self._streams
        await output.hand_over(stdout)
        await errors.hand_over(stderr, keep_beginning=True)

    def terminate(self) -> None:
        if not self._dead:
            self._tree.terminate()

    async def wait(self) -> Exit:
        return await asyncio.shield(self._exit)

    def _end(self) -> None:
        """Kill until it has ended: the first signal may miss a tree that is still being built."""
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if not self._dead:
            self._tree.end()
            self._kill_timer = self._loop.call_later(_KILL_INTERVAL, self._end)

    async def _connect(self) -> None:
        child = self._child
        await self._read(cast(IO[bytes], child.stdout), self.stdout)
        await self._read(cast(IO[bytes], child.stderr), self.stderr)
        if child.stdin is not None:
            # A writer asks its protocol whether it may go on, and this is the public one that answers.
            transport, protocol = await self._loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), child.stdin
            )
            self.stdin = asyncio.StreamWriter(transport, protocol, None, self._loop)

    async def _read(self, pipe: IO[bytes], reader: asyncio.StreamReader) -> None:
        self._streams.append(await self._loop.connect_read_pipe(lambda: _OutputPipe(reader), pipe))

    def _on_death(self) -> None:
        if self._dead:
            return
        self._dead = True
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._child.wait()
        if self._watch is not None:
            self._watch.stop()
        self._death.set()

    async def _live(self) -> None:
        """Wait for its end and clean up. This is cancelled only when the event loop ends, and ends the program with it:
        afterwards nobody could wait for it or close its pipes."""
        close_delay = _CLOSE_DELAY
        try:
            try:
                await self._death.wait()
            except asyncio.CancelledError:
                close_delay = 0.0
                self.kill()
                async with asyncio.timeout(_END_TIMEOUT):
                    await self._death.wait()
            await self._settle()
            if not all(stream.over.is_set() for _, stream in self._streams):
                await asyncio.sleep(close_delay)
        finally:
            for transport, _ in self._streams:
                transport.close()
            if self._connecting.cancelled():
                for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
                    if pipe is not None:
                        pipe.close()

    async def _settle(self) -> None:
        code = self._child.returncode
        try:
            await self._connecting
            self._killed = self._killed or self._tree.killed()
            problem = await self._tree.settle()
            await self._drain()
            if problem is None:
                self._exit.set_result(Exit(code if code >= 0 else 128 - code, self._killed))
            else:
                reason = problem or bytes(self._streams[-1][1].beginning).decode(errors="replace").strip()
                self._exit.set_exception(unavailable(f"the program did not start: {reason}"))
        except Exception as error:
            self._exit.set_exception(error)
        finally:
            self._exit.cancel()  # unless it is known: the event loop ends
            if self.stdin is not None:
                self.stdin.close()

    async def _drain(self) -> None:
        """Read the last output, unless nobody reads it or another process holds the pipes open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT):
                for transport, stream in self._streams:
                    await stream.over.wait()
                    transport.close()


def _retrieve_exception(future: asyncio.Future[Exit]) -> None:
    """Mark the exception as retrieved: nobody needs to ask for the exit."""
    if not future.cancelled():
        future.exception()


def call_on_exit(loop: asyncio.AbstractEventLoop, child: subprocess.Popen[bytes], then: Callable[[], None]) -> None:
    """Call `then` in the loop once the process has ended; asyncio's own way would wait for its pipes too."""
    if hasattr(os, "pidfd_open"):
        fd = os.pidfd_open(child.pid)

        def on_end() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            then()

        loop.add_reader(fd, on_end)
        return

    def wait() -> None:
        child.wait()
        with suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(then)

    threading.Thread(target=wait, name="toolgate-wait", daemon=True).start()


_GUARD = """
import os, select, signal, socket, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
leader = os.fork()
if leader == 0:
    os.setpgid(0, 0)
    os._exit(0)
os.waitid(os.P_PID, leader, os.WEXITED | os.WNOWAIT)  # never reaped: the group exists as long as this process
gateway = socket.socket(fileno=0)
gateway.send(b"%d" % leader)
processes = set()
poll = select.poll()
poll.register(gateway, select.POLLIN)
alive = True
while alive:
    for fd, _ in poll.poll():
        if fd in processes:
            poll.unregister(fd)
            processes.remove(fd)
            os.close(fd)
            continue
        message, fds, _, _ = socket.recv_fds(gateway, 64, 64)
        alive = bool(message)
        for fd in fds:
            processes.add(fd)
            poll.register(fd, select.POLLIN)
for _ in range(5):
    os.killpg(leader, signal.SIGKILL)
    for fd in processes:
        try:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            pass
    time.sleep(0.01)
"""


class Guard:
    """The guard of one gateway process. `group` is the process group to start sandboxes in."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        argv = [sys.executable, "-I", "-S", "-c", _GUARD]
        try:
            with theirs:  # in our own session: a process can only join a group of its session
                self._process = subprocess.Popen(
                    argv,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # would keep the gateway's stderr open after its end
                    env={},
                    cwd="/",
                )
            group = self._socket.recv(64)
        except OSError as error:
            self._socket.close()
            raise unavailable(f"{sys.executable} does not start: {error.strerror}") from error
        if not group:
            self._socket.close()
            raise unavailable("the guard process of sandboxes ended immediately")
        self.group = int(group)
        self._socket.setblocking(False)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def watch(self, pidfd: int) -> None:
        """Kill this process too when the gateway is gone."""
        with suppress(OSError):  # a dead guard is replaced with the next sandbox
            socket.send_fds(self._socket, [b"x"], [pidfd])

    def release(self) -> None:
        """Let the guard end, as it does when this process is gone."""
        self._socket.close()
        self._process.returncode = 0  # nobody waits for it, of which Popen would warn


_lock = threading.Lock()
_guards: list[Guard] = []


def guard() -> Guard:
    """Return the guard of this process, started with the first sandbox and again if it was killed."""
    with _lock:
        if not _guards or not _guards[0].is_alive():
            _guards[:] = [Guard()]
        return _guards[0]


@atexit.register
def _release_guards() -> None:
    for each in _guards:
        each.release()
