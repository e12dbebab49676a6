"""A process that outlives the gateway and kills sandboxes that were starting when the gateway was killed.

Bubblewrap sets its parent-death signal only after a while, and waits at a pipe that never reads as closed. Until then
it is in the guard's process group, and the guard gets a pidfd of its first process as soon as that is known. When the
gateway is gone, the guard kills both. Nothing can join the group by then: a child that the gateway was just forking has
a copy of its socket until it is in the group.
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
                    stderr=subprocess.DEVNULL,  # would keep the gateway's stderr open after its end
                    env={},
                    cwd="/",
                )
            group = self._socket.recv(64)
        except OSError as error:
            self._socket.close()
            raise unavailable(f"{sys.executable} does not start: {error.strerror}") from error
        if not group:
            self._socket.close()
            raise unavailable("the guard process of sandboxes ended immediately")
        self.group = int(group)
        self._socket.setblocking(False)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def watch(self, pidfd: int) -> None:
        """Kill this process too when the gateway is gone."""
        with suppress(OSError):  # a dead guard is replaced with the next sandbox
            socket.send_fds(self._socket, [b"x"], [pidfd])


_lock = threading.Lock()
_guards: list[Guard] = []


def guard() -> Guard:
    """Return the guard of this process, started with the first sandbox and again if it was killed."""
    with _lock:
        if not _guards or not _guards[0].is_alive():
            _guards[:] = [Guard()]
        return _guards[0]
