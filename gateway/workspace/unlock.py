"""Folders that lock out their owner, as any program can make them: ours are opened again, a person's are named."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from contextlib import suppress
from pathlib import Path

from gateway.errors import Forbidden

_OWNERS = 0o700
_NEEDED = 0o500
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)


def ensure(folder: Path, *, ours: bool) -> None:
    """A folder of ours is restored; a person's is refused when it cannot be used, and never changed."""
    if ours:
        restore(folder)
    else:
        _require(folder)


def restore(folder: Path) -> None:
    """Give the owner of a folder all access to it, if that is us; nothing else is touched, and no link followed."""
    with suppress(OSError):
        if os.lstat(folder).st_mode & _OWNERS != _OWNERS:
            _open_up(folder, None)


def restore_below(above: int, name: str) -> None:
    """The same for a folder in one that is open."""
    with suppress(OSError):
        _open_up(name, above)


def restore_open(directory: int) -> None:
    """The same for one that is open itself; where it can be listed and entered, it stays as it is."""
    found = os.fstat(directory)
    if found.st_mode & _NEEDED != _NEEDED and found.st_uid == os.geteuid():
        with suppress(OSError):
            os.fchmod(directory, stat.S_IMODE(found.st_mode) | _OWNERS)


def _require(folder: Path) -> None:
    """Refuse a folder that cannot be listed and entered, or not by its owner, as whom a program of root's runs."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return  # is told by who opens it
    if not os.access(folder, os.R_OK | os.X_OK) or (os.geteuid() == 0 and mode & _NEEDED != _NEEDED):
        raise locked(folder)


def locked(folder: Path) -> Forbidden:
    fix = f"chmod u+rx {shlex.quote(str(folder))}"
    return Forbidden(f"the folder {str(folder)!r} is closed to the gateway; open it with: {fix}")


def _open_up(name: Path | str, above: int | None) -> None:
    if sys.platform != "linux":
        _change(os.stat(name, dir_fd=above, follow_symlinks=False), name, above, follow_symlinks=False)
        return
    fd = os.open(name, _FOLDER, dir_fd=above)
    try:
        # Held by a descriptor that is good for nothing else, it has a name by which nobody can replace it.
        _change(os.fstat(fd), f"/proc/self/fd/{fd}", None, follow_symlinks=True)
    finally:
        os.close(fd)


def _change(found: os.stat_result, name: Path | str, above: int | None, *, follow_symlinks: bool) -> None:
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
        mode = stat.S_IMODE(found.st_mode) | _OWNERS
        os.chmod(name, mode, dir_fd=above, follow_symlinks=follow_symlinks)
