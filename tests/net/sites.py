"""Servers on this machine that answer whatever a test says, and a network in which names and addresses lead to them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpcore2
import trustme

from gateway.errors import Unavailable
from gateway.net.transport import Internet

PUBLIC = "93.184.215.14"
OTHER_PUBLIC = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Reply = bytes | Talk


@dataclass(frozen=True)
class Asked:
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    sni: str | None = None


@dataclass
class Site:
    """`replies` has, per path, what is sent back: one, or one after another and the last for ever."""

    replies: dict[str, Reply | list[Reply]]
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    busy: set[asyncio.Task[None]] = field(default_factory=set)
    heard: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __getitem__(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def was_asked(self, times: int) -> None:
        async with self.heard:
            await self.heard.wait_for(lambda: len(self.asked) >= times)

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self.busy.add(task)
        task.add_done_callback(self.busy.discard)

    async def close(self) -> None:
        for task in list(self.busy):
            task.cancel()
        await asyncio.gather(*self.busy, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            try:
                while await self._answer_one(reader, writer):
                    pass
            finally:
                writer.close()
                await writer.wait_closed()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        tls = writer.get_extra_info("ssl_object")
        async with self.heard:
            self.asked.append(Asked(method, target, headers, body, getattr(tls, "asked_name", None)))
            self.heard.notify_all()
        reply = self.replies.get(target.partition("?")[0], answer(404, b"nothing here"))
        if isinstance(reply, list):
            reply = reply.pop(0) if len(reply) > 1 else reply[0]
        if not isinstance(reply, bytes):
            await reply(reader, writer)
            return False
        writer.write(reply)
        await writer.drain()
        return b"Connection: close" not in reply


def answer(status: int = 200, body: bytes = b"", *headers: str, close: bool = True) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def redirect(location: str, status: int = 302) -> bytes:
    return answer(status, b"moved", f"Location: {location}")


@asynccontextmanager
async def serving(
    replies: Mapping[str, Reply | list[Reply]], names: Sequence[str] = (), host: str = "127.0.0.1"
) -> AsyncIterator[Site]:
    """A site on a free port; with `names`, over TLS with a certificate for them."""
    site = Site(dict(replies))
    server = await asyncio.start_server(site.serve, host, 0, ssl=_server_tls(tuple(names)) if names else None)
    site.port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield site
        finally:
            await site.close()


@dataclass
class Lab:
    """A network without the world: each name's answers in turn, and every address is this port here."""

    port: int
    names: dict[str, list[list[str]]]
    looked_up: list[str] = field(default_factory=list)
    connected: list[str] = field(default_factory=list)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.looked_up.append(host)
        if host not in self.names:
            raise Unavailable(f"the name {host} has no address", code="NO_ADDRESS")
        answers = self.names[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def connect(self, address: str, port: int, timeout: float | None) -> httpcore2.AsyncNetworkStream:
        self.connected.append(address)
        return await Internet().connect("127.0.0.1", self.port, timeout)


@functools.cache
def authority() -> trustme.CA:
    """A certificate authority for one test run; nothing else trusts it."""
    return trustme.CA()


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority().configure_trust(context)
    return context


@functools.cache
def _server_tls(names: tuple[str, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(*names).configure_cert(context)

    def note(tls: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        tls.asked_name = name  # type: ignore[attr-defined]

    context.sni_callback = note
    return context
