"""The transport of guarded requests: strict URLs, names resolved once, and connections to checked addresses only.

The connection goes to the address that was checked, while TLS still verifies the name: a name that resolves to
another address a moment later (DNS rebinding) changes nothing.
"""

from __future__ import annotations

import functools
import logging
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Protocol, cast

import anyio
import anyio.to_thread
import httpcore2
import httpx2

from gateway.errors import Invalid, Unavailable
from gateway.net.policy import NetworkPolicy, canonical_host, parse_address

INVALID_URL = "INVALID_URL"
_LONGEST = 8192
_START = re.compile(r"(https?)://([^/?#]*)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:@\[\]\\%]+)(?::([0-9]{0,5}))?")
_HIGHEST_PORT = 65535


def parse_url(text: str) -> httpx2.URL:
    """Parse a URL, with its host in canonical form and without a fragment.

    Refused: every scheme but http and https, user names and passwords, zones, and whatever URL parsers disagree about.
    """
    if len(text) > _LONGEST:
        raise _invalid_url(f"it has more than {_LONGEST} characters")
    start = _START.match(text)
    if start is None:
        raise _invalid_url("it must start with https:// or http:// and a host")
    if "@" in start[2]:
        raise _invalid_url("it must not have a user name or password before the host")
    authority = _AUTHORITY.fullmatch(start[2])
    if authority is None or not (authority[2] is None or int(authority[2] or "1") in range(1, _HIGHEST_PORT + 1)):
        raise _invalid_url("the part between // and the next / must be host or host:port")
    try:
        url = httpx2.URL(text)
        return url.copy_with(host=canonical_host(url.raw_host.decode("ascii")), fragment=None)
    except (httpx2.InvalidURL, ValueError):
        raise _invalid_url("its host, port or path is malformed") from None


def url_origin(url: httpx2.URL) -> str:
    """The part of a URL that messages and logs may show: paths and queries can hold keys."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def _invalid_url(reason: str) -> Invalid:
    return Invalid(f"this URL cannot be opened: {reason}", code=INVALID_URL)


NO_ADDRESS = "NO_ADDRESS"
LOOKUP_FAILED = "LOOKUP_FAILED"
_CONNECTIONS = 64
_IDLE_CONNECTIONS = 8
_IDLE_SECONDS = 15.0
_LOOKUPS = 64
# Addresses of a name that are tried; each gets its share of the connect timeout.
_ADDRESS_ATTEMPTS = 4

# At DEBUG it logs every response header: cookies, and redirects with signed queries.
logging.getLogger("httpcore2").setLevel(logging.INFO)


class Network(Protocol):
    """Name resolution and connections. The policy is checked between the two."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """All addresses of a name, best first; `Unavailable` if it has none."""

    async def connect(self, address: str, port: int, timeout: float | None) -> httpcore2.AsyncNetworkStream:
        """Connect to an IP address, without resolving anything."""


class Internet:
    """The operating system's network. Names are resolved in its own threads: a name server that is slow on purpose
    would otherwise occupy all worker threads of the event loop."""

    def __init__(self) -> None:
        self._lookups = anyio.CapacityLimiter(_LOOKUPS)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        resolve = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            entries = await anyio.to_thread.run_sync(resolve, abandon_on_cancel=True, limiter=self._lookups)
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN:
                raise Unavailable(
                    f"the name {host} cannot be resolved now; try again later", code=LOOKUP_FAILED
                ) from None
            raise Unavailable(f"the name {host} has no address; check its spelling", code=NO_ADDRESS) from None
        except (OSError, UnicodeError):
            raise Unavailable(f"the name {host} cannot be resolved", code=NO_ADDRESS) from None
        return list(dict.fromkeys(str(entry[4][0]) for entry in entries))

    async def connect(self, address: str, port: int, timeout: float | None) -> httpcore2.AsyncNetworkStream:
        return await httpcore2.AnyIOBackend().connect_tcp(address, port, timeout=timeout)


INTERNET = Internet()


class GuardedTransport(httpx2.AsyncBaseTransport):
    """An `httpx2` transport that connects only where the policy allows.

    It uses no proxies, cookies or redirects. Network failures are raised as `httpx2` exceptions, refusals as ours.
    Connections are pooled for some seconds: their addresses were checked for the same name.
    """

    def __init__(self, policy: NetworkPolicy, network: Network = INTERNET, tls: ssl.SSLContext | None = None) -> None:
        self._policy = policy
        self._network = network
        self._tls = tls
        self._pools: dict[str, httpcore2.AsyncConnectionPool] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = parse_url(str(request.url))
        self._policy.check_host(url.scheme, url.raw_host.decode("ascii"), url.port)
        pool = await self._pool(url.scheme)
        with _as_httpx2_errors():
            response = await pool.handle_async_request(
                httpcore2.Request(
                    method=request.method,
                    url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx2.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(cast("_ByteStream", response.stream)),
            extensions=response.extensions,
            request=request,
        )

    async def aclose(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()

    async def _pool(self, scheme: str) -> httpcore2.AsyncConnectionPool:
        """The connection pool of a scheme; one each, because a policy may judge an address by the scheme."""
        if scheme not in self._pools:
            tls = None
            if scheme == "https":  # reads certificate files
                tls = self._tls or await anyio.to_thread.run_sync(_default_tls)
            self._pools.setdefault(
                scheme,
                httpcore2.AsyncConnectionPool(
                    ssl_context=tls,
                    max_connections=_CONNECTIONS,
                    max_keepalive_connections=_IDLE_CONNECTIONS,
                    keepalive_expiry=_IDLE_SECONDS,
                    network_backend=_CheckedBackend(scheme, self._policy, self._network),
                ),
            )
        return self._pools[scheme]


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Opens the connections of a pool, to addresses that the policy allows."""

    def __init__(self, scheme: str, policy: NetworkPolicy, network: Network) -> None:
        self._scheme = scheme
        self._policy = policy
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            with anyio.fail_after(timeout):
                addresses = [parse_address(text) for text in await self._network.resolve(host, port)]
                for address in addresses:
                    self._policy.check_address(self._scheme, host, address)
                return await self._connect_any(
                    host, [str(address) for address in addresses[:_ADDRESS_ATTEMPTS]], port, timeout
                )
        except TimeoutError:
            raise httpcore2.ConnectTimeout from None

    async def _connect_any(
        self, host: str, addresses: Sequence[str], port: int, timeout: float | None
    ) -> httpcore2.AsyncNetworkStream:
        share = None if timeout is None else timeout / max(len(addresses), 1)
        failure: Exception = Unavailable(f"the name {host} has no address", code=NO_ADDRESS)
        for address in addresses:
            try:
                return await self._network.connect(address, port, share)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure


class _ByteStream(Protocol):
    def __aiter__(self) -> AsyncGenerator[bytes]: ...

    async def aclose(self) -> None: ...


class _Body(httpx2.AsyncByteStream):
    def __init__(self, stream: _ByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx2_errors():
            async with aclosing(self._stream.__aiter__()) as parts:
                async for part in parts:
                    yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


@contextmanager
def _as_httpx2_errors() -> Iterator[None]:
    """Raise `httpcore2` network errors as the `httpx2` errors of the same name."""
    try:
        yield
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
        name: Any = getattr(httpx2, type(error).__name__)
        raise name(str(error)) from error


@functools.cache
def _default_tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()
