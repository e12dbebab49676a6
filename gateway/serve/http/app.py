"""The HTTP application: MCP at `/mcp`, REST, health, and the checks every request passes first."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from ipaddress import AddressValueError, IPv6Address
from typing import TYPE_CHECKING, Any, cast

import anyio
import uvicorn
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import __version__
from gateway.errors import Forbidden, GatewayError, Invalid, RateLimited, Unavailable
from gateway.identity import Principal
from gateway.identity.authentication import Identity
from gateway.identity.roles import Roles
from gateway.protocol import HTTP_PATH, MODERN_PROTOCOL_VERSIONS
from gateway.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST
from gateway.secrets import KNOWN
from gateway.serve.http.authentication import Authentication, ForwardedHeaders, Origin, error_response
from gateway.serve.http.fastpath import HttpFastPath
from gateway.serve.http.protocol import FastHandler, FastHttpProtocol, HeaderCache
from gateway.serve.mcp.event_streams import KEPT_SECONDS, SESSION_BYTES
from gateway.serve.mcp.handlers import McpServer
from gateway.serve.mcp.sdk import SdkTransport

if TYPE_CHECKING:
    from gateway.admin.health_monitor import HealthCheck

# Returns the state of each part of the gateway.
CheckParts = Callable[[], Awaitable["Sequence[HealthCheck]"]]

PATH = HTTP_PATH
# Bytes of a body outside of MCP and REST: forms and registrations, which anybody may send.
FORM_LIMIT = 256 * 1024
# First parts of the paths of REST.
_REST = frozenset({"api", "tools", "openapi"})
# Answered for any host name: a probe uses the machine's address. For other names they tell only whether it works.
_HEALTH = frozenset({"/healthz", "/readyz"})
# A port in use is asked once whether a Toolgate serves there.
_PROBE_SECONDS, _PROBE_BYTES = 5.0, 4096
_CHECKED = frozenset({b"host", b"origin", b"content-length", b"authorization"})
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[0-9a-z._-]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
_NOT_KEPT = (
    f"no stream with this event is kept: events are kept for {KEPT_SECONDS / 60:g} minutes, and at most "
    f"{SESSION_BYTES >> 20} MiB of them per session; send the request again"
)


_NO_SESSION = b"Missing session ID"
_SESSION_ADVICE = (
    b": send initialize first, then the Mcp-Session-Id of its answer with every request; "
    b"or speak 2026-07-28, which has no sessions (header MCP-Protocol-Version)"
)


class HttpApp:
    """Everything that is served over HTTP, as the ASGI application `app` and the `fast_path` around it. `routes` are
    more routes; their requests are authenticated like all others, except for the `public` paths. `build_rest` returns
    the application of REST; its modules are imported by the first request that needs them."""

    def __init__(
        self,
        mcp: McpServer,
        check_parts: CheckParts,
        guard: RequestGuard,
        identity: Identity | None = None,
        routes: Sequence[BaseRoute] = (),
        public: Collection[str] = (),
        public_url: str | None = None,
        build_rest: Callable[[], ASGIApp] | None = None,
        issues_tokens: bool = False,
    ) -> None:
        identity = identity or Identity()
        origin = Origin(public_url)
        authentication = Authentication(identity, PATH, public, origin, issues_tokens, self._end_session)
        self._authentication = authentication
        self._mcp = mcp
        self._check_parts = check_parts
        self._guard = guard
        self._streams: set[anyio.CancelScope] = set()
        health = [Route("/healthz", self._healthz), Route("/readyz", self._readyz)]
        own = [*health, *authentication.routes(), *routes]
        app, self._sessions = mcp.sdk.http_app(PATH, guard.body_limit, own)
        app.add_exception_handler(404, _explain_not_found)
        self.routes: Sequence[BaseRoute] = app.routes
        inner = self._serve_sessions(app)
        served = self._end_streams(inner if build_rest is None else _mount_rest(inner, build_rest))
        self.app = guard.wrap(authentication.wrap(served))
        self.fast_path = HttpFastPath(mcp.handlers, self._sessions, guard.allows, identity, PATH)

    async def end_unauthenticated(self) -> None:
        """End the streams and calls in progress whose credential is not valid any more."""
        await self._authentication.end_unauthenticated()
        await self.fast_path.end_unauthenticated()

    async def _end_session(self, session_id: str, principal: Principal) -> None:
        """End a session with its calls, if it is the principal's."""
        transport = self._sessions.find(session_id)
        owner = None if transport is None else self._sessions.owner(transport)
        if transport is not None and owner is not None and owner.is_same(principal):
            await transport.terminate()

    def close(self) -> None:
        """End the streams on which clients only wait, so that the server need not abort them."""
        self._mcp.close()
        for stream in self._streams:
            stream.cancel()

    async def _healthz(self, _: Request) -> Response:
        return JSONResponse({"ok": True, "version": __version__})

    async def _readyz(self, request: Request) -> Response:
        parts = await self._check_parts()
        blocking = [part for part in parts if part.blocks]
        answer: dict[str, Any] = {"ok": not blocking}
        # They name servers that a role may not see; and a web page may ask under a host name of its own.
        if request.state.principal.admin and self._guard.allows(dict(request.scope["headers"])):
            answer["parts"] = KNOWN.mask_value([asdict(part) for part in parts])
        if blocking:
            subjects = ", ".join(dict.fromkeys(part.subject for part in blocking))
            error = Unavailable(f"not ready: {subjects}; 'parts' and `toolgate doctor` say why", code="NOT_READY")
            answer["error"] = error.to_dict()
        return JSONResponse(answer, status_code=Unavailable.status if blocking else 200)

    def _serve_sessions(self, app: ASGIApp) -> ASGIApp:
        """Return the application in which a session can only be used by the principal that opened it, with GET requests
        answered here that name the last event of a session's stream."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] != PATH:
                await app(scope, _limit_body(receive) if scope["type"] == "http" else receive, send)
                return
            headers = Headers(scope=scope)
            transport = self._sessions.find(headers.get("mcp-session-id", ""))
            if transport is not None:
                owner = self._sessions.owner(transport)
                if owner is None or not owner.is_same(scope["state"]["principal"]):
                    rest = [pair for pair in scope["headers"] if pair[0] != b"mcp-session-id"]
                    scope = {**scope, "headers": [*rest, (b"mcp-session-id", b"unknown")]}
                elif scope["method"] == "GET" and self._may_resume(headers):
                    await self._resume(transport, headers["last-event-id"], scope, receive, send)
                    return
            has_session = "mcp-session-id" in headers or headers.get("mcp-protocol-version") in MODERN_PROTOCOL_VERSIONS
            await app(scope, receive, send if has_session else _explain_missing_session(send))  # it words the errors

        return serve

    @staticmethod
    def _may_resume(headers: Headers) -> bool:
        return (
            "last-event-id" in headers
            and "text/event-stream" in headers.get("accept", "")
            and headers.get("mcp-protocol-version") not in MODERN_PROTOCOL_VERSIONS
        )

    async def _resume(self, transport: SdkTransport, last_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        streams = self._sessions.streams(transport)
        found = None if streams is None else streams.find(last_id)
        if found is None:
            response: Response = _rpc_error_response(_NOT_KEPT)
        else:
            stream, number = found
            response = StreamingResponse(stream.follow(number), headers=_STREAM_HEADERS)
        response.headers["mcp-session-id"] = transport.mcp_session_id or ""
        with self._sessions.in_use(transport):
            await response(scope, receive, send)

    def _end_streams(self, app: ASGIApp) -> ASGIApp:
        """Return the application with its GET streams, on which clients and browsers wait for events, ended by
        `close`."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"] != "GET" or not _accepts_events(scope):
                await app(scope, receive, send)
                return
            with anyio.CancelScope() as stream:
                self._streams.add(stream)
                try:
                    await app(scope, receive, send)
                finally:
                    self._streams.discard(stream)
            if stream.cancelled_caught:
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        return serve


async def _explain_not_found(request: Request, error: Exception) -> Response:
    detail = getattr(error, "detail", "")
    if detail == "Not Found":  # the router's own
        detail = f"there is no {request.url.path[:200]}: MCP is at {PATH}, REST at /api/docs, the console at /"
    return PlainTextResponse(detail, 404)


def _explain_missing_session(send: Send) -> Send:
    """Return `send` that adds what to do to the refusal of a request without a session."""
    started: Message = {}

    async def explained(message: Message) -> None:
        nonlocal started
        if message["type"] == "http.response.start" and message["status"] == 400:
            started = message
            return
        if started:
            body = message.get("body", b"").replace(_NO_SESSION, _NO_SESSION + _SESSION_ADVICE)
            kept = [pair for pair in started["headers"] if pair[0].lower() != b"content-length"]
            length = [(b"content-length", str(len(body)).encode())] if not message.get("more_body") else []
            await send({**started, "headers": [*kept, *length]})
            started, message = {}, {**message, "body": body}
        await send(message)

    return explained


def _accepts_events(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/event-stream" in value for name, value in scope["headers"])


def _limit_body(receive: Receive) -> Receive:
    """Return `receive` that refuses more than a form: a body in chunks does not tell its length before."""
    size = 0

    async def limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > FORM_LIMIT:
            raise HTTPException(RequestTooLarge.status, f"the body is larger than the limit of {FORM_LIMIT} bytes")
        return message

    return limited


def _mount_rest(app: ASGIApp, build_rest: Callable[[], ASGIApp]) -> ASGIApp:
    built: ASGIApp | None = None
    building: asyncio.Task[ASGIApp] | None = None

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal built, building
        if scope["type"] != "http" or scope["path"][1:].split("/", 1)[0] not in _REST:
            await app(scope, receive, send)
            return
        if built is None:
            if building is None:  # in a thread: calls in progress must not wait for the imports
                building = asyncio.create_task(asyncio.to_thread(build_rest))
            built = await asyncio.shield(building)
        await built(scope, receive, send)

    return serve


class RequestGuard:
    """Refuses requests for other hosts, from web pages that may not use this server, and with too large a body.

    A page of any site can make a browser send requests to loopback; Host and Origin give those away. Both lists hold
    names besides loopback, as `host`, `host:port` or an origin. `proxies` are those whose word counts about whom a
    request comes from.
    """

    def __init__(
        self, body_limit: int, hosts: Sequence[str] = (), origins: Sequence[str] = (), proxies: Sequence[str] = ()
    ) -> None:
        self.body_limit = body_limit
        self._forwarded = ForwardedHeaders(proxies)
        self._hosts = {parse_authority(host) for host in hosts}
        self._origins = {parse_origin(origin) for origin in origins}
        if None in self._hosts or None in self._origins:
            raise Invalid("server.allowed_hosts takes host[:port], server.allowed_origins http(s)://host[:port]")

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Return the application behind this guard."""

        async def check_request(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                # Spaces around a value are not part of it (RFC 9110, 5.5); the parser leaves those after it.
                headers = scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
                self._forwarded.apply(scope)
                try:
                    self._check(headers, any_host=scope["path"] in _HEALTH)
                except GatewayError as refusal:
                    await error_response(refusal)(scope, receive, send)
                    return
            is_mcp = scope.get("path", "").startswith(PATH)
            await app(scope, receive, self._reword_errors(scope, receive, send) if is_mcp else send)

        return check_request

    def allows(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request may pass; the application words the error of one that may not."""
        try:
            self._check(headers.items())
        except GatewayError:
            return False
        return True

    def _reword_errors(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """Return `send` with some errors of the SDK, found while it reads a body, in our words, and with the status of
        a limit, which the SDK does not know."""
        held: Message | None = None
        replaced = False

        async def reword(message: Message) -> None:
            nonlocal held, replaced
            retry_after = scope.get("state", {}).get("retry_after")
            if retry_after is not None and message["type"] == "http.response.start":
                headers = [*message["headers"], (b"retry-after", b"%d" % retry_after)]
                message = {**message, "status": RateLimited.status, "headers": headers}
            if message["type"] == "http.response.start" and message["status"] in _REWORDED:
                held = message  # until its body shows which error it is
            elif held is not None:
                start, held = held, None
                response = self._reword(start["status"], message.get("body", b""))
                replaced = response is not None
                if response is not None:
                    await response(scope, receive, send)
                else:
                    await send(start)
                    await send(message)
            elif not replaced:
                await send(message)

        return reword

    def _reword(self, status: int, body: bytes) -> Response | None:
        """Return our response for a chunked body over the limit, or for JSON that is not one message: the SDK would
        list what it lacks to be each kind of message."""
        if status == RequestTooLarge.status:
            return error_response(self._too_large())
        if body.startswith(_NO_MESSAGE):
            message = "this is not one JSON-RPC message; a batch is not taken; send one message per request"
            return _rpc_error_response(message)
        return None

    def _too_large(self) -> RequestTooLarge:
        message = f"the request is larger than the limit of {self.body_limit} bytes"
        return RequestTooLarge(message, limit=self.body_limit)

    def _check(self, headers: Iterable[tuple[bytes, bytes]], any_host: bool = False) -> None:
        checked: dict[bytes, str] = {}
        for name, value in headers:
            if name in _CHECKED:
                if name in checked:  # another server on the way may use the other value
                    raise Invalid(f"the header {name.decode()!r} is there twice; send it once", code="INVALID_HEADER")
                checked[name] = value.decode("latin-1")
        host = checked.get(b"host", "")
        if not any_host and not self._is_allowed_host(host):
            raise Misdirected(f"this server does not answer for host {host!r}; name it in server.allowed_hosts")
        origin = checked.get(b"origin")
        if origin is not None and not self._is_allowed_origin(origin):
            raise Forbidden(
                f"pages of {origin!r} may not use this server; name it in server.allowed_origins",
                code="ORIGIN_FORBIDDEN",
            )
        length = checked.get(b"content-length", "0")
        if length.isdecimal() and int(length) > self.body_limit:
            raise self._too_large()

    def _is_allowed_host(self, text: str) -> bool:
        host, port = parse_authority(text) or ("", None)
        return host in LOOPBACK or (host, port) in self._hosts or (host, None) in self._hosts

    def _is_allowed_origin(self, text: str) -> bool:
        origin = parse_origin(text)
        return origin is not None and (origin[1] in LOOPBACK or origin in self._origins)


class Misdirected(Invalid):
    default_code = "HOST_FORBIDDEN"
    status = 421


class RequestTooLarge(Invalid):
    default_code = "REQUEST_TOO_LARGE"
    status = 413


_NO_MESSAGE = b'{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":"Validation error: ' % INVALID_PARAMS
_REWORDED = frozenset({RequestTooLarge.status, Invalid.status})


def parse_authority(text: str) -> tuple[str, int | None] | None:
    """Return host, in lower case, and port of exactly `host` or `host:port`; None for anything else."""
    match = _AUTHORITY.fullmatch(text.lower())
    if match is None or not 1 <= int(match[2] or 80) <= 65535:
        return None
    host, port = match[1], int(match[2]) if match[2] else None
    if host.startswith("["):
        try:
            host = f"[{IPv6Address(host[1:-1])}]"  # one spelling for one address
        except AddressValueError:
            return None
    return host, port


def parse_origin(text: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of an origin of http or https; None for anything else."""
    scheme, _, rest = text.lower().partition("://")
    authority = parse_authority(rest)
    if scheme not in _DEFAULT_PORTS or authority is None:
        return None
    return scheme, authority[0], authority[1] or _DEFAULT_PORTS[scheme]


def metrics_route(write: Callable[[str], Awaitable[tuple[bytes, str]]], roles: Roles) -> Route:
    """Return the route of `/metrics`: what the gateway has counted, for Prometheus. `write` returns it with its content
    type, given the `Accept` header. The route answers administrators, and principals of a role with `metrics`."""

    async def metrics(request: Request) -> Response:
        principal: Principal = request.state.principal
        if not principal.admin and not (principal.role is not None and roles.roles[principal.role].metrics):
            refusal = "/metrics is for administrators and for keys of a role with 'metrics: true'"
            return error_response(Forbidden(refusal, code="ADMIN_REQUIRED"))
        body, content_type = await write(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    return Route("/metrics", metrics)


def _rpc_error_response(message: str) -> Response:
    error = {"code": INVALID_REQUEST, "message": message}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 400)


# Seconds an idle connection stays open: longer than clients keep theirs, so that none is closed under a request.
KEEP_ALIVE = 75


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: calls in progress are finished before it stops."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once a second, so that no request needs a timer of its own
            now = asyncio.get_running_loop().time()
            for connection in cast(list[FastHttpProtocol], list(self.server_state.connections)):
                connection.close_if_late(now)
        return await super().on_tick(counter)


async def check_host(host: str) -> None:
    """Refuse a host name that leads to no address."""
    try:
        await anyio.getaddrinfo(host, None)
    except OSError:
        raise _unknown_host(host) from None


def _unknown_host(host: str) -> Invalid:
    message = f"{host!r} is no name or address of this machine; name one, such as 127.0.0.1, or 0.0.0.0 for all"
    return Invalid(message, code="CANNOT_LISTEN")


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            fix = "a Toolgate serves there already: stop it" if _is_toolgate(host, port) else "stop what uses it"
            raise Unavailable(
                f"port {port} of {host} is in use; {fix} or choose another with --port", code="PORT_IN_USE"
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise _unknown_host(host) from None
        raise Invalid(f"cannot listen on {host}:{port}: {error.strerror or error}", code="CANNOT_LISTEN") from None
    return listening


def _is_toolgate(host: str, port: int) -> bool:
    """Return whether a Toolgate answers at an address, as told by `_healthz`."""
    request = f"GET /healthz HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"
    reply = b""
    with suppress(OSError), socket.create_connection((host, port), _PROBE_SECONDS) as connection:
        connection.sendall(request.encode())
        while len(reply) < _PROBE_BYTES and (chunk := connection.recv(_PROBE_BYTES)):
            reply += chunk
    return b'{"ok":true,"version":' in reply


async def serve_http(
    app: ASGIApp,
    fast_path: FastHandler,
    listening: socket.socket,
    stop: anyio.Event,
    drain: Callable[[], Awaitable[None]],
) -> None:
    """Serve until `stop` is set; then await `drain` before the connections are closed. Requests that the fast path
    answers do not reach the application."""
    server = _Server(
        uvicorn.Config(
            app,
            http=cast(type[asyncio.Protocol], partial(FastHttpProtocol, fast_path, HeaderCache())),
            ws="none",  # even if a WebSocket library is installed
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # the address of a client decides nothing
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=1,
            lifespan="on",
        )
    )

    async def wait_for_stop() -> None:
        await stop.wait()
        await drain()
        server.should_exit = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_for_stop)
        await server.serve(sockets=[listening])
        tasks.cancel_scope.cancel()
