"""Memory of shared mappings: it stays when it is in no process's page tables any more, where nobody sees it."""

from __future__ import annotations

import re

from .mappings import nameless
from .tree import read

_OF_THE_MACHINE = re.compile(rb"^Shmem:\s+(\d+)", re.MULTILINE)
_KIBIBYTE = 1024


class Shared:
    """What a program may have of it.

    The machine says at once how much there is, of whomever; the program is looked at only when that has grown by
    more than it may use. Who is not root sees that there are mappings and not what is in them: then all that the
    machine has more counts as the program's.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.renew()

    def renew(self) -> None:
        """What is there now is not the program's doing."""
        self._before = _of_the_machine()

    def exceeds(self, pids: tuple[int, ...]) -> bool:
        if _of_the_machine() - self._before <= self._limit:
            return False
        try:
            return _held(pids) > self._limit
        except PermissionError:
            return True


def _held(pids: tuple[int, ...]) -> int:
    """What all of them have of it; PermissionError when there may be some that we cannot look at."""
    held: dict[int, int] = {}
    for pid in pids:
        for mapping in nameless(pid):
            if mapping.shared_memory and (found := mapping.look()):
                held[mapping.inode] = found.st_blocks * 512
    return sum(held.values())


def _of_the_machine() -> int:
    found = _OF_THE_MACHINE.search(read("/proc/meminfo"))
    return int(found[1]) * _KIBIBYTE if found else 0
