"""The program inside the sandbox: reads calls from its channel, runs the toolset's functions and sends answers.

It imports the standard library and `covalt_toolset`, and nothing else of the gateway: inside the sandbox
this package is installed alone, under the name `toolgate_worker`, and only `main` is called.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from .calls import CallRunner
from .channel import GatewayChannel

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_FILTER = 22, 38, 2


def main(setup: str) -> None:
    """Serve until the gateway closes the channel. `setup` is JSON, the only command-line argument."""
    settings = json.loads(setup)
    channel = GatewayChannel(settings["channel"], settings["limit"])
    with open(os.devnull, "rb") as null:  # noqa: PTH123 - the one file that exists in every sandbox
        os.dup2(null.fileno(), 0)
    if "filter" in settings:
        _install_seccomp_filter(bytes.fromhex(settings["filter"]))
    CallRunner(channel, settings["toolset"], Path(settings["directory"]).resolve(), Path(settings["workspace"])).serve()


def _install_seccomp_filter(code: bytes) -> None:
    """Have the kernel check the system calls of this process and its threads from now on."""
    import ctypes  # most workers have no filter and do not need it

    class FilterProgram(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    program = ctypes.byref(FilterProgram(len(code) // 8, code))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel refused the seccomp filter")
