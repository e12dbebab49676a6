"""Sandboxes with a Python in them that has started already and waits for code: each is used once."""

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
_VESSEL = Path(__file__).with_name("prestart_main.py")
# Seconds before a spare that was used is replaced: most code has ended by then, and is not disturbed.
_PAUSE = 0.05

# Seconds an interpreter may take until it has the code.
STARTING = 30.0

_CLOSING = 5.0

Key = tuple[Any, ...]


@dataclass(eq=False)
class _Spare:
    """A sandbox that waits at its channel, and the folders it was started with."""

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
    """Runs Python code in sandboxes of which the next is always ready: one for each of the `kept` programs
    used last, dropped when `idle` seconds have passed since.

    A program's `argv` is the interpreter and its flags; all of it is known before the code is, and is what
    a spare is found by. Nothing is ever used twice, so no code meets what other code left.
    """

    def __init__(self, sandbox: Sandbox, *, kept: int = 4, idle: float = 300.0) -> None:
        self._sandbox = sandbox
        self._kept = kept
        self._idle = idle
        self._recent: OrderedDict[Key, Program] = OrderedDict()
        self._waiting: dict[Key, _Spare] = {}
        self._soon: dict[Key, asyncio.TimerHandle] = {}
        self._coming: dict[Key, asyncio.Task[_Spare]] = {}
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
        timeout: float = STARTING,
    ) -> Process:
        """The code, running as `__main__` in the program's folder, which is first on its path. `args` follow
        `<code>` in `sys.argv`; `env` is added to the program's own. Limits count from now. An interpreter that has
        not taken the code after `timeout` seconds is ended for that, as the code would be.

        `SANDBOX_UNAVAILABLE` when it cannot be started; `Invalid` for more code than anyone could mean.
        """
        job = self._job(program, code, args, env)
        key = _key(program)
        try:
            spare = await self._taken(key, program)
            if spare is not None and (process := await self._used(spare, job, timeout)) is not None:
                if not stdin and process.stdin is not None:
                    process.stdin.close()
                return process
            return await self._cold(program, job, stdin, timeout)
        finally:
            self.expect(program)

    def expect(self, program: Program, *, now: bool = False) -> None:
        """Have a spare ready soon: this program is about to be used. `now` starts it at once, while its user has
        other things to do first. There is none of an interpreter that programs can change: it need not wait for
        code to do something."""
        if self._closed or program.pass_fds or self._kept < 1 or self._can_be_changed(program):
            return
        key = _key(program)
        if now and len(self._coming) >= self._kept:
            return  # more at once than are kept: they would end each other
        self._recent[key] = program
        self._recent.move_to_end(key)
        if key in self._waiting or key in self._coming:
            return
        if now:
            self._cancel_timer(key)
            self._begin(key)
        elif key not in self._soon:
            self._soon[key] = asyncio.get_running_loop().call_later(_PAUSE, self._replace, key)

    @property
    def waiting(self) -> int:
        """How many are ready."""
        return len(self._waiting)

    async def close(self) -> None:
        """End all that wait; what was started goes on."""
        self._closed = True
        for key in list(self._recent):
            self._forget(key)
        if self._ending:
            await asyncio.wait(self._ending, timeout=_CLOSING)

    def _job(self, program: Program, code: str, args: Sequence[str], env: Mapping[str, str]) -> bytes:
        if not self._has_own_tmp():
            env = {name: value for name, value in env.items() if not _leads_to_tmp(name, value)}
        words = (*args, *env, *env.values())
        if any("\0" in word for word in words) or any("=" in name or not name for name in env):
            raise Invalid("arguments and environment cannot have NUL characters, nor names of variables '='")
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

    async def _taken(self, key: Key, program: Program) -> _Spare | None:
        """The spare that waits, or the one on its way; None when there is none that could be used."""
        self._cancel_timer(key)
        if (coming := self._coming.pop(key, None)) is not None:
            try:
                await asyncio.shield(coming)
            except GatewayError:
                return None
            except asyncio.CancelledError:
                coming.add_done_callback(_drop_result)
                raise
            spare: _Spare | None = coming.result()
        else:
            spare = self._waiting.pop(key, None)
        if spare is not None and (_has_ended(spare.process) or spare.folders != _identities(program)):
            self._end(spare)
            return None
        return spare

    async def _used(self, spare: _Spare, job: bytes, timeout: float) -> Process | None:
        if spare.timer is not None:
            spare.timer.cancel()
        spare.process.busy = True
        async with _ended_on_failure(spare), _ended_in_time(spare, timeout):
            if not await _hand_over(spare, job):
                self._end(spare)  # it had died, and nobody needs to know
                return None
        return spare.process

    async def _cold(self, program: Program, job: bytes, stdin: bool, timeout: float) -> Process:
        spare = await self._make(program, early=False, stdin=stdin)
        async with _ended_on_failure(spare), _ended_in_time(spare, timeout):
            if not await _hand_over(spare, job):
                await spare.process.wait()  # refuses when it never began; else it has something to say itself
        return spare.process

    async def _make(self, program: Program, *, early: bool, stdin: bool) -> _Spare:
        folders = _identities(program)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                process = await self._sandbox.start(_vessel(program, theirs.fileno(), early), stdin=stdin)
        except BaseException:
            ours.close()
            raise
        return _Spare(process, ours, folders)

    def _replace(self, key: Key) -> None:
        del self._soon[key]
        self._make_room()
        if key in self._recent:
            self._begin(key)

    def _make_room(self) -> None:
        """End those used longest ago. Not when another begins, for what begins has better use for the machine."""
        while len(self._recent) > self._kept:
            self._forget(next(iter(self._recent)))

    def _begin(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        task = self._coming[key] = loop.create_task(self._make(self._recent[key], early=True, stdin=True))
        self._keep(task)
        task.add_done_callback(lambda done: self._arrived(key, done))
        loop.call_later(_PAUSE, self._make_room)

    def _arrived(self, key: Key, task: asyncio.Task[_Spare]) -> None:
        """Keep it, unless someone waits for it or it is not wanted any more."""
        if self._coming.get(key) is not task:
            return
        del self._coming[key]
        if task.cancelled() or task.exception() is not None:
            return
        spare = self._waiting[key] = task.result()
        spare.process.busy = False
        loop = asyncio.get_running_loop()
        spare.timer = loop.call_later(self._idle, self._forget, key)
        ended = loop.create_task(_outlived(spare.process))
        self._keep(ended)
        ended.add_done_callback(lambda _: self._died(key, spare))

    def _died(self, key: Key, spare: _Spare) -> None:
        if self._waiting.get(key) is spare:
            del self._waiting[key]
            spare.drop()

    def _forget(self, key: Key) -> None:
        self._recent.pop(key, None)
        self._cancel_timer(key)
        if (coming := self._coming.pop(key, None)) is not None:
            coming.add_done_callback(_drop_result)
            coming.cancel()
        if (spare := self._waiting.pop(key, None)) is not None:
            self._end(spare)

    def _cancel_timer(self, key: Key) -> None:
        if (timer := self._soon.pop(key, None)) is not None:
            timer.cancel()

    def _end(self, spare: _Spare) -> None:
        spare.drop()
        self._keep(asyncio.get_running_loop().create_task(_outlived(spare.process)))

    def _keep(self, future: asyncio.Future[Any]) -> None:
        self._ending.add(future)
        future.add_done_callback(self._ending.discard)


@cache
def _text() -> str:
    return _VESSEL.read_text(encoding="utf-8")


def _vessel(program: Program, channel: int, early: bool) -> Program:
    limits = program.limits
    if limits.cpu_seconds is not None:  # what the start takes of a second is not the code's
        limits = replace(limits, cpu_seconds=limits.cpu_seconds + 1)
    argv = (*program.argv, "-c", _text(), str(channel), "early" if early else "now")
    return replace(program, argv=argv, pass_fds=(*program.pass_fds, channel), limits=limits)


def _key(program: Program) -> Key:
    env = tuple(sorted(program.env.items()))
    return program.argv, program.mounts, program.readable, env, program.cwd, program.limits, program.network


def _identities(program: Program) -> tuple[tuple[int, int], ...]:
    """Which folders those are right now; a path may lead to another one later."""
    return tuple(_identity(path) for path in _paths(program))


def _paths(program: Program) -> Iterator[Path]:
    yield from program.readable
    for mount in program.mounts:
        hidden = (path for path, _ in mount.hidden)
        yield from (mount.source, *(mount.source / path for path in (*mount.kept, *hidden)))


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116 - several for each start
    except OSError:
        return -1, -1
    return found.st_dev, found.st_ino


def _has_ended(process: Process) -> bool:
    """Asked of the system: the loop may not have had time to see it."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _leads_to_tmp(name: str, value: str) -> bool:
    return name in ("HOME", "TMPDIR") and value.startswith("/tmp")  # noqa: S108 - the one of a sandbox that has its own


async def _hand_over(spare: _Spare, job: bytes) -> bool:
    """Whether it took the code. The channel is closed on both sides before the code runs."""
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
async def _ended_on_failure(spare: _Spare) -> AsyncIterator[None]:
    """What fails or is cancelled inside leaves nothing running."""
    try:
        yield
    except BaseException:
        spare.drop()
        with anyio.move_on_after(_CLOSING, shield=True):
            await _outlived(spare.process)
        raise


@asynccontextmanager
async def _ended_in_time(spare: _Spare, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        spare.process.kill("timeout")


async def _outlived(process: Process) -> None:
    with suppress(GatewayError):
        await process.wait()


def _drop_result(task: asyncio.Task[_Spare]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().drop()
