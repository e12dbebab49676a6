"""The preferred sandbox on Linux: bubblewrap's namespaces, a seccomp filter, and limits."""

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
from gateway.sandbox import RESTORED_AFTERWARDS, SYSTEM_FILES, SYSTEM_FOLDERS, Killed, Mount, Process, Program, seccomp
from gateway.sandbox.cgroups import Group, find_cgroups
from gateway.sandbox.disk_usage import (
    NOT_INSPECTABLE,
    DiskSize,
    Meter,
    TmpfsUsage,
    cannot_inspect_programs,
    folder_usage,
)
from gateway.sandbox.idmap import (
    choose_user,
    is_prepared,
    mount_point,
    run_as,
    shared_paths,
    start_with_idmapped_mounts,
)
from gateway.sandbox.network import start_with_sockets
from gateway.sandbox.process import RunningProgram, create_data_fd, guard, spawn, unavailable
from gateway.sandbox.run_user import UserAccount, account
from gateway.sandbox.supervisor import refuse_hidden
from gateway.sandbox.watchdog import TaskLimit, Watch, count_tasks, counts_by_namespace, rlimits

_OPEN_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class ProtectedMount:
    """An open file or folder to mount over itself; the caller closes `fd`."""

    fd: int
    target: str
    bind: str

    @property
    def path(self) -> Path:
        """A path to the open file that stays valid if the original name changes."""
        return Path("/proc/self/fd", str(self.fd))


@dataclass(frozen=True)
class Cover:
    """A file or folder to hide behind an empty mount that cannot be opened."""

    target: str
    is_folder: bool


def paths_to_mount(program: Program) -> Iterator[ProtectedMount | Cover]:
    """Yield existing protected and hidden paths, each after the folders above it. Those stay writable but cannot be
    moved, because another folder could take the name of a moved one. A file in the place of such a folder is protected
    too: it may name the folder's location."""
    for mount in program.mounts:
        hidden, protected = {path for path, _ in mount.hidden}, frozenset(mount.protected)
        for path in _with_parents((*mount.protected, *hidden)) if mount.writable else sorted(hidden):
            *above, _ = _with_parents((path,))
            if not hidden.isdisjoint(above):
                continue
            if (fd := _open_path(mount, path)) is None:
                continue
            target, is_file = f"{mount.target}/{path}", stat.S_ISREG(os.fstat(fd).st_mode)
            if path in hidden:
                os.close(fd)
                yield Cover(target, not is_file)
            else:
                read_only = is_file or not protected.isdisjoint((*above, path))
                yield ProtectedMount(fd, target, "--ro-bind" if read_only else "--bind")


def _with_parents(paths: Collection[str]) -> list[str]:
    """Return the paths and the folders above them, parents first."""
    parts = [path.split("/") for path in paths]
    return sorted({"/".join(each[:depth]) for each in parts for depth in range(1, len(each) + 1)})


def _open_path(mount: Mount, path: str) -> int | None:
    """Open a file or folder; None if it is missing or something else."""
    try:
        fd = os.open(mount.source, _OPEN_FLAGS & ~os.O_NOFOLLOW)
    except OSError:
        return None  # bubblewrap reports it
    try:
        for name in path.split("/"):
            inner = os.open(name, _OPEN_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = inner
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


_SEARCH_PATH = os.pathsep.join(("/usr/bin", "/usr/local/bin", "/bin", "/run/current-system/sw/bin"))
_RUN_BYTES = 1024 * 1024
_SHM_BYTES = 16 * 1024 * 1024
_USER = "1000"
_HOSTS = b"127.0.0.1 localhost\n::1 localhost\n"
_CHILD = re.compile(rb'"child-pid": *(\d+)\D')
# Attempts to kill the first process inside before bubblewrap itself is killed.
_KILL_ATTEMPTS = 50

# Seconds for killed processes to end; one in uninterruptible disk I/O takes a while.
_END_TIMEOUT = 5.0


class Bubblewrap:
    """A program gets its own file system, process, network and user namespaces that contain only its mounts. If the
    gateway is root, the program runs as another user, with idmapped mounts."""

    name = "bwrap"

    def __init__(self, executable: str | None = None) -> None:
        if not seccomp.is_supported():
            raise unavailable("there is no seccomp filter for this architecture")
        self._executable = executable or find()
        self._user = account()
        self._cgroups = find_cgroups()
        self._options = _list_options(self._executable)
        guard()  # started early, because it takes a while
        self.protects_paths = self._user is not None or self._binds_descriptors()
        self.weaknesses = tuple(self._weaknesses())

    def inside(self, mount: Mount) -> str:
        return mount.target

    async def start(self, program: Program, *, stdin: bool = False) -> Process:
        if program.network is not None or program.loopback is not None:
            return await start_with_sockets(program, functools.partial(self._start, stdin=stdin))
        return await self._start(program, stdin=stdin)

    async def _start(self, program: Program, *, stdin: bool) -> Process:
        _require_no_nul(program)
        user = await self._choose_user(program)
        if not self.protects_paths:
            refuse_hidden("bwrap (older than 0.10)", program)
        gate_inside, gate = _gate()
        status, status_write = os.pipe()
        ours = [
            create_data_fd(seccomp.build(shared=False)),
            gate_inside,
            status_write,
            create_data_fd(_HOSTS),
        ]
        mounts = list(paths_to_mount(program)) if self.protects_paths else []
        arguments = self._arguments(program, user, mounts, *ours)
        # Arguments are passed by descriptor: every process, inside too, can read a command line.
        ours.append(create_data_fd(b"".join(os.fsencode(argument) + b"\0" for argument in arguments)))
        argv = [self._executable, "--args", str(ours[-1]), "--", *program.argv]
        bound = [mount for mount in mounts if isinstance(mount, ProtectedMount)]
        mine = [mount.fd for mount in bound]
        child: subprocess.Popen[bytes] | None = None
        try:
            # Idmapped mounts are found by path; bubblewrap would leave passed descriptors open.
            fds = (*ours, *(() if user else mine), *program.pass_fds)
            run = functools.partial(spawn, argv, fds, stdin=stdin, process_group=guard().group)
            child = (
                start_with_idmapped_mounts([*shared_paths(program), *(mount.path for mount in bound)], user, run)
                if user
                else run()
            )
        finally:
            for fd in (*ours, *mine, *(() if child else (gate, status))):
                os.close(fd)
        hold = _Namespace(child, gate, status)
        running = await RunningProgram.open(child, hold)
        async with running.ended_on_failure():
            if (first := await hold.first()) is None:
                await running.wait()  # raises with the reason
                raise unavailable("bubblewrap ended before the program started")
            task_limit = await self._task_limit(program, user)
            _limit(program, first, user, task_limit)
            hold.join(self._cgroups.make(program.limits) if self._cgroups else None, first)
        hold.release()
        running.guard(Watch(program.limits, first, self._meters(program, first), task_limit))
        return running

    async def _task_limit(self, program: Program, user: UserAccount | None) -> TaskLimit:
        """Return the limit as the kernel counts it: with the namespace's first process, or, before Linux 5.14, with all
        tasks of the user."""
        if counts_by_namespace():
            return TaskLimit(program.limits.processes, others=1)
        uid = user.uid if user else os.getuid()
        others = await asyncio.get_running_loop().run_in_executor(None, count_tasks, uid)
        return TaskLimit(program.limits.processes, others, uid)

    async def _choose_user(self, program: Program) -> UserAccount | None:
        """Return the user to run the program as, if the gateway is root."""
        if self._user is None:
            return None
        try:
            if is_prepared(program, self._user):
                return choose_user(program, self._user)
            return await asyncio.get_running_loop().run_in_executor(None, choose_user, program, self._user)
        except OSError as error:
            raise unavailable(f"the program did not start: {error}") from error

    def _binds_descriptors(self) -> bool:
        return "--ro-bind-fd" in self._options

    def _arguments(
        self,
        program: Program,
        user: UserAccount | None,
        mounts: list[ProtectedMount | Cover],
        code: int,
        gate: int,
        status: int,
        hosts: int,
    ) -> Iterator[str]:
        yield from ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        yield from ("--unshare-net", "--die-with-parent", "--new-session", "--hostname", "sandbox")
        yield from ("--cap-drop", "ALL", "--uid", _USER, "--gid", _USER)
        if "--disable-userns" in self._options:
            yield "--disable-userns"
        yield from _system()
        # Some files in /proc are protected only by their mode from the program's user outside.
        yield from ("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev")
        limits = program.limits
        for folder, size in (("/dev/shm", _SHM_BYTES), ("/tmp", limits.tmp_bytes), ("/run", _RUN_BYTES)):  # noqa: S108
            yield from ("--size", str(size)) if "--size" in self._options else ()
            yield from ("--tmpfs", folder)
        for index, (source, target, bind) in enumerate(_binds(program)):
            yield from (bind, mount_point(index) if user else source, target)
        index = len(shared_paths(program))
        for mount in mounts:
            if isinstance(mount, Cover):
                yield from self._cover(mount)
                continue
            yield from (mount.bind, mount_point(index)) if user else (f"{mount.bind}-fd", str(mount.fd))
            yield mount.target
            index += 1
        yield from ("--file", str(hosts), "/etc/hosts")
        for folder in ("/dev", "/run", "/"):
            yield from ("--remount-ro", folder)
        for name, value in program.env.items():
            yield from ("--setenv", name, value)
        yield from ("--chdir", program.cwd)
        yield from ("--seccomp", str(code), "--block-fd", str(gate), "--json-status-fd", str(status))

    def _cover(self, cover: Cover) -> Iterator[str]:
        """Yield the options that hide a path. /dev/null cannot be opened there, because bubblewrap mounts with
        nodev."""
        if not cover.is_folder:
            yield from ("--ro-bind", "/dev/null", cover.target)
            return
        yield from ("--perms", "0000") if "--perms" in self._options else ()
        yield from ("--tmpfs", cover.target, "--remount-ro", cover.target)

    def _meters(self, program: Program, first: int) -> list[Meter]:
        limits = program.limits
        tmp = Path("/proc", str(first), "root", "tmp")
        return [
            TmpfsUsage(tmp, DiskSize(limits.tmp_bytes, limits.files), host=Path("/tmp")),  # noqa: S108
            *folder_usage(program, first),
        ]

    def _weaknesses(self) -> Iterator[str]:
        if "--disable-userns" not in self._options:
            yield "this bubblewrap is older than 0.8: nested namespaces are refused only by the seccomp filter"
        if "--size" not in self._options:
            yield "this bubblewrap is older than 0.6: only the watchdog limits /tmp"
        if not self.protects_paths:
            yield f"this bubblewrap is older than 0.10: {RESTORED_AFTERWARDS}"
        if cannot_inspect_programs():
            yield NOT_INSPECTABLE


def _limit(program: Program, first: int, user: UserAccount | None, task_limit: TaskLimit) -> None:
    """Set the limits of the first process inside, which waits at the gate; all others inherit them. Outside the
    namespace the process limit would count all processes of the user."""
    try:
        _set_limits(program, first, task_limit)
    except PermissionError:
        if user is None:
            raise
        run_as(user, functools.partial(_set_limits, program, first, task_limit))


def _set_limits(program: Program, first: int, task_limit: TaskLimit) -> None:
    with suppress(ProcessLookupError):
        for number, value in rlimits(program.limits, task_limit):
            hard = resource.prlimit(first, number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.prlimit(first, number, (value, value))


def _binds(program: Program) -> Iterator[tuple[str, str, str]]:
    """Yield source, target and option of each mount, in the order of `shared_paths`."""
    for path in program.readable:
        yield str(path), str(path), "--ro-bind"
    for mount in program.mounts:
        yield str(mount.source), mount.target, "--bind" if mount.writable else "--ro-bind"


def find() -> str:
    found = shutil.which("bwrap", path=_SEARCH_PATH) or shutil.which("bwrap")
    if found is None:
        raise unavailable("bubblewrap is not installed")
    return found


@functools.cache
def _list_options(executable: str) -> frozenset[str]:
    try:
        help_text = subprocess.run([executable, "--help"], capture_output=True, env={}, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise unavailable(f"{executable} does not run: {error}") from error
    return frozenset(word for word in help_text.decode(errors="replace").split() if word.startswith("--"))


def _require_no_nul(program: Program) -> None:
    """Refuse NUL characters: they separate bubblewrap's arguments, so a value with one could add options."""
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
    """A program in a process namespace: when its first process dies, all others die."""

    def __init__(self, child: subprocess.Popen[bytes], gate: int, status: int) -> None:
        self._child = child
        self._gate = gate
        self._status = status
        self._output = b""
        self._first = -1
        self._end_calls = 0
        self._group: Group | None = None
        self._loop = asyncio.get_running_loop()
        self._first_pid: asyncio.Future[int | None] = self._loop.create_future()
        os.set_blocking(status, False)
        self._loop.add_reader(status, self._listen)

    async def first(self) -> int | None:
        """Return the first process inside; None if bubblewrap ends without one."""
        return await asyncio.shield(self._first_pid)

    def join(self, group: Group | None, first: int) -> None:
        self._group = group
        if group is not None:
            group.add(first)

    def killed(self) -> Killed | None:
        return self._group.killed() if self._group else None

    def release(self) -> None:
        """Open the gate: the program starts now."""
        os.write(self._gate, b"\n")

    def terminate(self) -> None:
        """Send SIGTERM to the process group of the first process, which ignores it itself."""
        if self._first >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self._first, 0)  # while it lives, its pid is not reused
                os.killpg(self._first_pid.result() or -1, signal.SIGTERM)

    def end(self) -> None:
        """Kill the first process, not bubblewrap, which then ends after the last one inside. If bubblewrap were killed
        while it builds the namespace, what it has started would survive."""
        self._end_calls += 1
        self._listen()
        self._kill_first()
        if self._end_calls > _KILL_ATTEMPTS:
            self._child.kill()

    async def settle(self) -> str | None:
        self._listen()
        self._kill_first()
        await self._wait_until_empty()
        self._loop.remove_reader(self._status)  # processes inside may still hold it open
        for fd in (self._gate, self._status, self._first):
            if fd >= 0:
                os.close(fd)
        if self._group is not None:
            self._group.close()
        # It reports an exit code only of a program that started; a killed bubblewrap reports nothing.
        began = "exit-code" in self._status_values() or self._end_calls or self._child.returncode < 0
        return None if began else ""

    async def _wait_until_empty(self) -> None:
        """Wait for the first process: it ends after all others inside, also if bubblewrap was killed."""
        if self._first < 0:
            return
        ended = asyncio.Event()
        self._loop.add_reader(self._first, ended.set)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _END_TIMEOUT)
        finally:
            self._loop.remove_reader(self._first)

    def _listen(self) -> None:
        """Read bubblewrap's status so far: JSON in pieces, of which only the pid of the first process is awaited.
        Waking up for each piece would slow down the start."""
        over = False
        with suppress(BlockingIOError):
            while more := os.read(self._status, 4096):
                self._output += more
            over = True
        if self._first_pid.done():
            return
        found = _CHILD.search(self._output)
        if over or found is not None:
            self._loop.remove_reader(self._status)
            self._learn(int(found[1]) if found else None)

    def _learn(self, first: int | None) -> None:
        """Open a pidfd, so that a later process with the same pid is never mistaken for it."""
        self._first_pid.set_result(first)
        if first is not None:
            with suppress(ProcessLookupError):
                self._first = os.pidfd_open(first)
                guard().watch(self._first)

    def _kill_first(self) -> None:
        if self._first >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)

    def _status_values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for line in self._output.splitlines():
            with suppress(ValueError):
                values.update(json.loads(line))
        return values


def _gate() -> tuple[int, int]:
    """Create the pipe at which bubblewrap waits. Its reading end is open for writing too, so that it never reads as
    closed: if the gateway dies meanwhile, the program must not start."""
    inside, ours = os.pipe()
    try:
        return os.open(f"/proc/self/fd/{inside}", os.O_RDWR | os.O_CLOEXEC), ours
    finally:
        os.close(inside)
