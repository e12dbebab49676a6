"""Exact limits of a process tree by cgroups (v2), if the gateway has a cgroup of its own.

That is so in a systemd service with `Delegate=yes`, and in containers that may write to theirs. The watchdog checks the
limits everywhere.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
from contextlib import suppress
from pathlib import Path

from gateway.sandbox import Killed, Limits

_log = logging.getLogger(__name__)
_NEEDED = {"memory", "pids"}
_OURS = "toolgate-gateway"
# Tasks in the group that are not the program's: the first process of bubblewrap's namespace, or the supervisor.
_OTHER_TASKS = 1

_numbers = itertools.count(1)


class Group:
    """The cgroup of one program."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, pid: int) -> None:
        """Add a process and everything it will start."""
        try:
            (self._folder / "cgroup.procs").write_text(str(pid))
        except OSError as error:  # the watchdog still checks the limits
            _log.warning("a program could not be added to its cgroup: %s", error)

    def killed(self) -> Killed | None:
        """Return the limit for which the kernel killed it."""
        try:
            events = (self._folder / "memory.events").read_text()
        except OSError:
            return None
        counts = dict(line.split() for line in events.splitlines())
        return "memory" if int(counts.get("oom_kill", 0)) else None

    def close(self) -> None:
        """Kill remaining processes and remove the group."""
        with suppress(OSError):
            (self._folder / "cgroup.kill").write_text("1")
        with suppress(OSError):
            self._folder.rmdir()


class Cgroups:
    """A cgroup in which groups can be created; `make` returns None if the kernel refuses."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def make(self, limits: Limits) -> Group | None:
        folder = self._base / f"toolgate-{os.getpid()}-{next(_numbers)}"
        try:
            folder.mkdir()
            (folder / "memory.max").write_text(str(limits.memory))
            (folder / "pids.max").write_text(str(limits.processes + _OTHER_TASKS))
            (folder / "memory.oom.group").write_text("1")
        except OSError as error:
            _log.warning("could not create a cgroup for a program: %s", error)
            with suppress(OSError):
                folder.rmdir()
            return None
        with suppress(OSError):  # some kernels are built without swap accounting
            (folder / "memory.swap.max").write_text("0")
        return Group(folder)


@functools.cache
def find_cgroups() -> Cgroups | None:
    """Return the gateway's own cgroup, if it has one. Cached, because claiming it may move the gateway into a child
    group."""
    base = _own(Path("/proc/self"))
    return Cgroups(base) if base is not None and claim(base) else None


def claim(base: Path) -> bool:
    """Prepare a cgroup for children: it must not contain processes itself, so the gateway moves into a child group."""
    try:
        if not set((base / "cgroup.controllers").read_text().split()) >= _NEEDED or not os.access(base, os.W_OK):
            return False
        control = base / "cgroup.subtree_control"
        if set(control.read_text().split()) >= _NEEDED:
            return os.access(base / "cgroup.procs", os.W_OK)
        if (base / "cgroup.procs").read_text().split() != [str(os.getpid())]:
            return False  # other processes are in it, which are not ours to move
        child = base / _OURS
        child.mkdir(exist_ok=True)
        (child / "cgroup.procs").write_text(str(os.getpid()))
        control.write_text("+memory +pids")
    except OSError as error:
        _log.info("cgroups are not available for programs: %s", error)
        return False
    return True


def _own(process: Path) -> Path | None:
    """Return the directory of a process's cgroup (v2)."""
    try:
        mounts = (process / "mountinfo").read_text().splitlines()
        groups = (process / "cgroup").read_text().splitlines()
    except OSError:
        return None
    fields = [line.split() for line in mounts if " - cgroup2 " in line]
    inside = [line.removeprefix("0::").lstrip("/") for line in groups if line.startswith("0::")]
    if not fields or not inside or fields[0][3] != "/":
        return None
    found = Path(fields[0][4], inside[0])
    return found.parent if found.name == _OURS else found
