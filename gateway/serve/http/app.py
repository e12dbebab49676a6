"""The HTTP application: MCP at `/mcp`, health, and the door every request passes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from ipaddress import AddressValueError, IPv6Address

import anyio
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import __version__
from gateway.errors import Forbidden, GatewayError, Invalid, Unavailable
from gateway.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST
from gateway.serve.http.fastpath import HttpFastPath
from gateway.serve.mcp.handlers import McpServer
from gateway.serve.mcp.sdk import SessionLimit

# Raises `Unavailable` while the gateway cannot serve.
Ready = Callable[[], Awaitable[None]]

PATH = "/mcp"
_CHECKED = frozenset({b"host", b"origin", b"content-length"})
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[0-9a-z._-]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class HttpFace:
    """Everything the HTTP face answers, behind its door, as the ASGI application `app`; `shortcut` spares a server that
    knows it the way through ASGI."""

    def __init__(self, mcp: McpServer, ready: Ready, door: Door) -> None:
        self._mcp = mcp
        self._ready = ready
        self._streams: set[anyio.CancelScope] = set()
        routes = mcp.sdk.streamable_http_app(
            streamable_http_path=PATH,
            max_request_body_size=door.body_limit,
            # The door has checked Host and Origin already, for every route and not only this one.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            custom_starlette_routes=[Route("/healthz", self._healthz), Route("/readyz", self._readyz)],
        )
        SessionLimit(mcp.sdk.session_manager)
        express = HttpFastPath(mcp.handlers, self._ending(routes), mcp.sdk.session_manager, PATH)
        self.app = door.before(express)
        self.shortcut = Guarded(door, express)

    def close(self) -> None:
        """End the streams on which clients only wait, so that the server need not cut them."""
        self._mcp.close()
        for stream in self._streams:
            stream.cancel()

    async def _healthz(self, _: Request) -> Response:
        return JSONResponse({"ok": True, "version": __version__})

    async def _readyz(self, _: Request) -> Response:
        try:
            await self._ready()
        except GatewayError as refusal:
            return _refused(refusal)
        return JSONResponse({"ok": True})

    def _ending(self, app: ASGIApp) -> ASGIApp:
        """`app`, whose streams (a GET of the handshake era) end when we do."""

        async def ending(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"] != "GET":
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

        return ending


class Door:
    """Lets in requests meant for this server, from pages that may use it, of a bearable size.

    A page of any site can make a browser send requests to loopback; the names in Host and Origin
    tell those apart. Both lists hold names beyond loopback, as `host`, `host:port` or an origin.
    """

    def __init__(self, body_limit: int, hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> None:
        self.body_limit = body_limit
        self._hosts = {parse_authority(host) for host in hosts}
        self._origins = {parse_origin(origin) for origin in origins}
        if None in self._hosts or None in self._origins:
            raise Invalid("server.allowed_hosts takes host[:port], server.allowed_origins http(s)://host[:port]")

    def before(self, app: ASGIApp) -> ASGIApp:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                # Spaces around a value are not part of it (RFC 9110, 5.5); the parser leaves those after it.
                headers = scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
                try:
                    self._check(headers)
                except GatewayError as refusal:
                    await _refused(refusal)(scope, receive, send)
                    return
            await app(scope, receive, self._explaining(scope, receive, send))

        return guarded

    def lets_in(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request may pass; the words for one that may not, the application finds."""
        try:
            self._check(headers.items())
        except GatewayError:
            return False
        return True

    def _explaining(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """What only shows when a body is read, the SDK refuses: its words then become ours."""
        held: Message | None = None
        replaced = False

        async def explaining(message: Message) -> None:
            nonlocal held, replaced
            if message["type"] == "http.response.start" and message["status"] in _EXPLAINED:
                held = message  # what it is for, its body says
            elif held is not None:
                start, held = held, None
                refusal = self._in_our_words(start["status"], message.get("body", b""))
                replaced = refusal is not None
                if refusal is not None:
                    await refusal(scope, receive, send)
                else:
                    await send(start)
                    await send(message)
            elif not replaced:
                await send(message)

        return explaining

    def _in_our_words(self, status: int, body: bytes) -> Response | None:
        """The size of a body sent in chunks, and a body that is JSON but not one message, which the SDK answers with
        all that it lacks to be each kind of message."""
        if status == TooLarge.status:
            return _refused(self._too_large())
        if body.startswith(_NO_MESSAGE):
            message = "this is not one JSON-RPC message; a batch is not taken; send one message per request"
            return JSONResponse(
                {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": message}}, 400
            )
        return None

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the request is larger than the limit of {self.body_limit} bytes", limit=self.body_limit)

    def _check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        said: dict[bytes, str] = {}
        for name, value in headers:
            if name in _CHECKED:
                if name in said:  # of two, another reader may heed the other
                    raise Invalid(f"the header {name.decode()!r} is there twice; send it once", code="INVALID_HEADER")
                said[name] = value.decode("latin-1")
        host = said.get(b"host", "")
        if not self._is_allowed_host(host):
            raise Misdirected(f"this server does not answer for host {host!r}; name it in server.allowed_hosts")
        origin = said.get(b"origin")
        if origin is not None and not self._is_allowed_origin(origin):
            raise Forbidden(
                f"pages of {origin!r} may not use this server; name it in server.allowed_origins",
                code="ORIGIN_FORBIDDEN",
            )
        length = said.get(b"content-length", "0")
        if length.isdecimal() and int(length) > self.body_limit:
            raise self._too_large()

    def _is_allowed_host(self, text: str) -> bool:
        host, port = parse_authority(text) or ("", None)
        return host in LOOPBACK or (host, port) in self._hosts or (host, None) in self._hosts

    def _is_allowed_origin(self, text: str) -> bool:
        origin = parse_origin(text)
        return origin is not None and (origin[1] in LOOPBACK or origin in self._origins)


class Guarded:
    """The shortcut for requests the door lets in."""

    path = PATH.encode()

    def __init__(self, door: Door, express: HttpFastPath) -> None:
        self._door = door
        self._express = express
        self.answering = express.answering

    def promising(self, headers: Mapping[bytes, bytes]) -> bool:
        return self._door.lets_in(headers) and self._express.promising(headers)


class Misdirected(Invalid):
    default_code = "HOST_FORBIDDEN"
    status = 421


class TooLarge(Invalid):
    default_code = "REQUEST_TOO_LARGE"
    status = 413


_NO_MESSAGE = b'{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":"Validation error: ' % INVALID_PARAMS
_EXPLAINED = frozenset({TooLarge.status, Invalid.status})


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


def _refused(refusal: GatewayError) -> Response:
    headers = {"Retry-After": "1"} if isinstance(refusal, Unavailable) else None
    return JSONResponse({"ok": False, "error": refusal.to_dict()}, refusal.status, headers)
