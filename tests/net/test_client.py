"""Requests of the guarded client: headers, redirects, TLS and error messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import anyio
import httpcore2
import httpx2
import pytest
from eventually import TIMEOUT

from gateway.errors import Forbidden, Invalid, Timeout, Unavailable
from gateway.net.client import GuardedClient
from gateway.net.policy import NetworkPolicy, RequestLimits
from gateway.net.transport import INTERNET, GuardedTransport, Network

from .sites import PUBLIC, Lab, answer, redirect, serving, trusting

pytestmark = pytest.mark.anyio

OPEN = NetworkPolicy(any_host=True, allow_private=True)


async def get(
    url: str,
    policy: NetworkPolicy = OPEN,
    network: Network = INTERNET,
    limits: RequestLimits = RequestLimits(),  # noqa: B008
) -> tuple[int, bytes]:
    async with GuardedClient(policy, network, trusting()) as client, client.request("GET", url, limits=limits) as reply:
        return reply.status, await reply.read()


async def test_request_is_sent_with_its_method_headers_and_body() -> None:
    async with serving({"/items": answer(201, b"made", "X-Id: 7")}) as site, GuardedClient(OPEN) as client:
        headers = {"Authorization": "Bearer key", "Content-Type": "application/json"}
        async with client.request("post", site["/items?a=1&b=%20"], headers=headers, body=b"{}") as reply:
            assert (reply.status, reply.headers["x-id"], await reply.read()) == (201, "7", b"made")
            assert reply.url == site["/items?a=1&b=%20"]
    (asked,) = site.asked
    assert (asked.method, asked.target, asked.body) == ("POST", "/items?a=1&b=%20", b"{}")
    assert asked.headers["authorization"] == "Bearer key"
    assert asked.headers["host"] == f"127.0.0.1:{site.port}"
    assert asked.headers["user-agent"].startswith("toolgate/")
    assert asked.headers["accept-encoding"] == "gzip"


async def test_error_status_is_a_response() -> None:
    async with serving({"/": answer(500, b"broken")}) as site:
        assert await get(site["/"]) == (500, b"broken")


async def test_no_cookie_is_kept() -> None:
    async with serving({"/": answer(200, b"", "Set-Cookie: a=b")}) as site, GuardedClient(OPEN) as client:
        for _ in range(2):
            async with client.request("GET", site["/"]):
                pass
    assert [asked.headers.get("cookie") for asked in site.asked] == [None, None]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "other.test"},
        {"Content-Length": "5"},
        {"Transfer-Encoding": "chunked"},
        {"Connection": "keep-alive"},
        {"Proxy-Authorization": "x"},
        {"X-A": "b\r\nX-C: d"},
        {"X-A": "b\x00"},
        {"X-A": "\u20ac"},
        {"X A": "b"},
        {"": "b"},
        {"X-A": "1", "x-a": "2"},
        {"X-A": "a" * 40000},
    ],
    ids=lambda headers: ascii(headers)[:40],
)
async def test_headers_that_could_change_the_meaning_of_a_request_are_refused(headers: Mapping[str, str]) -> None:
    async with serving({"/": answer()}) as site, GuardedClient(OPEN) as client:
        with pytest.raises(Invalid) as refused:
            async with client.request("GET", site["/"], headers=headers):
                pass
        assert refused.value.code == "INVALID_REQUEST"
        assert site.connections == 0


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "GET /secret HTTP/1.1\r\nX:", ""])
async def test_unknown_method_is_refused(method: str) -> None:
    async with GuardedClient(OPEN) as client:
        with pytest.raises(Invalid, match="not one of the methods"):
            async with client.request(method, "http://a.test/"):
                pass


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "POST", ("GET", b"")),
        (302, "POST", ("GET", b"")),
        (303, "PUT", ("GET", b"")),
        (303, "HEAD", ("HEAD", b"")),
        (302, "PUT", ("PUT", b"body")),
        (307, "POST", ("POST", b"body")),
        (308, "PATCH", ("PATCH", b"body")),
    ],
)
async def test_a_redirect_keeps_or_drops_the_method_as_the_standard_says(
    status: int, method: str, then: tuple[str, bytes]
) -> None:
    async with serving({"/": redirect("/there", status), "/there": answer()}) as site, GuardedClient(OPEN) as client:
        body = None if method == "HEAD" else b"body"
        async with client.request(method, site["/"], body=body, headers={"Content-Type": "text/plain"}) as reply:
            assert reply.url == site["/there"]
    assert (site.asked[1].method, site.asked[1].body) == then
    assert ("content-type" in site.asked[1].headers) == bool(then[1])


KEYS = {"Authorization": "Bearer key", "Cookie": "a=b", "X-Api-Key": "key", "Accept": "text/html"}


async def test_redirect_to_another_origin_drops_credentials() -> None:
    async with serving({"/there": answer()}) as other:
        replies = {"/": redirect(other["/there"], 307), "/near": redirect("/there", 307), "/there": answer()}
        async with serving(replies) as site, GuardedClient(OPEN) as client:
            for path in ("/", "/near"):
                async with client.request("GET", site[path], headers=KEYS):
                    pass
    sent = {name.lower(): value for name, value in KEYS.items()}
    assert {name: site.asked[2].headers.get(name) for name in sent} == sent
    assert {name: other.asked[0].headers.get(name) for name in sent} == {
        "authorization": None, "cookie": None, "x-api-key": None, "accept": "text/html",
    }  # fmt: skip


async def test_redirect_loop_is_refused() -> None:
    async with serving({"/": redirect("/")}) as site, GuardedClient(OPEN) as client:
        with pytest.raises(Unavailable, match="redirects more than 5 times") as refused:
            async with client.request("GET", site["/"]):
                pass
        assert refused.value.code == "TOO_MANY_REDIRECTS"
        assert len(site.asked) == 6


async def test_tls_asks_for_the_name_and_connects_to_the_checked_address() -> None:
    async with serving({"/": answer(200, b"safe")}, names=["public.test"]) as site:
        lab = Lab(site.port, {"public.test": [[PUBLIC]]})
        assert await get("https://PUBLIC.test./", NetworkPolicy(any_host=True), lab) == (200, b"safe")
        assert lab.connected == [PUBLIC]
        assert [(asked.sni, asked.headers["host"]) for asked in site.asked] == [("public.test", "public.test")]


async def test_a_certificate_for_another_name_is_not_accepted() -> None:
    async with serving({"/": answer()}, names=["public.test"]) as site:
        lab = Lab(site.port, {"other.test": [[PUBLIC]]})
        async with GuardedClient(NetworkPolicy(any_host=True), lab, trusting()) as client:
            with pytest.raises(Unavailable, match=r"certificate of https://other\.test is not accepted") as refused:
                async with client.request("GET", "https://other.test/"):
                    pass
        assert (refused.value.code, site.asked) == ("TLS_FAILED", [])


async def test_a_certificate_of_an_unknown_authority_is_not_accepted() -> None:
    async with serving({"/": answer()}, names=["public.test"]) as site:
        async with GuardedClient(NetworkPolicy(any_host=True), Lab(site.port, {"public.test": [[PUBLIC]]})) as client:
            with pytest.raises(Unavailable, match=r"not accepted: .*certificate") as refused:
                async with client.request("GET", "https://public.test/"):
                    pass
        assert (refused.value.code, site.asked) == ("TLS_FAILED", [])


async def test_tls_error_names_a_server_without_tls() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer(400))
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server, GuardedClient(OPEN) as client:
        with pytest.raises(Unavailable, match="no TLS connection with https://localhost") as refused:
            async with client.request("GET", f"https://localhost:{server.sockets[0].getsockname()[1]}/"):
                pass
    assert refused.value.code == "TLS_FAILED"


async def test_redirect_from_https_to_http_is_refused() -> None:
    async with serving({"/": answer()}) as plain:
        async with serving({"/": redirect("http://public.test/x?key=hidden")}, names=["public.test"]) as site:
            lab = Lab(site.port, {"public.test": [[PUBLIC]]})
            async with GuardedClient(OPEN, lab, trusting()) as client:
                with pytest.raises(Forbidden, match="redirects from https to plain http") as refused:
                    async with client.request("GET", "https://public.test/"):
                        pass
        assert refused.value.code == "INSECURE_REDIRECT"
        assert "hidden" not in refused.value.message
        assert plain.connections == 0


async def test_closed_port_is_reported_without_the_query() -> None:
    async with serving({}) as site:
        port = site.port
    async with GuardedClient(OPEN) as client:
        with pytest.raises(Unavailable, match=rf"http://127\.0\.0\.1:{port} could not be reached: ") as refused:
            async with client.request("GET", f"http://127.0.0.1:{port}/secret?key=hidden"):
                pass
    assert refused.value.code == "CONNECT_FAILED"


async def test_each_address_of_a_name_gets_its_share_of_the_time() -> None:
    class Dead(Lab):
        async def connect(self, address: str, port: int, timeout: float | None) -> httpcore2.AsyncNetworkStream:
            if address == PUBLIC:
                self.connected.append(address)
                assert timeout is not None and timeout <= TIMEOUT / 2
                raise httpcore2.ConnectTimeout
            return await super().connect(address, port, timeout)

    async with serving({"/": answer(200, b"second")}) as site:
        lab = Dead(site.port, {"two.test": [[PUBLIC, "1.1.1.1"]]})
        limits = RequestLimits(connect_seconds=TIMEOUT)
        assert await get("http://two.test/", NetworkPolicy(any_host=True), lab, limits) == (200, b"second")
        assert lab.connected == [PUBLIC, "1.1.1.1"]


async def test_name_resolution_has_a_timeout() -> None:
    class Silent(Lab):
        async def resolve(self, host: str, port: int) -> list[str]:
            await anyio.sleep_forever()
            raise AssertionError

    async with GuardedClient(OPEN, Silent(0, {})) as client:
        with pytest.raises(Timeout, match=r"http://a\.test could not be reached within 0\.1 s"):
            async with client.request("GET", "http://a.test/", limits=RequestLimits(connect_seconds=0.1)):
                pass


async def test_nothing_secret_of_a_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    replies = {
        "/path": redirect("/there?key=hidden-location", 307),
        "/there": answer(200, b"hidden-body", "Set-Cookie: key=hidden-cookie"),
    }
    async with serving(replies) as site, GuardedClient(OPEN) as client:
        url = site["/path?key=hidden-query"]
        async with client.request("POST", url, headers={"Authorization": "hidden-header"}, body=b"hidden") as reply:
            await reply.read()
    assert len(site.asked) == 2
    assert "hidden" not in caplog.text


async def test_guarded_transport_protects_another_http_client() -> None:
    async with serving({"/": redirect("http://inner.test/secret"), "/secret": answer(200, b"secret")}) as site:
        lab = Lab(site.port, {"public.test": [[PUBLIC]], "inner.test": [["10.0.0.1"]]})
        transport = GuardedTransport(NetworkPolicy(any_host=True), lab)
        async with httpx2.AsyncClient(transport=transport, follow_redirects=True) as client:
            with pytest.raises(Forbidden):
                await client.get("http://public.test/")
        async with httpx2.AsyncClient(transport=GuardedTransport(OPEN), follow_redirects=True) as client:
            with pytest.raises(httpx2.ConnectError):
                await client.get("http://127.0.0.1:1/")


async def test_transport_parses_urls_as_strictly_as_the_client() -> None:
    async with serving({"/": answer(200, b"open")}) as site:
        transport = GuardedTransport(NetworkPolicy(allowed_hosts=("a.test",)), Lab(site.port, {"a.test": [[PUBLIC]]}))
        async with httpx2.AsyncClient(transport=transport) as client:
            assert (await client.get("http://A.test./")).content == b"open"
            for url in ("http://user:password@a.test/", "http://a.test%00/", "ws://a.test/", "http://a.test:99999/"):
                with pytest.raises(Invalid):
                    await client.get(url)
        assert len(site.asked) == 1


async def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    async with GuardedClient(OPEN) as client:
        with pytest.raises(Invalid, match="must not have a user name or password") as refused:
            async with client.request("GET", "https://user:hidden@a.test/"):
                pass
    assert "hidden" not in str(refused.value.to_dict())


async def test_concurrent_requests_survive_the_cancellation_of_one() -> None:
    gate = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        writer.write(answer(200, b"done"))
        await writer.drain()

    async with serving({"/": wait}) as site, GuardedClient(OPEN) as client:

        async def ask() -> bytes:
            async with client.request("GET", site["/"]) as reply:
                return await reply.read()

        tasks = [asyncio.create_task(ask()) for _ in range(8)]
        with anyio.fail_after(TIMEOUT):
            await site.was_asked(8)
            tasks[0].cancel()
            gate.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [b"done"] * 7
