"""A gateway in this process, served over a connection, over pipes, and by the SDK's application alone; with tools that
record the calls they get."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httptools
import pytest
import uvicorn
from eventually import TIMEOUT, async_eventually
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

from gateway import Gateway
from gateway.calls import Call, Outcome
from gateway.errors import ToolFailed, UpstreamFault
from gateway.identity.authentication import Identity
from gateway.protocol.jsonrpc import RpcError
from gateway.serve import stdio
from gateway.serve.http.app import PATH, HttpApp, RequestGuard
from gateway.serve.http.authentication import Authentication
from gateway.serve.http.protocol import FastHandler, FastHttpProtocol, HeaderCache
from gateway.serve.mcp.handlers import Handlers, McpServer
from gateway.serve.stdio import serve_stdio
from gateway.tools import Permission, Tool

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
CALL_ID = "dev.toolgate/call_id"
LIMIT = 2 * 1024 * 1024
ENVELOPE: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "tester", "version": "1"},
}
ABLE: dict[str, Any] = {"elicitation": {"form": {}}}
INITIALIZED: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/initialized"}
QUESTION = {"message": "what?", "requestedSchema": {"type": "object", "properties": {}}}


def initialize(capabilities: Mapping[str, Any] | None = None, version: str = HANDSHAKE) -> dict[str, Any]:
    params = {
        "protocolVersion": version,
        "capabilities": capabilities or {},
        "clientInfo": {"name": "tester", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params}


def request(
    method: str, params: Mapping[str, Any] | None = None, number: Any = 1, envelope: Mapping[str, Any] = ENVELOPE
) -> dict[str, Any]:
    """Return a request; without an envelope it is one of the handshake versions."""
    parameters = dict(params or {})
    if envelope:
        parameters["_meta"] = {**envelope, **parameters.get("_meta", {})}
    return {"jsonrpc": "2.0", "id": number, "method": method, **({"params": parameters} if parameters else {})}


def call(name: str, arguments: Mapping[str, Any] | None = None, number: Any = 1, **options: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"name": name, "arguments": dict(arguments or {})}
    if "meta" in options:
        params["_meta"] = options.pop("meta")
    return request("tools/call", params, number, **options)


def routing(message: Any) -> dict[str, str]:
    """Return the routing headers of a modern client."""
    params = message.get("params")
    name = params.get("name") if isinstance(params, dict) else None
    named = {"mcp-name": name} if isinstance(name, str) else {}
    return {"mcp-protocol-version": MODERN, "mcp-method": str(message.get("method")), **named}


@dataclass
class RecordingSource:
    """A source of tools that record their calls. `wait` sets `begun`, and ends when `go` is set; `ended` are the calls
    that were cancelled, `more` the names of further tools."""

    name: str = "stall"
    calls: list[Call] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    ended: list[str] = field(default_factory=list)
    more: list[str] = field(default_factory=list)

    async def list_tools(self) -> Sequence[Tool]:
        typed = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
        marked = {"type": "object", "properties": {"where": {"type": "string", "x-mcp-header": "Where"}}}
        return [
            *(
                _make_tool(name)
                for name in (
                    "echo",
                    "count",
                    "ask",
                    "wait",
                    "save",
                    "refuse",
                    "break",
                    "fault",
                    "picture",
                    "late",
                    *self.more,
                )
            ),
            _make_tool("typed", input_schema=typed),
            _make_tool("marked", input_schema=marked),
            _make_tool("object", output_schema={"type": "object"}),
            _make_tool("number", output_schema={"type": "integer"}),
        ]

    async def call_tool(self, call: Call) -> Outcome:
        self.calls.append(call)
        name = call.target.id.partition(":")[2]
        return await getattr(self, f"_{name}", self._echo)(call)

    async def _echo(self, call: Call) -> Outcome:
        return Outcome(value=dict(call.arguments))

    async def _number(self, _: Call) -> Outcome:
        return Outcome(value=7)

    async def _picture(self, _: Call) -> Outcome:
        return Outcome(value=None, content=[{"type": "image", "mimeType": "image/png", "data": "AAAA"}])

    async def _refuse(self, _: Call) -> Outcome:
        raise ToolFailed("not today", code="CLOSED")

    async def _break(self, _: Call) -> Outcome:
        raise RuntimeError("a secret of the gateway")

    async def _fault(self, call: Call) -> Outcome:
        code = call.arguments.get("code", -32077)
        return Outcome(error=UpstreamFault("the server is closed", fault=code, data={"until": [9, None]}))

    async def _count(self, call: Call) -> Outcome:
        await call.progress(1, 3, "on")
        await call.progress(2.5, None, None)
        await call.progress(3, 3, None)
        return Outcome(value="counted")

    async def _late(self, call: Call) -> Outcome:
        """Report progress after the result."""

        async def later() -> None:
            await self.go.wait()
            await call.progress(9, None, None)
            self.begun.set()

        self._saying = asyncio.get_running_loop().create_task(later())
        return Outcome(value="answered")

    async def _ask(self, call: Call) -> Outcome:
        assert call.client is not None
        if call.client.ask is None:
            return Outcome(value="nobody to ask")
        self.begun.set()
        try:
            return Outcome(value=await call.client.ask("elicitation/create", QUESTION))
        except RpcError as error:
            return Outcome(value={"code": error.code, "message": error.message, "data": error.data})
        except asyncio.CancelledError:
            self.ended.append(call.id)
            raise

    async def _wait(self, call: Call) -> Outcome:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.append(call.id)
            raise
        return Outcome(value="waited")

    async def _save(self, call: Call) -> Outcome:
        """Do some cleanup when it is cancelled."""
        try:
            return await self._wait(call)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
                self.ended.append("saved")

    def take_calls(self) -> list[dict[str, Any]]:
        """Return the calls since the last time, without what depends on their path."""
        taken, self.calls = self.calls, []
        return [_describe_call(each) for each in taken]


def _make_tool(name: str, **more: Any) -> Tool:
    return Tool(f"stall:{name}", f"The {name} tool.", owner="stall", permission=Permission.READ_ONLY, **more)


def _describe_call(call: Call) -> dict[str, Any]:
    client = call.client
    assert client is not None
    known = (client.capabilities, client.meta, client.answers, client.level, client.modern, client.ask is not None)
    of_call = (call.name, call.arguments, call.chat, call.message, call.parent_message, call.caller)
    return {"call": of_call, "client": known}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def messages(self) -> list[Any]:
        """All messages, the response last, of JSON or of an event stream."""
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            events = self.body.decode().replace("\r\n", "\n").split("\n\n")
            found = ["".join(line[6:] for line in each.split("\n") if line.startswith("data: ")) for each in events]
            return [json.loads(data) for data in found if data]
        return [json.loads(self.body)] if self.body.startswith((b"{", b"[")) else [self.body.decode()]

    @property
    def message(self) -> Any:
        return self.messages[-1]


class Exchange:
    """One HTTP request in progress, and control of its client."""

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        url: str,
        headers: Iterable[tuple[str, str]],
        chunks: Sequence[bytes],
        whole: bool = True,
    ) -> None:
        path, _, query = url.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
            "server": ("127.0.0.1", 1),
            "client": None,  # as over the socket pairs of `ConnectionApp`
        }
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for place, chunk in enumerate(chunks, 1):
            more = place < len(chunks) or not whole
            self._incoming.put_nowait({"type": "http.request", "body": chunk, "more_body": more})
        self.sent: list[Mapping[str, Any]] = []
        self._news = asyncio.Event()
        self._hearing = asyncio.Event()
        self._hearing.set()
        self._events = 0
        self.done = asyncio.ensure_future(app(scope, self._incoming.get, self._send))
        self.done.add_done_callback(lambda _: self._news.set())

    async def _send(self, message: Any) -> None:
        """Check the order of ASGI messages: one start, then the body, then nothing."""
        ended = bool(self.sent) and self.sent[-1]["type"].endswith("body") and not self.sent[-1].get("more_body")
        assert not ended, f"said after the end: {message}"
        assert (message["type"] == "http.response.start") == (not self.sent), message
        self.sent.append(message)
        self._news.set()
        await self._hearing.wait()

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    def stop_reading(self) -> None:
        """Stop reading: whoever writes to this client has to wait."""
        self._hearing.clear()

    def resume_reading(self) -> None:
        self._hearing.set()

    async def started(self) -> None:
        """Wait for the beginning of the response."""
        with anyio.fail_after(TIMEOUT):
            await self._news.wait()

    async def until(self, what: bytes) -> bytes:
        """Wait until the body contains this; return the body."""
        with anyio.fail_after(TIMEOUT):
            while what not in self.body:
                assert not self.done.done(), (self.sent, self.done)
                self._news.clear()
                await self._news.wait()
        return self.body

    async def event(self) -> Any:
        """Return the next message of the event stream."""
        with anyio.fail_after(TIMEOUT):
            while len(self._messages()) <= self._events:
                assert not self.done.done(), (self.sent, self.done)
                self._news.clear()
                await self._news.wait()
        self._events += 1
        return self._messages()[self._events - 1]

    def _messages(self) -> list[Any]:
        whole = self.body.rpartition(b"\r\n\r\n")[0]
        return Answer(200, {"content-type": "text/event-stream"}, whole).messages

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent if message["type"] == "http.response.body")

    async def answer(self) -> Answer:
        with anyio.fail_after(TIMEOUT):
            await self.done
        headers = {name.decode(): value.decode("latin-1") for name, value in self.sent[0]["headers"]}
        assert self.sent[-1]["type"] == "http.response.body" and not self.sent[-1].get("more_body")
        return Answer(int(self.sent[0]["status"]), headers, self.body)


class Client:
    """A client of one application, in a session once it has opened one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.session: dict[str, str] = {}

    def send(
        self,
        message: Any,
        headers: Mapping[str, str | None] | Iterable[tuple[str, str]] = (),
        url: str = PATH,
        method: str = "POST",
        chunks: int = 1,
        whole: bool = True,
    ) -> Exchange:
        """Send a message. Headers of a mapping replace the usual ones, None removes one; those of a list are added."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode() if message is not None else b""
        usual: dict[str, str | None] = {
            "host": "127.0.0.1",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "content-length": str(len(body)),
            **(self.session or (routing(message) if isinstance(message, dict) else {})),
        }
        more = [] if isinstance(headers, Mapping) else list(headers)
        if isinstance(headers, Mapping):
            usual |= headers
        size = max(1, -(-len(body) // chunks))
        parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        given = [(name, value) for name, value in usual.items() if value is not None]
        return Exchange(self.app, method, url, [*given, *more], parts, whole)

    async def ask(self, message: Any, *arguments: Any, **options: Any) -> Answer:
        return await self.send(message, *arguments, **options).answer()

    async def open(self, capabilities: Mapping[str, Any] | None = None, version: str = HANDSHAKE) -> None:
        answer = await self.ask(initialize(capabilities, version), {"mcp-protocol-version": None, "mcp-method": None})
        self.session = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": version}
        assert (await self.ask(INITIALIZED)).status == 202

    async def delete(self) -> Answer:
        return await self.ask(None, method="DELETE")


class Line:
    """A client's end of an HTTP connection, which returns responses as ASGI messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._heard: deque[Message] = deque()

    async def message(self) -> Message | None:
        """The next; None when the connection has ended."""
        while not self._heard:
            try:
                data = await self.reader.read(65536)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self._parser.feed_data(data)
        return self._heard.popleft()

    async def answer(self) -> Answer:
        with anyio.fail_after(TIMEOUT):
            start = await self.message()
        assert start is not None, "the connection has ended"
        headers = {name.decode(): text.decode() for name, text in start["headers"]}
        return Answer(start["status"], headers, await self.rest())

    async def rest(self) -> bytes:
        """What is left of the body of an answer."""
        body = b""
        with anyio.fail_after(TIMEOUT):
            while (message := await self.message()) is not None and message["more_body"]:
                body += message["body"]
        assert message is not None, f"the connection has ended after {body!r}"
        return body

    async def ended(self) -> bool:
        """Wait for the end of the connection; return False if more data comes first."""
        with anyio.fail_after(TIMEOUT):
            return await self.message() is None

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status, headers = self._parser.get_status_code(), self._headers
        self._headers = []
        self._heard.append({"type": "http.response.start", "status": status, "headers": headers})

    def on_body(self, body: bytes) -> None:
        self._heard.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        self._heard.append({"type": "http.response.body", "body": b"", "more_body": False})


class ConnectionApp:
    """An ASGI application that sends each request as bytes over its own connection to the real one."""

    def __init__(self, app: ASGIApp, fast_path: FastHandler) -> None:
        self._fast_path = fast_path
        self._heads = HeaderCache()
        self._config = uvicorn.Config(app, log_config=None, access_log=False, proxy_headers=False, lifespan="off")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop, state = asyncio.get_running_loop(), ServerState()
        theirs, ours = socket.socketpair()
        served, _ = await loop.connect_accepted_socket(
            lambda: FastHttpProtocol(self._fast_path, self._heads, self._config, state, {}), theirs
        )
        line = Line(*await asyncio.open_connection(sock=ours))
        asking = loop.create_task(self._ask(scope, receive, line))
        try:
            while (message := await line.message()) is not None:
                await send(message)
                if not message.get("more_body", True):
                    break
            if state.tasks:
                await asyncio.wait(state.tasks)
        finally:
            for task in (asking, *state.tasks):  # as a server does that stops
                task.cancel()
            await asyncio.wait([asking, *state.tasks])
            served.abort()
            await line.close()

    async def _ask(self, scope: Scope, receive: Receive, line: Line) -> None:
        headers = scope["headers"]
        chunked = all(name != b"content-length" for name, _ in headers)
        if chunked:
            headers = [*headers, (b"transfer-encoding", b"chunked")]
        target = b"?".join(part for part in (scope["raw_path"], scope["query_string"]) if part)
        head = b"".join(b"%b: %b\r\n" % each for each in headers)
        line.writer.write(b"%b %b HTTP/1.1\r\n%b\r\n" % (scope["method"].encode(), target, head))
        with suppress(ConnectionError):  # a server may answer before it has heard all
            while (message := await receive())["type"] == "http.request":
                body, more = message["body"], message["more_body"]
                line.writer.write(chunk(body, last=not more) if chunked else body)
                await line.writer.drain()
        line.writer.close()


def chunk(body: bytes, last: bool = False) -> bytes:
    return (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if last else b"")


@dataclass
class Servers:
    """One gateway served twice: `fast` as users have it, over a connection, `sdk` by the SDK's application alone."""

    gateway: Gateway
    source: RecordingSource
    server: McpServer
    fast: ASGIApp
    sdk: ASGIApp

    async def session(self, capabilities: Mapping[str, Any] | None = None, version: str = HANDSHAKE) -> Client:
        """Return a client of `fast` after its handshake."""
        client = Client(self.fast)
        await client.open(capabilities, version)
        await async_eventually(lambda: self.server.handlers.sessions.get(client.session["mcp-session-id"]) is not None)
        return client

    async def records(self) -> list[tuple[str, str | None]]:
        """Return status and error code of finished calls, the latest first."""
        await self.gateway.executor.idle()
        return [(each.status, each.error_code) for each in await self.gateway.records.list_calls()]


@asynccontextmanager
async def open_servers(directory: Path, **settings: Any) -> AsyncIterator[Servers]:
    source = RecordingSource()
    chosen = {"data_dir": str(directory / "data"), "approval": {"mode": "never"}, **settings}
    async with Gateway.open(chosen, sources=[source]) as gateway:
        mcp_servers = [McpServer(Handlers(gateway.executor, gateway.versions, plans=gateway.records)) for _ in range(2)]
        served = HttpApp(mcp_servers[0], gateway.check_parts, RequestGuard(LIMIT))
        routes, _ = mcp_servers[1].sdk.http_app(PATH, LIMIT, [])
        async with mcp_servers[0].sdk.session_manager.run(), mcp_servers[1].sdk.session_manager.run():
            wire = ConnectionApp(served.app, served.fast_path)
            sdk = RequestGuard(LIMIT).wrap(Authentication(Identity(), PATH).wrap(routes))
            yield Servers(gateway, source, mcp_servers[0], wire, sdk)


class StdioClient:
    """A client at the other end of stdin and stdout."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        reader: asyncio.StreamReader,
        serving: asyncio.Future[None],
    ) -> None:
        self.serving = serving
        self._writer = writer
        self._reader = reader

    async def open(self, capabilities: Mapping[str, Any]) -> None:
        """Do the handshake, and wait until the server has read it."""
        await self.ask(initialize(capabilities))
        self.send(INITIALIZED)
        await self.ask(request("ping", number="ready", envelope={}))

    def send(self, *messages: Any) -> None:
        for message in messages:
            self._writer.write((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")

    async def line(self) -> Any:
        with anyio.fail_after(TIMEOUT):
            return json.loads(await self._reader.readline())

    async def ask(self, *messages: Any) -> Any:
        self.send(*messages)
        return await self.line()

    def close(self) -> None:
        self._writer.close()

    async def rest(self) -> list[Any]:
        """Return all messages until the server has ended."""
        with anyio.fail_after(TIMEOUT):
            await self.serving
            os.write(1, b"\n")  # stdout is still the same pipe
            return [json.loads(line) async for line in self._until_empty()]

    async def _until_empty(self) -> AsyncIterator[bytes]:
        while (line := await self._reader.readline()).strip():
            yield line


class NoFastPath:
    """A fast path that takes no line."""

    def __init__(self, *_: Any) -> None: ...

    def take(self, _: bytes) -> bool:
        return False

    def opening(self) -> Iterator[Any]:
        return iter(())

    async def close(self) -> None: ...


@asynccontextmanager
async def serve_on_pipes(
    gateway: Gateway,
    *,
    fast: bool = True,
    grace: float = TIMEOUT,
    chat: str | None = None,
    stop: anyio.Event | None = None,
) -> AsyncIterator[StdioClient]:
    """Serve the gateway over stdio in this process; with `fast=False` by the SDK alone."""
    server = McpServer(Handlers(gateway.executor, gateway.versions, chat, gateway.records))
    stop = stop or anyio.Event()
    with pytest.MonkeyPatch.context() as patch, _standard_pipes() as (to_us, from_us):
        if not fast:
            patch.setattr(stdio, "FastRequests", NoFastPath)
        loop = asyncio.get_running_loop()
        writing, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(to_us, "wb", 0)
        )
        reader = asyncio.StreamReader(limit=2**24)
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_us, "rb", 0)
        )
        serving = asyncio.ensure_future(serve_stdio(server, LIMIT, grace, stop))
        pipes = StdioClient(asyncio.StreamWriter(writing, protocol, None, loop), reader, serving)
        try:
            yield pipes
        finally:
            pipes.close()
            with anyio.move_on_after(TIMEOUT) as patience:
                await asyncio.wait([serving])
            reading.close()
            await anyio.lowlevel.checkpoint()  # what is closed lets go in a moment
            assert not patience.cancelled_caught


@contextmanager
def _standard_pipes() -> Iterator[tuple[int, int]]:
    """Put pipes in place of this process's stdin and stdout, and yield our ends of them."""
    kept = os.dup(0), os.dup(1)
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    os.dup2(theirs_in, 0)
    os.dup2(theirs_out, 1)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield ours_out, ours_in
    finally:
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)
