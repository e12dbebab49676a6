"""Two names in a directory trade what they stand for, in one step."""

from __future__ import annotations

import ctypes
import errno
import functools
import os

_EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EPERM}


def exchange(directory: int, one: str, other: str) -> bool:
    """Whether they have; False where the system or the file system has no such call."""
    if not hasattr(_libc(), "renameat2"):
        return False
    if _libc().renameat2(directory, os.fsencode(one), directory, os.fsencode(other), _EXCHANGE) == 0:
        return True
    if (number := ctypes.get_errno()) in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
