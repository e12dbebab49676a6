"""The short way over HTTP, in front of the SDK's application."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import anyio
from mcp.server.streamable_http import StreamableHTTPServerTransport as Transport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, InboundModernRoute, classify_inbound_request
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from ..calls import DEFAULT_CHAT, LOCAL, to_json
from ..extensions.later import Later
from . import express
from .express import REQUEST_CANCELLED, SIZE, Express, Ready, Written
from .mcp import McpFace
from .sessions import Session

MOMENT = 0.1
"""Seconds after which somebody looks whether the client of a call is still there."""

PING_SECONDS = 15.0
PING = b": ping\r\n\r\n"

_JSON, _EVENTS = b"application/json", b"text/event-stream"
_STREAM = [
    (b"content-type", _EVENTS),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_ROUTING = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")
_METHODS = frozenset(method.encode() for method in express.METHODS)
_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)


class ExpressHttp:
    """An ASGI application: answers what it can, and hands the rest to `app` as it came."""

    def __init__(self, face: McpFace, app: ASGIApp, manager: StreamableHTTPSessionManager, path: str) -> None:
        self._face = face
        self._app = app
        self._manager = manager
        self._path = path
        self._express = Express(face.tools)
        self._later = Later(MOMENT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._fitting(scope)
        if headers is not None:
            version = headers.get(b"mcp-protocol-version")
            if version in _MODERN and headers.get(b"mcp-method") in _METHODS:
                await self._modern(headers, scope, receive, send)
                return
            if version is not None and (found := self._session(headers, version)) is not None:
                session, transport = found
                with _in_use(transport):
                    await self._in_session(session, headers, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _fitting(self, scope: Scope) -> dict[bytes, bytes] | None:
        """The headers of a request that may go this way; of one said twice, none knows which is meant."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != self._path:
            return None
        headers = dict(scope["headers"])
        once = len(headers) == len(scope["headers"])
        return headers if once and _negotiated(headers.get(b"content-type"), headers.get(b"accept")) else None

    async def _modern(self, headers: Mapping[bytes, bytes], scope: Scope, receive: Receive, send: Send) -> None:
        body, replayed = await _read(receive)
        message = express.parse(body)
        request = message and express.modern(message, LOCAL, self._chat(scope, headers), relayed=True)
        if not request or not self._fits(request, headers, message or {}):
            await self._app(scope, replayed, send)
            return
        reply = _Reply(send)
        with _Attendance(self._later, reply, receive) as call:
            answer = await self._express.answer(request, reply.say)
        if not call.ended:
            await reply.end(answer)

    def _fits(self, request: Ready, headers: Mapping[bytes, bytes], message: Mapping[str, Any]) -> bool:
        """Whether headers and body say the same; which words a difference is answered with, the SDK knows."""
        called = request.params.get("name", "")
        if called and self._face.tools.header_schema(called) is not None:
            return False
        if (request.version.encode(), request.method.encode(), called.encode()) == (
            *(headers.get(name, b"") for name in _ROUTING),
        ):
            return True
        said = {name.decode(): headers[name].decode("latin-1") for name in _ROUTING if name in headers}
        return isinstance(classify_inbound_request(message, headers=said), InboundModernRoute)

    async def _in_session(
        self, session: Session, headers: Mapping[bytes, bytes], scope: Scope, receive: Receive, send: Send
    ) -> None:
        session_id = headers[b"mcp-session-id"]
        body, replayed = await _read(receive)
        message = express.parse(body) or {}
        if _settles(session, message):
            await _accepted(send, session_id)
            return
        request = express.in_session(message, session, self._chat(scope, headers))
        if request is None:
            await self._app(scope, replayed, send)
            return
        reply = _Reply(send, session_id)
        with _Attendance(self._later, reply) as call:
            session.calls[str(request.id)] = call
            try:
                answer = await self._express.answer(request, reply.say)
            finally:
                del session.calls[str(request.id)]
        await reply.end(express.failed(request.id, REQUEST_CANCELLED, "Request cancelled") if call.ended else answer)

    def _session(self, headers: Mapping[bytes, bytes], version: bytes) -> tuple[Session, Transport] | None:
        """The session a request belongs to, if it is alive."""
        session_id = headers.get(b"mcp-session-id", b"").decode("latin-1")
        session = self._face.sessions.get(session_id)
        transport = self._manager._server_instances.get(session_id)
        if session is None or transport is None or transport.is_terminated or version != session.version.encode():
            return None
        return session, transport

    def _chat(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str:
        """The chat of a request that names none: the URL's, the command line's, the session's."""
        asked = QueryParams(scope["query_string"]).get("chat") if scope["query_string"] else None
        return asked or self._face.chat or headers.get(b"mcp-session-id", b"").decode("latin-1") or DEFAULT_CHAT


class _Reply:
    """An answer over HTTP: plain JSON, unless something is said before it; then a stream of events."""

    def __init__(self, send: Send, session_id: bytes | None = None) -> None:
        self._send = send
        self._headers = [] if session_id is None else [(b"mcp-session-id", session_id)]
        self._streaming = False
        self._turn = asyncio.Lock()

    async def say(self, message: Mapping[str, Any]) -> None:
        await self._event(_event(to_json(message)))

    async def ping(self) -> None:
        await self._event(PING)

    async def end(self, answer: Written) -> None:
        """Send the answer, once; what is being said goes first."""
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
        self.ended = False
        self._later = later
        self._called_off = False
        self._reply = reply
        self._receive = receive
        self._tasks: list[asyncio.Task[None]] = []

    def cancel(self) -> None:
        if not self._called_off:
            self._called_off = True
            self._call.cancel()

    def __enter__(self) -> _Attendance:
        self._call = cast("asyncio.Task[Any]", asyncio.current_task())
        self._later.expect(self, self._begin)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._later.drop(self)
        for task in self._tasks:
            task.cancel()
        if self._called_off:  # cancelled by others too, such as a server that stops, it goes on being cancelled
            self.ended = self._call.uncancel() == 0 and kind is asyncio.CancelledError
        return self.ended

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
    messages, body = [message], message.get("body", b"")
    while message.get("more_body") and len(body) <= SIZE:
        message = await receive()
        messages.append(message)
        body += message.get("body", b"")
    if message["type"] != "http.request":  # its client left in the middle of it
        body = b""
    left = iter(messages)

    async def again() -> Any:
        return next(left, None) or await receive()

    return body, again


def _settles(session: Session, message: Mapping[str, Any]) -> bool:
    """Whether this is no request but the client's word about one under way here."""
    if message.get("method") == "notifications/cancelled":
        params = message.get("params")
        return isinstance(params, dict) and session.called_off(params.get("requestId"))
    return "method" not in message and session.answered(message)


async def _accepted(send: Send, session_id: bytes) -> None:
    headers = [(b"content-length", b"0"), (b"mcp-session-id", session_id)]
    await send({"type": "http.response.start", "status": 202, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _event(message: bytes) -> bytes:
    # A line break would end the data. In JSON it can only be space between two tokens.
    return b"event: message\r\ndata: %b\r\n\r\n" % message.replace(b"\r", b" ").replace(b"\n", b" ")
