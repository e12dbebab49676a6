"""The short way over HTTP, in front of the SDK's application."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Self

import anyio
from mcp.server.streamable_http import StreamableHTTPServerTransport as Transport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, InboundModernRoute, classify_inbound_request
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.calls import to_json
from gateway.extensions.cancel_scope import cancel_scope
from gateway.extensions.shared_timer import Later
from gateway.protocol import MODERN_PROTOCOL_VERSIONS
from gateway.protocol.jsonrpc import REQUEST_CANCELLED
from gateway.serve.mcp import fastpath
from gateway.serve.mcp.fastpath import SIZE, Encoded, FastPath, Parsed
from gateway.serve.mcp.handlers import Handlers
from gateway.serve.mcp.request import connection_chat, principal_of
from gateway.serve.mcp.sessions import Session

Headers = Mapping[bytes, bytes]

# Seconds after which somebody looks whether the client of a call is still there.
MOMENT = 0.1

PING_SECONDS = 15.0
PING = b": ping\r\n\r\n"

_JSON, _EVENTS = b"application/json", b"text/event-stream"
_STREAM = [
    (b"content-type", _EVENTS),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_ROUTING = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")
_METHODS = frozenset(method.encode() for method in fastpath.METHODS)
_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)


class HttpFastPath:
    """An ASGI application: answers what it can, and hands the rest to `app` as it came."""

    def __init__(self, handlers: Handlers, app: ASGIApp, manager: StreamableHTTPSessionManager, path: str) -> None:
        self._handlers = handlers
        self._app = app
        self._manager = manager
        self._path = path
        self._fast = FastPath(handlers)
        self._later = Later(MOMENT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._fitting(scope)
        if headers is None:
            await self._app(scope, receive, send)
            return
        body, replayed = await _read(receive)
        answering = self.answering(headers, scope["query_string"], body, receive, send)
        await (self._app(scope, replayed, send) if answering is None else answering)

    def answering(
        self, headers: Headers, query: bytes, body: bytes, receive: Receive, send: Send
    ) -> Coroutine[Any, Any, None] | None:
        """What answers a promising request, if it can be answered here."""
        message = fastpath.parse(body)
        if message is None:
            return None
        chat = self._chat(query, headers)
        if b"mcp-session-id" in headers and (found := self._session(headers)) is not None:
            return self._in_session(*found, message, chat, headers[b"mcp-session-id"], send)
        request = fastpath.parse_modern(message, principal_of(headers), chat, relayed=True)
        if request is None or not self._fits(request, headers, message):
            return None
        return self._modern(request, receive, send)

    def _fitting(self, scope: Scope) -> dict[bytes, bytes] | None:
        """The headers of a request that may go this way; of one said twice, none knows which is meant."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != self._path:
            return None
        headers = dict(scope["headers"])
        return headers if len(headers) == len(scope["headers"]) and self.promising(headers) else None

    def promising(self, headers: Headers) -> bool:
        """Whether its body is worth a look."""
        if not _negotiated(headers.get(b"content-type"), headers.get(b"accept")):
            return False
        version = headers.get(b"mcp-protocol-version")
        return (version in _MODERN and headers.get(b"mcp-method") in _METHODS) or self._session(headers) is not None

    async def _modern(self, request: Parsed, receive: Receive, send: Send) -> None:
        reply = _Reply(send)
        with _Attendance(self._later, reply, receive) as call:
            answer = await self._fast.answer(request, reply.notify)
        if not call.ended:
            await reply.end(answer)

    def _fits(self, request: Parsed, headers: Headers, message: Mapping[str, Any]) -> bool:
        """Whether headers and body say the same; which words a difference is answered with, the SDK knows."""
        called = request.params.get("name", "")
        if called and self._handlers.tools.header_schema(called) is not None:
            return False
        if (
            headers.get(b"mcp-name", b"") == called.encode()
            and headers.get(b"mcp-method") == request.method.encode()
            and headers.get(b"mcp-protocol-version") == request.version.encode()
        ):
            return True
        said = {name.decode(): headers[name].decode("latin-1") for name in _ROUTING if name in headers}
        return isinstance(classify_inbound_request(message, headers=said), InboundModernRoute)

    def _in_session(
        self, session: Session, transport: Transport, message: Mapping[str, Any], chat: str, name: bytes, send: Send
    ) -> Coroutine[Any, Any, None] | None:
        if _settles(session, message):
            return _accepted(send, name)
        request = fastpath.parse_in_session(message, session, chat)
        return None if request is None else self._answer_in(session, transport, request, _Reply(send, name))

    async def _answer_in(self, session: Session, transport: Transport, request: Parsed, reply: _Reply) -> None:
        with _in_use(transport), _Attendance(self._later, reply) as call:
            session.calls[str(request.id)] = call
            try:
                answer = await self._fast.answer(request, reply.notify)
            finally:
                if session.calls.get(str(request.id)) is call:  # another of this id may have come at the same moment
                    del session.calls[str(request.id)]
        await reply.end(
            fastpath.encode_error(request.id, REQUEST_CANCELLED, "Request cancelled") if call.ended else answer
        )

    def _session(self, headers: Headers) -> tuple[Session, Transport] | None:
        """The session a request belongs to, if it is alive."""
        if b"mcp-session-id" not in headers:
            return None
        session_id = headers[b"mcp-session-id"].decode("latin-1")
        session = self._handlers.sessions.get(session_id)
        transport = self._manager._server_instances.get(session_id)
        if session is None or transport is None or transport.is_terminated:
            return None
        return (session, transport) if headers.get(b"mcp-protocol-version") == session.version.encode() else None

    def _chat(self, query: bytes, headers: Headers) -> str:
        """The chat of a request that names none: the URL's, the command line's, the session's."""
        asked = QueryParams(query).get("chat") if query else None
        return connection_chat(self._handlers.chat, asked, headers.get(b"mcp-session-id", b"").decode("latin-1"))


class _Reply:
    """An answer over HTTP: plain JSON, unless something is said before it; then a stream of events."""

    def __init__(self, send: Send, session_id: bytes | None = None) -> None:
        self._send = send
        self._headers = [] if session_id is None else [(b"mcp-session-id", session_id)]
        self._streaming = False
        self._turn: asyncio.Lock | None = None  # which few need

    async def notify(self, message: Mapping[str, Any]) -> None:
        await self._event(_event(to_json(message)))

    async def ping(self) -> None:
        await self._event(PING)

    async def end(self, answer: Encoded) -> None:
        """Send the answer, once; what is being said goes first."""
        if self._turn is not None:
            async with self._turn:
                if self._streaming:
                    await self._send({"type": "http.response.body", "body": _event(answer.message)})
                    return
        status = 200 if answer.error is None or self._headers else ERROR_CODE_HTTP_STATUS.get(answer.error, 200)
        length = b"%d" % len(answer.message)
        headers = [(b"content-type", _JSON), (b"content-length", length), *self._headers]
        if answer.call_id is not None:
            headers.append((b"toolgate-call-id", answer.call_id.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": answer.message})

    async def _event(self, event: bytes) -> None:
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            if not self._streaming:
                headers = [*_STREAM, *self._headers]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
                self._streaming = True
            await self._send({"type": "http.response.body", "body": event, "more_body": True})


class _Attendance:
    """Looks after a call: it ends quietly when it is called off (`ended` says so), and one that takes longer than a
    moment has its silent stream kept open. Where a client that leaves means to call off, `receive` tells of that."""

    def __init__(self, later: Later, reply: _Reply, receive: Receive | None = None) -> None:
        self._scope = cancel_scope()
        self._later = later
        self._reply = reply
        self._receive = receive
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ended(self) -> bool:
        return self._scope.cancelled_caught

    def cancel(self) -> None:
        self._scope.cancel()

    def __enter__(self) -> Self:
        self._later.expect(self, self._begin)
        self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool:
        self._later.drop(self)
        for task in self._tasks:
            task.cancel()
        return self._scope.__exit__(*error)

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._keep_open()))
        if self._receive is not None:
            self._tasks.append(loop.create_task(self._watch(self._receive)))

    async def _keep_open(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            await self._reply.ping()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.cancel()


@contextmanager
def _in_use(transport: Transport) -> Iterator[None]:
    """Keeps the SDK, which does not see what is answered here, from ending a session as idle: it counts as a request
    of its own would."""
    if transport.idle_scope is None or transport._idle_timeout is None:
        yield
        return
    transport._requests_in_flight += 1
    transport.idle_scope.deadline = math.inf
    try:
        yield
    finally:
        transport._requests_in_flight -= 1
        if not transport._requests_in_flight:
            transport.idle_scope.deadline = anyio.current_time() + transport._idle_timeout


@lru_cache(maxsize=64)  # all clients say one of a few things
def _negotiated(sent: bytes | None, accepted: bytes | None) -> bool:
    """Whether the client sends JSON and takes either kind of answer."""
    if (sent or b"").partition(b";")[0].rstrip() != _JSON:
        return False
    return {kind.partition(b";")[0].strip() for kind in (accepted or b"").split(b",")} >= {_JSON, _EVENTS}


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """The body, as far as it is of a size for the short way; and a way to read it again from the beginning."""
    message = await receive()
    body = bytearray(message.get("body", b""))
    while message.get("more_body") and len(body) <= SIZE:
        message = await receive()
        body += message.get("body", b"")
    whole = bytes(body)
    gone = message["type"] != "http.request"  # its client left in the middle of it
    read = {"type": "http.request", "body": whole, "more_body": gone or message.get("more_body", False)}
    left = iter((read, message) if gone else (read,))

    async def again() -> Any:
        return next(left, None) or await receive()

    return b"" if gone else whole, again


def _settles(session: Session, message: Mapping[str, Any]) -> bool:
    """Whether this is no request but the client's word about one under way here."""
    if message.get("method") == "notifications/cancelled":
        params = message.get("params")
        return isinstance(params, dict) and session.cancel_call(params.get("requestId"))
    return "method" not in message and session.take_answer(message)


async def _accepted(send: Send, session_id: bytes) -> None:
    headers = [(b"content-length", b"0"), (b"mcp-session-id", session_id)]
    await send({"type": "http.response.start", "status": 202, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _event(message: bytes) -> bytes:
    # A line break would end the data. In JSON it can only be space between two tokens.
    return b"event: message\r\ndata: %b\r\n\r\n" % message.replace(b"\r", b" ").replace(b"\n", b" ")
