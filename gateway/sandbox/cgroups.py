"""Totals of a program's tree, held exactly by the kernel: where the gateway was given a cgroup (v2) of its own.

That is so in a systemd service with `Delegate=yes`, and in containers that may write to theirs. Everywhere
else the watchdog alone holds the totals; it looks on here too.
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
# Tasks in the group that are not the program's: the first process of bubblewrap's namespace, or the launcher.
_OTHER_TASKS = 1

_numbers = itertools.count(1)


class Group:
    """The cgroup of one program."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, pid: int) -> None:
        """This process and all it will start belong to it."""
        try:
            (self._folder / "cgroup.procs").write_text(str(pid))
        except OSError as error:  # the watchdog looks at it all the same
            _log.warning("a program is not in its cgroup: %s", error)

    def killed(self) -> Killed | None:
        """The limit for which the kernel ended it."""
        try:
            events = (self._folder / "memory.events").read_text()
        except OSError:
            return None
        counts = dict(line.split() for line in events.splitlines())
        return "memory" if int(counts.get("oom_kill", 0)) else None

    def close(self) -> None:
        """End whatever should be left, and the group with it."""
        with suppress(OSError):
            (self._folder / "cgroup.kill").write_text("1")
        with suppress(OSError):
            self._folder.rmdir()


class Cgroups:
    """A folder of the kernel's in which we may make groups; `make` is None where it changed its mind."""

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
            _log.warning("no cgroup for a program: %s", error)
            with suppress(OSError):
                folder.rmdir()
            return None
        with suppress(OSError):  # a kernel may have been built without
            (folder / "memory.swap.max").write_text("0")
        return Group(folder)


@functools.cache
def delegated() -> Cgroups | None:
    """Ours, if there is one; looked for once, for we may have to move into a corner of it."""
    base = _own(Path("/proc/self"))
    return Cgroups(base) if base is not None and claim(base) else None


def claim(base: Path) -> bool:
    """Make a cgroup ready to have others below: then no process may be in it itself, and so we step aside."""
    try:
        if not set((base / "cgroup.controllers").read_text().split()) >= _NEEDED or not os.access(base, os.W_OK):
            return False
        control = base / "cgroup.subtree_control"
        if set(control.read_text().split()) >= _NEEDED:
            return os.access(base / "cgroup.procs", os.W_OK)
        if (base / "cgroup.procs").read_text().split() != [str(os.getpid())]:
            return False  # others are there, whom we do not move
        aside = base / _OURS
        aside.mkdir(exist_ok=True)
        (aside / "cgroup.procs").write_text(str(os.getpid()))
        control.write_text("+memory +pids")
    except OSError as error:
        _log.info("no cgroups for programs: %s", error)
        return False
    return True


def _own(process: Path) -> Path | None:
    """The folder of the cgroup a process is in, in the one tree of version 2."""
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
