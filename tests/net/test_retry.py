"""Another try, where it can help and does no harm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpcore2
import pytest

from gateway.errors import Unavailable
from gateway.net.client import NEVER, GuardedClient, Retry
from gateway.net.policy import NetworkPolicy, RequestLimits
from gateway.net.transport import INTERNET, Internet, Network

from .sites import Reply, Site, answer, serving

pytestmark = pytest.mark.anyio

OPEN = NetworkPolicy(any_host=True, allow_private=True)
QUICK = Retry(attempts=3, first_seconds=0.01, longest_seconds=0.05)


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def status(
    site: Site,
    method: str = "GET",
    retry: Retry = QUICK,
    limits: RequestLimits = RequestLimits(),  # noqa: B008
    network: Network = INTERNET,
) -> int:
    async with (
        GuardedClient(OPEN, network) as client,
        client.request(method, site["/"], retry=retry, limits=limits) as reply,
    ):
        await reply.read()
        return reply.status


@pytest.mark.parametrize("first", [answer(429), answer(502), answer(503), answer(504), hang_up])
async def test_transient_failure_is_retried(first: Reply) -> None:
    async with serving({"/": [first, first, answer()]}) as site:
        assert await status(site) == 200
        assert len(site.asked) == 3


@pytest.mark.parametrize("code", [400, 401, 403, 404, 500, 501])
async def test_permanent_failure_is_not_retried(code: int) -> None:
    async with serving({"/": answer(code)}) as site:
        assert await status(site) == code
        assert len(site.asked) == 1


async def test_request_is_not_retried_by_default() -> None:
    async with serving({"/": [answer(503), answer()]}) as site:
        assert await status(site, retry=NEVER) == 503
        assert await status(site, retry=NEVER) == 200


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_request_that_is_not_idempotent_is_not_retried(method: str) -> None:
    async with serving({"/": [answer(503), answer()]}) as site:
        assert await status(site, method) == 503
    async with serving({"/": [hang_up, answer()]}) as site:
        with pytest.raises(Unavailable):
            await status(site, method)
        assert len(site.asked) == 1


async def test_retry_stops_after_its_attempts() -> None:
    async with serving({"/": answer(503)}) as site:
        assert await status(site) == 503
        assert len(site.asked) == 3
    async with serving({"/": answer(503, b"", "Retry-After: 0")}) as site:
        assert await status(site) == 503
        assert len(site.asked) == 3


async def test_closed_port_is_retried() -> None:
    class Shy(Internet):
        tries = 0

        async def connect(self, address: str, port: int, timeout: float | None) -> httpcore2.AsyncNetworkStream:
            self.tries += 1
            return await super().connect(address, 1 if self.tries < 3 else port, timeout)

    async with serving({"/": answer()}) as site:
        assert await status(site, network=Shy()) == 200


async def test_temporary_resolution_failure_is_retried_and_unknown_name_is_not() -> None:
    class Forgetful(Internet):
        code = "LOOKUP_FAILED"
        tries = 0

        async def resolve(self, host: str, port: int) -> Sequence[str]:
            self.tries += 1
            if self.tries == 1:
                raise Unavailable("not now", code=self.code)
            return ["127.0.0.1"]

    network = Forgetful()
    async with serving({"/": answer()}) as site, GuardedClient(OPEN, network) as client:
        async with client.request("GET", f"http://a.test:{site.port}/", retry=QUICK) as reply:
            assert (reply.status, network.tries) == (200, 2)
        network.code, network.tries = "NO_ADDRESS", 0
        with pytest.raises(Unavailable):
            async with client.request("GET", f"http://b.test:{site.port}/", retry=QUICK):
                pass


async def test_retry_after_header_sets_the_pause() -> None:
    async with serving({"/": [answer(503, b"", "Retry-After: 1"), answer()]}) as site:
        start = time.monotonic()
        assert await status(site, retry=Retry(first_seconds=0.01, longest_seconds=2)) == 200
        assert time.monotonic() - start > 0.9


@pytest.mark.parametrize(
    "header", ["3600", format_datetime(datetime.now(UTC) + timedelta(hours=1))], ids=["seconds", "a date"]
)
async def test_retry_after_beyond_the_longest_pause_is_not_retried(header: str) -> None:
    async with serving({"/": [answer(429, b"", f"Retry-After: {header}"), answer()]}) as site:
        assert await status(site) == 429
        assert len(site.asked) == 1


@pytest.mark.parametrize("header", ["soon", "-1", "", "Wed, 21 Oct 2015 07:28:00 GMT", "1e9", "9" * 50])
async def test_invalid_or_past_retry_after_uses_our_pause(header: str) -> None:
    async with serving({"/": [answer(503, b"", f"Retry-After: {header}"), answer()]}) as site:
        assert await status(site) == 200


async def test_response_is_returned_when_no_time_is_left_for_a_retry() -> None:
    async with serving({"/": [answer(503), answer()]}) as site:
        patient = Retry(first_seconds=10, longest_seconds=10)
        assert await status(site, retry=patient, limits=RequestLimits(seconds=1)) == 503
