"""A program with a network reaches the hosts it may, by the proxy alone, and no other way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import async_eventually

from gateway.config import SandboxSettings
from gateway.errors import Unavailable
from gateway.net.policy import NetworkPolicy
from gateway.sandbox import Program, Sandbox, proxy
from gateway.sandbox.loopback import Loopback, PublishedPort
from gateway.sandbox.network import network_of
from gateway.sandbox.prestart import PrestartedSandboxes
from gateway.sandbox.run import finish, run

from .conftest import World, make
from .siege import python, workspace

pytestmark = pytest.mark.anyio

ASK = """
import json, socket, sys, urllib.request
def ask(url):
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)
print(json.dumps([ask(url) for url in sys.argv[1:]]))
"""


REFUSED = "toolgate: example.org is not among the allowed hosts; add it to http.allowed_hosts to allow it\n"


class Site:
    """A server on loopback that answers with what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.port = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Site]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            await writer.drain()
        writer.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site().open() as site:
        yield site


def to(site: Site, **options: Any) -> NetworkPolicy:
    """A policy under which this machine can stand for the internet."""
    return NetworkPolicy((f"localhost:{site.port}",), **{"allow_private": True, **options})


async def asked(sandbox: Sandbox, policy: NetworkPolicy | None, *urls: str) -> list[list[Any]]:
    finished = await run(sandbox, python(ASK, *urls, network=policy), timeout=60)
    assert finished.exit.code == 0, finished
    answers: list[list[Any]] = json.loads(finished.stdout)
    return answers


async def test_an_allowed_host_answers_and_others_are_refused_by_name(site: Site) -> None:
    allowed, other, elsewhere = await asked(
        make("bwrap"),
        to(site),
        f"http://localhost:{site.port}/path?x=1",
        "http://example.org/",
        f"http://127.0.0.1:{site.port}/",
    )
    assert allowed == [200, "hello"]
    assert other == [403, REFUSED]
    assert elsewhere[0] == 403
    (request,) = site.asked
    assert request.startswith("GET /path?x=1 HTTP/1.1\r\n")
    assert f"Host: localhost:{site.port}\r\n" in request
    assert "Connection: close\r\n" in request


async def test_a_name_that_leads_inside_is_refused(site: Site) -> None:
    sandbox = make("bwrap")
    named = f"http://localhost:{site.port}/"
    (answer,) = await asked(sandbox, to(site, allow_private=False), named)
    assert answer[0] == 403
    assert "only public addresses" in answer[1]
    hosts = ("http://127.0.0.1/", "http://169.254.169.254/latest", "http://[::1]/", "http://[::ffff:127.0.0.1]/")
    answers = await asked(
        sandbox, NetworkPolicy(any_host=True, ports=(80,)), *hosts, "http://0x7f000001/", "http://2130706433/"
    )
    assert [status in (400, 403) for status, _ in answers[:4]] == [True] * 4, answers
    assert all(status in (400, 403, 502) for status, _ in answers[4:]), answers
    assert site.asked == []


async def test_there_is_no_way_around_the_proxy(site: Site) -> None:
    code = """
import socket, sys
for host, port in (("127.0.0.1", int(sys.argv[1])), ("1.1.1.1", 443), ("10.0.0.1", 80)):
    try:
        socket.create_connection((host, port), 3)
        print("open", host)
    except OSError as error:
        print("stopped")
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    print("open netlink")
except OSError:
    print("stopped")
try:
    socket.getaddrinfo("localhost.example.org", 80)
    print("open lookup")
except OSError:
    print("stopped")
"""
    finished = await run(make("bwrap"), python(code, str(site.port), network=to(site)), timeout=60)
    assert finished.stdout == b"stopped\n" * 5, finished


async def test_a_network_is_no_way_to_a_socket_in_the_workspace(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = make("bwrap")
    options = workspace(tmp_path / "ws", sandbox)
    monkeypatch.chdir(tmp_path / "ws")  # the name of a socket is short
    code = """
import socket
try:
    peer = socket.socket(socket.AF_UNIX)
    peer.connect("host.sock")
    print("open")
except PermissionError:
    print("stopped")
"""
    with socket.socket(socket.AF_UNIX) as host:
        host.bind("host.sock")
        host.listen()
        Path("host.sock").chmod(0o777)
        finished = await run(sandbox, python(code, network=to(site), **options), timeout=60)
    assert finished.stdout == b"stopped\n", finished


async def test_a_tunnel_carries_whatever_it_is_given(site: Site) -> None:
    code = """
import socket, sys
def tunnel(target):
    with socket.create_connection(("127.0.0.1", 3128)) as way:
        way.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
        print(way.recv(1000).split(b"\\r\\n")[0].decode())
        way.sendall(b"anything\\r\\n\\r\\n")
        print(way.recv(1000).split(b"\\r\\n")[-1].decode())
tunnel(f"localhost:{sys.argv[1]}")
tunnel("localhost:25")
"""
    finished = await run(make("bwrap"), python(code, str(site.port), network=to(site)), timeout=60)
    lines = finished.stdout.decode().splitlines()
    assert lines[:3] == ["HTTP/1.1 200 Connection established", "hello", "HTTP/1.1 403 Forbidden"], finished
    assert site.asked == ["anything\r\n\r\n"]


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\n\r\n",
        "GET ftp://localhost/ HTTP/1.1\r\n\r\n",
        "GET http://user@localhost/ HTTP/1.1\r\n\r\n",
        "GET http://localhost\\@example.org/ HTTP/1.1\r\n\r\n",
        "GET http://localhost:99999/ HTTP/1.1\r\n\r\n",
        "CONNECT localhost HTTP/1.1\r\n\r\n",
        "CONNECT localhost:0 HTTP/1.1\r\n\r\n",
        "CONNECT [fe80::1%eth0]:443 HTTP/1.1\r\n\r\n",
        "GET http://localhost/ HTTP/1.1\r\nX: a\r\n folded\r\n\r\n",
        "GET http://localhost/ HTTP/1.1\r\nX: a\nY: b\r\n\r\n",
        "nonsense\r\n\r\n",
        "GET http://localhost/ HTTP/1.1\r\nX: " + "x" * 70_000 + "\r\n\r\n",
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused(head: str) -> None:
    async with knocking(NetworkPolicy(any_host=True, allow_private=True)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode())
        with anyio.fail_after(60):
            assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()


async def test_hop_by_hop_headers_stay_here_and_credentials_for_a_proxy_too(site: Site) -> None:
    async with knocking(to(site)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        wanted = f"http://localhost:{site.port}"
        lines = (
            "Host: evil.example",
            "Proxy-Authorization: x",
            "Connection: keep-alive, X-Mine",
            "X-Mine: 1",
            "X-Kept: 2",
        )
        given = "".join(f"{line}\r\n" for line in lines)
        writer.write(f"POST {wanted} HTTP/1.1\r\n{given}\r\n".encode())
        with anyio.fail_after(60):
            assert (await reader.read()).endswith(b"hello")
        writer.close()
    assert site.asked == [
        f"POST / HTTP/1.1\r\nX-Kept: 2\r\nHost: localhost:{site.port}\r\nConnection: close\r\n\r\n",
    ]


async def test_connections_and_bytes_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "CONNECTIONS", 2)
    monkeypatch.setattr(proxy, "_BYTES", 40)
    async with knocking(to(site)) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await anyio.sleep(0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with anyio.fail_after(60):
            assert b"502" in await reader.readline()
            held[0][1].write(f"GET http://localhost:{site.port}/ HTTP/1.1\r\n\r\n".encode())
            assert await held[0][0].read() == b""
        for _, each in [*held, (reader, writer)]:
            each.close()


@contextlib.asynccontextmanager
async def knocking(policy: NetworkPolicy) -> AsyncIterator[int]:
    """The proxy alone, behind a door that stands outside."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        async with proxy.Proxy(policy).serve(door):
            yield door.getsockname()[1]


async def test_nothing_is_left_when_a_program_with_a_network_ends(site: Site) -> None:
    sandbox = make("bwrap")
    hanging = (
        "import socket, time; s = socket.create_connection(('127.0.0.1', 3128)); print(1, flush=True); time.sleep(300)"
    )
    for _ in range(2):
        process = await sandbox.start(python(hanging, network=to(site)))
        with anyio.fail_after(60):
            await process.stdout.readline()
        process.kill()
        await process.wait()
        with anyio.fail_after(60):
            while [task for task in asyncio.all_tasks() if "_serve" in repr(task.get_coro())]:  # noqa: ASYNC110
                await anyio.sleep(0.01)


async def test_a_spare_has_its_network_too(site: Site, tmp_path: Path) -> None:
    sandbox = make("bwrap")
    whole = python("", network=to(site), **workspace(tmp_path / "ws", sandbox))
    program = replace(whole, argv=whole.argv[:3])
    spares = PrestartedSandboxes(sandbox)
    try:
        for _ in range(2):
            spares.expect(program)
            with anyio.fail_after(60):
                while not spares.waiting:  # noqa: ASYNC110 - nothing tells of it
                    await anyio.sleep(0.01)
            process = await spares.start(program, ASK, args=[f"http://localhost:{site.port}/"])
            assert json.loads((await finish(process, timeout=60)).stdout) == [[200, "hello"]]
    finally:
        await spares.close()


async def test_landlock_has_none_to_give(site: Site) -> None:
    with pytest.raises(Unavailable, match=r"sandbox\.network") as refused:
        await make("landlock").start(Program(("/bin/true",), network=to(site)))
    assert refused.value.code == "NETWORK_UNAVAILABLE"


def test_the_settings_say_where() -> None:
    assert network_of(SandboxSettings()) is None
    some = network_of(SandboxSettings(network=True, allowed_hosts=["pypi.org", "*.pythonhosted.org"]))
    every = network_of(SandboxSettings(network=True))
    assert some is not None
    assert (some.allowed_hosts, some.any_host) == (("pypi.org", "*.pythonhosted.org"), False)
    assert every is not None
    assert (every.any_host, every.allow_private, every.ports) == (True, False, (80, 443))


def test_it_is_the_same_on_uvloop() -> None:
    async def main() -> None:
        async with Site().open() as site:
            url = f"http://localhost:{site.port}/"
            assert await asked(make("bwrap"), to(site), url, "http://example.org/") == [
                [200, "hello"],
                [403, REFUSED],
            ]

    anyio.run(main, backend_options={"use_uvloop": True})


LOOPBACK = """
import socket, threading
def serve(family, address):
    listener = socket.create_server((address, 8000), family=family)
    threading.Thread(target=lambda: listener.accept()[0].sendall(b"hello"), daemon=True).start()
for family, address, name in ((socket.AF_INET, "127.0.0.1", "localhost"), (socket.AF_INET6, "::1", "::1")):
    serve(family, address)
    print(socket.create_connection((name, 8000), 5).recv(5).decode())
"""


async def test_a_program_may_use_the_loopback_of_its_own_network() -> None:
    finished = await run(make("bwrap"), python(LOOPBACK), timeout=60)
    assert finished.stdout == b"hello\nhello\n", finished


PORTS = """
import http.server, socket, sys
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
Server((sys.argv[1], 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::", "0.0.0.0"])
async def test_a_port_of_a_program_is_reached_through_its_own_sockets_again_and_again(address: str) -> None:
    loopback = Loopback(connections=2)
    process = await make("bwrap").start(replace(python(PORTS, address), loopback=loopback))
    port = PublishedPort(loopback, 8000)
    await port.open()
    try:
        await async_eventually(port.is_listening)
        for _ in range(7):  # more than there are sockets
            async with loopback.connect(8000) as (reader, writer):
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                with anyio.fail_after(60):
                    assert (await reader.read()).startswith(b"HTTP/1.0 200")
        with pytest.raises(OSError):
            async with loopback.connect(8001):
                pass
    finally:
        process.kill()
        await process.wait()
        await port.close()


async def test_a_published_port_makes_room_for_new_connections() -> None:
    loopback = Loopback(connections=3)
    process = await make("bwrap").start(replace(python(PORTS, "127.0.0.1"), loopback=loopback))
    port = PublishedPort(loopback, 8000)
    await port.open()
    host, number = port.url.removeprefix("http://").removesuffix("/").split(":")
    idle = []
    try:
        await async_eventually(port.is_listening)
        for _ in range(8):  # as a browser does that keeps connections for later
            idle.append(await asyncio.open_connection(host, int(number)))
            reader, writer = await asyncio.open_connection(host, int(number))
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            with anyio.fail_after(60):
                assert (await reader.read()).startswith(b"HTTP/1.0 200")
            writer.close()
        with anyio.fail_after(60):
            assert await idle[0][0].read() == b""  # the one unused for longest made room
    finally:
        process.kill()
        await process.wait()
        await port.close()
        for _, writer in idle:
            writer.close()
    with pytest.raises(OSError):
        await asyncio.open_connection(host, int(number))


@pytest.mark.parametrize("name", ["landlock", "unconfined"])
async def test_a_sandbox_without_a_network_publishes_no_port(name: str) -> None:
    with pytest.raises(Unavailable, match="no port can be published") as refused:
        await make(name).start(Program(("/bin/true",), loopback=Loopback()))
    assert refused.value.code == "NETWORK_UNAVAILABLE"


@pytest.mark.parametrize("user", ["root", "user"])
def test_a_port_is_published_whoever_runs_the_gateway(user: str, world: World) -> None:
    make("bwrap")
    ran = world.run(user, "-m", "tests.sandbox.published", str(world.field / "site"), timeout=120)
    assert (ran.stdout, ran.returncode) == ("published\n", 0), ran.stderr
