"""Rights that a worker gives up before it loads the code of a toolset."""

from __future__ import annotations

import ctypes

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_FILTER = 22, 38, 2


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def install_filter(code: bytes) -> None:
    """Have the kernel check the system calls of this process and its threads from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    filter_ = ctypes.byref(_Filter(len(code) // 8, code))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, filter_, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel does not take a filter of system calls")
