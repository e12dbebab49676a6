"""Prestarted sandboxes: a Python interpreter waits in each for code; each is used once."""

from __future__ import annotations

import asyncio
import marshal
import os
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import anyio

from gateway.errors import GatewayError, Invalid
from gateway.sandbox import Mount, Process, Program, Sandbox

CODE_BYTES = 16 * 1024 * 1024
_MAIN = Path(__file__).with_name("prestart_main.py")
# Seconds before a used sandbox is replaced: most code has ended by then and is not slowed down.
_REPLACE_DELAY = 0.05

# Seconds an interpreter may take to accept the code.
START_TIMEOUT = 30.0

_CLOSE_TIMEOUT = 5.0

Key = tuple[Any, ...]


@dataclass(eq=False)
class _ReadySandbox:
    """A prestarted sandbox that waits at its channel, and the identities of its folders."""

    process: Process
    channel: socket.socket
    folders: tuple[tuple[int, int], ...]
    timer: asyncio.TimerHandle | None = None

    def drop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.channel.close()
        self.process.kill()


class PrestartedSandboxes:
    """Runs Python code in prestarted sandboxes: one for each of the `kept` most recently used programs, dropped after
    `idle` seconds without use.

    A program's `argv` is the interpreter and its flags; the whole program is known before the code, and is the key of
    its sandbox. No sandbox is used twice, so no code sees what other code left.
    """

    def __init__(self, sandbox: Sandbox, *, kept: int = 4, idle: float = 300.0) -> None:
        self._sandbox = sandbox
        self._kept = kept
        self._idle = idle
        self._recent: OrderedDict[Key, Program] = OrderedDict()
        self._ready: dict[Key, _ReadySandbox] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._starting: dict[Key, asyncio.Task[_ReadySandbox]] = {}
        self._ending: set[asyncio.Future[Any]] = set()
        self._closed = False

    async def start(
        self,
        program: Program,
        code: str,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] = {},
        stdin: bool = False,
        timeout: float = START_TIMEOUT,
    ) -> Process:
        """Run code as `__main__` in the program's folder, which is first on `sys.path`. `args` follow `<code>` in
        `sys.argv`; `env` is added to the program's own. Limits count from now. An interpreter that has not accepted the
        code after `timeout` seconds is killed.

        `SANDBOX_UNAVAILABLE` if it cannot be started; `Invalid` for code over CODE_BYTES.
        """
        job = self._job(program, code, args, env)
        key = _key(program)
        try:
            spare = await self._take(key, program)
            if spare is not None and (process := await self._use(spare, job, timeout)) is not None:
                if not stdin and process.stdin is not None:
                    process.stdin.close()
                return process
            return await self._cold(program, job, stdin, timeout)
        finally:
            self.expect(program)

    def expect(self, program: Program, *, now: bool = False) -> None:
        """Prestart a sandbox for this program soon, or `now`. Not for an interpreter that programs can change, because
        a changed one would run before any code is sent."""
        if self._closed or program.pass_fds or self._kept < 1 or self._can_be_changed(program):
            return
        key = _key(program)
        if now and len(self._starting) >= self._kept:
            return  # more at once than are kept would evict each other
        self._recent[key] = program
        self._recent.move_to_end(key)
        if key in self._ready or key in self._starting:
            return
        if now:
            self._cancel_timer(key)
            self._begin(key)
        elif key not in self._timers:
            self._timers[key] = asyncio.get_running_loop().call_later(_REPLACE_DELAY, self._replace, key)

    @property
    def waiting(self) -> int:
        """Number of sandboxes that are ready."""
        return len(self._ready)

    async def close(self) -> None:
        """End all waiting sandboxes; code that runs continues."""
        self._closed = True
        for key in list(self._recent):
            self._forget(key)
        if self._ending:
            await asyncio.wait(self._ending, timeout=_CLOSE_TIMEOUT)

    def _job(self, program: Program, code: str, args: Sequence[str], env: Mapping[str, str]) -> bytes:
        if not self._has_own_tmp():
            env = {name: value for name, value in env.items() if not _leads_to_tmp(name, value)}
        words = (*args, *env, *env.values())
        if any("\0" in word for word in words) or any("=" in name or not name for name in env):
            raise Invalid("arguments and environment must not contain NUL characters, and variable names no '='")
        job = marshal.dumps({"code": code, "args": list(args), "env": dict(env), "cwd": program.cwd}, 2)
        if len(job) > CODE_BYTES:
            raise Invalid(f"the code is larger than {CODE_BYTES // 2**20} MiB; write it to a file", code="TOO_LARGE")
        return job

    def _has_own_tmp(self) -> bool:
        return self._sandbox.inside(Mount(Path("/"), "/own")) == "/own"

    def _can_be_changed(self, program: Program) -> bool:
        named = program.argv[0]
        places = [
            place for each in program.mounts if each.writable for place in (self._sandbox.inside(each), each.source)
        ]
        return any(Path(path).is_relative_to(place) for path in (named, os.path.realpath(named)) for place in places)

    async def _take(self, key: Key, program: Program) -> _ReadySandbox | None:
        """Return the waiting sandbox, or the one being started; None if there is none that can be used."""
        self._cancel_timer(key)
        if (starting := self._starting.pop(key, None)) is not None:
            try:
                await asyncio.shield(starting)
            except GatewayError:
                return None
            except asyncio.CancelledError:
                starting.add_done_callback(_drop_result)
                raise
            spare: _ReadySandbox | None = starting.result()
        else:
            spare = self._ready.pop(key, None)
        if spare is not None and (_has_ended(spare.process) or spare.folders != _identities(program)):
            self._end(spare)
            return None
        return spare

    async def _use(self, spare: _ReadySandbox, job: bytes, timeout: float) -> Process | None:
        if spare.timer is not None:
            spare.timer.cancel()
        spare.process.busy = True
        async with _ended_on_failure(spare), _ended_in_time(spare, timeout):
            if not await _hand_over(spare, job):
                self._end(spare)  # it had died; a new one is started instead
                return None
        return spare.process

    async def _cold(self, program: Program, job: bytes, stdin: bool, timeout: float) -> Process:
        spare = await self._make(program, early=False, stdin=stdin)
        async with _ended_on_failure(spare), _ended_in_time(spare, timeout):
            if not await _hand_over(spare, job):
                await spare.process.wait()  # raises if it never started; otherwise its own output explains
        return spare.process

    async def _make(self, program: Program, *, early: bool, stdin: bool) -> _ReadySandbox:
        folders = _identities(program)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                process = await self._sandbox.start(_interpreter(program, theirs.fileno(), early), stdin=stdin)
        except BaseException:
            ours.close()
            raise
        return _ReadySandbox(process, ours, folders)

    def _replace(self, key: Key) -> None:
        del self._timers[key]
        self._make_room()
        if key in self._recent:
            self._begin(key)

    def _make_room(self) -> None:
        """End the least recently used. Not while another one starts, which needs the CPU more."""
        while len(self._recent) > self._kept:
            self._forget(next(iter(self._recent)))

    def _begin(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        task = self._starting[key] = loop.create_task(self._make(self._recent[key], early=True, stdin=True))
        self._keep(task)
        task.add_done_callback(lambda done: self._on_started(key, done))
        loop.call_later(_REPLACE_DELAY, self._make_room)

    def _on_started(self, key: Key, task: asyncio.Task[_ReadySandbox]) -> None:
        """Keep a started sandbox, unless somebody waits for it or it is no longer wanted."""
        if self._starting.get(key) is not task:
            return
        del self._starting[key]
        if task.cancelled() or task.exception() is not None:
            return
        spare = self._ready[key] = task.result()
        spare.process.busy = False
        loop = asyncio.get_running_loop()
        spare.timer = loop.call_later(self._idle, self._forget, key)
        ended = loop.create_task(_wait_for_end(spare.process))
        self._keep(ended)
        ended.add_done_callback(lambda _: self._on_ended(key, spare))

    def _on_ended(self, key: Key, spare: _ReadySandbox) -> None:
        if self._ready.get(key) is spare:
            del self._ready[key]
            spare.drop()

    def _forget(self, key: Key) -> None:
        self._recent.pop(key, None)
        self._cancel_timer(key)
        if (starting := self._starting.pop(key, None)) is not None:
            starting.add_done_callback(_drop_result)
            starting.cancel()
        if (spare := self._ready.pop(key, None)) is not None:
            self._end(spare)

    def _cancel_timer(self, key: Key) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    def _end(self, spare: _ReadySandbox) -> None:
        spare.drop()
        self._keep(asyncio.get_running_loop().create_task(_wait_for_end(spare.process)))

    def _keep(self, future: asyncio.Future[Any]) -> None:
        self._ending.add(future)
        future.add_done_callback(self._ending.discard)


@cache
def _text() -> str:
    return _MAIN.read_text(encoding="utf-8")


def _interpreter(program: Program, channel: int, early: bool) -> Program:
    limits = program.limits
    if limits.cpu_seconds is not None:  # the start itself may take up to a second
        limits = replace(limits, cpu_seconds=limits.cpu_seconds + 1)
    argv = (*program.argv, "-c", _text(), str(channel), "early" if early else "now")
    return replace(program, argv=argv, pass_fds=(*program.pass_fds, channel), limits=limits)


def _key(program: Program) -> Key:
    env = tuple(sorted(program.env.items()))
    return program.argv, program.mounts, program.readable, env, program.cwd, program.limits, program.network


def _identities(program: Program) -> tuple[tuple[int, int], ...]:
    """Return the identities of the program's folders; a path may lead to another folder later."""
    return tuple(_identity(path) for path in _paths(program))


def _paths(program: Program) -> Iterator[Path]:
    yield from program.readable
    for mount in program.mounts:
        hidden = (path for path, _ in mount.hidden)
        yield from (mount.source, *(mount.source / path for path in (*mount.protected, *hidden)))


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116 - several for each start
    except OSError:
        return -1, -1
    return found.st_dev, found.st_ino


def _has_ended(process: Process) -> bool:
    """Return whether the process has ended. Asks the kernel, because the event loop may not have noticed yet."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _leads_to_tmp(name: str, value: str) -> bool:
    return name in ("HOME", "TMPDIR") and value.startswith("/tmp")  # noqa: S108 - the one of a sandbox that has its own


async def _hand_over(spare: _ReadySandbox, job: bytes) -> bool:
    """Send the code; return whether it was accepted. Both sides close the channel before the code runs."""
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(spare.channel, job)
        spare.channel.shutdown(socket.SHUT_WR)
        return bool(await loop.sock_recv(spare.channel, 1))
    except OSError:
        return False
    finally:
        spare.channel.close()


@asynccontextmanager
async def _ended_on_failure(spare: _ReadySandbox) -> AsyncIterator[None]:
    """End the sandbox if the body fails or is cancelled."""
    try:
        yield
    except BaseException:
        spare.drop()
        with anyio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            await _wait_for_end(spare.process)
        raise


@asynccontextmanager
async def _ended_in_time(spare: _ReadySandbox, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        spare.process.kill("timeout")


async def _wait_for_end(process: Process) -> None:
    with suppress(GatewayError):
        await process.wait()


def _drop_result(task: asyncio.Task[_ReadySandbox]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().drop()
