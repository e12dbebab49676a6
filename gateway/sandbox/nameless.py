"""Files without a name: gone from their folder, and on the disk for as long as a program holds them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .account import account
from .mappings import nameless
from .tree import keeps_us_out, read, tasks, usage

_IN_FLIGHT = re.compile(rb"^scm_fds:\s+[1-9]", re.MULTILINE)
_CAPABILITIES = re.compile(rb"^CapEff:\s+(\w+)", re.MULTILINE)
_SYS_PTRACE = 19
_MOST_DESCRIPTORS = 20_000

BLIND = (
    "the gateway is root without CAP_SYS_PTRACE, as in many containers: what programs write to files that "
    "they have deleted and keep open is not limited; run it as a normal user, or grant the capability"
)


class Nameless:
    """What the tree beneath `root` holds on the file systems of these folders, but not on those that are
    looked after elsewhere. A descriptor can be looked through, even of a file that has no name; one
    that is on its way from socket to socket cannot, nor what a process keeps to itself."""

    def __init__(self, root: int, folders: Sequence[Path], elsewhere: Sequence[Path] = ()) -> None:
        self._root = root
        self._devices = _devices(folders) - _devices(elsewhere)

    def look(self) -> tuple[list[os.stat_result], set[int]]:
        """Each file once, and the processes that may hold others; one may come and go meanwhile."""
        if not self._devices:
            return [], set()
        look = _Look(self._devices)
        for pid in usage(self._root).processes:
            look.at(pid)
        return list(look.found.values()), look.hidden


def is_blind() -> bool:
    """Whether we run programs as someone else, and may not look into the processes of others."""
    held = _CAPABILITIES.search(read("/proc/self/status"))
    return account() is not None and held is not None and not int(held[1], 16) >> _SYS_PTRACE & 1


class _Look:
    def __init__(self, devices: set[int]) -> None:
        self.found: dict[tuple[int, int], os.stat_result] = {}
        self.hidden: set[int] = set()
        self._devices = devices
        self._left = _MOST_DESCRIPTORS

    def at(self, pid: int) -> None:
        for thread in tasks(pid):  # each may have descriptors of its own, and the first one may have ended
            task = f"/proc/{pid}/task/{thread}"
            try:
                hides = self._descriptors(task)
            except PermissionError:
                hides = keeps_us_out(task)
            except OSError:
                continue  # gone meanwhile
            if hides:
                self.hidden.add(pid)
        try:
            self._mappings(pid)
        except PermissionError:
            self.hidden.add(pid)

    def _descriptors(self, task: str) -> bool:
        """Count them; whether some cannot be looked through."""
        hides = False
        with os.scandir(f"{task}/fd") as entries:
            for entry in entries:
                self._left -= 1
                if self._left < 0:
                    return True
                with suppress(FileNotFoundError):
                    found = entry.stat()
                    if stat.S_ISSOCK(found.st_mode):
                        hides = hides or bool(_IN_FLIGHT.search(read(f"{task}/fdinfo/{entry.name}")))
                    else:
                        self._count(found)
        return hides

    def _mappings(self, pid: int) -> None:
        """Who has mapped a file needs no descriptor of it."""
        for mapping in nameless(pid):
            if mapping.device in self._devices and (mapping.device, mapping.inode) not in self.found:
                found = mapping.look()
                if found is not None:
                    self._count(found)

    def _count(self, found: os.stat_result) -> None:
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_dev in self._devices:
            self.found[found.st_dev, found.st_ino] = found


def _devices(folders: Sequence[Path]) -> set[int]:
    found = set()
    for folder in folders:
        with suppress(OSError):
            found.add(folder.stat().st_dev)
    return found
