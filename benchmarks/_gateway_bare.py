"""The least a relay in Python can do: bytes from one connection to the next, unread. What it costs says how fast the
machine is at this moment.

`python -m benchmarks._gateway_bare HOST PORT`
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class End(asyncio.Protocol):
    """One end of a relayed connection; what comes in here leaves at the other."""

    def __init__(self, other: End | None = None) -> None:
        self.other = other
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.other is not None:
            self.other.meet(self)

    def meet(self, other: End) -> None:
        self.other = other
        other.transport.writelines(self._early)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


class FastHttpProtocol(End):
    """The end clients speak to: it opens the other."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self._target = host, port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._opening = loop.create_task(loop.create_connection(lambda: End(self), *self._target))


async def main(host: str, port: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: FastHttpProtocol(host, port), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
