"""Requests of HTTP tools on pooled connections: only to allowed hosts and checked addresses, also by redirects."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from http import HTTPStatus

from gateway import __version__
from gateway.errors import Forbidden, ToolFailed, Unavailable
from gateway.mcp_client.endpoints import HttpEndpoint
from gateway.mcp_client.http_connection import HttpConnection, HttpReply, Sink
from gateway.mcp_client.http_headers import frame, header_lines
from gateway.mcp_client.http_pool import HttpPool
from gateway.mcp_client.messages import ConnectionLost, Unreachable
from gateway.net.client import (
    CONNECT_FAILED,
    CONNECTION_LOST,
    IDEMPOTENT,
    REDIRECTS,
    RESPONSE_TOO_LARGE,
    TOO_MANY_REDIRECTS,
    Hop,
    invalid_response,
)
from gateway.net.policy import NetworkPolicy, parse_address
from gateway.net.transport import INTERNET, NO_ADDRESS, Network, parse_url
from gateway.sources.http.request import HttpRequest

REDIRECT_LIMIT = 5
# Servers to which connections are kept.
POOLS_LIMIT = 128
_ADDRESS_ATTEMPTS = 4
_GZIP = zlib.MAX_WBITS | 16
_OWN_HEADERS = {"user-agent": f"toolgate/{__version__}", "accept": "*/*"}


class ToolReply(HttpReply):
    """A response of at most `limit` bytes, which may be compressed."""

    encodings = frozenset({b"identity", b"", b"gzip", b"x-gzip"})

    def __init__(self, done: asyncio.Future[str | None], sink: Sink | None, limit: int) -> None:
        super().__init__(done, sink)
        self.limit = limit

    def content(self, origin: str) -> bytes:
        """Return the body, decompressed."""
        if b"gzip" not in self.headers.get(b"content-encoding", b"").lower() or not self.body:
            return bytes(self.body)
        inflate = zlib.decompressobj(_GZIP)
        try:
            content = inflate.decompress(bytes(self.body), self.limit + 1)
        except zlib.error:
            raise invalid_response(origin, "its gzip data is damaged") from None
        if len(content) > self.limit:
            raise too_large(origin, self.limit)
        return content


def too_large(origin: str, limit: int) -> ToolFailed:
    reason = f"the response of {origin} is larger than {limit} bytes; raise the tool's max_response_bytes"
    return ToolFailed(reason, code=RESPONSE_TOO_LARGE, limit=limit)


class _GuardedPool(HttpPool):
    """Connections to one server, at addresses that the policy allows. They go to the address that was checked, so that
    a name which resolves to another one a moment later changes nothing."""

    def __init__(self, url: str, policy: NetworkPolicy, network: Network, tls: ssl.SSLContext | None) -> None:
        super().__init__(HttpEndpoint(url=url, tls=tls))
        self._policy = policy
        self._network = network
        self._scheme = "https" if self.target.origin.tls else "http"

    @property
    def is_idle(self) -> bool:
        return not self._connecting and len(self._open) == len(self._idle)

    async def send_request(self, request: HttpRequest, limit: int) -> ToolReply:
        replies: list[ToolReply] = []

        def make(done: asyncio.Future[str | None], sink: Sink | None) -> HttpReply:
            replies.append(ToolReply(done, sink, limit))
            return replies[-1]

        own = {"host": request.authority, **_OWN_HEADERS, **request.headers, "accept-encoding": "gzip"}
        data = frame(request.method, request.target, header_lines(own.items()), request.body)
        try:
            await self._exchange(data, None, request.method in IDEMPOTENT, make)
        except Unreachable as error:
            raise Unavailable(error.message, code=CONNECT_FAILED) from None
        except ConnectionLost as error:
            if replies and len(replies[-1].body) > limit:
                raise too_large(request.origin, limit) from None
            raise Unavailable(error.message, code=CONNECTION_LOST) from None
        return replies[-1]

    async def _dial(self, address: str) -> tuple[asyncio.BaseTransport, HttpConnection]:
        addresses = [parse_address(text) for text in await self._network.resolve(address, self.target.origin.port)]
        for each in addresses:
            self._policy.check_address(self._scheme, address, each)
        failure: Exception = Unavailable(f"the name {address} has no address", code=NO_ADDRESS)
        for each in addresses[:_ADDRESS_ATTEMPTS]:
            try:
                return await super()._dial(str(each))
            except ssl.SSLCertVerificationError:
                raise
            except OSError as error:
                failure = error
        raise failure


class GuardedSender:
    """Sends requests under one policy. Each redirect is checked like a new request and takes no credentials to another
    origin."""

    def __init__(self, policy: NetworkPolicy, network: Network = INTERNET, tls: ssl.SSLContext | None = None) -> None:
        self.policy = policy
        self._network = network
        self._tls = tls
        self._pools: dict[str, _GuardedPool] = {}

    async def send(self, request: HttpRequest, limit: int) -> tuple[HttpRequest, ToolReply]:
        """Return the last request and its response. A status of 400 and above is a response."""
        first = request
        for _ in range(REDIRECT_LIMIT + 1):
            try:
                reply = await self._pool(request).send_request(request, limit)
            except Forbidden as error:
                if request is first:
                    raise
                reason = f"{first.origin} redirects to a URL that is refused: {error.message}"
                raise Forbidden(reason, code=error.code, **error.details) from None
            location = reply.headers.get(b"location")
            if reply.status not in REDIRECTS or location is None:
                return request, reply
            request = follow_redirect(request, reply.status, location.decode("latin-1"))
        raise Unavailable(f"{first.origin} redirects more than {REDIRECT_LIMIT} times", code=TOO_MANY_REDIRECTS)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _pool(self, request: HttpRequest) -> _GuardedPool:
        """Return the connections to the server of a request; refused when the policy does not allow the host. That is
        decided once for each server: a policy never changes."""
        pool = self._pools.get(request.origin)
        if pool is None:
            url = parse_url(request.origin)
            self.policy.check_host(url.scheme, url.raw_host.decode("ascii"), url.port)
            pool = _GuardedPool(str(url), self.policy, self._network, self._tls)
            self._remove_idle_pools()
            self._pools[request.origin] = pool
        return pool

    def _remove_idle_pools(self) -> None:
        idle = [origin for origin, pool in self._pools.items() if pool.is_idle]
        for origin in idle[: max(0, len(self._pools) - POOLS_LIMIT + 1)]:
            self._pools.pop(origin).close()


def follow_redirect(request: HttpRequest, status: int, location: str) -> HttpRequest:
    """Return the request that a redirect asks for, by the rules of `Hop.redirect`."""
    hop = Hop(request.method, parse_url(request.url), request.headers, request.body or None).redirect(status, location)
    path, _, query = hop.url.raw_path.decode("ascii").partition("?")
    authority = hop.url.netloc.decode("ascii")
    return HttpRequest(hop.method, hop.url.scheme, authority, path, query, hop.headers, hop.body or b"")


def status_text(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
