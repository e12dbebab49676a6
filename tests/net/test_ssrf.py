"""Ways to a private address that are known to have worked somewhere: each is refused, and each would
have reached the server had private addresses been allowed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import anyio
import anyio.to_thread
import pytest
from eventually import TIMEOUT

from gateway.errors import Forbidden, GatewayError, Invalid, Unavailable
from gateway.net.client import GuardedClient
from gateway.net.policy import NetworkPolicy
from gateway.net.transport import INTERNET, Network

from .sites import OTHER_PUBLIC, PUBLIC, Lab, Site, answer, redirect, serving
from .test_addresses import NOT_PUBLIC

pytestmark = pytest.mark.anyio

GUARDED = NetworkPolicy(any_host=True)
OPEN = NetworkPolicy(any_host=True, allow_private=True)

SPELLINGS = [
    "http://127.0.0.1:{port}/",
    "http://127.1:{port}/",
    "http://127.0.1:{port}/",
    "http://127.0.0.1.:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0X7F000001:{port}/",
    "http://0x7f.1:{port}/",
    "http://0x7f.0.0.1:{port}/",
    "http://0x7f.0x0.0x0.0x1:{port}/",
    "http://017700000001:{port}/",
    "http://0177.1:{port}/",
    "http://0177.0.0x1:{port}/",
    "http://127。0。0。1:{port}/",
    "http://127.0.0．1:{port}/",
    "http://0:{port}/",
    "http://0.0.0.0:{port}/",
    "http://localhost:{port}/",
    "http://localhost.:{port}/",
    "http://LOCALHOST:{port}/",
    "HTTP://LocalHost:{port}/",
    "http://localhost:{port}",
    "http://localhost:{port}#@public.test/",
    "http://localhost:{port}?@public.test/",
    "http://localhost:{port}/@public.test/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/",
    "http://[0:0:0:0:0:FFFF:127.0.0.1]:{port}/",
]
SPELLINGS_6 = [
    "http://[::1]:{port}/",
    "http://[0:0:0:0:0:0:0:1]:{port}/",
    "http://[0000::0001]:{port}/",
    "http://[::0.0.0.1]:{port}/",
    "http://[::]:{port}/",
]
MALFORMED = [
    "",
    "localhost:{port}/",
    "//localhost:{port}/",
    "http:localhost:{port}/",
    "http:/localhost:{port}/",
    "http:///localhost:{port}/",
    "http:\\\\localhost:{port}/",
    " http://localhost:{port}/",
    "\thttp://localhost:{port}/",
    "file:///etc/passwd",
    "ftp://localhost:{port}/",
    "gopher://localhost:{port}/_GET",
    "unix://localhost:{port}/",
    "ws://localhost:{port}/",
    "data:text/plain,x",
    "http://",
    "http://:{port}/",
    "http://user@localhost:{port}/",
    "http://user:password@localhost:{port}/",
    "http://:@localhost:{port}/",
    "http://public.test@localhost:{port}/",
    "http://localhost:{port}@public.test/",
    "http://public.test\\@localhost:{port}/",
    "http://localhost:{port}\\@public.test/",
    "http://localhost\\.public.test:{port}/",
    "http://local host:{port}/",
    "http://localhost\x00.public.test:{port}/",
    "http://local\thost:{port}/",
    "http://localhost\r\nX: y:{port}/",
    "http://%6cocalhost:{port}/",
    "http://127.0.0.1%00.public.test:{port}/",
    "http://[::1%25lo]:{port}/",
    "http://[::1%lo]:{port}/",
    "http://[fe80::1%25eth0]:{port}/",
    "http://[::1:{port}/",
    "http://::1:{port}/",
    "http://[::1]evil:{port}/",
    "http://[v1.x]:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://00127.0.0.1:{port}/",
    "http://256.0.0.1:{port}/",
    "http://１２７.0.0.1:{port}/",
    "http://①②⑦.0.0.1:{port}/",
    "http://ⓛocalhost:{port}/",
    "http://local\u00adhost:{port}/",
    "http://localhost\u200b:{port}/",
    "http://localhost..:{port}/",
    "http://.localhost:{port}/",
    "http://localhost:{port}:{port}/",
    "http://localhost:+{port}/",
    "http://localhost:-1/",
    "http://localhost:0/",
    "http://localhost:65536/",
    "http://localhost:99999999999/",
    "http://localhost:８０/",
    "http://localhost:8_0/",
    "http://localhost:x/",
    "http://" + "a" * 64 + ".test/",
    "http://localhost:{port}/" + "a" * 9000,
    "http://localhost:{port}/\x7f",
    "http://\ud800.test/",
]


async def get(url: str, policy: NetworkPolicy, network: Network = INTERNET) -> bytes:
    async with GuardedClient(policy, network) as client, client.request("GET", url) as reply:
        return await reply.read()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def resolves(url: str) -> bool:
    """Whether this system's resolver knows the spelling at all; where not, there is nothing to reach."""
    host = url.split("//")[1].split(":{port}")[0].rstrip(".").replace("。", ".").replace("．", ".").strip("[]")
    try:
        socket.getaddrinfo(host, 80)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_this_machine_is_refused_under_any_spelling(spelling: str) -> None:
    if not resolves(spelling):
        pytest.skip("not known to this resolver")
    async with serving({"/": answer(200, b"secret")}) as site:
        await _refused_and_reached(spelling.format(port=site.port), site)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("spelling", SPELLINGS_6)
async def test_this_machine_is_refused_under_any_spelling_of_its_ipv6_address(spelling: str) -> None:
    async with serving({"/": answer(200, b"secret")}, host="::1") as site:
        await _refused_and_reached(spelling.format(port=site.port), site)


async def _refused_and_reached(url: str, site: Site) -> None:
    site.replies["/@public.test/"] = answer(200, b"secret")
    with pytest.raises(Forbidden) as refused:
        await get(url, GUARDED)
    assert refused.value.code == "PRIVATE_ADDRESS"
    assert site.connections == 0
    assert await get(url, OPEN) == b"secret"


@pytest.mark.parametrize("text", MALFORMED, ids=ascii)
async def test_ambiguous_url_is_refused(text: str) -> None:
    async with serving({"/": answer(200, b"secret")}) as site:
        for policy in (GUARDED, OPEN):
            with pytest.raises(Invalid) as refused:
                await get(text.replace("{port}", str(site.port)), policy)
            assert refused.value.code == "INVALID_URL"
            assert "password" not in refused.value.message or "user name or password" in refused.value.message
        assert site.connections == 0


@pytest.mark.parametrize("address", NOT_PUBLIC)
async def test_a_name_that_leads_to_a_private_address_is_refused(address: str) -> None:
    async with serving({"/": answer(200, b"secret")}) as site:
        lab = Lab(site.port, {"inner.test": [[address]]})
        with pytest.raises(Forbidden) as refused:
            await get("http://inner.test/", GUARDED, lab)
        assert refused.value.code == "PRIVATE_ADDRESS"
        assert lab.connected == []
        assert await get("http://inner.test/", OPEN, lab) == b"secret"
        assert len(lab.connected) == 1


@pytest.mark.parametrize("address", NOT_PUBLIC)
async def test_a_redirect_to_a_private_address_is_refused(address: str) -> None:
    replies = {"/": redirect("http://inner.test/secret"), "/secret": answer(200, b"secret")}
    async with serving(replies) as site:
        lab = Lab(site.port, {"public.test": [[PUBLIC]], "inner.test": [[address]]})
        with pytest.raises(Forbidden, match=r"http://public\.test redirects to a URL that is refused: ") as refused:
            await get("http://public.test/", GUARDED, lab)
        assert refused.value.code == "PRIVATE_ADDRESS"
        assert refused.value.details["host"] == "inner.test"
        assert [asked.target for asked in site.asked] == ["/"]
        assert await get("http://public.test/", OPEN, lab) == b"secret"


INNER = {
    "metadata.test": [["169.254.169.254"]],
    "127.0.0.1": [["127.0.0.1"]],
    "2130706433": [["127.0.0.1"]],
    "::1": [["::1"]],
    "169.254.169.254": [["169.254.169.254"]],
}


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/secret",
        "//127.0.0.1/secret",
        "http://2130706433/secret",
        "http://[::1]/secret",
        "http://169.254.169.254/secret",
        "http://metadata.test/secret",
        "http://METADATA.test./secret",
        "http:\t//127.0.0.1/secret",
    ],
)
async def test_redirect_in_any_spelling_to_this_machine_is_refused(location: str) -> None:
    async with serving({"/": redirect(location), "/secret": answer(200, b"secret")}) as site:
        lab = Lab(site.port, {"public.test": [[PUBLIC]], **INNER})
        with pytest.raises(Forbidden) as refused:
            await get("http://public.test/", GUARDED, lab)
        assert refused.value.code == "PRIVATE_ADDRESS"
        assert lab.connected == [PUBLIC]
        assert await get("http://public.test/", OPEN, lab) == b"secret"


@pytest.mark.parametrize(
    "location",
    [
        "http://public.test@127.0.0.1/secret",
        "http://127.0.0.1\\@public.test/secret",
        "http://127.0.0.1:99999/secret",
        "http://[::1%25lo]/secret",
        "http://[::1/secret",
        "ftp://127.0.0.1/secret",
        "file:///secret",
        "javascript:alert(1)",
    ],
)
async def test_redirect_to_an_unsupported_url_is_an_invalid_response(location: str) -> None:
    async with serving({"/": redirect(location), "/secret": answer(200, b"secret")}) as site:
        for policy in (GUARDED, OPEN):
            lab = Lab(site.port, {"public.test": [[PUBLIC]], **INNER})
            with pytest.raises(Unavailable, match=r"http://public\.test cannot be used: it redirects to a URL that"):
                await get("http://public.test/", policy, lab)
            assert lab.connected == [PUBLIC]


@pytest.mark.parametrize("location", ["\\\\127.0.0.1/secret", "///127.0.0.1/secret", "http:////127.0.0.1/secret"])
async def test_slashes_that_some_read_as_a_host_stay_a_path_or_nothing(location: str) -> None:
    async with serving({"/": redirect(location), "/secret": answer(200, b"secret")}) as site:
        for policy in (GUARDED, OPEN):
            lab = Lab(site.port, {"public.test": [[PUBLIC]], **INNER})
            with contextlib.suppress(Unavailable):
                assert await get("http://public.test/", policy, lab) == b"nothing here"
            assert set(lab.connected) == {PUBLIC}


async def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    async with serving({"/": answer(200, b"secret")}) as site:
        lab = Lab(site.port, {"mixed.test": [[PUBLIC, OTHER_PUBLIC, "127.0.0.1"]]})
        with pytest.raises(Forbidden, match=r"127\.0\.0\.1"):
            await get("http://mixed.test/", GUARDED, lab)
        assert lab.connected == []
        assert await get("http://mixed.test/", OPEN, lab) == b"secret"


async def test_a_name_is_looked_up_once_and_the_checked_address_is_the_one_connected_to() -> None:
    async with serving({"/": answer(200, b"open")}) as site:
        lab = Lab(site.port, {"rebind.test": [[PUBLIC], ["127.0.0.1"]]})
        assert await get("http://rebind.test/", GUARDED, lab) == b"open"
        assert (lab.looked_up, lab.connected) == (["rebind.test"], [PUBLIC])


async def test_name_that_resolves_differently_at_a_redirect_is_refused() -> None:
    async with serving({"/": redirect("/secret"), "/secret": answer(200, b"secret")}) as site:
        names = {"rebind.test": [[PUBLIC], ["127.0.0.1"]]}
        lab = Lab(site.port, names)
        with pytest.raises(Forbidden) as refused:
            await get("http://rebind.test/", GUARDED, lab)
        assert refused.value.code == "PRIVATE_ADDRESS"
        assert lab.connected == [PUBLIC]
        assert [asked.target for asked in site.asked] == ["/"]
        again = Lab(site.port, {"rebind.test": [[PUBLIC], ["127.0.0.1"]]})
        assert await get("http://rebind.test/", OPEN, again) == b"secret"


async def test_pooled_connection_is_reused_for_its_own_name_only() -> None:
    async with serving({"/": answer(200, b"open", close=False)}) as site:
        lab = Lab(site.port, {"a.test": [[PUBLIC], ["127.0.0.1"]], "b.test": [["127.0.0.1"]]})
        async with GuardedClient(GUARDED, lab) as client:
            for _ in range(2):
                async with client.request("GET", "http://a.test/") as reply:
                    assert await reply.read() == b"open"
            with pytest.raises(Forbidden):
                async with client.request("GET", "http://b.test/"):
                    pass
        assert lab.looked_up == ["a.test", "b.test"]
        assert site.connections == 1


async def test_hosts_are_checked_before_anything_is_looked_up_and_again_at_each_redirect() -> None:
    replies = {"/": redirect("http://other.test/secret"), "/secret": answer(200, b"secret")}
    async with serving(replies) as site:
        lab = Lab(site.port, {"a.test": [[PUBLIC]], "other.test": [[PUBLIC]]})
        with pytest.raises(Forbidden) as refused:
            await get("http://other.test/", NetworkPolicy(allowed_hosts=("a.test",)), lab)
        assert (refused.value.code, lab.looked_up) == ("HOST_NOT_ALLOWED", [])
        with pytest.raises(Forbidden, match=r"other\.test is not among the allowed hosts") as refused:
            await get("http://a.test/", NetworkPolicy(allowed_hosts=("a.test",)), lab)
        assert (refused.value.code, lab.looked_up) == ("HOST_NOT_ALLOWED", ["a.test"])
        assert await get("http://a.test/", NetworkPolicy(allowed_hosts=("a.test", "other.test")), lab) == b"secret"


async def test_allowed_host_does_not_allow_its_private_address() -> None:
    async with serving({"/": answer(200, b"secret")}) as site:
        with pytest.raises(Forbidden) as refused:
            await get(site["/"], NetworkPolicy(allowed_hosts=("127.0.0.1",)))
        assert refused.value.code == "PRIVATE_ADDRESS"
        assert await get(site["/"], NetworkPolicy(allowed_hosts=("127.0.0.1",), allow_private=True)) == b"secret"


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving({"/": answer(200, b"direct")}) as site, serving({}) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await get(site["/"], OPEN) == b"direct"
        assert proxy.connections == 0


async def test_a_name_without_an_address_says_so() -> None:
    with pytest.raises(GatewayError, match=r"no-such-name\.invalid (has no address|cannot be resolved)"):
        await get("http://no-such-name.invalid/", GUARDED)


async def test_event_loop_is_not_blocked_by_name_resolution() -> None:
    release = asyncio.Event()

    class Slow(Lab):
        async def resolve(self, host: str, port: int) -> list[str]:
            await release.wait()
            return [PUBLIC]

    async with serving({"/": answer(200, b"open")}) as site:
        waiting = asyncio.create_task(get("http://slow.test/", GUARDED, Slow(site.port, {})))
        await asyncio.sleep(0)
        assert not waiting.done()
        release.set()
        assert await waiting == b"open"


async def test_silent_name_servers_do_not_block_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release, real = threading.Event(), threading.Event(), socket.getaddrinfo

    def look_up(host: str, *rest: object, **more: object) -> object:
        if host == "slow.test":
            begun.set()
            release.wait(2 * TIMEOUT)
        return real("127.0.0.1", *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with serving({"/": answer(200, b"open")}) as site:
        waiting = [asyncio.create_task(get(f"http://slow.test:{site.port}/", OPEN)) for _ in range(40)]
        try:
            await anyio.to_thread.run_sync(begun.wait, TIMEOUT)
            with anyio.fail_after(TIMEOUT):
                assert await get(f"http://quick.test:{site.port}/", OPEN) == b"open"
            waiting[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting[0]
        finally:
            release.set()
        assert await asyncio.gather(*waiting[1:]) == [b"open"] * 39
