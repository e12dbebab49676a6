"""Starts programs behind the launcher, for sandboxes without a process namespace of their own."""

from __future__ import annotations

import asyncio
import functools
import marshal
import os
import signal
import subprocess
import sys
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
from gateway.sandbox.rlimits import TaskLimit, rlimits
from gateway.sandbox.run_user import Account
from gateway.sandbox.supervisor_main import remove
from gateway.sandbox.watchdog import Watch

_LAUNCHER = Path(__file__).with_name("supervisor_main.py")
_BOOT = """
import marshal, sys
with open(int(sys.argv[1]), "rb") as file:
    code, order = marshal.load(file)
exec(code, room := {"__name__": "launcher"})
room["main"](order)
"""
# How often the launcher is asked to end everything before it is ended itself.
_PATIENCE = 50


async def launch(
    program: Program,
    *,
    stdin: bool,
    scratch: Path,
    task_limit: TaskLimit | None,
    confine: Any = None,
    code: bytes | None = None,
    user: Account | None = None,
    cgroups: Cgroups | None = None,
) -> RunningProgram:
    """Start the program behind a launcher that confines it; `scratch` is removed when it has ended. `user` is
    who it becomes, when we are root. A cgroup counts tasks instead of `task_limit`."""
    group = cgroups.make(program.limits) if cgroups else None
    if group is not None:
        task_limit = None
    lifeline_read, lifeline = os.pipe()
    status, status_write = os.pipe()
    os.set_blocking(status, False)
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
        "lifeline": lifeline_read,
        "status": status_write,
    }
    ours = (create_data_fd(marshal.dumps((_launcher(), order))), lifeline_read, status_write)
    argv = [sys.executable, "-I", "-S", "-c", _BOOT, str(ours[0])]
    hold: _Launched | None = None
    try:
        child = spawn(argv, (*ours, *program.pass_fds), stdin=stdin)
        if group is not None:
            group.add(child.pid)
        hold = _Launched(child, lifeline, status, scratch, group)
    finally:
        for fd in ours:
            os.close(fd)
        if hold is None:
            os.close(lifeline)
            os.close(status)
            if group is not None:
                group.close()
            remove(str(scratch))
    running = await RunningProgram.open(child, hold)
    running.guard(Watch(program.limits, child.pid, _meters(program, scratch, child.pid), task_limit))
    return running


def refuse_network(name: str, program: Program) -> None:
    """For a sandbox that shares the machine's network, of which nothing less than all could be given."""
    if program.network is not None:
        raise Unavailable(
            f"the {name} sandbox has no network of its own that could be limited to allowed hosts; "
            "set sandbox.network to false, or run where bubblewrap works (toolgate doctor tells)",
            code="NETWORK_UNAVAILABLE",
        )


def refuse_hidden(name: str, program: Program) -> None:
    """For a sandbox in which a program sees every file of a folder it is given."""
    for path, reason in (each for mount in program.mounts for each in mount.hidden):
        raise Unavailable(
            f"{reason} keeps {path!r} from programs, and the sandbox {name} cannot hide a file; move it out of the "
            "workspace, change the rule, or run where bubblewrap 0.10 works (toolgate doctor tells)",
            code="FILES_NOT_HIDDEN",
        )


@functools.cache
def _launcher() -> CodeType:
    return compile(_LAUNCHER.read_text(), str(_LAUNCHER), "exec")


class _Launched:
    """A program behind its launcher."""

    def __init__(
        self, child: subprocess.Popen[bytes], lifeline: int, status: int, scratch: Path, group: Group | None
    ) -> None:
        self._group = group
        self._child = child
        self._lifeline = lifeline
        self._status = status
        self._scratch = scratch
        self._said = b""
        self._asked = 0

    def terminate(self) -> None:
        self._kill_group(signal.SIGTERM)

    def end(self) -> None:
        """The launcher ends everything when its lifeline is cut. The group is killed at once besides: it
        is the whole tree where it cannot be left, and a program may have stopped the launcher."""
        self._cut()
        self._kill_group()
        self._asked += 1
        if self._asked > _PATIENCE:
            self._child.kill()

    def killed(self) -> Killed | None:
        return self._group.killed() if self._group else None

    async def settle(self) -> str | None:
        if self._child.returncode < 0:  # the launcher itself was killed, and so could not clear up
            self._kill_group()
        self._cut()
        pid, _, problem = self._listen().partition(b"\n")
        os.close(self._status)
        if self._group is not None:
            self._group.close()
        if self._scratch.exists():
            await asyncio.get_running_loop().run_in_executor(None, remove, str(self._scratch))
        if self._asked or (pid and not problem):
            return None
        return problem.decode(errors="replace").strip()

    def _cut(self) -> None:
        fd, self._lifeline = self._lifeline, -1
        if fd >= 0:
            os.close(fd)

    def _kill_group(self, number: int = signal.SIGKILL) -> None:
        pid = self._listen().partition(b"\n")[0]
        if pid:
            with suppress(OSError):
                os.killpg(int(pid), number)

    def _listen(self) -> bytes:
        """What came so far: the program's process id, and why it did not start."""
        with suppress(BlockingIOError):
            while more := os.read(self._status, 4096):
                self._said += more
        return self._said


def _environment(program: Program, scratch: Path) -> dict[str, str]:
    environment = dict(program.env)
    for name in ("HOME", "TMPDIR"):
        value = environment.get(name, "/tmp")  # noqa: S108 - the one of a sandbox that has its own
        if value.startswith("/tmp") and not any(Path(value).is_relative_to(mount.source) for mount in program.mounts):  # noqa: S108
            environment[name] = str(scratch)
    return environment


def _meters(program: Program, scratch: Path, root: int) -> list[Meter]:
    """A deleted file on a disk that holds both scratch and folders counts with the folders."""
    limits = program.limits
    deleted = DeletedFiles(root, [scratch], elsewhere=writable_folders(program))
    scratch_usage = DiskUsage([scratch], DiskSize(limits.tmp_bytes, limits.files), root, deleted)
    return [scratch_usage, *folder_usage(program, root)]
