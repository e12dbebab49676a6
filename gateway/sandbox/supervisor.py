"""Programs behind a supervisor process: in sandboxes without a process namespace, and MCP servers outside of one."""

from __future__ import annotations

import asyncio
import functools
import itertools
import marshal
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

from gateway.errors import Unavailable
from gateway.sandbox import Killed, Program
from gateway.sandbox.cgroups import Cgroups, Group
from gateway.sandbox.disk_usage import DiskSize, DiskUsage, Meter, folder_usage, writable_folders
from gateway.sandbox.process import RunningProgram, create_data_fd, spawn
from gateway.sandbox.process_tree import DeletedFiles
from gateway.sandbox.run_user import UserAccount
from gateway.sandbox.supervisor_main import remove
from gateway.sandbox.watchdog import TaskLimit, Watch, rlimits

_SUPERVISOR = Path(__file__).with_name("supervisor_main.py")
_BOOT = """
import marshal, sys
with open(int(sys.argv[1]), "rb") as file:
    code, order = marshal.load(file)
exec(code, scope := {"__name__": "supervisor"})
scope["main"](order)
"""
# Attempts to end everything through the supervisor before it is killed itself.
_KILL_ATTEMPTS = 50


async def launch(
    program: Program,
    *,
    stdin: bool,
    scratch: Path,
    task_limit: TaskLimit | None,
    confine: Any = None,
    code: bytes | None = None,
    user: UserAccount | None = None,
    cgroups: Cgroups | None = None,
) -> RunningProgram:
    """Start a program behind a supervisor that confines it. `scratch` is removed after its end. As root, the program
    becomes `user`. A cgroup counts tasks instead of `task_limit`."""
    group = cgroups.make(program.limits) if cgroups else None
    if group is not None:
        task_limit = None
    order = {
        "argv": program.argv,
        "env": _environment(program, scratch),
        "cwd": program.cwd,
        "scratch": str(scratch),
        "pass_fds": program.pass_fds,
        "rlimits": rlimits(program.limits, task_limit),
        "user": user and (user.uid, user.gid),
        "confine": confine,
        "filter": code,
    }
    running = await _start(order, stdin=stdin, scratch=scratch, group=group)
    running.guard(Watch(program.limits, running.pid, _meters(program, scratch, running.pid), task_limit))
    return running


async def start_supervised(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> RunningProgram:
    """Start a program with all rights of ours behind a supervisor: nothing it starts outlives it or the gateway."""
    order = {
        "argv": tuple(argv),
        "env": dict(env),
        "cwd": ".",  # where the supervisor is started
        "scratch": None,
        "pass_fds": (),
        "rlimits": (),
        "user": None,
        "confine": None,
        "filter": None,
    }
    # The supervisor has the program's arguments and environment too, so that `ps` shows what it belongs to.
    return await _start(order, stdin=True, shown=argv, env=env, cwd=cwd)


async def _start(
    order: dict[str, Any],
    *,
    stdin: bool,
    scratch: Path | None = None,
    group: Group | None = None,
    shown: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str = "/",
) -> RunningProgram:
    lifeline_read, lifeline = os.pipe()
    status, status_write = os.pipe()
    os.set_blocking(status, False)
    order |= {"lifeline": lifeline_read, "status": status_write}
    ours = (create_data_fd(marshal.dumps((_supervisor_code(), order))), lifeline_read, status_write)
    argv = [sys.executable, "-I", "-S", "-c", _BOOT, str(ours[0]), *shown]
    hold: _Supervised | None = None
    try:
        child = spawn(argv, (*ours, *order["pass_fds"]), stdin=stdin, env=env, cwd=cwd)
        if group is not None:
            group.add(child.pid)
        hold = _Supervised(child, lifeline, status, scratch, group)
    finally:
        for fd in ours:
            os.close(fd)
        if hold is None:
            os.close(lifeline)
            os.close(status)
            if group is not None:
                group.close()
            if scratch is not None:
                remove(str(scratch))
    return await RunningProgram.open(child, hold)


def refuse_network(name: str, program: Program) -> None:
    """Refuse a program with network access, for a sandbox that cannot limit it to allowed hosts."""
    refuse_ports(name, program)
    if program.network is not None:
        raise Unavailable(
            f"the {name} sandbox has no network of its own that could be limited to allowed hosts; "
            "set sandbox.network to false, or run where bubblewrap works (see: toolgate doctor)",
            code="NETWORK_UNAVAILABLE",
        )


def refuse_ports(name: str, program: Program) -> None:
    """Refuse a program with published ports, for a sandbox without a network namespace."""
    if program.loopback is not None:
        raise Unavailable(
            f"the sandbox {name} has no network of its own, so no port can be published; leave out 'port', or run "
            "where bubblewrap works (see: toolgate doctor)",
            code="NETWORK_UNAVAILABLE",
        )


def refuse_hidden(name: str, program: Program) -> None:
    """Refuse a program with hidden files, for a sandbox that cannot hide files of a folder."""
    for path, reason in itertools.chain.from_iterable(mount.hidden for mount in program.mounts):
        raise Unavailable(
            f"{reason} keeps {path!r} from programs, and the sandbox {name} cannot hide a file; move it out of the "
            "workspace, change the rule, or run where bubblewrap 0.10 works (see: toolgate doctor)",
            code="FILES_NOT_HIDDEN",
        )


@functools.cache
def _supervisor_code() -> CodeType:
    return compile(_SUPERVISOR.read_text(), str(_SUPERVISOR), "exec")


class _Supervised:
    """A program behind its supervisor, which runs as long as its lifeline is open."""

    def __init__(
        self,
        supervisor: subprocess.Popen[bytes],
        lifeline: int,
        status: int,
        scratch: Path | None,
        group: Group | None,
    ) -> None:
        self._group = group
        self._supervisor = supervisor
        self._lifeline = lifeline
        self._status = status
        self._scratch = scratch
        self._report = b""
        self._kills = 0

    def terminate(self) -> None:
        self._kill_group(signal.SIGTERM)

    def end(self) -> None:
        """Close the lifeline, at which the supervisor kills everything. The process group is killed as well: it is the
        whole tree where it cannot be left, and a program may have stopped the supervisor."""
        self._close_lifeline()
        self._kill_group()
        self._kills += 1
        if self._kills > _KILL_ATTEMPTS:
            self._supervisor.kill()

    def killed(self) -> Killed | None:
        return self._group.killed() if self._group else None

    async def settle(self) -> str | None:
        if self._supervisor.returncode < 0:  # killed itself, it could not kill the rest
            self._kill_group()
        self._close_lifeline()
        pid, _, problem = self._read_report().partition(b"\n")
        os.close(self._status)
        if self._group is not None:
            self._group.close()
        if self._scratch is not None and self._scratch.exists():
            await asyncio.get_running_loop().run_in_executor(None, remove, str(self._scratch))
        if self._kills or (pid and not problem):
            return None
        return problem.decode(errors="replace").strip()

    def _close_lifeline(self) -> None:
        fd, self._lifeline = self._lifeline, -1
        if fd >= 0:
            os.close(fd)

    def _kill_group(self, number: int = signal.SIGKILL) -> None:
        pid = self._read_report().partition(b"\n")[0]
        if pid:
            with suppress(OSError):
                os.killpg(int(pid), number)

    def _read_report(self) -> bytes:
        """Read what the supervisor wrote so far: the program's process id, then why it did not start."""
        with suppress(BlockingIOError):
            while more := os.read(self._status, 4096):
                self._report += more
        return self._report


def _environment(program: Program, scratch: Path) -> dict[str, str]:
    environment = dict(program.env)
    for name in ("HOME", "TMPDIR"):
        value = environment.get(name, "/tmp")  # noqa: S108 - the one of a sandbox that has its own
        if value.startswith("/tmp") and not any(Path(value).is_relative_to(mount.source) for mount in program.mounts):  # noqa: S108
            environment[name] = str(scratch)
    return environment


def _meters(program: Program, scratch: Path, root: int) -> list[Meter]:
    """Return the meters of disk usage. A deleted file on a disk of both scratch and folders counts for the folders."""
    limits = program.limits
    deleted = DeletedFiles(root, [scratch], elsewhere=writable_folders(program))
    scratch_usage = DiskUsage([scratch], DiskSize(limits.tmp_bytes, limits.files), root, deleted)
    return [scratch_usage, *folder_usage(program, root)]
