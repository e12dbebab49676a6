"""A load client that costs little: MCP of both eras over one kept-alive HTTP/1.1 connection, and nothing parsed
that need not be."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import httptools

Era = Literal["modern", "handshake"]

VERSIONS: Mapping[Era, str] = {"modern": "2026-07-28", "handshake": "2025-11-25"}
INFO = {"name": "bench", "version": "1"}
NAMESPACE = "io.modelcontextprotocol/"
PATIENCE = 30.0
OFFER = {"protocolVersion": VERSIONS["handshake"], "capabilities": {}, "clientInfo": INFO}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
# All numbers are as long as this, so that a request's length is known before its number is.
FIRST_ID = 10_000_000
_IDS = count(FIRST_ID)
_ID = re.compile(rb'"id":(\d+)')


class Refused(Exception):
    """A request was not answered with what was asked for."""


@dataclass(frozen=True)
class Request:
    """A request but for its number."""

    before: bytes
    after: bytes

    @classmethod
    def of(cls, written: bytes) -> Request:
        before, number, after = written.rpartition(b"%d" % FIRST_ID)
        assert number
        return cls(before, after)

    def numbered(self, number: int | None = None) -> bytes:
        return self.before + b"%d" % (number or next(_IDS)) + self.after


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.headers: dict[bytes, bytes] = {}
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Refused(f"the connection was closed: {error}"))

    def on_message_begin(self) -> None:
        self._parts = []
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._parts)))

    async def send(self, request: bytes) -> tuple[int, bytes]:
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def write(self, request: bytes) -> None:
        """Send what is not waited for."""
        self._transport.write(request)

    def close(self) -> None:
        self._transport.close()


@dataclass
class Client:
    """A client of one server in one era; of the handshake era, with a session of its own."""

    url: str
    era: Era
    _connections: list[Connection] = field(default_factory=list)
    _session: str = ""

    async def open(self) -> Client:
        connection = await self._connect()
        self._connections.append(connection)
        if self.era == "modern":
            return self
        await self.ask(self.request("initialize", OFFER))
        self._session = connection.headers.get(b"mcp-session-id", b"").decode()
        await connection.send(self._post(INITIALIZED, {}))
        return self

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    async def listen(self) -> None:
        """Hold the stream on which a session's server may speak, as SDK clients do."""
        listening = await self._connect()
        self._connections.append(listening)
        listening.write(self._head("GET", {"Accept": "text/event-stream"}) + b"\r\n")

    def request(self, method: str, params: Mapping[str, Any]) -> Request:
        """The request, written once for all the times it is sent."""
        routing = {"Mcp-Method": method} | ({"Mcp-Name": params["name"]} if "name" in params else {})
        return Request.of(self._post(_message(self.era, method, params), routing if self.era == "modern" else {}))

    async def ask(self, request: Request, expected: bytes = b'"result"', at_least: int = 0) -> bytes:
        """The body of the answer, in which `expected` is found."""
        if self._connections[0].closed:  # servers tire of a connection on which nothing happens
            self._connections[0] = await self._connect()
        status, body = await self._connections[0].send(request.numbered())
        if status != 200 or not _is_answer(body, expected, at_least):
            raise Refused(f"{self.url} answered {status}: {body[:400]!r}")
        return body

    async def list_tools(self) -> int:
        """How many tools there are, all pages read."""
        listed, cursor = 0, None
        while True:
            body = await self.ask(self.request("tools/list", {"cursor": cursor} if cursor else {}))
            listed += body.count(b'"inputSchema"')
            _, found, rest = body.rpartition(b'"nextCursor":"')
            if not found:
                return listed
            cursor = rest.partition(b'"')[0].decode()

    async def _connect(self) -> Connection:
        place = urlsplit(self.url)
        assert place.hostname is not None and place.port is not None
        _, connection = await asyncio.get_running_loop().create_connection(Connection, place.hostname, place.port)
        return connection

    def _post(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        body = _encoded(message)
        accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        return self._head("POST", {**accept, **headers, "Content-Length": str(len(body))}) + b"\r\n" + body

    def _head(self, method: str, headers: Mapping[str, str]) -> bytes:
        place = urlsplit(self.url)
        fixed = {"Host": place.netloc, "MCP-Protocol-Version": VERSIONS[self.era]}
        session = {"Mcp-Session-Id": self._session} if self._session else {}
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**fixed, **session, **headers}.items())
        return f"{method} {place.path} HTTP/1.1\r\n{lines}".encode()


class Pipe(asyncio.Protocol):
    """A client of a server over stdio: all requests go through the one pipe."""

    def __init__(self, server: subprocess.Popen[bytes], era: Era) -> None:
        self._server = server
        self._era = era
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._line = bytearray()
        self._writing: asyncio.WriteTransport | None = None

    async def open(self) -> Pipe:
        if self._writing is None:
            loop = asyncio.get_running_loop()
            assert self._server.stdout is not None and self._server.stdin is not None
            await loop.connect_read_pipe(lambda: self, self._server.stdout)
            self._writing, _ = await loop.connect_write_pipe(asyncio.Protocol, self._server.stdin)
            if self._era == "handshake":
                await self.ask(self.request("initialize", OFFER))
                self._writing.write(json.dumps(INITIALIZED).encode() + b"\n")
        return self

    def close(self) -> None:
        """It lasts as long as its server."""

    def data_received(self, data: bytes) -> None:
        searched = len(self._line)
        self._line += data
        while (end := self._line.find(b"\n", searched)) >= 0:
            line, searched = bytes(self._line[:end]), 0
            del self._line[: end + 1]
            if found := _ID.search(line, 0, 100):
                self._pending.pop(int(found[1])).set_result(line)

    def request(self, method: str, params: Mapping[str, Any]) -> Request:
        return Request.of(_encoded(_message(self._era, method, params)) + b"\n")

    async def ask(self, request: Request, expected: bytes = b'"result"', at_least: int = 0) -> bytes:
        assert self._writing is not None
        number = next(_IDS)
        self._pending[number] = asyncio.get_running_loop().create_future()
        self._writing.write(request.numbered(number))
        body = await self._pending[number]
        if not _is_answer(body, expected, at_least):
            raise Refused(f"the server answered {body[:400]!r}")
        return body


def _message(era: Era, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    if era == "modern":
        envelope = {"protocolVersion": VERSIONS["modern"], "clientInfo": INFO, "clientCapabilities": {}}
        params = {**params, "_meta": {NAMESPACE + key: value for key, value in envelope.items()}}
    return {"jsonrpc": "2.0", "id": FIRST_ID, "method": method, "params": params}


def _encoded(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def _is_answer(body: bytes, expected: bytes, at_least: int) -> bool:
    return len(body) >= at_least and expected in body and b'"isError":true' not in body[-200:]


async def run_for(seconds: float, works: Sequence[Callable[[], Awaitable[object]]]) -> tuple[list[float], float]:
    """Do each work again and again, all at once: how long each time took, and all of it."""
    times: list[float] = []
    started = time.perf_counter()

    async def again(work: Callable[[], Awaitable[object]]) -> None:
        while (before := time.perf_counter()) - started < seconds:
            await work()
            times.append(time.perf_counter() - before)

    try:
        async with asyncio.timeout(seconds + PATIENCE), asyncio.TaskGroup() as tasks:
            for work in works:
                tasks.create_task(again(work))
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return times, time.perf_counter() - started
