"""What a process has mapped that has no name: who may look into it sees that it is there, and root what it is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .tree import keeps_us_out, read, tasks

_NAMELESS = re.compile(
    rb"^(\w+)-(\w+) \S{3}(\S) \S+ (\w+):(\w+) (\d+) +([^\n]* \(deleted\)|\[anon_shmem:[^\n]*)$", re.MULTILINE
)
_MOST = 8 * 1024 * 1024
"""Bytes of a list of mappings, which may be 65,530 lines long."""


class Mapping(NamedTuple):
    pid: int
    place: str
    device: int
    inode: int
    shared_memory: bool

    def look(self) -> os.stat_result | None:
        """What is mapped, or None when it is not any more; PermissionError for everyone but root."""
        try:
            return Path("/proc", str(self.pid), "map_files", self.place).stat()
        except FileNotFoundError:
            if not read(f"/proc/{self.pid}/maps", 1) and tasks(self.pid):
                raise PermissionError from None  # its first thread has ended, through which alone one can look
            return None
        except ProcessLookupError:
            return None


def nameless(pid: int) -> Iterator[Mapping]:
    """PermissionError when the process keeps us from seeing them, or has too many."""
    for thread in tasks(pid):  # the first may have ended
        task = f"/proc/{pid}/task/{thread}"
        told = read(f"{task}/maps", _MOST)
        if len(told) == _MOST or (not told and keeps_us_out(task)):
            raise PermissionError
        for start, end, kind, major, minor, inode, name in _NAMELESS.findall(told):
            memory = kind == b"s" and name.startswith((b"/dev/zero ", b"[anon_shmem:"))
            device = os.makedev(int(major, 16), int(minor, 16))
            yield Mapping(pid, f"{int(start, 16):x}-{int(end, 16):x}", device, int(inode), memory)
        if told:
            return
