"""An HTTP server whose every byte the test decides."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

MODERN = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1"}},
}


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int
    writer: asyncio.StreamWriter = field(repr=False)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        fields = {name.replace("_", "-"): text for name, text in headers.items()}
        if "transfer-encoding" not in fields:
            fields["content-length"] = str(len(body))
        lines = "".join(f"{name}: {text}\r\n" for name, text in fields.items())
        self.send(f"HTTP/1.1 {status} Some Reason\r\n{lines}\r\n".encode() + body)

    def result(self, result: Any, **headers: str) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": self.body["id"], "result": result}).encode()
        self.answer(200, body, content_type="application/json", **headers)

    def stream(self) -> None:
        self.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, message: Any, event_id: str | None = None) -> None:
        marked = f"id: {event_id}\n" if event_id else ""
        data = json.dumps({"jsonrpc": "2.0", **message}) if message is not None else ""
        self.chunk(f"{marked}event: message\ndata: {data}\n\n".encode())

    def end(self) -> None:
        self.send(b"0\r\n\r\n")

    def hang_up(self) -> None:
        self.writer.transport.abort()


Handler = Callable[[Request], Awaitable[None]]


class Scripted:
    def __init__(self, handler: Handler) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.lost = asyncio.Event()
        self._handler = handler
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                request = Request(method, path, headers, json.loads(body) if body else None, number, writer)
                self.requests.append(request)
                await self._handler(request)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost.set()
        finally:
            writer.close()

    def drop(self) -> None:
        """Close every connection, as a server does with those that rest too long."""
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def scripted(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Scripted, str]]:
    """The server, and its URL."""
    script = Scripted(handler)
    listening = await asyncio.start_server(script.serve, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield script, f"{'https' if tls else 'http'}://localhost:{port}/mcp"
    finally:
        listening.close()
        script.drop()


def modern(handler: Handler) -> Handler:
    """A modern server that is met in the ordinary way."""

    async def serve(request: Request) -> None:
        if request.body and request.body.get("method") == "server/discover":
            request.result(MODERN)
        else:
            await handler(request)

    return serve


def handshake(handler: Handler) -> Handler:
    """A handshake-era server with a session and no stream for what nobody asked."""

    async def serve(request: Request) -> None:
        method = request.body.get("method") if request.body else None
        if method == "server/discover":
            request.answer(400)
        elif method == "initialize":
            info = {"name": "scripted", "version": "1"}
            found = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": info}
            request.result(found, mcp_session_id="s-1")
        elif method in ("notifications/initialized", "notifications/cancelled", "ping"):
            request.answer(202)
        elif request.method == "DELETE" or (request.method == "GET" and "last-event-id" not in request.headers):
            request.answer(405)
        else:
            await handler(request)

    return serve
