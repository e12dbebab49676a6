"""HTTP to one server, over connections that are kept: no more of HTTP than the protocol needs."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from dataclasses import replace

import httpx2

from gateway.errors import Unavailable
from gateway.mcp_client.endpoints import HttpEndpoint
from gateway.mcp_client.errors import BadAnswer, LinkLost, Unreachable
from gateway.mcp_client.http_connection import Connection, Reply, Sink
from gateway.mcp_client.http_headers import Target, endpoint_headers, frame

CONNECT_SECONDS = 15.0
# Connections to one server at once, streams included.
CONNECTIONS = 256

IDLE_CONNECTIONS = 32
IDLE_SECONDS = 20.0
# What must not be sent twice goes only over connections used so recently: common servers close them after five
# seconds of rest, and one about to be closed loses what is sent.
FRESH_SECONDS = 4.0

REDIRECTS = 3
# Answers after which the request may be sent once more: elsewhere, or with another token.
_NOT_YET = frozenset((301, 302, 303, 307, 308, 401, 403))

_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Pool:
    """A request that finds its kept connection closed is sent again on a new one only when it is
    `repeatable` and nothing came back: whether the server took it cannot be known."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self.target = Target.parse(endpoint.url)
        self.label = endpoint.label
        self._tls = (endpoint.tls or _trusted()) if self.target.origin.tls else None
        self._fixed = endpoint_headers(endpoint, self.target)
        self._login = endpoint.login
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._connecting = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._sweeping: asyncio.TimerHandle | None = None

    async def send(
        self,
        method: str,
        headers: bytes,
        body: bytes = b"",
        *,
        target: Target | None = None,
        sink: Sink | None = None,
        repeatable: bool = False,
    ) -> Reply:
        """The reply, once it is complete or the sink needs no more. `Unreachable` when the request
        has not left, `LinkLost` when the reply broke off. Cancelled, it closes the connection."""
        target, fixed, line = target or self.target, self._fixed, b""
        for _ in range(REDIRECTS + 1):
            if self._login is not None:
                current = self._login.line
                line = await self._login.fresh() if current is None else current
                fixed = self._fixed + line
            reply = await self._try(frame(method, target.path, fixed + headers, body), sink, repeatable)
            if reply.status not in _NOT_YET:
                return reply
            if reply.status < 400:
                target = self._redirected(method, target, reply)
            elif not await self._is_worth_another(line, reply):
                return reply
        raise BadAnswer(f"{self.label} sends us from one address to the next")

    async def _is_worth_another(self, line: bytes, reply: Reply) -> bool:
        challenge = reply.header(b"www-authenticate")
        return self._login is not None and await self._login.refused(line, reply.status, challenge)

    def close(self) -> None:
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._open):
            connection.give_up()

    async def _try(self, data: bytes, sink: Sink | None, repeatable: bool) -> Reply:
        while True:
            kept = self._kept(IDLE_SECONDS if repeatable else FRESH_SECONDS)
            connection, reply = kept or await self._connect(), Reply(self._loop.create_future(), sink)
            connection.send(data, reply)
            try:
                problem = await reply.done
            except BaseException:
                connection.leave(reply)
                raise
            connection.linger(reply)
            if problem is None:
                return reply
            if kept is None or reply.begun or not repeatable:
                raise LinkLost(f"{self.label} broke off: {problem}")

    def _kept(self, seconds: float) -> Connection | None:
        """The connection used last, if that is less than so long ago."""
        now = self._loop.time()
        while self._idle:
            connection = self._idle.pop()
            if now < _expiry(connection) and not connection.stale():
                if now < connection.rested_at + seconds:
                    return connection
                self._idle.append(connection)
                return None
            connection.give_up()
        return None

    async def _connect(self) -> Connection:
        self._check_open()
        if len(self._open) + self._connecting >= CONNECTIONS:
            raise Unavailable(f"{self.label} has {CONNECTIONS} requests under way: try again", code="UPSTREAM_BUSY")
        origin = self.target.origin
        self._connecting += 1
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, connection = await self._loop.create_connection(
                    lambda: Connection(self._rest, self._open.discard),
                    origin.host,
                    origin.port,
                    ssl=self._tls,
                    server_hostname=origin.host if self._tls else None,
                )
        except TimeoutError:
            raise Unreachable(f"{self.label} does not take connections within {CONNECT_SECONDS:g} seconds") from None
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(f"{self.label} has a certificate we do not trust: {error.verify_message}") from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise Unreachable(f"{self.label} cannot be reached: {reason}") from None
        finally:
            self._connecting -= 1
        _watch_over(transport.get_extra_info("socket"))
        self._open.add(connection)
        self._check_open(connection)
        return connection

    def _check_open(self, connection: Connection | None = None) -> None:
        if self._closed:
            if connection is not None:
                connection.give_up()
            raise LinkLost(f"the link to {self.label} was closed")

    def _rest(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= IDLE_CONNECTIONS:
            connection.give_up()
            return
        self._idle.append(connection)
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(IDLE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        for connection in self._idle:
            if not connection.usable or self._loop.time() >= _expiry(connection):
                connection.give_up()
        self._idle = [connection for connection in self._idle if connection.usable]
        self._sweeping = self._loop.call_later(IDLE_SECONDS, self._sweep) if self._idle else None

    def _redirected(self, method: str, target: Target, reply: Reply) -> Target:
        """Where to ask instead: on the same origin only, and never so that a POST becomes a GET."""
        location = reply.header(b"location")
        there = target.joined(location)
        if there.origin != self.target.origin or (method != "GET" and reply.status not in (307, 308)):
            raise BadAnswer(
                f"{self.label} redirects to {location.partition('?')[0][:200]}, which is not followed:"
                " use that URL if it is the server you mean"
            )
        return replace(target, path=there.path)


def _watch_over(sock: socket.socket) -> None:
    """A stream may be silent for hours; a peer that is gone without a word is noticed within a minute."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _expiry(connection: Connection) -> float:
    """A server that says when it closes a resting connection is not raced for the last second."""
    kept = IDLE_SECONDS if connection.keep_alive is None else min(connection.keep_alive - 1, IDLE_SECONDS)
    return connection.rested_at + kept


@functools.cache
def _trusted() -> ssl.SSLContext:
    return httpx2.create_ssl_context()
