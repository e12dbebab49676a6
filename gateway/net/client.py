"""The guarded HTTP client: requests under a policy and within limits. Each redirect is checked like a new request."""

from __future__ import annotations

import math
import re
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, cast
from urllib.parse import urljoin

import anyio
import anyio.lowlevel
import httpx2

from gateway import __version__
from gateway.errors import Forbidden, GatewayError, Invalid, Timeout, ToolFailed, Unavailable
from gateway.net.policy import NetworkPolicy, RequestLimits
from gateway.net.transport import INTERNET, LOOKUP_FAILED, GuardedTransport, Network, parse_url, url_origin
from gateway.tasks import backoff_with_jitter
from gateway.value import Value

CONNECT_FAILED = "CONNECT_FAILED"
CONNECTION_LOST = "CONNECTION_LOST"
TLS_FAILED = "TLS_FAILED"
BAD_ANSWER = "BAD_ANSWER"


def connection_error(error: httpx2.TransportError, origin: str, connect_seconds: float) -> GatewayError:
    """The error for a request without a response."""
    root = _root(error)
    if isinstance(error, httpx2.ConnectTimeout):
        return Timeout(f"{origin} could not be reached within {connect_seconds:g} s")
    if isinstance(root, ssl.SSLCertVerificationError):
        return Unavailable(f"the certificate of {origin} is not accepted: {root.verify_message}", code=TLS_FAILED)
    if isinstance(root, ssl.SSLError):
        reason = (root.reason or "not TLS").replace("_", " ").lower()
        return Unavailable(f"no TLS connection with {origin}: {reason}", code=TLS_FAILED)
    if isinstance(error, httpx2.ConnectError):
        reason = root.strerror if isinstance(root, OSError) and root.strerror else "no connection"
        return Unavailable(f"{origin} could not be reached: {reason}", code=CONNECT_FAILED)
    if isinstance(error, httpx2.LocalProtocolError):
        return Invalid("this request cannot be sent as HTTP", code="INVALID_REQUEST")
    if isinstance(error, httpx2.NetworkError) or "disconnected" in str(error):
        return Unavailable(f"{origin} closed the connection without a response", code=CONNECTION_LOST)
    return invalid_response(origin, "it is not valid HTTP, or its headers are too large")


def truncation_error(origin: str) -> Unavailable:
    """The error for a response that ended before its body was complete."""
    return Unavailable(f"the response of {origin} ended before its body was complete", code=CONNECTION_LOST)


def invalid_response(origin: str, reason: str) -> Unavailable:
    return Unavailable(f"the response of {origin} cannot be used: {reason}", code=BAD_ANSWER)


def _root(error: BaseException) -> BaseException:
    """The original exception; `httpcore2` passes the earlier one as an argument."""
    before = error.__cause__ or next((part for part in error.args if isinstance(part, BaseException)), None)
    return error if before is None else _root(before)


_STATUSES = frozenset({429, 502, 503, 504})
_CODES = frozenset({CONNECT_FAILED, CONNECTION_LOST, LOOKUP_FAILED, Timeout.default_code})


class Retry(Value):
    """The attempts per request and the pauses between them: exponential, with jitter. A server whose `Retry-After` is
    longer than `longest_seconds` is not asked again."""

    attempts: int = 3
    first_seconds: float = 0.5
    longest_seconds: float = 10.0

    def after_failure(self, failure: Unavailable, attempt: int) -> float | None:
        """Seconds to wait before the next attempt; None if there is none."""
        return self._pause(attempt) if failure.code in _CODES and attempt < self.attempts else None

    def after_response(self, response: httpx2.Response, attempt: int) -> float | None:
        if response.status_code not in _STATUSES or attempt >= self.attempts:
            return None
        seconds = parse_retry_after(response.headers.get("retry-after"))
        if seconds is None:
            return self._pause(attempt)
        return seconds if seconds <= self.longest_seconds else None

    def _pause(self, attempt: int) -> float:
        return backoff_with_jitter(attempt, self.first_seconds, self.longest_seconds)


NEVER = Retry(attempts=1)


def parse_retry_after(header: str | None) -> float | None:
    """The seconds of a `Retry-After` header, which is a number of seconds or a date."""
    if header is None:
        return None
    if header.isascii() and header.isdecimal() and len(header) < 10:
        return float(header)
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max((until - datetime.now(UTC)).total_seconds(), 0.0)


RESPONSE_TOO_LARGE = "RESPONSE_TOO_LARGE"
_CHUNK_BYTES = 256 * 1024
_GZIP = zlib.MAX_WBITS | 16


async def decode_body(response: httpx2.Response, origin: str, limit: int) -> AsyncGenerator[bytes]:
    """The decompressed body. Refused beyond `limit` bytes, compressed or not; it is decompressed in small chunks, so
    that a compression bomb costs no more memory than the limit."""
    compressed = _is_compressed(response, origin)
    length = content_length(response)
    if length is not None and length > limit and response.request.method != "HEAD":
        raise _too_large(origin, limit)
    decoder = _GzipDecoder() if compressed else _PlainDecoder()
    received = decoded = 0
    try:
        async with aclosing(_parts(response)) as parts:
            async for part in parts:
                received += len(part)
                for chunk in decoder.feed(part):
                    decoded += len(chunk)
                    if max(received, decoded) > limit:
                        raise _too_large(origin, limit)
                    yield chunk
                    await anyio.lowlevel.checkpoint()  # one part may decompress to many chunks
                if received > limit:
                    raise _too_large(origin, limit)
    except zlib.error:
        raise invalid_response(origin, "its gzip data is damaged") from None
    except httpx2.TransportError:
        raise truncation_error(origin) from None
    if not decoder.is_complete:
        raise truncation_error(origin)


def content_length(response: httpx2.Response) -> int | None:
    """The `Content-Length` of a response, if it has a valid one."""
    text = response.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _parts(response: httpx2.Response) -> AsyncGenerator[bytes]:
    return cast("AsyncGenerator[bytes]", cast("httpx2.AsyncByteStream", response.stream).__aiter__())


def _is_compressed(response: httpx2.Response, origin: str) -> bool:
    """Return whether the body is gzip. Any other encoding is refused, several layers too: they multiply a bomb."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("gzip", "x-gzip", "identity", ""):
        raise invalid_response(origin, "it has a content encoding that was not requested")
    return coding.endswith("gzip")


def _too_large(origin: str, limit: int) -> ToolFailed:
    return ToolFailed(f"the response of {origin} is larger than {limit} bytes", code=RESPONSE_TOO_LARGE, limit=limit)


class _PlainDecoder:
    is_complete = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data


class _GzipDecoder:
    """Decompress gzip, also of several members, at most one chunk at a time."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_GZIP)
        self._started = False

    @property
    def is_complete(self) -> bool:
        return self._inflate.eof or not self._started

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._inflate.eof:
                self._inflate = zlib.decompressobj(_GZIP)
            self._started = True
            chunk = self._inflate.decompress(data, _CHUNK_BYTES)
            data = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            if chunk:
                yield chunk


INSECURE_REDIRECT = "INSECURE_REDIRECT"
REDIRECTS = frozenset({301, 302, 303, 307, 308})
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_METHODS = IDEMPOTENT | {"POST", "PATCH"}

# Headers that frame a message on the connection: a caller may not set them.
_FRAMING_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)

# Headers that follow a redirect to another origin. Any other may hold a key, as `X-Api-Key` does.
_CROSS_ORIGIN_HEADERS = frozenset({"accept", "accept-language", "content-language", "content-type", "user-agent"})

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_HEADER_BYTES = 32 * 1024


class Hop(Value):
    """One request of a redirect chain."""

    method: str
    url: httpx2.URL
    headers: Mapping[str, str]
    body: bytes | None

    @property
    def origin(self) -> str:
        return url_origin(self.url)

    def redirect(self, status: int, location: str) -> Hop:
        """The next request. It never goes from https to http, and takes no credentials to another origin."""
        try:
            url = parse_url(urljoin(str(self.url), location))
        except (Invalid, ValueError):
            raise invalid_response(self.origin, "it redirects to a URL that cannot be opened") from None
        if self.url.scheme == "https" and url.scheme != "https":
            reason = f"{self.origin} redirects from https to plain http at {url_origin(url)}, which is refused"
            raise Forbidden(reason, code=INSECURE_REDIRECT, host=url.raw_host.decode("ascii"))
        hop = replace(self, url=url)
        if status == 303 or (status in (301, 302) and self.method == "POST"):
            hop = replace(hop, method="HEAD" if self.method == "HEAD" else "GET", body=None)
            hop = hop.filter_headers(lambda name: not name.startswith("content-"))
        if hop.origin != self.origin:
            hop = hop.filter_headers(lambda name: name in _CROSS_ORIGIN_HEADERS)
        return hop

    def filter_headers(self, wanted: Callable[[str], bool]) -> Hop:
        return replace(self, headers={name: value for name, value in self.headers.items() if wanted(name)})

    def build(self, connect_seconds: float) -> httpx2.Request:
        """The `httpx2` request. It has a timeout for connecting only: the caller limits the whole exchange."""
        own = {"user-agent": f"toolgate/{__version__}", "accept": "*/*", "accept-encoding": "gzip"}
        return httpx2.Request(
            self.method,
            self.url,
            headers=httpx2.Headers({**own, **self.headers}, encoding="latin-1"),
            content=self.body,
            extensions={"timeout": {"connect": connect_seconds, "read": None, "write": None, "pool": None}},
        )


def first_hop(method: str, url: str, headers: Mapping[str, str] | None, body: bytes | None) -> Hop:
    """Check a request. `Invalid` says what is wrong, without the value of a header."""
    if method.upper() not in _METHODS:
        raise _invalid_request(f"{method[:20]!r} is not one of the methods {', '.join(sorted(_METHODS))}")
    checked: dict[str, str] = {}
    for name, value in (headers or {}).items():
        lower = name.lower()
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise _invalid_request(f"the header {name[:40]!r} has characters that HTTP does not allow")
        if lower in _FRAMING_HEADERS or lower.startswith("proxy-"):
            raise _invalid_request(f"the header {name!r} is set by the gateway; leave it out")
        if lower in checked:
            raise _invalid_request(f"the header {name!r} is given twice")
        checked[lower] = value
    if sum(len(name) + len(value) for name, value in checked.items()) > _HEADER_BYTES:
        raise _invalid_request(f"its headers are larger than {_HEADER_BYTES} bytes")
    return Hop(method.upper(), parse_url(url), checked, body)


def _invalid_request(reason: str) -> Invalid:
    return Invalid(f"this request cannot be sent: {reason}", code="INVALID_REQUEST")


TOO_MANY_REDIRECTS = "TOO_MANY_REDIRECTS"


class HttpResponse(Value):
    """A response of any status. `url` is the URL after redirects; `chunks` is the body, to be read once."""

    status: int
    url: str
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    origin: str
    length: int | None = None

    @property
    def content_type(self) -> str | None:
        return self.headers.get("content-type")

    @property
    def pause(self) -> dict[str, Any]:
        """The seconds that the server wants to be left alone, as a detail of an error; empty if it names none."""
        seconds = parse_retry_after(self.headers.get("retry-after"))
        return {} if seconds is None else {"retry_after": math.ceil(seconds)}

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks])


class GuardedClient:
    """Sends requests under one policy, over pooled connections.

        async with GuardedClient(NetworkPolicy(allowed_hosts=("api.example.org",))) as client:
            async with client.request("GET", "https://api.example.org/items") as response:
                body = await response.read()

    It uses neither cookies nor proxies. Requests may run concurrently.
    """

    def __init__(self, policy: NetworkPolicy, network: Network = INTERNET, tls: ssl.SSLContext | None = None) -> None:
        self._transport = GuardedTransport(policy, network, tls)

    async def __aenter__(self) -> GuardedClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._transport.aclose()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        limits: RequestLimits = RequestLimits(),  # noqa: B008 - it is frozen
        retry: Retry = NEVER,
    ) -> AsyncIterator[HttpResponse]:
        """Send a request and give its response, open until the block ends.

        Raises `Invalid` for a malformed request, `Forbidden` if the policy refuses it, and `Unavailable` or `Timeout`
        without a response. A status of 400 and above is a response. Only idempotent methods are retried, and only
        until a response begins.
        """
        hop = first_hop(method, url, headers, body)
        with anyio.move_on_after(limits.seconds):
            last, response = await self._follow(hop, limits, retry)
            try:
                async with aclosing(decode_body(response, last.origin, limits.bytes)) as chunks:
                    yield _make_response(last, response, chunks)
            finally:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
            return
        raise Timeout(f"{hop.origin} did not answer completely within {limits.seconds:g} s", seconds=limits.seconds)

    async def _follow(self, hop: Hop, limits: RequestLimits, retry: Retry) -> tuple[Hop, httpx2.Response]:
        start = hop
        for _ in range(limits.redirects + 1):
            try:
                response = await self._send_with_retry(hop, limits, retry)
            except Forbidden as error:
                if hop is start:
                    raise
                reason = f"{start.origin} redirects to a URL that is refused: {error.message}"
                raise Forbidden(reason, code=error.code, **error.details) from None
            location = response.headers.get("location")
            if response.status_code not in REDIRECTS or location is None:
                return hop, response
            await response.aclose()
            hop = hop.redirect(response.status_code, location)
        raise Unavailable(f"{start.origin} redirects more than {limits.redirects} times", code=TOO_MANY_REDIRECTS)

    async def _send_with_retry(self, hop: Hop, limits: RequestLimits, retry: Retry) -> httpx2.Response:
        """Send one request; retry it while the policy of retries and the deadline allow."""
        retry = retry if hop.method in IDEMPOTENT else NEVER
        attempt = 1
        while True:
            try:
                response = await self._send(hop, limits)
            except Unavailable as failure:
                pause = retry.after_failure(failure, attempt)
                if pause is None or not _has_time(pause):
                    raise
            else:
                pause = retry.after_response(response, attempt)
                if pause is None or not _has_time(pause):
                    return response
                await response.aclose()
            await anyio.sleep(pause)
            attempt += 1

    async def _send(self, hop: Hop, limits: RequestLimits) -> httpx2.Response:
        try:
            response = await self._transport.handle_async_request(hop.build(limits.connect_seconds))
        except httpx2.TransportError as error:
            raise connection_error(error, hop.origin, limits.connect_seconds) from None
        if sum(len(name) + len(value) for name, value in response.headers.raw) > limits.header_bytes:
            await response.aclose()
            raise invalid_response(hop.origin, f"its headers are larger than {limits.header_bytes} bytes")
        return response


def _make_response(hop: Hop, response: httpx2.Response, chunks: AsyncIterator[bytes]) -> HttpResponse:
    compressed = "content-encoding" in response.headers
    return HttpResponse(
        status=response.status_code,
        url=str(hop.url),
        headers=response.headers,
        chunks=chunks,
        origin=hop.origin,
        length=None if compressed else content_length(response),
    )


def _has_time(pause: float) -> bool:
    return anyio.current_time() + pause < anyio.current_effective_deadline()
