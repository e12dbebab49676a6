"""The door: one request out, under a policy, within limits, redirects followed one checked step at a time."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType

import anyio
import httpx2

from gateway.errors import Forbidden, Timeout, Unavailable
from gateway.net import errors
from gateway.net.body import declared_length, pieces
from gateway.net.limits import Limits
from gateway.net.policy import Policy
from gateway.net.redirects import IDEMPOTENT, REDIRECTS, Hop, first_hop
from gateway.net.retry import NEVER, Retry
from gateway.net.transport import INTERNET, GuardedTransport, Network

TOO_MANY_REDIRECTS = "TOO_MANY_REDIRECTS"


@dataclass(frozen=True)
class Answer:
    """What a server answered, whatever its status. `url` is where the answer came from in the end;
    `chunks` is its body, to be read once."""

    status: int
    url: str
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    origin: str
    length: int | None = None

    @property
    def content_type(self) -> str | None:
        return self.headers.get("content-type")

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks])


class Door:
    """Sends requests under one policy, and keeps connections a moment for the next one.

        async with Door(Policy(allowed_hosts=("api.example.org",))) as door:
            async with door.request("GET", "https://api.example.org/items") as answer:
                body = await answer.read()

    It knows neither cookies nor proxies. Requests may run side by side.
    """

    def __init__(self, policy: Policy, network: Network = INTERNET, tls: ssl.SSLContext | None = None) -> None:
        self._transport = GuardedTransport(policy, network, tls)

    async def __aenter__(self) -> Door:
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
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        retry: Retry = NEVER,
    ) -> AsyncIterator[Answer]:
        """The answer to a request, for as long as it is read.

        `Invalid` for a request that cannot be, `Forbidden` where the policy does not let it go,
        `Unavailable` and `Timeout` when no answer came; a status of 400 and above is an answer.
        `retry` holds for methods that do no harm when repeated, until an answer begins.
        """
        hop = first_hop(method, url, headers, body)
        with anyio.move_on_after(limits.seconds):
            last, response = await self._follow(hop, limits, retry)
            try:
                async with aclosing(pieces(response, last.origin, limits.bytes)) as chunks:
                    yield _answer(last, response, chunks)
            finally:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
            return
        raise Timeout(f"{hop.origin} took longer than {limits.seconds:g} s", seconds=limits.seconds)

    async def _follow(self, hop: Hop, limits: Limits, retry: Retry) -> tuple[Hop, httpx2.Response]:
        start = hop
        for _ in range(limits.redirects + 1):
            try:
                response = await self._patiently(hop, limits, retry)
            except Forbidden as error:
                if hop is start:
                    raise
                reason = f"{start.origin} redirects to where we may not go: {error.message}"
                raise Forbidden(reason, code=error.code, **error.details) from None
            location = response.headers.get("location")
            if response.status_code not in REDIRECTS or location is None:
                return hop, response
            await response.aclose()
            hop = hop.redirected(response.status_code, location)
        raise Unavailable(f"{start.origin} redirects more than {limits.redirects} times", code=TOO_MANY_REDIRECTS)

    async def _patiently(self, hop: Hop, limits: Limits, retry: Retry) -> httpx2.Response:
        """One step, tried again where that can help and there is time for it."""
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
                pause = retry.after_answer(response, attempt)
                if pause is None or not _has_time(pause):
                    return response
                await response.aclose()
            await anyio.sleep(pause)
            attempt += 1

    async def _send(self, hop: Hop, limits: Limits) -> httpx2.Response:
        try:
            response = await self._transport.handle_async_request(hop.build(limits.connect_seconds))
        except httpx2.TransportError as error:
            raise errors.before_answer(error, hop.origin, limits.connect_seconds) from None
        if sum(len(name) + len(value) for name, value in response.headers.raw) > limits.header_bytes:
            await response.aclose()
            raise errors.bad_answer(hop.origin, f"its headers are larger than {limits.header_bytes} bytes")
        return response


def _answer(hop: Hop, response: httpx2.Response, chunks: AsyncIterator[bytes]) -> Answer:
    packed = "content-encoding" in response.headers
    return Answer(
        status=response.status_code,
        url=str(hop.url),
        headers=response.headers,
        chunks=chunks,
        origin=hop.origin,
        length=None if packed else declared_length(response),
    )


def _has_time(pause: float) -> bool:
    return anyio.current_time() + pause < anyio.current_effective_deadline()
