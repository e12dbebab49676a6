"""What a program may not change or not see in a folder it is given, held by descriptors while a sandbox is made of it.

The folder's content may be anybody's doing and change meanwhile, so that no name in it is trusted twice: nothing is
reached through a link, and what is mounted is what was looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.sandbox import Mount, Program

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
