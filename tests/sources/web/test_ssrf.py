"""Every way inside that is known to have worked somewhere, tried through `web_fetch` itself. Each is refused
before anything is sent there; where it can be, each is also shown to arrive once private addresses are allowed."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest
from net.sites import OTHER_PUBLIC, PUBLIC, Lab, Reply, answer, redirect, serving, trusting

from gateway.config.settings import WebSettings
from gateway.errors import Forbidden, GatewayError, Invalid, Timeout, ToolFailed, Unavailable

from .calling import ANYWHERE, fetch, web
from .names import naming

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C3")]

OPEN = WebSettings(allowed_hosts=["*"], allow_private=True)
SECRET = answer(200, b"secret", "Content-Type: text/plain")
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"

SPELLED = [
    "http://127.0.0.1/", "http://127.1/", "http://127.0.1/", "http://127.0.0.1./", "http://2130706433/",
    "http://0x7f000001/", "http://0X7F.1/", "http://0x7f.0x0.0x0.0x1/", "http://017700000001/", "http://0177.0.0x1/",
    "http://127。0。0。1/", "http://127.0.0．1/", "http://0/", "http://0.0.0.0/", "http://localhost/",
    "http://LOCALHOST./", "http://localhost#@public.test/", "http://localhost?@public.test/",
]  # fmt: skip


@pytest.mark.parametrize("url", SPELLED)
async def test_this_machine_has_no_name_under_which_the_systems_resolver_gives_it_away(url: str) -> None:
    with pytest.raises(GatewayError) as refused:
        await fetch(web(), url)
    assert refused.value.code in ("PRIVATE_ADDRESS", "NO_ADDRESS")  # not every system reads every spelling
    if "0x" not in url.lower() and "017" not in url:
        assert refused.value.code == "PRIVATE_ADDRESS"


ADDRESSES = [
    "http://10.0.0.1/", "http://172.16.0.1/", "http://192.168.1.1/", "http://100.64.0.1/", "http://169.254.169.254/",
    "http://169.254.170.2/", "http://100.100.100.200/", "http://168.63.129.16/", "http://192.0.0.192/",
    "http://255.255.255.255/", "http://224.0.0.1/", "http://[::1]/", "http://[::]/", "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/", "http://[::ffff:a9fe:a9fe]/", "http://[::127.0.0.1]/", "http://[::ffff:0:127.0.0.1]/",
    "http://[64:ff9b::127.0.0.1]/", "http://[64:ff9b::a9fe:a9fe]/", "http://[64:ff9b:1::10.0.0.1]/",
    "http://[2002:7f00:1::]/", "http://[2002:a9fe:a9fe::1]/", "http://[2001:0:53aa:64c:0:0:80ff:fffe]/",
    "http://[fe80::1]/", "http://[fc00::1]/", "http://[fd00:ec2::254]/", "http://[fec0::1]/", "http://[ff02::1]/",
]  # fmt: skip


@pytest.mark.parametrize("url", ADDRESSES)
async def test_no_private_address_is_reached_in_any_form_of_it(url: str) -> None:
    async with serving({"/": SECRET}) as site, naming(site.port, {}) as (_, network):
        with pytest.raises(Forbidden) as refused:
            await fetch(web(network=network), url)
        assert (refused.value.code, network.connected) == ("PRIVATE_ADDRESS", [])
        assert "web.allow_private" in refused.value.message
        assert (await fetch(web(OPEN, network), url))["body"] == "secret"


NAMES: dict[str, list[list[str]]] = {
    "public.test": [[PUBLIC]],
    "inner.test": [["10.0.0.5"]],
    "metadata.google.internal": [["169.254.169.254"]],
    "alias.test": [["inner.test"]],
    "alias-of-alias.test": [["alias.test"]],
    "alias-of-metadata.test": [["metadata.google.internal"]],
    "six.test": [["::1"]],
    "mapped.test": [["::ffff:169.254.169.254"]],
    "one-of-many.test": [[PUBLIC, OTHER_PUBLIC, "127.0.0.1"]],
    "one-of-two-families.test": [[PUBLIC, "fd00::1"]],
}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "public.test"])
async def test_no_name_leads_inside_by_its_records(name: str) -> None:
    async with serving({"/": SECRET}) as site, naming(site.port, NAMES) as (server, network):
        with pytest.raises(Forbidden) as refused:
            await fetch(web(network=network), f"http://{name}/")
        assert (refused.value.code, network.connected) == ("PRIVATE_ADDRESS", [])
        assert name in server.asked
        assert (await fetch(web(OPEN, network), f"http://{name}/"))["body"] == "secret"


async def test_a_name_that_answers_otherwise_the_second_time_is_not_asked_a_second_time() -> None:
    names = {"rebind.test": [[PUBLIC], ["127.0.0.1"]]}
    async with serving({"/": SECRET}) as site, naming(site.port, names) as (server, network):
        assert (await fetch(web(network=network), "http://rebind.test/"))["body"] == "secret"
        assert (server.asked, network.connected) == (["rebind.test"], [PUBLIC])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_name_that_changes_its_mind_between_two_steps_is_refused_at_the_second(status: int) -> None:
    async with serving({"/": redirect("/secret", status), "/secret": SECRET}) as site:
        async with naming(site.port, {"rebind.test": [[PUBLIC], ["127.0.0.1"]]}) as (_, network):
            with pytest.raises(Forbidden) as refused:
                await fetch(web(network=network), "http://rebind.test/")
        assert (refused.value.code, network.connected) == ("PRIVATE_ADDRESS", [PUBLIC])
        assert [asked.target for asked in site.asked] == ["/"]


LOCATIONS = [
    "http://inner.test/secret", "//inner.test/secret", "http://alias-of-alias.test/secret", "http://127.0.0.1/secret",
    "http://169.254.169.254/latest/meta-data/", "http://metadata.google.internal/", "http://[::1]/secret",
    "http://[::ffff:10.0.0.1]/secret", "http://[64:ff9b::10.0.0.1]/secret", "HTTP://INNER.test./secret",
    "http:\t//inner.test/secret",
]  # fmt: skip


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", LOCATIONS)
async def test_no_redirect_leads_inside(location: str, status: int) -> None:
    async with serving({"/": redirect(location, status)}) as site, naming(site.port, NAMES) as (_, network):
        with pytest.raises(Forbidden, match="redirects to a URL that is refused") as refused:
            await fetch(web(network=network), "http://public.test/")
        assert (refused.value.code, network.connected) == ("PRIVATE_ADDRESS", [PUBLIC])


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "gopher://inner.test/_x", "ftp://inner.test/", "data:text/plain,x", "javascript:1",
     "http://public.test@inner.test/", "http://inner.test\\@public.test/", "http://[::1%25lo]/", "http://inner.test:0/",
     "http://%69nner.test/"],
)  # fmt: skip
async def test_a_redirect_to_what_is_no_web_address_is_a_bad_answer(location: str) -> None:
    async with serving({"/": redirect(location)}) as site, naming(site.port, NAMES) as (_, network):
        with pytest.raises(Unavailable) as refused:
            await fetch(web(OPEN, network), "http://public.test/")
        assert (refused.value.code, network.connected) == ("BAD_ANSWER", [PUBLIC])


async def test_a_long_way_round_leads_no_further_than_the_first_step_inside() -> None:
    replies: dict[str, Reply | list[Reply]] = {f"/{n}": redirect(f"/{n + 1}") for n in range(3)}
    replies["/3"] = redirect("http://inner.test/secret")
    async with serving(replies) as site, naming(site.port, NAMES) as (_, network):
        with pytest.raises(Forbidden):
            await fetch(web(network=network), "http://public.test/0")
        assert set(network.connected) == {PUBLIC}
        replies["/3"] = redirect("/0")
        site.replies.update(replies)
        with pytest.raises(Unavailable) as refused:
            await fetch(web(network=network), "http://public.test/0")
        assert refused.value.code == "TOO_MANY_REDIRECTS"


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "gopher://localhost/", "ftp://localhost/", "data:text/plain,x", "localhost/", "//localhost/",
     "http://user@localhost/", "http://public.test@localhost/", "http://public.test:80@localhost/",
     "http://localhost\\@public.test/", "http://localhost%00.public.test/", "http://%6cocalhost/",
     "http://１２７.0.0.1/", "http://①②⑦.0.0.1/", "http://ⓛocalhost/", "http://local\u00adhost/", "http://[::1%25lo]/",
     "http://[fe80::1%eth0]/", "http://0177.0.0.1/", "http://256.1.1.1/", "http://localhost:0/",
     "http://localhost:65536/", "http://localhost:８０/", "http://local host/", "http://localhost\r\nHost: x/",
     "http://\ttest/", "http:///localhost/", "http:\\\\localhost\\"],
    ids=ascii,
)  # fmt: skip
async def test_a_url_that_one_could_read_otherwise_is_not_opened(url: str) -> None:
    async with serving({"/": SECRET}) as site:
        lab = Lab(site.port, {})
        with pytest.raises(Invalid) as refused:
            await fetch(web(OPEN, lab), url)
        assert (refused.value.code, lab.looked_up, lab.connected) == ("INVALID_URL", [], [])


@pytest.mark.parametrize("port", [21, 22, 25, 110, 2375, 3306, 5432, 6379, 8080, 9200, 11211])
async def test_a_host_is_reached_at_its_web_ports_unless_another_is_named(port: int) -> None:
    async with serving({"/": SECRET}) as site, naming(site.port, NAMES) as (server, network):
        with pytest.raises(Forbidden) as refused:
            await fetch(web(network=network), f"http://public.test:{port}/")
        assert (refused.value.code, server.asked, network.connected) == ("PORT_NOT_ALLOWED", [], [])
        assert f"add public.test:{port} to web.allowed_hosts" in refused.value.message
        named = WebSettings(allowed_hosts=[f"public.test:{port}"])
        assert (await fetch(web(named, network), f"http://public.test:{port}/"))["body"] == "secret"


@pytest.mark.parametrize(
    "url",
    ["http://evil.test/", "http://example.org.evil.test/", "http://evilexample.org/", "http://evil.test/example.org",
     "http://example.org.:443x/", "http://sub.example.org.evil.test/", "http://EXAMPLE.0rg/", "http://ехample.org/"],
)  # fmt: skip
async def test_only_the_hosts_that_are_named_are_even_looked_up(url: str) -> None:
    lab = Lab(1, {})
    with pytest.raises(GatewayError) as refused:
        await fetch(web(WebSettings(allowed_hosts=["example.org", "*.example.org"]), lab), url)
    assert refused.value.code in ("HOST_NOT_ALLOWED", "INVALID_URL")
    assert lab.looked_up == []


async def test_being_allowed_makes_no_private_address_public() -> None:
    async with serving({"/": SECRET}) as site, naming(site.port, NAMES) as (_, network):
        settings = WebSettings(allowed_hosts=["inner.test", "127.0.0.1"])
        for url in ("http://inner.test/", "http://127.0.0.1/"):
            with pytest.raises(Forbidden) as refused:
                await fetch(web(settings, network), url)
            assert refused.value.code == "PRIVATE_ADDRESS"
        assert network.connected == []


async def test_https_is_never_left_and_its_certificate_is_asked_for_the_name() -> None:
    replies = {"/": redirect("http://public.test/"), "/safe": SECRET}
    async with serving(replies, names=["public.test"]) as site:
        lab = Lab(site.port, {"public.test": [[PUBLIC]], "other.test": [[PUBLIC]]})
        source = web(ANYWHERE, network=lab, tls=trusting())
        with pytest.raises(Forbidden) as refused:
            await fetch(source, "https://public.test/")
        assert refused.value.code == "INSECURE_REDIRECT"
        with pytest.raises(Unavailable) as failed:
            await fetch(source, "https://other.test/safe")
        assert failed.value.code == "TLS_FAILED"
        assert (await fetch(source, "https://public.test/safe"))["body"] == "secret"


@pytest.mark.parametrize("name", ["Host", "Connection", "Transfer-Encoding", "Content-Length", "Proxy-Authorization"])
async def test_no_header_of_the_callers_says_where_a_request_ends_or_whom_it_is_for(name: str) -> None:
    async with serving({"/": SECRET}) as site, naming(site.port, NAMES) as (_, network):
        with pytest.raises(Invalid):
            await fetch(web(network=network), "http://public.test/", headers={name: "inner.test"})
        with pytest.raises(Invalid):
            await fetch(web(network=network), "http://public.test/", headers={"X-A": f"b\r\n{name}: c"})
        assert network.connected == []


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(PLAIN + b"Content-Length: 100000\r\n\r\n")
    while True:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(0.01)


async def slow_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(PLAIN)
    while True:
        writer.write(b"X: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def endless_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(PLAIN + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"40000\r\n" + b"x" * 0x40000 + b"\r\n")
        await writer.drain()


async def endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(PLAIN)
    while True:
        writer.write(b"X-More: " + b"x" * 8000 + b"\r\n")
        await writer.drain()


async def bomb(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    packed = gzip.compress(bytes(200 * MEBIBYTE))
    writer.write(answer(200, packed, "Content-Type: text/plain", "Content-Encoding: gzip"))
    await writer.drain()


MEBIBYTE = 1024 * 1024
HOSTILE: dict[str, tuple[Reply, type[GatewayError], str]] = {
    "slow drip": (drip, Timeout, "TIMEOUT"),
    "slow headers": (slow_headers, Timeout, "TIMEOUT"),
    "endless chunks": (endless_chunks, ToolFailed, "RESPONSE_TOO_LARGE"),
    "endless headers": (endless_headers, Unavailable, "BAD_ANSWER"),
    "huge header": (PLAIN + b"X: " + b"x" * 90_000 + b"\r\n\r\n", Unavailable, "BAD_ANSWER"),
    "huge length": (PLAIN + b"Content-Length: 99999999999\r\n\r\n", ToolFailed, "RESPONSE_TOO_LARGE"),
    "too short": (PLAIN + b"Content-Length: 99\r\nConnection: close\r\n\r\nx", Unavailable, "CONNECTION_LOST"),
    "two lengths": (PLAIN + b"Content-Length: 1\r\nContent-Length: 9\r\nConnection: close\r\n\r\nx", Unavailable,
                    "BAD_ANSWER"),
    "gzip bomb": (bomb, ToolFailed, "RESPONSE_TOO_LARGE"),
    "gzip in gzip": (answer(200, gzip.compress(gzip.compress(b"x")), "Content-Type: text/plain",
                            "Content-Encoding: gzip, gzip"), Unavailable, "BAD_ANSWER"),
    "brotli": (answer(200, b"\x8b\x00\x80x\x03", "Content-Type: text/plain", "Content-Encoding: br"), Unavailable,
               "BAD_ANSWER"),
    "zstd": (answer(200, b"\x28\xb5\x2f\xfd", "Content-Type: text/plain", "Content-Encoding: zstd"), Unavailable,
             "BAD_ANSWER"),
    "deflate": (answer(200, zlib.compress(b"x"), "Content-Type: text/plain", "Content-Encoding: deflate"), Unavailable,
                "BAD_ANSWER"),
    "broken gzip": (answer(200, b"no gzip", "Content-Type: text/plain", "Content-Encoding: gzip"), Unavailable,
                    "BAD_ANSWER"),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "kind", "code"), HOSTILE.values(), ids=HOSTILE)
async def test_no_server_costs_more_than_was_allowed(reply: Reply, kind: type[GatewayError], code: str) -> None:
    async with serving({"/": reply}) as site, naming(site.port, NAMES) as (_, network):
        with pytest.raises(kind) as refused:
            await fetch(web(network=network), "http://public.test/", timeout=0.5 if kind is Timeout else 50)
        assert refused.value.code == code


async def test_refusals_say_nothing_of_what_may_be_secret_in_a_url() -> None:
    replies = {"/": redirect("http://inner.test/?token=hidden")}
    urls = ("http://public.test/?token=hidden", "http://inner.test/?token=hidden", "http://user:hidden@inner.test/")
    async with serving(replies) as site, naming(site.port, NAMES) as (_, network):
        for url in urls:
            with pytest.raises(GatewayError) as refused:
                await fetch(web(network=network), url)
            assert "hidden" not in str(refused.value.to_dict())
