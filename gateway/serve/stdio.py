"""MCP over stdin and stdout: pipes read and written by the event loop, without a thread per message."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Protocol

import anyio
import anyio.to_thread
import mcp_types as types
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from .express_stdio import ExpressStdio
from .mcp import McpFace

log = logging.getLogger(__name__)

CHUNK = 256 * 1024
_LEADING_ID = re.compile(rb'\{"jsonrpc":\s?"2\.0",\s?"id":\s?(\d{1,18}|"[^"\\]{0,200}")')
_TRAILING_ID = re.compile(rb',\s?"id":\s?(\d{1,18}|"[^"\\]{0,200}")\}\s*$')


async def serve_stdio(face: McpFace, message_limit: int, grace: float, stop: anyio.Event) -> None:
    """Serve the one client at the other end of stdin and stdout, until it leaves or `stop` is set.

    Requests already read are answered before the end, for which they have `grace` seconds.
    """
    async with _Wire(face, message_limit, grace).open(stop) as (from_client, to_client):
        await face.server.run(from_client, to_client, face.server.create_initialization_options())


class _Wire:
    """Lines in, lines out, and which requests still wait for their answer."""

    def __init__(self, face: McpFace, message_limit: int, grace: float) -> None:
        self._face = face
        self._limit = message_limit
        self._grace = grace
        self._reading = anyio.CancelScope()
        self._unanswered: set[types.RequestId] = set()
        self._answered = anyio.Event()

    @asynccontextmanager
    async def open(
        self, stop: anyio.Event
    ) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Any], MemoryObjectSendStream[Any]]]:
        to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        to_client, from_server = anyio.create_memory_object_stream[SessionMessage](0)
        with _own_standard_streams() as (stdin, stdout), ExitStack() as closing:
            reader = await _read_pipe(stdin, closing) if _pollable(stdin) else _FileReader(stdin, closing)
            writer = await _write_pipe(stdout, closing) if _pollable(stdout) else _FileWriter(stdout, closing)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_reading, stop)
                tasks.start_soon(self._read, reader, writer, to_server)
                tasks.start_soon(self._write, writer, from_server)
                yield from_client, to_client
                tasks.cancel_scope.cancel()

    async def _stop_reading(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._reading.cancel()

    async def _read(self, reader: _Reader, writer: _Writer, to_server: MemoryObjectSendStream[Any]) -> None:
        express = ExpressStdio(self._face, partial(_send, writer), self._unanswered.add, self._settle)
        async with to_server:
            try:
                with self._reading:
                    async for line in self._lines(reader, writer):
                        if express.take(line):
                            continue
                        message = _parse(line, writer)
                        if message is not None:
                            self._note(message)
                            await to_server.send(SessionMessage(message))
                with anyio.move_on_after(self._grace):  # what is still under way then ends, on both roads
                    await self._settled()
            finally:
                await express.close()

    async def _lines(self, reader: _Reader, writer: _Writer) -> AsyncIterator[bytes]:
        """Whole lines. One over the limit is not kept, only answered."""
        pending = bytearray()
        too_long = False
        while chunk := await reader.read(CHUNK):
            *complete, rest = chunk.split(b"\n")
            for part in complete:
                pending += part
                if too_long or len(pending) > self._limit:
                    _refuse(writer, pending, types.INVALID_REQUEST, f"a message may have {self._limit} bytes at most")
                elif pending.strip():
                    yield bytes(pending)
                pending.clear()
                too_long = False
            pending += rest
            if len(pending) > self._limit:
                del pending[512:-512]  # enough of both ends to find the request's id
                too_long = True
        if pending.strip() and not too_long:
            yield bytes(pending)

    async def _write(self, writer: _Writer, from_server: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async with from_server:
            async for item in from_server:
                await _send(writer, item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
                if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
                    self._settle(item.message.id)

    def _note(self, message: types.JSONRPCMessage) -> None:
        if isinstance(message, types.JSONRPCRequest):
            if message.method != "subscriptions/listen":  # answered only when it ends
                self._unanswered.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            called_off = (message.params or {}).get("requestId")
            if type(called_off) in (int, str):
                self._settle(called_off)

    def _settle(self, request_id: types.RequestId | None) -> None:
        self._unanswered.discard(request_id)
        if not self._unanswered:
            self._answered.set()

    async def _settled(self) -> None:
        while self._unanswered:
            self._answered = anyio.Event()
            await self._answered.wait()


async def _send(writer: _Writer, line: bytes) -> None:
    writer.write(line + b"\n")
    try:
        await writer.drain()
    except ConnectionError:  # the client left without reading; the end of input tells the rest
        log.debug("the client is gone")


def _parse(line: bytes, writer: _Writer) -> types.JSONRPCMessage | None:
    """The message of a line, or None when it is none: the client is told so, and the next line counts."""
    try:
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            _refuse(writer, line, types.PARSE_ERROR, str(error.errors()[0]["msg"]))
        else:
            _refuse(writer, line, types.INVALID_REQUEST, "not a JSON-RPC 2.0 message")
    return None


def _refuse(writer: _Writer, line: bytes | bytearray, code: int, message: str) -> None:
    """Answer a line that could not be read. Its id is found only where it must be the message's own:
    right at the start or the end."""
    match = _LEADING_ID.match(line) or _TRAILING_ID.search(line[-300:])
    request_id = orjson.loads(match[1]) if match else None
    error = {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}
    writer.write(orjson.dumps(error) + b"\n")


@contextmanager
def _own_standard_streams() -> Iterator[tuple[int, int]]:
    """Private copies of stdin and stdout. Meanwhile the numbers 0 and 1 are the null device and
    stderr, so that a stray print of anyone misses the wire."""
    stdin = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    stdout = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    try:
        yield os.dup(stdin), os.dup(stdout)
    finally:
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.close(stdin)
        os.close(stdout)


class _Reader(Protocol):
    async def read(self, n: int) -> bytes: ...


class _Writer(Protocol):
    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...


def _pollable(descriptor: int) -> bool:
    """Whether the event loop can wait for it; a plain file, as in `toolgate serve < requests`, cannot be waited for."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(descriptor))


async def _read_pipe(descriptor: int, closing: ExitStack) -> _Reader:
    reader = asyncio.StreamReader(limit=CHUNK)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    closing.callback(transport.close)
    return reader


async def _write_pipe(descriptor: int, closing: ExitStack) -> _Writer:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(descriptor, "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    closing.callback(writer.close)  # what waits to be read is still written
    return writer


class _FileReader:
    def __init__(self, descriptor: int, closing: ExitStack) -> None:
        self._file = closing.enter_context(os.fdopen(descriptor, "rb", 0))

    async def read(self, n: int) -> bytes:
        return await anyio.to_thread.run_sync(self._file.read, n)


class _FileWriter:
    def __init__(self, descriptor: int, closing: ExitStack) -> None:
        self._file = closing.enter_context(os.fdopen(descriptor, "wb"))

    def write(self, data: bytes) -> None:
        self._file.write(data)

    async def drain(self) -> None:
        await anyio.to_thread.run_sync(self._file.flush)
