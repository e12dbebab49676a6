"""The sandbox of choice on Linux: bubblewrap's namespaces, our filter, and limits."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.errors import Invalid
from gateway.sandbox import PUT_BACK, SYSTEM_FILES, SYSTEM_FOLDERS, Killed, Mount, Process, Program, seccomp
from gateway.sandbox.cgroups import Group, delegated
from gateway.sandbox.disk_usage import NOT_INSPECTABLE, Gauge, Size, TmpfsUsage, cannot_inspect_programs, folder_usage
from gateway.sandbox.guard import guard
from gateway.sandbox.idmap import acting_as, borrower, given, lent, place, prepared
from gateway.sandbox.network import connected
from gateway.sandbox.process import Running, handed, spawn, unavailable
from gateway.sandbox.rlimits import TaskLimit, count_tasks, counts_by_namespace, rlimits
from gateway.sandbox.run_user import Account, account
from gateway.sandbox.supervisor import refuse_hidden
from gateway.sandbox.watchdog import Watch

_LOOK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Kept:
    """A file or folder that is open, and how it is to be mounted over itself: who uses it closes `fd`."""

    fd: int
    target: str
    bind: str

    @property
    def path(self) -> Path:
        """A name for what is open, whatever becomes of the name it was found under."""
        return Path("/proc/self/fd", str(self.fd))


@dataclass(frozen=True)
class Cover:
    """A file or folder over which something empty is to be mounted that nobody can open."""

    target: str
    is_folder: bool


def kept(program: Program) -> Iterator[Kept | Cover]:
    """What is there of all that is to be kept or hidden, each after the folders above it: those stay writable, but
    where they are, for a folder that could be moved away would make room for another with the same name. A file in the
    place of such a folder is kept too: it may say where the folder is."""
    for mount in program.mounts:
        hidden = {path for path, _ in mount.hidden}
        for path in _with_parents((*mount.kept, *hidden)) if mount.writable else sorted(hidden):
            if any(above in hidden for above in _with_parents((path,))[:-1]):
                continue
            if (fd := _opened(mount, path)) is None:
                continue
            target, is_file = f"{mount.target}/{path}", stat.S_ISREG(os.fstat(fd).st_mode)
            if path in hidden:
                os.close(fd)
                yield Cover(target, not is_file)
            else:
                yield Kept(fd, target, "--ro-bind" if path in mount.kept or is_file else "--bind")


def _with_parents(paths: Collection[str]) -> list[str]:
    """The paths and the folders above them, each after those above it."""
    parts = [path.split("/") for path in paths]
    return sorted({"/".join(each[:depth]) for each in parts for depth in range(1, len(each) + 1)})


def _opened(mount: Mount, path: str) -> int | None:
    """A descriptor for the file or folder of that path; None when it is something else, or not there."""
    try:
        fd = os.open(mount.source, _LOOK & ~os.O_NOFOLLOW)
    except OSError:
        return None  # bubblewrap will say so
    try:
        for name in path.split("/"):
            inner = os.open(name, _LOOK, dir_fd=fd)
            os.close(fd)
            fd = inner
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


_PLACES = os.pathsep.join(("/usr/bin", "/usr/local/bin", "/bin", "/run/current-system/sw/bin"))
_RUN_BYTES = 1024 * 1024
_SHM_BYTES = 16 * 1024 * 1024
_USER = "1000"
_CHILD = re.compile(rb'"child-pid": *(\d+)\D')
# How often the first process inside is killed before bubblewrap itself is.
_PATIENCE = 50

# Seconds for what was killed to be gone: one that waits for a disk takes its time.
_LAST_BREATH = 5.0


class Bubblewrap:
    """A program has its own file system, processes, network and users; nothing of ours is in them but
    what it is given. When we are root, it runs as another user, who is lent what it is given."""

    name = "bwrap"

    def __init__(self, executable: str | None = None) -> None:
        if not seccomp.supported():
            raise unavailable("there is no filter of system calls for this kind of machine")
        self._executable = executable or find()
        self._user = account()
        self._cgroups = delegated()
        self._options = _known_options(self._executable)
        guard()  # here, as its start takes a while
        self.keeps_paths = self._user is not None or self._binds_descriptors()
        self.weaknesses = tuple(self._weaknesses())

    def inside(self, mount: Mount) -> str:
        return mount.target

    async def start(self, program: Program, *, stdin: bool = False) -> Process:
        if program.network is not None:
            return await connected(program, program.network, functools.partial(self._start, stdin=stdin))
        return await self._start(program, stdin=stdin)

    async def _start(self, program: Program, *, stdin: bool) -> Process:
        _require_no_nul(program)
        user = await self._borrower(program)
        if not self.keeps_paths:
            refuse_hidden("bwrap (older than 0.10)", program)
        gate_inside, gate = _gate()
        status, status_write = os.pipe()
        ours = [handed(seccomp.build(shared=False, network=program.network is not None)), gate_inside, status_write]
        held = list(kept(program)) if self.keeps_paths else []
        arguments = self._arguments(program, user, held, *ours)
        # The arguments go by descriptor: a command line is for all to read, inside too.
        ours.append(handed(b"".join(os.fsencode(argument) + b"\0" for argument in arguments)))
        argv = [self._executable, "--args", str(ours[-1]), "--", *program.argv]
        bound = [each for each in held if isinstance(each, Kept)]
        mine = [each.fd for each in bound]
        child: subprocess.Popen[bytes] | None = None
        try:
            # Where things are lent, bubblewrap finds them by name, and would leave what it is handed open.
            fds = (*ours, *(() if user else mine), *program.pass_fds)
            run = functools.partial(spawn, argv, fds, stdin=stdin, process_group=guard().group)
            child = lent([*given(program), *(each.path for each in bound)], user, run) if user else run()
        finally:
            for fd in (*ours, *mine, *(() if child else (gate, status))):
                os.close(fd)
        hold = _Namespace(child, gate, status)
        running = await Running.open(child, hold)
        async with running.ended_on_failure():
            if (first := await hold.first()) is None:
                await running.wait()  # refuses, and says why
                raise unavailable("bubblewrap ended before it began")
            task_limit = await self._task_limit(program, user)
            _limit(program, first, user, task_limit)
            hold.join(self._cgroups.make(program.limits) if self._cgroups else None, first)
        hold.release()
        running.guard(Watch(program.limits, first, self._gauges(program, first), task_limit))
        return running

    async def _task_limit(self, program: Program, user: Account | None) -> TaskLimit:
        """The kernel counts the namespace's first process too. An old one counts all tasks of the user instead."""
        if counts_by_namespace():
            return TaskLimit(program.limits.processes, others=1)
        uid = user.uid if user else os.getuid()
        others = await asyncio.get_running_loop().run_in_executor(None, count_tasks, uid)
        return TaskLimit(program.limits.processes, others, uid)

    async def _borrower(self, program: Program) -> Account | None:
        """Whom the program runs as when we are root."""
        if self._user is None:
            return None
        try:
            if prepared(program, self._user):
                return borrower(program, self._user)
            return await asyncio.get_running_loop().run_in_executor(None, borrower, program, self._user)
        except OSError as error:
            raise unavailable(f"the program does not start: {error}") from error

    def _binds_descriptors(self) -> bool:
        return "--ro-bind-fd" in self._options

    def _arguments(
        self, program: Program, user: Account | None, held: list[Kept | Cover], code: int, gate: int, status: int
    ) -> Iterator[str]:
        yield from ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        yield from ("--unshare-net", "--die-with-parent", "--new-session", "--hostname", "sandbox")
        yield from ("--cap-drop", "ALL", "--uid", _USER, "--gid", _USER)
        if "--disable-userns" in self._options:
            yield "--disable-userns"
        yield from _system()
        # Of what is in /proc, only file modes protect some from whoever its user is outside.
        yield from ("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev")
        limits = program.limits
        for folder, size in (("/dev/shm", _SHM_BYTES), ("/tmp", limits.tmp_bytes), ("/run", _RUN_BYTES)):  # noqa: S108
            yield from ("--size", str(size)) if "--size" in self._options else ()
            yield from ("--tmpfs", folder)
        for index, (source, target, bind) in enumerate(_binds(program)):
            yield from (bind, place(index) if user else source, target)
        index = len(given(program))
        for each in held:
            if isinstance(each, Cover):
                yield from self._cover(each)
                continue
            yield from (each.bind, place(index)) if user else (f"{each.bind}-fd", str(each.fd))
            yield each.target
            index += 1
        for folder in ("/dev", "/run", "/"):
            yield from ("--remount-ro", folder)
        for name, value in program.env.items():
            yield from ("--setenv", name, value)
        yield from ("--chdir", program.cwd)
        yield from ("--seccomp", str(code), "--block-fd", str(gate), "--json-status-fd", str(status))

    def _cover(self, cover: Cover) -> Iterator[str]:
        """A device cannot be opened here, since bubblewrap mounts without devices."""
        if not cover.is_folder:
            yield from ("--ro-bind", "/dev/null", cover.target)
            return
        yield from ("--perms", "0000") if "--perms" in self._options else ()
        yield from ("--tmpfs", cover.target, "--remount-ro", cover.target)

    def _gauges(self, program: Program, first: int) -> list[Gauge]:
        limits = program.limits
        tmp = Path("/proc", str(first), "root", "tmp")
        return [TmpfsUsage(tmp, Size(limits.tmp_bytes, limits.files), host=Path("/tmp")), *folder_usage(program, first)]  # noqa: S108

    def _weaknesses(self) -> Iterator[str]:
        if "--disable-userns" not in self._options:
            yield "this bubblewrap is older than 0.8: nested namespaces are refused by the filter alone"
        if "--size" not in self._options:
            yield "this bubblewrap is older than 0.6: /tmp is only bounded by the watchdog"
        if not self.keeps_paths:
            yield f"this bubblewrap is older than 0.10: {PUT_BACK}"
        if cannot_inspect_programs():
            yield NOT_INSPECTABLE


def _limit(program: Program, first: int, user: Account | None, task_limit: TaskLimit) -> None:
    """Hold the first process inside, which waits at the gate, to what all others inherit. Before the
    namespace, the number of processes would count all that the user runs."""
    try:
        _set_limits(program, first, task_limit)
    except PermissionError:
        if user is None:
            raise
        acting_as(user, functools.partial(_set_limits, program, first, task_limit))


def _set_limits(program: Program, first: int, task_limit: TaskLimit) -> None:
    with suppress(ProcessLookupError):
        for number, value in rlimits(program.limits, task_limit):
            hard = resource.prlimit(first, number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.prlimit(first, number, (value, value))


def _binds(program: Program) -> Iterator[tuple[str, str, str]]:
    """In the order in which they are lent."""
    for path in program.readable:
        yield str(path), str(path), "--ro-bind"
    for mount in program.mounts:
        yield str(mount.source), mount.target, "--bind" if mount.writable else "--ro-bind"


def find() -> str:
    found = shutil.which("bwrap", path=_PLACES) or shutil.which("bwrap")
    if found is None:
        raise unavailable("bubblewrap is not installed")
    return found


@functools.cache
def _known_options(executable: str) -> frozenset[str]:
    try:
        told = subprocess.run([executable, "--help"], capture_output=True, env={}, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise unavailable(f"{executable} does not run: {error}") from error
    return frozenset(word for word in told.decode(errors="replace").split() if word.startswith("--"))


def _require_no_nul(program: Program) -> None:
    """Arguments for bubblewrap are divided by NUL: a value with one in it could add others."""
    mounts = [str(part) for mount in program.mounts for part in (mount.source, mount.target)]
    values = (*program.argv, *program.env, *program.env.values(), program.cwd, *map(str, program.readable), *mounts)
    if any("\0" in value for value in values):
        raise Invalid("a NUL character cannot be part of a program's arguments, environment or paths")


def _system() -> Iterator[str]:
    for path in map(Path, SYSTEM_FOLDERS):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for name in SYSTEM_FILES:
        yield from ("--ro-bind-try", name, name)


class _Namespace:
    """A program in a process namespace: when the first process in it dies, so do all."""

    def __init__(self, child: subprocess.Popen[bytes], gate: int, status: int) -> None:
        self._child = child
        self._gate = gate
        self._status = status
        self._said = b""
        self._first = -1
        self._asked = 0
        self._group: Group | None = None
        self._loop = asyncio.get_running_loop()
        self._known: asyncio.Future[int | None] = self._loop.create_future()
        os.set_blocking(status, False)
        self._loop.add_reader(status, self._listen)

    async def first(self) -> int | None:
        """The first process inside; None when bubblewrap ends without one."""
        return await asyncio.shield(self._known)

    def join(self, group: Group | None, first: int) -> None:
        self._group = group
        if group is not None:
            group.add(first)

    def killed(self) -> Killed | None:
        return self._group.killed() if self._group else None

    def release(self) -> None:
        """Open the gate, before which nothing of the program has run."""
        os.write(self._gate, b"\n")

    def terminate(self) -> None:
        """The first process leads the group of all that did not leave it, and does not take the signal itself."""
        if self._first >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self._first, 0)  # as long as it lives, its number is no other group's
                os.killpg(self._known.result() or -1, signal.SIGTERM)

    def end(self) -> None:
        """The first process is killed and not bubblewrap, which then ends after the last one inside.
        Were it killed while it builds the namespace, what it has begun would live on without it."""
        self._asked += 1
        self._listen()
        self._kill_first()
        if self._asked > _PATIENCE:
            self._child.kill()

    async def settle(self) -> str | None:
        self._listen()
        self._kill_first()
        await self._emptied()
        self._loop.remove_reader(self._status)  # who is left inside may hold it open: it has not ended for us
        for fd in (self._gate, self._status, self._first):
            if fd >= 0:
                os.close(fd)
        if self._group is not None:
            self._group.close()
        # It tells an exit code only of a program that began; a killed one has no time to tell.
        began = "exit-code" in self._told() or self._asked or self._child.returncode < 0
        return None if began else ""

    async def _emptied(self) -> None:
        """Bubblewrap ends with the program, or is killed: what is still inside dies after it, the first one last."""
        if self._first < 0:
            return
        ended = asyncio.Event()
        self._loop.add_reader(self._first, ended.set)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _LAST_BREATH)
        finally:
            self._loop.remove_reader(self._first)

    def _listen(self) -> None:
        """Take in what bubblewrap tells of the namespace so far: JSON in many pieces, of which only the number of the
        first process is waited for. To hear each of them would keep it from its work."""
        over = False
        with suppress(BlockingIOError):
            while more := os.read(self._status, 4096):
                self._said += more
            over = True
        if self._known.done():
            return
        found = _CHILD.search(self._said)
        if over or found is not None:
            self._loop.remove_reader(self._status)
            self._learn(int(found[1]) if found else None)

    def _learn(self, first: int | None) -> None:
        """It is known by a descriptor, so that a later process with its number is never taken for it."""
        self._known.set_result(first)
        if first is not None:
            with suppress(ProcessLookupError):
                self._first = os.pidfd_open(first)
                guard().watch(self._first)

    def _kill_first(self) -> None:
        if self._first >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for line in self._said.splitlines():
            with suppress(ValueError):
                told.update(json.loads(line))
        return told


def _gate() -> tuple[int, int]:
    """A pipe at which bubblewrap waits. Its end can be written to as well, so that it never reads as
    closed: the program of a gateway that dies meanwhile must not begin."""
    inside, ours = os.pipe()
    try:
        return os.open(f"/proc/self/fd/{inside}", os.O_RDWR | os.O_CLOEXEC), ours
    finally:
        os.close(inside)
