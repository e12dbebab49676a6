"""What runs first in a sandbox with a network: opens the one door there is, hands it out, and becomes the program.

The door is a listener on the sandbox's own loopback. The gateway answers it from outside, so that nothing of
ours stays inside. Handed over as text by `network.py`.
"""

from __future__ import annotations

import _socket
import posix
import sys

PORT = 3128


def main(channel: int, argv: list[str]) -> None:
    way, door = _socket.socket(fileno=channel), _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    door.bind(("127.0.0.1", PORT))
    door.listen(64)
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, door.fileno().to_bytes(4, sys.byteorder))
    way.sendmsg([b"."], [rights])
    door.close()
    way.close()
    try:
        posix.execv(argv[0], argv)
    except OSError as error:
        posix.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        posix._exit(127)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
