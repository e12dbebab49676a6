"""The fast path over HTTP: a request's head and body parsed, its call watched, its response sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from starlette.datastructures import QueryParams
from starlette.types import Receive, Send

from gateway.calls import to_json
from gateway.errors import RateLimited
from gateway.identity import Principal
from gateway.identity.authentication import Identity, parse_credential
from gateway.protocol import MODERN_PROTOCOL_VERSIONS
from gateway.protocol.jsonrpc import REQUEST_CANCELLED
from gateway.serve.http.authentication import is_refused
from gateway.serve.mcp import fastpath
from gateway.serve.mcp.event_streams import PING, PING_SECONDS, PRIMED_SINCE, EventStream, encode_event
from gateway.serve.mcp.fastpath import Envelope, FastPath, ServedCall
from gateway.serve.mcp.handlers import Handlers
from gateway.serve.mcp.request import Request, Response, connection_chat, read_traceparent
from gateway.serve.mcp.sdk import ERROR_STATUS, HttpSessions, SdkTransport, is_modern_request
from gateway.serve.mcp.sessions import Session
from gateway.tasks import SharedTimer

Headers = Mapping[bytes, bytes]

# Seconds after which a call is watched: its client may disconnect, and its stream must be kept open.
WATCH_SECONDS = 0.1

# Seconds after which a call is answered on a stream that its client can resume.
STREAM_SECONDS = 1.0

# Bytes of a request whose `_meta` is kept, with each of the cached heads.
KEPT_BODY = 4 * 1024

_JSON, _EVENTS = b"application/json", b"text/event-stream"
_JSON_LINE = b"content-type: application/json\r\n"
_STREAM_HEADERS = [
    (b"content-type", _EVENTS),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_ROUTING = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")
_METHODS = frozenset(method.encode() for method in fastpath.METHODS)
_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)


@dataclass(slots=True)
class RequestHead:
    """The head of a request. `chat` is the one that the URL or the command line names, `profile` the one of the URL,
    `credential` what the request is authenticated by, each time, `traceparent` the trace it belongs to. `envelope` and
    `route` (method, name and version) are those of the last body that matched it: clients repeat them."""

    headers: Headers
    chat: str | None
    session_id: str | None
    credential: bytes | None
    profile: str | None
    traceparent: str | None
    envelope: Envelope | None = None
    route: tuple[str, str, str] | None = None


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
        self.watched: dict[_HttpCall, RequestHead] = {}  # calls that take longer

    async def end_unauthenticated(self) -> None:
        """Cancel the calls in progress whose credential was revoked. One that has expired meanwhile was good enough for
        its calls: clients renew their tokens in the middle of long ones."""
        for call, head in list(self.watched.items()):
            if call.principal.has_expired:
                continue
            if await is_refused(self._identity.authenticate(head.headers, head.profile)):
                call.revoked = True
                call.cancel()

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
        call = _HttpCall(self._timer, send, receive)
        call.head, call.principal, call.watched = head, principal, self.watched
        chat = head.chat or principal.default_chat
        parsed = fastpath.parse_modern(message, principal, chat, call.notify, relayed=True, known=head.envelope)
        if parsed is None or not self._matches(parsed[0], head, message):
            return None
        request, envelope = parsed
        head.envelope = envelope if len(body) <= KEPT_BODY else None
        return self._answer_modern(request, call)

    async def _answer_modern(self, request: Request, call: _HttpCall) -> None:
        with call:
            response = await self._fast.answer(request)
        if call.cancelled_caught:
            if not call.revoked:  # the client has left
                return
            response = fastpath.encode_error(request.id, REQUEST_CANCELLED, "Request cancelled")
        await call.end(response)

    def _matches(self, request: Request, head: RequestHead, message: Mapping[str, Any]) -> bool:
        """Return whether headers and body name the same method, tool and version. The SDK words the error of a
        difference."""
        headers, name = head.headers, request.params.get("name", "")
        if name and self._handlers.tools.header_schema(name, request.caller.access) is not None:
            return False
        route = (request.method, name, request.version)
        if head.route == route:
            return True
        if (
            headers.get(b"mcp-name", b"") == name.encode()
            and headers.get(b"mcp-method") == request.method.encode()
            and headers.get(b"mcp-protocol-version") == request.version.encode()
        ):
            head.route = route
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
        call = _HttpCall(self._timer, send)
        call.head, call.principal, call.watched = head, principal, self.watched
        chat = connection_chat(principal, head.chat, session, message.get("method", ""))
        request = fastpath.parse_in_session(message, session, chat, call.notify)
        if request is None:
            return None
        call.session_id = session_id
        call.sessions, call.transport, call.primed = self._sessions, transport, session.version >= PRIMED_SINCE
        return self._call_in_session(session, transport, request, call)

    async def _call_in_session(
        self, session: Session, transport: SdkTransport, request: Request, call: _HttpCall
    ) -> None:
        call_key = str(request.id)
        self._sessions.begin_use(transport)
        with call:
            session.calls[call_key] = call
            try:
                response = await self._fast.answer(request)
            finally:
                self._sessions.end_use(transport)
                if session.calls.get(call_key) is call:  # another with this id may have come at the same time
                    del session.calls[call_key]
        if call.cancelled_caught:
            response = fastpath.encode_error(request.id, REQUEST_CANCELLED, "Request cancelled")
        await call.end(response)

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


class _HttpCall(ServedCall):
    """A request and its response over HTTP: plain JSON or, if messages are sent before it, an event stream. A stream
    of one among `sessions` can be resumed; with `primed` also before its first message. The stream of a long call is
    kept open, and so is its session; it is added to `watched` with its `head`. With `receive`, a client that
    disconnects cancels its call."""

    head: RequestHead
    principal: Principal
    watched: dict[_HttpCall, RequestHead]
    revoked = False
    session_id: bytes | None = None
    sessions: HttpSessions | None = None
    transport: SdkTransport
    primed = False
    _stream: EventStream | None = None
    _streaming = False
    _lock: asyncio.Lock | None = None  # made when needed, which is rare
    _tasks: Sequence[asyncio.Task[None]] = ()

    def __init__(self, timer: SharedTimer, send: Send, receive: Receive | None = None) -> None:
        self.loop = timer.loop
        self._timer = timer
        self._send = send
        self._receive = receive

    def __enter__(self) -> Self:
        self._timer.add(self, self._watch)
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._timer.remove(self)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            del self.watched[self]
        return super().__exit__(kind)

    async def send(self, message: Mapping[str, Any]) -> None:
        await self._send_event(to_json(message))

    async def end(self, response: Response) -> None:
        """Send the response, after any event that is being sent."""
        if self._lock is not None:
            async with self._lock:
                if self._streaming:
                    body = self._encode(response.message, last=True)
                    await self._send({"type": "http.response.body", "body": body})
                    return
        status, lines = 200, _JSON_LINE
        if self.session_id is not None:
            lines = b"%bmcp-session-id: %b\r\n" % (lines, self.session_id)
        elif response.error is not None:
            status = ERROR_STATUS.get(response.error, 200)
            if response.retry_after is not None:
                status, lines = RateLimited.status, b"%bretry-after: %d\r\n" % (lines, response.retry_after)
        if response.call_id is not None:
            lines = b"%btoolgate-call-id: %b\r\n" % (lines, response.call_id.encode())
        await self._send({"type": "http.response", "status": status, "lines": lines, "body": response.message})

    async def _send_event(self, message: bytes | None, comment: bytes = b"") -> None:
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if not self._streaming:
                session = [] if self.session_id is None else [(b"mcp-session-id", self.session_id)]
                headers = [*_STREAM_HEADERS, *session]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
                self._streaming = True
                comment = self._begin() + comment
            body = comment if message is None else comment + self._encode(message)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    def _begin(self) -> bytes:
        """Let the client resume the stream, if it has a session; return the first event."""
        streams = None if self.sessions is None else self.sessions.streams(self.transport)
        if streams is None:
            return b""
        self._stream = streams.open(self._interrupt)
        return self._stream.prime() if self.primed else b""

    async def _interrupt(self) -> None:
        await self._send({"type": "http.disconnect"})

    def _encode(self, message: bytes, last: bool = False) -> bytes:
        return encode_event(message) if self._stream is None else self._stream.add(message, last)

    def _watch(self) -> None:
        self.watched[self] = self.head
        if self.sessions is not None:
            self.sessions.extend_use(self.transport)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep_open())]
        if self._receive is not None:
            self._tasks.append(loop.create_task(self._wait_for_disconnect(self._receive)))

    async def _keep_open(self) -> None:
        if self.primed:
            await asyncio.sleep(STREAM_SECONDS)
            await self._send_event(None)
        while True:
            await asyncio.sleep(PING_SECONDS)
            await self._send_event(None, PING)

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
