"""MCP over stdin and stdout: lines read and written by the event loop.

The first requests of a client are answered without the SDK, whose import takes longer than the rest of the start. The
SDK is loaded for the first line that needs it, and given the messages that opened the connection.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.abc
import anyio.to_thread
import orjson

from gateway.calls import to_json
from gateway.identity import OWNER
from gateway.protocol import PROTOCOL_VERSION_META_KEY
from gateway.protocol.jsonrpc import CONNECTION_CLOSED, INVALID_REQUEST, RequestId, find_id
from gateway.serve.mcp import fastpath
from gateway.serve.mcp.fastpath import Envelope, FastPath, ServedCall
from gateway.serve.mcp.handlers import McpServer
from gateway.serve.mcp.notifications import Change
from gateway.serve.mcp.request import Request, caller_of, client_name, connection_chat
from gateway.serve.mcp.sessions import Session

if TYPE_CHECKING:
    from gateway.serve.mcp.sdk import SdkStream

log = logging.getLogger(__name__)

CHUNK = 256 * 1024
# The time a cancelled call has to end, in seconds.
CLOSE_SECONDS = 2.0

# The id of the request that opens the connection for the SDK.
OPENING = "toolgate-opening"


async def serve_stdio(server: McpServer, message_limit: int, grace: float, stop: anyio.Event) -> None:
    """Serve the one client at the other end of stdin and stdout, until it leaves or `stop` is set.

    Requests already read are answered before the end, for which they have `grace` seconds.
    """
    with _own_standard_streams() as (stdin, stdout), ExitStack() as closing:
        reader = await _read_pipe(stdin, closing) if _is_pollable(stdin) else _FileReader(stdin, closing)
        writer = await _write_pipe(stdout, closing) if _is_pollable(stdout) else _FileWriter(stdout, closing)
        await _Connection(server, reader, writer, message_limit).serve(grace, stop)


class _Connection:
    """One client: its requests in progress, and the SDK's server once a line needs it."""

    def __init__(self, server: McpServer, reader: _ByteReader, writer: _ByteWriter, message_limit: int) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._limit = message_limit
        self._unanswered: set[RequestId] = set()
        self._all_answered = anyio.Event()
        self._fast = FastRequests(self)
        self._stream: SdkStream | None = None
        self._stream_ended = anyio.Event()

    @property
    def server(self) -> McpServer:
        return self._server

    async def serve(self, grace: float, stop: anyio.Event) -> None:
        async with anyio.create_task_group() as tasks:
            reading = anyio.CancelScope()
            tasks.start_soon(_cancel_when, stop, reading)
            try:
                with reading:
                    async for line in self._lines():
                        if not self._fast.take(line):
                            await self._feed(line, tasks)
                self._server.handlers.notifications.mute()
                with anyio.move_on_after(grace):  # then requests in progress are cancelled
                    await self._wait_for_answers()
            finally:
                await self._fast.close()
                if self._stream is not None:
                    self._stream.close()
                    await self._stream_ended.wait()
                self._server.handlers.sessions.close(None)
            tasks.cancel_scope.cancel()

    async def write(self, line: bytes) -> None:
        await _send(self._writer, line)

    def begin(self, request_id: RequestId) -> None:
        self._unanswered.add(request_id)

    def end(self, request_id: RequestId) -> None:
        self._unanswered.discard(request_id)
        if not self._unanswered:
            self._all_answered.set()

    async def _feed(self, line: bytes, tasks: anyio.abc.TaskGroup) -> None:
        if self._stream is None:
            # In a thread: the import takes about a second, and calls in progress go on meanwhile.
            self._stream = await anyio.to_thread.run_sync(self._load_sdk)
            tasks.start_soon(self._run, self._stream)
            for message in self._fast.opening():
                await self._stream.replay(message)
        error = await self._stream.feed(line)
        if error is not None:
            _refuse(self._writer, line, error.code, error.message)

    def _load_sdk(self) -> SdkStream:
        from gateway.serve.mcp.sdk import SdkStream

        return SdkStream(self._server.sdk, self._server.handlers.sessions, self.write, self.begin, self.end)

    async def _run(self, stream: SdkStream) -> None:
        try:
            await stream.run()
        finally:
            self._stream_ended.set()

    async def _lines(self) -> AsyncIterator[bytes]:
        """Yield whole lines. A line over the limit is answered with an error."""
        pending = bytearray()
        too_long = False
        while chunk := await self._reader.read(CHUNK):
            *complete, rest = chunk.split(b"\n")
            for part in complete:
                pending += part
                if too_long or len(pending) > self._limit:
                    _refuse(self._writer, pending, INVALID_REQUEST, f"a message may have {self._limit} bytes at most")
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

    async def _wait_for_answers(self) -> None:
        while self._unanswered:
            self._all_answered = anyio.Event()
            await self._all_answered.wait()


class _LineCall(ServedCall):
    """A request in progress, whose messages are lines."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write

    async def send(self, message: Mapping[str, Any]) -> None:
        await self._write(to_json(message))


class FastRequests:
    """Answers lines without the SDK. The first request decides whether the connection is of a modern version."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._handlers = connection.server.handlers
        self._path = FastPath(self._handlers)
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._scopes: dict[str, _LineCall] = {}
        self._modern: bool | None = None
        self._envelope: Envelope | None = None
        self._session: Session | None = None
        self._handshake: list[Mapping[str, Any]] = []
        self._closing = False

    def take(self, line: bytes) -> bool:
        """Return whether the line is handled here; a request is answered later."""
        message = fastpath.parse(line)
        if self._modern is None:
            self._modern = _opens_modern(message)
            if message is not None and self._modern is False:
                return self._initialize(message)
        if message is None or self._modern is None:
            return False
        if self._take_initialized(message) or self._take_reply(message):
            return True
        call = _LineCall(self._connection.write)
        request = self._parse(message, call)
        if request is None or str(request.id) in self._calls:
            return False
        self._start(request, call)
        return True

    def opening(self) -> Iterator[Mapping[str, Any]]:
        """Yield the messages that open the connection for the SDK."""
        if self._session is not None:
            self._open_session()
            yield from self._handshake
            self._handshake = []
        elif self._envelope is not None:
            params = {"_meta": self._envelope.client.meta}
            yield {"jsonrpc": "2.0", "id": OPENING, "method": "server/discover", "params": params}

    async def close(self) -> None:
        """Cancel the requests in progress, and answer them with an error."""
        self._closing = True
        for scope in list(self._scopes.values()):
            scope.cancel()
        if self._calls:
            await asyncio.wait(list(self._calls.values()), timeout=CLOSE_SECONDS)

    def _initialize(self, message: Mapping[str, Any]) -> bool:
        params = fastpath.parse_initialize(message)
        if params is None:
            return False
        caller = caller_of(OWNER, client_name(params["clientInfo"]))
        result = self._handlers.initialize(params, caller)
        self._session = Session(result["protocolVersion"], params["capabilities"], caller, self._send)
        self._handshake = [{**message, "id": OPENING}]
        self._spawn(message["id"], self._connection.write(fastpath.encode_result(message["id"], result)))
        return True

    def _take_initialized(self, message: Mapping[str, Any]) -> bool:
        if self._session is None or message.get("method") != "notifications/initialized" or "id" in message:
            return False
        if not self._handshake:  # the SDK serves the connection too, and must get this message
            return False
        self._handshake.append(message)
        self._open_session()
        return True

    def _open_session(self) -> None:
        if self._session is not None and self._handlers.sessions.get(None) is None:
            self._handlers.sessions.open(None, self._session)

    def _take_reply(self, message: Mapping[str, Any]) -> bool:
        """Take the cancellation of a request in progress here, or the response to a question."""
        if message.get("method") == "notifications/cancelled":
            params = message.get("params")
            request_id = params.get("requestId") if isinstance(params, dict) else None
            call = self._scopes.get(str(request_id)) if type(request_id) in (int, str) else None
            if call is not None:
                call.cancel()
            return call is not None
        return self._session is not None and self._session.take_reply(message)

    def _parse(self, message: Mapping[str, Any], call: _LineCall) -> Request | None:
        chat = connection_chat(OWNER, self._handlers.chat)
        if self._session is not None:
            methods = fastpath.STDIO_HANDSHAKE_METHODS
            return fastpath.parse_in_session(message, self._session, chat, call.notify, methods)
        if not self._modern:
            return None
        methods = fastpath.STDIO_MODERN_METHODS
        parsed = fastpath.parse_modern(message, OWNER, chat, call.notify, methods=methods, known=self._envelope)
        if parsed is None:
            return None
        request, self._envelope = parsed
        return request

    def _start(self, request: Request, call: _LineCall) -> None:
        self._scopes[str(request.id)] = call
        self._spawn(request.id, self._answer(request, call))
        if self._session is not None:
            self._session.calls[str(request.id)] = call

    def _spawn(self, request_id: RequestId, work: Any) -> None:
        self._connection.begin(request_id)
        task = self._calls[str(request_id)] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._finish(request_id))

    async def _answer(self, request: Request, call: _LineCall) -> None:
        with call:
            response = await self._path.answer(request)
        if call.cancelled_caught:
            if not self._closing:
                return
            response = fastpath.encode_error(request.id, CONNECTION_CLOSED, "Connection closed")
        await self._connection.write(response.message)

    async def _send(self, change: Change) -> None:
        await self._connection.write(to_json(change.notification))

    def _finish(self, request_id: RequestId) -> None:
        del self._calls[str(request_id)]
        self._scopes.pop(str(request_id), None)
        if self._session is not None:
            self._session.calls.pop(str(request_id), None)
        self._connection.end(request_id)


def _opens_modern(message: Mapping[str, Any] | None) -> bool | None:
    """Return whether a connection that begins so is of a modern version; None if the message is not a request."""
    match message:
        case {"id": int() | str(), "method": "initialize"}:
            return False
        case {"id": int() | str(), "method": str(), "params": {"_meta": dict(meta)}} if (
            PROTOCOL_VERSION_META_KEY in meta
        ):
            return True
        case {"id": int() | str(), "method": str()} | None:
            return False
    return None


async def _cancel_when(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


async def _send(writer: _ByteWriter, line: bytes) -> None:
    writer.write(line + b"\n")
    try:
        await writer.drain()
    except ConnectionError:  # the end of the client's output ends the connection
        log.debug("the client has disconnected")


def _refuse(writer: _ByteWriter, line: bytes | bytearray, code: int, message: str) -> None:
    """Answer a line that could not be read."""
    error = {"jsonrpc": "2.0", "id": find_id(line), "error": {"code": code, "message": message}}
    writer.write(orjson.dumps(error) + b"\n")


@contextmanager
def _own_standard_streams() -> Iterator[tuple[int, int]]:
    """Take private copies of stdin and stdout. Meanwhile descriptors 0 and 1 are the null device and stderr, so that a
    stray print does not break the protocol."""
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


class _ByteReader(Protocol):
    async def read(self, n: int) -> bytes: ...


class _ByteWriter(Protocol):
    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...


def _is_pollable(descriptor: int) -> bool:
    """Return whether the event loop can wait for it; for a plain file, as in `toolgate serve < requests`, it cannot."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(descriptor))


async def _read_pipe(descriptor: int, closing: ExitStack) -> _ByteReader:
    reader = asyncio.StreamReader(limit=CHUNK)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    closing.callback(transport.close)
    return reader


async def _write_pipe(descriptor: int, closing: ExitStack) -> _ByteWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(descriptor, "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    closing.callback(writer.close)  # buffered data is still written
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
