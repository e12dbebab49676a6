"""The sandbox for Linux without user namespaces: Landlock rules for files, a seccomp filter for the rest."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.sandbox import RESTORED_AFTERWARDS, SYSTEM_FILES, SYSTEM_FOLDERS, Mount, Process, Program, seccomp
from gateway.sandbox.cgroups import find_cgroups
from gateway.sandbox.disk_usage import NOT_INSPECTABLE, cannot_inspect_programs
from gateway.sandbox.process import unavailable
from gateway.sandbox.run_user import UserAccount, account, owner_or
from gateway.sandbox.supervisor import launch, refuse_hidden, refuse_network
from gateway.sandbox.watchdog import TaskLimit, count_tasks

_CREATE, _VERSION = 444, 1
# Number of file rights by Landlock version; later ones have 16.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}

_READ = 0b1101  # execute, read file, read folder
_USE = 0b0110  # write file, read file
_NO_DEVICES = ~(1 << 6 | 1 << 11 | 1 << 15)  # creating devices, and device ioctls
_NO_TCP, _NO_ABSTRACT_SOCKETS_NOR_SIGNALS = 3, 3
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PROC_FILES = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version")


class Landlock:
    """A program shares the host's process and file namespaces, and can open only its mounts. The seccomp filter refuses
    what Landlock does not cover."""

    name = "landlock"
    protects_paths = False

    def __init__(self) -> None:
        self._version = version()
        if not self._version:
            raise unavailable("the kernel has no Landlock (needs Linux 5.13 or newer, with lsm=landlock)")
        self._user = account()
        self._cgroups = find_cgroups()
        self.weaknesses = tuple(self._weaknesses())

    def inside(self, mount: Mount) -> str:
        return str(mount.source)

    async def start(self, program: Program, *, stdin: bool = False) -> Process:
        refuse_network(self.name, program)
        refuse_hidden(self.name, program)
        user = self._user and _owner_or(self._user, program)
        task_limit = await _task_limit(program, user)
        scratch = Path(tempfile.mkdtemp(prefix="toolgate-"))
        if user is not None:
            os.chown(scratch, user.uid, user.gid)
        return await launch(
            program,
            stdin=stdin,
            scratch=scratch,
            task_limit=task_limit,
            confine=self._confinement(program, scratch),
            code=seccomp.build(shared=True),
            user=user,
            cgroups=self._cgroups,
        )

    def _confinement(self, program: Program, scratch: Path) -> dict[str, Any]:
        rights = (1 << _RIGHTS.get(self._version, 16)) - 1
        attributes = struct.pack("<QQQ", rights, _NO_TCP, _NO_ABSTRACT_SOCKETS_NOR_SIGNALS)
        known = 8 if self._version < 4 else 16 if self._version < 6 else 24
        return {
            "attributes": attributes[:known],
            "rights": rights,
            "rules": [*_system_rules(), *_rules_for(program, scratch, rights & _NO_DEVICES)],
        }

    def _weaknesses(self) -> Iterator[str]:
        yield "programs can see that a file exists, its size and times, but not open it"
        yield RESTORED_AFTERWARDS
        yield "files cannot be hidden: where an approval rule hides one from programs, programs are refused"
        yield "chmod, chown and setting times by name do nothing inside"
        if (user := account()) is not None:
            yield f"the gateway is root: files that programs create in root's folders belong to user {user.uid}"
        if self._cgroups is None:
            yield "other processes of the program's user count towards a program's process limit"
        if cannot_inspect_programs():
            yield NOT_INSPECTABLE
        if self._version < 6:
            yield "this kernel lets programs signal other processes of the account (needs Linux 6.12)"
        if self._version < 2:
            yield "files cannot be moved from folder to folder inside (needs Linux 5.19)"


def _owner_or(user: UserAccount, program: Program) -> UserAccount:
    try:
        return owner_or(user, (mount.source for mount in program.mounts if mount.writable))
    except OSError as error:
        raise unavailable(f"the program did not start: {error}") from error


async def _task_limit(program: Program, user: UserAccount | None) -> TaskLimit:
    """Return the limit as the kernel counts it: with all tasks of the user, and the supervisor unless it is root's."""
    uid = user.uid if user else os.getuid()
    others = await asyncio.get_running_loop().run_in_executor(None, count_tasks, uid)
    return TaskLimit(program.limits.processes, others + (user is None), uid)


def version() -> int:
    """Return the kernel's Landlock version; 0 if there is none."""
    if sys.platform != "linux" or not seccomp.is_supported():
        return 0
    found: int = ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION))
    return max(found, 0)


def _system_rules() -> Iterator[tuple[str, int, bool]]:
    for path in (*SYSTEM_FOLDERS, *SYSTEM_FILES, *_PROC_FILES):
        yield path, _READ, False
    for path in _DEVICES:
        yield path, _USE, False


def _rules_for(program: Program, scratch: Path, everything: int) -> Iterator[tuple[str, int, bool]]:
    yield str(scratch), everything, True
    for path in program.readable:
        yield str(path), _READ, True
    for mount in program.mounts:
        yield str(mount.source), everything if mount.writable else _READ, True
