"""The program between the gateway and a server: lets nothing of the server outlive it, or the gateway.

Whatever the server starts and abandons becomes this process's child. When the server ends, or the
gateway does and with it the other end of the lifeline, all of it is killed and reaped. It runs under
`python -I -S` with as little of the standard library as it can: each import delays every server.

    keeper.py LIFELINE STATUS PROGRAM ARGUMENTS…    (the first two are descriptors)
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # what `signal` wraps, without its enums
import ctypes
import os
import select
import sys

TYPE_CHECKING = False  # what `typing` has to say costs more than all else here
if TYPE_CHECKING:
    from typing import NoReturn

PR_SET_CHILD_SUBREAPER = 36
KILLED = 128 + 9


def main(lifeline: int, status: int, argv: list[str]) -> NoReturn:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    program = os.fork()
    if program == 0:
        become(argv, lifeline, status)
    os.close(status)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    code = supervise(program, lifeline, wake)
    end_all(program)
    os._exit(code)


def become(argv: list[str], lifeline: int, status: int) -> NoReturn:
    try:
        os.setsid()
        os.write(status, b"%d\n" % os.getpid())
        os.close(lifeline)
        os.set_inheritable(status, False)
        for name in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(name, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.execv(argv[0], argv)  # noqa: S606
    except BaseException as error:
        os.write(status, f"{error}\n".encode(errors="replace")[:2048])
    os._exit(127)


def supervise(program: int, lifeline: int, wake: int) -> int:
    """The program's exit code once it has ended, or that of a killed one when the gateway let go."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == lifeline:
                return KILLED
            os.read(wake, 512)
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == program:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if pid == 0:
                break


def end_all(program: int) -> None:
    """Kill the group, then whoever left it, until there is no child any more."""
    me = os.getpid()
    group = program
    while True:
        try:
            if group:
                os.killpg(group, 9)
        except OSError:
            group = 0
        try:
            with open(f"/proc/{me}/task/{me}/children") as children:  # noqa: PTH123 - one import less
                for child in children.read().split():
                    os.kill(int(child), 9)
        except OSError:
            pass
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                select.select((), (), (), 0.002)
        except ChildProcessError:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
