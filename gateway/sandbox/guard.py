"""A process that outlives the gateway and ends sandboxes that the gateway was starting when it was killed.

Bubblewrap asks the kernel to die with its parent only after a while, and waits at a pipe that must not read as closed.
Until then it is in a process group of ours, and from the moment its first process is known, the guard has a
descriptor of that. When the gateway is gone, the guard kills both. Nobody can join the group any more by then: a child
that the gateway was just making has a copy of its socket until it is in the group.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import suppress

from gateway.sandbox.process import unavailable

_GUARD = """
import os, select, signal, socket, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
leader = os.fork()
if leader == 0:
    os.setpgid(0, 0)
    os._exit(0)
os.waitid(os.P_PID, leader, os.WEXITED | os.WNOWAIT)  # never reaped: the group exists as long as this process
gateway = socket.socket(fileno=0)
gateway.send(b"%d" % leader)
processes = set()
poll = select.poll()
poll.register(gateway, select.POLLIN)
alive = True
while alive:
    for fd, _ in poll.poll():
        if fd in processes:
            poll.unregister(fd)
            processes.remove(fd)
            os.close(fd)
            continue
        message, fds, _, _ = socket.recv_fds(gateway, 64, 64)
        alive = bool(message)
        for fd in fds:
            processes.add(fd)
            poll.register(fd, select.POLLIN)
for _ in range(5):
    os.killpg(leader, signal.SIGKILL)
    for fd in processes:
        try:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            pass
    time.sleep(0.01)
"""


class Guard:
    """The guard of one gateway process. `group` is the process group to start sandboxes in."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        argv = [sys.executable, "-I", "-S", "-c", _GUARD]
        try:
            with theirs:  # in our own session: a process can only join a group of its session
                self._process = subprocess.Popen(
                    argv,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # ours would stay open a moment longer than we live
                    env={},
                    cwd="/",
                )
            group = self._socket.recv(64)
        except OSError as error:
            self._socket.close()
            raise unavailable(f"{sys.executable} does not start: {error.strerror}") from error
        if not group:
            self._socket.close()
            raise unavailable("the process that guards sandboxes ended at once")
        self.group = int(group)
        self._socket.setblocking(False)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def watch(self, pidfd: int) -> None:
        """Kill this process too when the gateway is gone."""
        with suppress(OSError):  # a guard that cannot take it has lost its use, and nobody else suffers
            socket.send_fds(self._socket, [b"x"], [pidfd])


_lock = threading.Lock()
_guards: list[Guard] = []


def guard() -> Guard:
    """The guard of this process; started with the first sandbox, and again should somebody have killed it."""
    with _lock:
        if not _guards or not _guards[0].is_alive():
            _guards[:] = [Guard()]
        return _guards[0]
