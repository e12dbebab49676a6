"""The HTTP proxy of a sandboxed program: connects it to allowed hosts and refuses others.

It resolves names itself and connects to an address it has checked, so that a name cannot change in between. It supports
CONNECT and plain HTTP, and adds nothing to the traffic.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from gateway.errors import Forbidden, GatewayError, Invalid, Unavailable
from gateway.net.policy import PRIVATE_ADDRESS, NetworkPolicy, canonical_host, parse_address

CONNECTIONS = 64
_BYTES = 4 * 1024**3
_HEAD_BYTES = 64 * 1024
_HEAD_SECONDS = 20.0
_CONNECT_SECONDS = 15.0
_IDLE_SECONDS = 120.0
_CHUNK = 64 * 1024
_LOOKUPS = 4
_TRIES = 4
_log = logging.getLogger(__name__)

_LINE = re.compile(r"([A-Z]{1,20}) ([!-~]{1,16384}) HTTP/1\.([01])")
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:@\[\]/\\%]+)(?::([0-9]{1,5}))?")
_URL = re.compile(r"http://([^/?#]+)([^#]*)", re.IGNORECASE)
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "te", "trailer", "upgrade", "host"})
_ANSWERS = {Invalid: "400 Bad Request", Forbidden: "403 Forbidden", Unavailable: "502 Bad Gateway"}
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class _ProxyRequest:
    """The destination of a request, and the head to send there first (none for a tunnel)."""

    scheme: str
    host: str
    port: int
    head: bytes = b""


class Proxy:
    """Serves one program under its policy, with limits on total traffic and connections."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self._policy = policy
        self._total_bytes = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._lookups = asyncio.Semaphore(_LOOKUPS)

    @asynccontextmanager
    async def serve(self, listener: socket.socket) -> AsyncIterator[None]:
        """Serve connections to the listener while in the body."""
        server = await asyncio.start_server(self._on_connection, sock=listener, limit=_HEAD_BYTES)
        try:
            yield
        finally:
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - the server runs this in a task
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, EOFError, TimeoutError):
            pass  # one side closed the connection, or it timed out
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._connections) > CONNECTIONS:
                raise Unavailable(f"there are {CONNECTIONS} connections already; close some")
            request = _parse(await _read_head(reader))
            theirs = await self._connect(request)
        except GatewayError as refusal:
            _log.info("a sandboxed program's request was refused: %s", refusal.message)
            await _refuse(writer, refusal)
            return
        try:
            if request.head:
                theirs[1].write(request.head)
            else:
                writer.write(_ESTABLISHED)
            await relay((reader, writer), theirs, self._count, _IDLE_SECONDS)
        finally:
            theirs[1].close()

    async def _connect(self, request: _ProxyRequest) -> Stream:
        self._policy.check_host(request.scheme, request.host, request.port)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                addresses = await self._addresses(request)
                return await _first(addresses[:_TRIES], request.port)
        except TimeoutError:
            raise Unavailable(f"{request.host} could not be reached within {_CONNECT_SECONDS:g} s") from None
        except OSError as error:
            raise Unavailable(f"{request.host} could not be reached: {error.strerror or 'no such name'}") from None

    async def _addresses(self, request: _ProxyRequest) -> list[str]:
        """Return every address of the name; refused unless all of them are allowed."""
        loop = asyncio.get_running_loop()
        try:
            async with self._lookups:
                found = await loop.getaddrinfo(request.host, request.port, type=socket.SOCK_STREAM)
        except UnicodeError:
            raise Unavailable(f"the name {request.host} cannot be looked up") from None
        addresses = [parse_address(str(entry[4][0])) for entry in found]
        try:
            for address in addresses:
                self._policy.check_address(request.scheme, request.host, address)
        except Forbidden as refusal:
            if refusal.code != PRIVATE_ADDRESS:
                raise
            reason = (
                f"{request.host} resolves to {refusal.details['address']}, and programs may reach only public addresses"
            )
            raise Forbidden(reason, code=PRIVATE_ADDRESS) from None
        return list(dict.fromkeys(map(str, addresses)))

    def _count(self, size: int) -> None:
        self._total_bytes += size
        if self._total_bytes > _BYTES:
            raise TimeoutError


async def relay(ours: Stream, theirs: Stream, on_data: Callable[[int], None], idle: float | None = None) -> None:
    """Copy in both directions until both end, or one fails or is idle for too long. `on_data` is called with the number
    of bytes before they are passed on."""
    directions = [
        asyncio.ensure_future(_copy_stream(ours[0], theirs[1], on_data, idle)),
        asyncio.ensure_future(_copy_stream(theirs[0], ours[1], on_data, idle)),
    ]
    try:
        await asyncio.gather(*directions)
    finally:
        for direction in directions:
            direction.cancel()


async def _copy_stream(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, on_data: Callable[[int], None], idle: float | None
) -> None:
    while True:
        async with asyncio.timeout(idle):
            data = await source.read(_CHUNK)
        if not data:
            break
        on_data(len(data))
        sink.write(data)
        async with asyncio.timeout(idle):
            await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()


async def _read_head(reader: asyncio.StreamReader) -> str:
    try:
        async with asyncio.timeout(_HEAD_SECONDS):
            return (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1")
    except asyncio.LimitOverrunError:
        raise Invalid(f"the headers are larger than {_HEAD_BYTES} bytes") from None


def _parse(head: str) -> _ProxyRequest:
    line, *headers = head.split("\r\n")
    found = _LINE.fullmatch(line)
    if found is None:
        raise Invalid("this is not an HTTP request to a proxy")
    method, target, minor = found.groups()
    if method == "CONNECT":
        return _ProxyRequest("https", *_authority(target, None))
    url = _URL.fullmatch(target)
    if url is None:
        raise Invalid("the proxy needs an http:// URL, or CONNECT for anything else")
    host, port = _authority(url[1], 80)
    path = url[2] if url[2].startswith("/") else "/" + url[2]
    # One request per connection: anything after it would reach the same host, whatever it names.
    forwarded = [*_headers_to_forward(headers), f"Host: {url[1]}", "Connection: close"]
    lines = "\r\n".join([f"{method} {path} HTTP/1.{minor}", *forwarded])
    return _ProxyRequest("http", host, port, f"{lines}\r\n\r\n".encode("latin-1"))


def _authority(text: str, default: int | None) -> tuple[str, int]:
    found = _AUTHORITY.fullmatch(text)
    port = int(found[2]) if found and found[2] else default
    if found is None or port is None or not 0 < port < 65536:
        raise Invalid("the proxy needs a host and a port")
    try:
        return canonical_host(found[1]), port
    except ValueError:
        raise Invalid("that is not a valid host name") from None


def _headers_to_forward(headers: list[str]) -> list[str]:
    """Return the headers for the host, without hop-by-hop and proxy headers."""
    parsed = [_HEADER.fullmatch(header) for header in headers]
    if None in parsed:
        raise Invalid("a header has characters that HTTP does not allow")
    pairs = [(found[1].lower(), found[0]) for found in parsed if found]
    named = {word.strip().lower() for name, line in pairs if name == "connection" for word in line[11:].split(",")}
    return [line for name, line in pairs if name not in _HOP_BY_HOP | named and not name.startswith("proxy-")]


async def _first(addresses: list[str], port: int) -> Stream:
    failure: OSError = OSError("it has no address")
    for address in addresses:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS / len(addresses)):
                return await asyncio.open_connection(address, port)
        except (OSError, TimeoutError) as error:
            failure = error
    raise failure


async def _refuse(writer: asyncio.StreamWriter, refusal: GatewayError) -> None:
    status = next((text for kind, text in _ANSWERS.items() if isinstance(refusal, kind)), "502 Bad Gateway")
    body = f"toolgate: {refusal.message}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    with suppress(OSError):
        await writer.drain()
