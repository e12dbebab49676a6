"""Ports of a sandboxed program: connections to them from outside, and their address on this machine's loopback."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from gateway.errors import Unavailable
from gateway.sandbox.proxy import Stream, relay

# Connections to one program at once; each takes two or three descriptors of the gateway.
CONNECTIONS = 16

_CONNECT_SECONDS = 10.0
_PROBE_SECONDS = 1.0
_ADDRESSES = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
# An address of the family AF_UNSPEC: connecting to it ends a socket's connection, and the socket can be used again.
_NOWHERE = bytes(16)


class Loopback:
    """The loopback of a program's network namespace, as the gateway reaches it.

    A socket belongs to the namespace in which it was opened, whoever uses it. The first program in the sandbox opens
    these and passes them out. One of each family serves one connection at a time."""

    def __init__(self, connections: int = CONNECTIONS) -> None:
        self.connections = connections
        self._free: asyncio.LifoQueue[Sequence[socket.socket]] = asyncio.LifoQueue()
        self._all: list[socket.socket] = []
        self._closed = False

    def receive(self, sockets: Sequence[socket.socket]) -> None:
        """Take the sockets that were opened inside; called by the sandbox."""
        for each in sockets:
            each.setblocking(False)
        self._all += sockets
        if self._closed:  # the program has ended meanwhile
            self.close()
            return
        families = [[each for each in sockets if each.family is family] for family in _ADDRESSES]
        for group in itertools.zip_longest(*families):
            self._free.put_nowait([each for each in group if each is not None])

    @asynccontextmanager
    async def connect(self, port: int) -> AsyncIterator[Stream]:
        """Connect to a port of the program, after waiting for a free socket; `OSError` if nothing listens on it."""
        group = await self._free.get()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                connected = await _connect(group, port)
            reader, writer = await asyncio.open_connection(sock=connected.dup())
            try:
                yield reader, writer
            finally:
                writer.transport.abort()
        finally:
            for each in group:
                _disconnect(each)
            self._free.put_nowait(group)

    def close(self) -> None:
        self._closed = True
        for each in self._all:
            each.close()


async def _connect(group: Sequence[socket.socket], port: int) -> socket.socket:
    for each in group:
        with suppress(ConnectionRefusedError):
            await asyncio.get_running_loop().sock_connect(each, (_ADDRESSES[each.family], port))
            return each
    raise ConnectionRefusedError(f"nothing listens on port {port}")


def _disconnect(each: socket.socket) -> None:
    if each.fileno() >= 0:
        ctypes.CDLL(None).connect(each.fileno(), _NOWHERE, len(_NOWHERE))
        each.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # a connection that was cut leaves its error


class PublishedPort:
    """A port of a program, at a loopback address of this machine that nothing else uses: another origin for browsers
    than every other program, with cookies of its own. No other interface leads there."""

    def __init__(self, loopback: Loopback, port: int) -> None:
        self.port = port
        self.url = ""
        self._loopback = loopback
        self._server: asyncio.Server | None = None
        self._used_at: dict[asyncio.Task[None], float] = {}

    async def open(self) -> None:
        host = ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])
        try:
            self._server = await asyncio.start_server(self._on_connection, host, 0)
        except OSError as error:
            raise Unavailable(f"the port cannot be published at {host}: {error.strerror}") from error
        self.url = f"http://{host}:{self._server.sockets[0].getsockname()[1]}/"

    async def is_listening(self) -> bool:
        """Return whether the program accepts connections at its port."""
        accepted = False
        with suppress(OSError):  # a timeout is one
            async with asyncio.timeout(_PROBE_SECONDS), self._loopback.connect(self.port) as (reader, writer):
                accepted = True
                writer.write_eof()  # ended in order: many servers report a connection that is cut
                await reader.read()
        return accepted

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._used_at):
            connection.cancel()
        await asyncio.gather(*self._used_at, return_exceptions=True)
        self._loopback.close()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - the server runs this in a task
        if len(self._used_at) >= self._loopback.connections:  # browsers keep idle ones open for minutes
            oldest = min(self._used_at, key=self._used_at.__getitem__)
            oldest.cancel()
        self._note_use(task)
        try:
            async with self._loopback.connect(self.port) as theirs:
                await relay((reader, writer), theirs, lambda _: self._note_use(task))
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # nothing listens, one side closed, or the connection had to make room
        finally:
            self._used_at.pop(task, None)
            writer.close()

    def _note_use(self, task: asyncio.Task[None]) -> None:
        self._used_at[task] = asyncio.get_running_loop().time()
