"""Opening paths that cannot lead outside a directory: by openat2, or component by component."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import shlex
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from gateway.errors import Forbidden

# The components of a path, from the directory it is relative to. Empty: that directory itself.
Parts = tuple[str, ...]

# Flags for a directory in which entries are opened, created or renamed.
DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)

# Flags for a directory that is listed.
LISTING = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_RDONLY

# Flags for a file that is read: opening a FIFO, a device or a leased file never waits.
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK

_OPENAT2 = 437  # the same number on every architecture Python runs on
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_NOREPLACE = 1
_ATTEMPTS = 8


class PathOpener(Protocol):
    """Opens paths beneath a directory, and renames to a name that must be free."""

    def open(self, directory: int, parts: Parts, flags: int) -> int:
        """Return a descriptor of `parts` under `directory`; ELOOP at any link, EXDEV at any mount."""
        ...

    def rename_new(self, source: int, name: str, target: int, new_name: str) -> None:
        """Rename between two directories; EEXIST if anything has the new name."""
        ...


class ComponentOpener:
    """Opens component by component without following links; for macOS and kernels before 5.6."""

    def open(self, directory: int, parts: Parts, flags: int) -> int:
        here = os.open(".", flags if not parts else DIRECTORY, dir_fd=directory)
        device = os.fstat(here).st_dev
        for index, name in enumerate(parts):
            above = here
            try:
                here = _step(above, name, flags if index == len(parts) - 1 else DIRECTORY, device)
            finally:
                os.close(above)
        return here

    def rename_new(self, source: int, name: str, target: int, new_name: str) -> None:
        if stat.S_ISDIR(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode):
            _rename_directory(source, name, target, new_name)
            return
        os.link(name, new_name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        os.unlink(name, dir_fd=source)


class Openat2(ComponentOpener):
    """Opens with one openat2 call: nothing can change between check and use."""

    def open(self, directory: int, parts: Parts, flags: int) -> int:
        # With O_NOFOLLOW the kernel answers ENOTDIR for a link at the end, or opens the link itself.
        how = _how(flags & ~os.O_NOFOLLOW)
        path = os.fsencode("/".join(parts) or ".")
        for _ in range(_ATTEMPTS):
            opened: int = _libc().syscall(_OPENAT2, directory, path, ctypes.byref(how), _HOW_SIZE)
            if opened >= 0:
                return opened
            if (number := ctypes.get_errno()) not in (errno.EAGAIN, errno.EINTR):
                break
        raise OSError(number, os.strerror(number))

    def rename_new(self, source: int, name: str, target: int, new_name: str) -> None:
        old, new = os.fsencode(name), os.fsencode(new_name)
        if _libc().renameat2(source, old, target, new, _NOREPLACE) == 0:
            return
        if (number := ctypes.get_errno()) not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(number, os.strerror(number))
        super().rename_new(source, name, target, new_name)  # the file system does not support RENAME_NOREPLACE


@functools.cache
def choose_opener() -> PathOpener:
    """Return openat2 if it works, tried once; a seccomp filter may forbid what the kernel has."""
    if not sys.platform.startswith("linux") or not hasattr(_libc(), "renameat2"):
        return ComponentOpener()
    here = os.open("/", DIRECTORY)
    try:
        os.close(Openat2().open(here, (), DIRECTORY))
    except OSError:
        return ComponentOpener()
    finally:
        os.close(here)
    return Openat2()


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW_SIZE = ctypes.sizeof(_How)


@functools.cache
def _how(flags: int) -> _How:
    """Return the struct for these flags; shared, because the kernel only reads it."""
    return _How(flags, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | _NO_XDEV)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _step(above: int, name: str, flags: int, device: int) -> int:
    try:
        here = os.open(name, flags | os.O_NOFOLLOW, dir_fd=above)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise
    found = os.fstat(here)
    # Only directories: on an overlay a file may report the device of the layer it comes from.
    if stat.S_ISDIR(found.st_mode) and found.st_dev != device:
        os.close(here)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return here


def _rename_directory(source: int, name: str, target: int, new_name: str) -> None:
    """Rename a directory to a free name. Between check and rename only an empty directory could be replaced."""
    try:
        os.stat(new_name, dir_fd=target, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
        return
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


_EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EPERM}


def exchange(directory: int, one: str, other: str) -> bool:
    """Exchange two names atomically; False if the system or file system cannot."""
    if not hasattr(_libc(), "renameat2"):
        return False
    if _libc().renameat2(directory, os.fsencode(one), directory, os.fsencode(other), _EXCHANGE) == 0:
        return True
    if (number := ctypes.get_errno()) in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))


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
