"""The fast path over HTTP: a request's head and body parsed, its call watched, its response sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from starlette.datastructures import QueryParams
from starlette.types import Receive, Send

from gateway.calls import to_json
from gateway.identity import Principal
from gateway.identity.authentication import Identity, parse_credential
from gateway.protocol import MODERN_PROTOCOL_VERSIONS
from gateway.protocol.jsonrpc import REQUEST_CANCELLED
from gateway.serve.mcp import fastpath
from gateway.serve.mcp.event_streams import (
    PING,
    PING_SECONDS,
    PRIMED_SINCE,
    EventStream,
    SessionStreams,
    encode_event,
)
from gateway.serve.mcp.fastpath import EncodedResponse, FastPath, ParsedRequest
from gateway.serve.mcp.handlers import Handlers
from gateway.serve.mcp.request import connection_chat, read_traceparent
from gateway.serve.mcp.sdk import ERROR_STATUS, HttpSessions, SdkTransport, is_modern_request
from gateway.serve.mcp.sessions import Session
from gateway.tasks import CallScope, SharedTimer

Headers = Mapping[bytes, bytes]

# Seconds after which a call is watched: its client may disconnect, and its stream must be kept open.
WATCH_SECONDS = 0.1

# Seconds after which a call is answered on a stream that its client can resume.
STREAM_SECONDS = 1.0

_JSON, _EVENTS = b"application/json", b"text/event-stream"
_STREAM_HEADERS = [
    (b"content-type", _EVENTS),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_ROUTING = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")
_METHODS = frozenset(method.encode() for method in fastpath.METHODS)
_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of a request. `chat` is the one that the URL or the command line names, `profile` the one of the URL,
    `credential` what the request is authenticated by, each time, `traceparent` the trace it belongs to."""

    headers: Headers
    chat: str | None
    session_id: str | None
    credential: bytes | None
    profile: str | None
    traceparent: str | None


class HttpFastPath:
    """Answers the requests that `fastpath` can parse; the others are left to the application, among them those that
    cannot be authenticated at once. `is_allowed` checks the headers of a request."""

    def __init__(
        self,
        handlers: Handlers,
        sessions: HttpSessions,
        is_allowed: Callable[[Headers], bool],
        identity: Identity,
        path: str,
    ) -> None:
        profiles = {f"{path}/{profile}".encode(): profile for profile in identity.roles.profiles}
        self._profiles: Mapping[bytes, str | None] = {path.encode(): None, **profiles}
        self.paths = frozenset(self._profiles)
        self._identity = identity
        self._handlers = handlers
        self._sessions = sessions
        self._is_allowed = is_allowed
        self._fast = FastPath(handlers)
        self._timer = SharedTimer(WATCH_SECONDS)

    def parse_head(self, path: bytes, query: bytes, headers: Headers) -> RequestHead | None:
        """Return the head of a request that may be answered here."""
        if not self._is_allowed(headers) or not _is_negotiated(headers.get(b"content-type"), headers.get(b"accept")):
            return None
        session_id = headers[b"mcp-session-id"].decode("latin-1") if b"mcp-session-id" in headers else None
        chat = QueryParams(query).get("chat") if query else None
        credential, profile = parse_credential(headers), self._profiles[path]
        trace = read_traceparent(headers.get(b"traceparent"))
        head = RequestHead(headers, chat or self._handlers.chat, session_id, credential, profile, trace)
        is_modern = headers.get(b"mcp-protocol-version") in _MODERN and headers.get(b"mcp-method") in _METHODS
        return head if is_modern or self._find_session(head) is not None else None

    def answer(self, head: RequestHead, body: bytes, receive: Receive, send: Send) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that answers the request, if it can be answered here."""
        principal = self._identity.find(head.credential, head.profile)
        message = fastpath.parse(body) if principal is not None else None
        if principal is None or message is None:
            return None
        if head.traceparent is not None:
            fastpath.add_traceparent(message, head.traceparent)
        if head.session_id is not None and (found := self._find_session(head)) is not None:
            return self._answer_in_session(*found, principal, message, head, send)
        chat = connection_chat(principal, head.chat)
        parsed = fastpath.parse_modern(message, principal, chat, relayed=True)
        if parsed is None or not self._matches(parsed, head.headers, message):
            return None
        return self._answer_modern(parsed, receive, send)

    async def _answer_modern(self, parsed: ParsedRequest, receive: Receive, send: Send) -> None:
        response = _HttpResponse(send)
        with _CallWatch(self._timer, response, receive) as call:
            encoded = await self._fast.answer(parsed, response.notify)
        if not call.cancelled:
            await response.end(encoded)

    def _matches(self, parsed: ParsedRequest, headers: Headers, message: Mapping[str, Any]) -> bool:
        """Return whether headers and body name the same method, tool and version. The SDK words the error of a
        difference."""
        name = parsed.params.get("name", "")
        if name and self._handlers.tools.header_schema(name, parsed.caller.access) is not None:
            return False
        if (
            headers.get(b"mcp-name", b"") == name.encode()
            and headers.get(b"mcp-method") == parsed.method.encode()
            and headers.get(b"mcp-protocol-version") == parsed.version.encode()
        ):
            return True
        return is_modern_request(
            message, {name.decode(): headers[name].decode("latin-1") for name in _ROUTING if name in headers}
        )

    def _answer_in_session(
        self,
        session: Session,
        transport: SdkTransport,
        principal: Principal,
        message: Mapping[str, Any],
        head: RequestHead,
        send: Send,
    ) -> Coroutine[Any, Any, None] | None:
        owner = self._sessions.owner(transport)
        if owner is None or not owner.is_same(principal):
            return None
        session_id = head.headers[b"mcp-session-id"]
        if session.take_reply(message):
            return _accept(send, session_id)
        chat = connection_chat(principal, head.chat, session, message.get("method", ""))
        parsed = fastpath.parse_in_session(message, session, chat)
        return None if parsed is None else self._call_in_session(session, transport, parsed, send, session_id)

    async def _call_in_session(
        self, session: Session, transport: SdkTransport, parsed: ParsedRequest, send: Send, session_id: bytes
    ) -> None:
        streams = self._sessions.streams(transport)
        response = _HttpResponse(send, session_id, streams, session.version >= PRIMED_SINCE)
        with self._sessions.in_use(transport), _CallWatch(self._timer, response) as call:
            session.calls[str(parsed.id)] = call
            try:
                encoded = await self._fast.answer(parsed, response.notify)
            finally:
                if session.calls.get(str(parsed.id)) is call:  # another with this id may have come at the same time
                    del session.calls[str(parsed.id)]
        if call.cancelled:
            encoded = fastpath.encode_error(parsed.id, REQUEST_CANCELLED, "Request cancelled")
        await response.end(encoded)

    def _find_session(self, head: RequestHead) -> tuple[Session, SdkTransport] | None:
        """Return the session of a request, if it is alive and of the version in the headers."""
        if head.session_id is None:
            return None
        session = self._handlers.sessions.get(head.session_id)
        transport = self._sessions.find(head.session_id)
        if session is None or transport is None:
            return None
        version = head.headers.get(b"mcp-protocol-version")
        return (session, transport) if version == session.version.encode() else None


class _HttpResponse:
    """A response over HTTP: plain JSON or, if messages are sent before it, an event stream. A stream among `streams`
    can be resumed; with `primed` also before its first message."""

    def __init__(
        self,
        send: Send,
        session_id: bytes | None = None,
        streams: SessionStreams | None = None,
        primed: bool = False,
    ) -> None:
        self.primed = primed
        self._send = send
        self._headers = [] if session_id is None else [(b"mcp-session-id", session_id)]
        self._streams = streams
        self._stream: EventStream | None = None
        self._streaming = False
        self._lock: asyncio.Lock | None = None  # made when needed, which is rare

    async def notify(self, message: Mapping[str, Any]) -> None:
        await self._send_event(to_json(message))

    async def open(self) -> None:
        """Begin the stream, if it has not begun."""
        await self._send_event(None)

    async def ping(self) -> None:
        await self._send_event(None, PING)

    async def end(self, response: EncodedResponse) -> None:
        """Send the response, after any event that is being sent."""
        if self._lock is not None:
            async with self._lock:
                if self._streaming:
                    body = self._encode(response.message, last=True)
                    await self._send({"type": "http.response.body", "body": body})
                    return
        status = 200 if response.error is None or self._headers else ERROR_STATUS.get(response.error, 200)
        headers = [(b"content-type", _JSON), *self._headers]
        if response.call_id is not None:
            headers.append((b"toolgate-call-id", response.call_id.encode()))
        start = {"type": "http.response.start", "status": status, "headers": headers, "body": response.message}
        await self._send(start)

    async def _send_event(self, message: bytes | None, comment: bytes = b"") -> None:
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if not self._streaming:
                headers = [*_STREAM_HEADERS, *self._headers]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
                self._streaming = True
                comment = self._begin() + comment
            body = comment if message is None else comment + self._encode(message)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    def _begin(self) -> bytes:
        """Let the client resume the stream, if it has a session; return the first event."""
        if self._streams is None:
            return b""
        self._stream = self._streams.open(self._interrupt)
        return self._stream.prime() if self.primed else b""

    async def _interrupt(self) -> None:
        await self._send({"type": "http.disconnect"})

    def _encode(self, message: bytes, last: bool = False) -> bytes:
        return encode_event(message) if self._stream is None else self._stream.add(message, last)


class _CallWatch:
    """Cancels a call on demand, without an exception (see `cancelled`), and keeps the stream of a long call open. With
    `receive`, a client that disconnects cancels its call."""

    def __init__(self, timer: SharedTimer, response: _HttpResponse, receive: Receive | None = None) -> None:
        self._scope = CallScope()
        self._timer = timer
        self._response = response
        self._receive = receive
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def cancelled(self) -> bool:
        return self._scope.cancelled_caught

    def cancel(self) -> None:
        self._scope.cancel()

    def __enter__(self) -> Self:
        self._timer.add(self, self._start)
        self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool:
        self._timer.remove(self)
        for task in self._tasks:
            task.cancel()
        return self._scope.__exit__(*error)

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._keep_open()))
        if self._receive is not None:
            self._tasks.append(loop.create_task(self._wait_for_disconnect(self._receive)))

    async def _keep_open(self) -> None:
        if self._response.primed:
            await asyncio.sleep(STREAM_SECONDS)
            await self._response.open()
        while True:
            await asyncio.sleep(PING_SECONDS)
            await self._response.ping()

    async def _wait_for_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.cancel()


@lru_cache(maxsize=64)  # clients send one of a few values
def _is_negotiated(content_type: bytes | None, accept: bytes | None) -> bool:
    """Return whether the client sends JSON and accepts both JSON and an event stream."""
    if (content_type or b"").partition(b";")[0].rstrip() != _JSON:
        return False
    return {kind.partition(b";")[0].strip() for kind in (accept or b"").split(b",")} >= {_JSON, _EVENTS}


async def _accept(send: Send, session_id: bytes) -> None:
    headers = [(b"content-length", b"0"), (b"mcp-session-id", session_id)]
    await send({"type": "http.response.start", "status": 202, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
