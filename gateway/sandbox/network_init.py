"""The first program in a sandbox with a network: opens a listener, passes it to the gateway, and executes the program.

The listener is on the sandbox's own loopback. The gateway serves it from outside, so nothing of ours stays inside.
`network.py` passes this file as text.
"""

from __future__ import annotations

import _socket
import posix
import sys

PORT = 3128


def main(channel: int, argv: list[str]) -> None:
    control, listener = _socket.socket(fileno=channel), _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", PORT))
    listener.listen(64)
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, listener.fileno().to_bytes(4, sys.byteorder))
    control.sendmsg([b"."], [rights])
    listener.close()
    control.close()
    try:
        posix.execv(argv[0], argv)
    except OSError as error:
        posix.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        posix._exit(127)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
