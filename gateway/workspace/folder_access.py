"""Directories whose mode locks out their owner: ours get access back, an attached folder is refused, never changed."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from contextlib import suppress
from pathlib import Path

from gateway.errors import Forbidden

_OWNER_ALL = 0o700
_OWNER_LIST = 0o500
_OPEN_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)


def ensure_accessible(folder: Path, *, ours: bool) -> None:
    """Restore access to a folder of ours; refuse an attached one that cannot be listed and entered."""
    if ours:
        restore_access(folder)
    else:
        _require(folder)


def restore_access(folder: Path) -> None:
    """Give the owner full access to a folder, if the owner is this process. Follows no link."""
    with suppress(OSError):
        if os.lstat(folder).st_mode & _OWNER_ALL != _OWNER_ALL:
            _chmod_directory(folder, None)


def restore_access_below(above: int, name: str) -> None:
    """Restore access to a folder inside an open directory."""
    with suppress(OSError):
        _chmod_directory(name, above)


def restore_access_open(directory: int) -> None:
    """Restore access to an open directory, unless it can be listed and entered already."""
    status = os.fstat(directory)
    if status.st_mode & _OWNER_LIST != _OWNER_LIST and status.st_uid == os.geteuid():
        with suppress(OSError):
            os.fchmod(directory, stat.S_IMODE(status.st_mode) | _OWNER_ALL)


def _require(folder: Path) -> None:
    """Refuse a folder that this process cannot list and enter; for root, also one that its owner cannot."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return  # whoever opens it reports the error
    if not os.access(folder, os.R_OK | os.X_OK) or (os.geteuid() == 0 and mode & _OWNER_LIST != _OWNER_LIST):
        raise inaccessible_error(folder)


def inaccessible_error(folder: Path) -> Forbidden:
    fix = f"chmod u+rx {shlex.quote(str(folder))}"
    return Forbidden(f"the folder {str(folder)!r} cannot be opened by the gateway; allow it with: {fix}")


def _chmod_directory(name: Path | str, above: int | None) -> None:
    if sys.platform != "linux":
        _add_owner_access(os.stat(name, dir_fd=above, follow_symlinks=False), name, above, follow_symlinks=False)
        return
    fd = os.open(name, _OPEN_FLAGS, dir_fd=above)
    try:
        # The path through an O_PATH descriptor names this very directory, even if somebody replaces its name.
        _add_owner_access(os.fstat(fd), f"/proc/self/fd/{fd}", None, follow_symlinks=True)
    finally:
        os.close(fd)


def _add_owner_access(status: os.stat_result, name: Path | str, above: int | None, *, follow_symlinks: bool) -> None:
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
        mode = stat.S_IMODE(status.st_mode) | _OWNER_ALL
        os.chmod(name, mode, dir_fd=above, follow_symlinks=follow_symlinks)
