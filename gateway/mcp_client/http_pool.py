"""A pool of HTTP/1.1 connections to one server, with the part of HTTP that MCP needs."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace

from gateway.errors import Unavailable
from gateway.mcp_client.endpoints import HttpEndpoint
from gateway.mcp_client.http_connection import HttpConnection, HttpReply, ResponseHeads, Sink
from gateway.mcp_client.http_headers import HttpTarget, endpoint_headers, frame
from gateway.mcp_client.messages import ConnectionLost, InvalidResponse, Unreachable

CONNECT_SECONDS = 15.0
# Connections to one server at once, streams included. As many stay open as calls ran at once lately, which
# `limits.concurrency` bounds: with fewer, the calls of every burst would connect again.
CONNECTIONS = 256

IDLE_SECONDS = 20.0
# A request that must not be sent twice uses only connections that were idle for less: common servers close them after
# five idle seconds, and one that is about to be closed loses the request.
FRESH_SECONDS = 4.0

# OpenSSL's reasons when a server answers with something else than TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")

REDIRECTS = 3
# Status codes after which the request may be sent once more: elsewhere, or with another token.
_MAYBE_AGAIN = frozenset((301, 302, 303, 307, 308, 401, 403))

MakeReply = Callable[[asyncio.Future[str | None], Sink | None], HttpReply]

_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class HttpPool:
    """A request whose idle connection turns out to be closed is sent again on a new one only when it is `repeatable`
    and nothing came back: the server may have handled it."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self.target = HttpTarget.parse(endpoint.url)
        self.label = endpoint.label
        self._tls = (endpoint.tls or _default_tls()) if self.target.origin.tls else None
        self._fixed = endpoint_headers(endpoint, self.target)
        self._authorizer = endpoint.authorizer
        self._idle: list[HttpConnection] = []
        self._open: set[HttpConnection] = set()
        self._heads = ResponseHeads()
        self._connecting = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._sweep_timer: asyncio.TimerHandle | None = None

    async def send(
        self,
        method: str,
        headers: bytes,
        body: bytes = b"",
        *,
        target: HttpTarget | None = None,
        sink: Sink | None = None,
        repeatable: bool = False,
    ) -> HttpReply:
        """Return the response once it is complete or the sink needs no more. `Unreachable` when the request was not
        sent, `ConnectionLost` when the response broke off. Cancellation closes the connection."""
        target, fixed, authorization = target or self.target, self._fixed, b""
        for _ in range(REDIRECTS + 1):
            if self._authorizer is not None:
                current = self._authorizer.header
                authorization = await self._authorizer.refresh_header() if current is None else current
                fixed = self._fixed + authorization
            response = await self._exchange(frame(method, target.path, fixed + headers, body), sink, repeatable)
            if response.status not in _MAYBE_AGAIN:
                return response
            if response.status < 400:
                target = self._redirect(method, target, response)
            elif not await self._reauthorize(authorization, response):
                return response
        raise InvalidResponse(f"{self.label} redirected or refused the request {REDIRECTS + 1} times")

    async def _reauthorize(self, authorization: bytes, response: HttpReply) -> bool:
        """Return whether to send a refused request again."""
        challenge = response.header(b"www-authenticate")
        return self._authorizer is not None and await self._authorizer.handle_refusal(
            authorization, response.status, challenge
        )

    def close(self) -> None:
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in list(self._open):
            connection.abort()

    async def _exchange(
        self, data: bytes, sink: Sink | None, repeatable: bool, make_reply: MakeReply = HttpReply
    ) -> HttpReply:
        while True:
            idle = self._take_idle(IDLE_SECONDS if repeatable else FRESH_SECONDS)
            connection, response = idle or await self._connect(), make_reply(self._loop.create_future(), sink)
            connection.send(data, response)
            try:
                problem = await response.done
            except BaseException:
                connection.cancel(response)
                raise
            connection.limit_stream(response)
            if problem is None:
                return response
            if idle is None or response.begun or not repeatable:
                raise ConnectionLost(f"{self.label} broke off: {problem}")

    def _take_idle(self, seconds: float) -> HttpConnection | None:
        """Return the connection used last, if it has been idle for less than so many seconds."""
        now = self._loop.time()
        while self._idle:
            connection = self._idle.pop()
            if now < connection.idle_since + seconds and connection.is_just_used(now):
                return connection
            if now < _expiry(connection) and not connection.is_stale(now):
                if now < connection.idle_since + seconds:
                    return connection
                self._idle.append(connection)
                return None
            connection.abort()
        return None

    async def _connect(self) -> HttpConnection:
        self._check_open()
        if len(self._open) + self._connecting >= CONNECTIONS:
            self._make_room()
        self._connecting += 1
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, connection = await self._dial(self.target.origin.host)
        except TimeoutError:
            raise Unreachable(f"{self.label} did not accept a connection within {CONNECT_SECONDS:g} seconds") from None
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(
                f"{self.label} has a certificate that is not trusted: {error.verify_message}; to trust it, set "
                "SSL_CERT_FILE in the gateway's environment to a file with every authority to trust"
            ) from None
        except ssl.SSLError as error:
            reason = f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
            if error.reason in _NO_TLS:
                reason = "it does not speak TLS; try http:// instead of https://"
            raise Unreachable(f"{self.label} cannot be reached: {reason}") from None
        except ConnectionRefusedError:
            raise Unreachable(
                f"{self.label} cannot be reached: nothing listens there; start it, or correct the URL"
            ) from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise Unreachable(f"{self.label} cannot be reached: {reason}") from None
        finally:
            self._connecting -= 1
        _enable_keepalive(transport.get_extra_info("socket"))
        self._open.add(connection)
        self._check_open(connection)
        return connection

    def _make_room(self) -> None:
        """Close the connection that has been idle longest: idle ones take no request's place."""
        if not self._idle:
            reason = f"{self.label} has {CONNECTIONS} requests in progress: try again later"
            raise Unavailable(reason, code="UPSTREAM_BUSY")
        oldest = self._idle.pop(0)
        self._open.discard(oldest)
        oldest.abort()

    async def _dial(self, address: str) -> tuple[asyncio.BaseTransport, HttpConnection]:
        """Connect to a host or address; the certificate must be that of the target's host."""
        origin = self.target.origin
        return await self._loop.create_connection(
            lambda: HttpConnection(self._add_idle, self._open.discard, self._heads),
            address,
            origin.port,
            ssl=self._tls,
            server_hostname=origin.host if self._tls else None,
        )

    def _check_open(self, connection: HttpConnection | None = None) -> None:
        if self._closed:
            if connection is not None:
                connection.abort()
            raise ConnectionLost(f"the connection to {self.label} was closed")

    def _add_idle(self, connection: HttpConnection) -> None:
        if self._closed:
            connection.abort()
            return
        self._idle.append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(IDLE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        for connection in self._idle:
            if not connection.usable or self._loop.time() >= _expiry(connection):
                connection.abort()
        self._idle = [connection for connection in self._idle if connection.usable]
        self._sweep_timer = self._loop.call_later(IDLE_SECONDS, self._sweep) if self._idle else None

    def _redirect(self, method: str, target: HttpTarget, response: HttpReply) -> HttpTarget:
        """Return the new target: on the same origin only, and never one that turns a POST into a GET."""
        location = response.header(b"location")
        new = target.join(location)
        if new.origin != self.target.origin or (method != "GET" and response.status not in (307, 308)):
            raise InvalidResponse(
                f"{self.label} redirects to {location.partition('?')[0][:200]}, which is not followed:"
                " use that URL if it is the server you mean"
            )
        return replace(target, path=new.path)


def _enable_keepalive(sock: socket.socket) -> None:
    """Detect a dead peer within a minute, since a stream may be silent for hours."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _expiry(connection: HttpConnection) -> float:
    """Return when an idle connection is given up: a second before the server announced to close it."""
    seconds = IDLE_SECONDS if connection.keep_alive is None else min(connection.keep_alive - 1, IDLE_SECONDS)
    return connection.idle_since + seconds


@functools.cache
def _default_tls() -> ssl.SSLContext:
    # Imported when needed: commands that only list servers or toolsets connect to none.
    import httpx2

    return httpx2.create_ssl_context()
