"""The first program in a sandbox with a network or published ports: opens sockets, passes them to the gateway, and
executes the program.

The sockets are in the sandbox's own network namespace. The gateway uses them from outside, so nothing of ours stays
inside. `network.py` passes this file as text.
"""

from __future__ import annotations

import _socket
import posix
import sys

PORT = 3128


def main(channel: int, proxied: bool, connections: int, argv: list[str]) -> None:
    sockets = [listen()] if proxied else []
    for _ in range(connections):
        sockets += open_sockets()
    descriptors = b"".join(each.fileno().to_bytes(4, sys.byteorder) for each in sockets)
    control = _socket.socket(fileno=channel)
    control.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
    for each in (*sockets, control):
        each.close()
    try:
        posix.execv(argv[0], argv)
    except OSError as error:
        posix.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        posix._exit(127)


def listen() -> _socket.socket:
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", PORT))
    listener.listen(64)
    return listener


def open_sockets() -> list[_socket.socket]:
    """Open a socket for IPv4 and one for IPv6, if the kernel has it: one that was connected by IPv4 can later not be
    connected by IPv6."""
    sockets = [_socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)]
    try:
        return [*sockets, _socket.socket(_socket.AF_INET6, _socket.SOCK_STREAM)]
    except OSError:
        return sockets


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "proxied", int(sys.argv[3]), sys.argv[4:])
