"""A name server on this machine, and a network that asks it: names, aliases, and answers that change."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import httpcore2
from eventually import TIMEOUT

from gateway.errors import Unavailable
from gateway.net.transport import Internet

A, CNAME, AAAA = 1, 5, 28
_ALIASES = 8


@dataclass
class NameServer(asyncio.DatagramProtocol):
    """`records` has for each name what it answers, one list after another and the last for ever: addresses, or
    the one name it stands for. An answer to A and one to AAAA are one."""

    records: dict[str, list[list[str]]]
    asked: list[str] = field(default_factory=list)
    transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        name, end = _name(data, 12)
        kind = struct.unpack(">H", data[end : end + 2])[0]
        if kind == A:
            self.asked.append(name)
        answers = self._answers(name, kind)
        head = data[:2] + struct.pack(">HHHHH", 0x8180 if name in self.records else 0x8183, 1, len(answers), 0, 0)
        body = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", k, 1, 0, len(value)) + value for k, value in answers)
        assert self.transport is not None
        self.transport.sendto(head + data[12 : end + 4] + body, addr)

    def _answers(self, name: str, kind: int) -> list[tuple[int, bytes]]:
        turns = self.records.get(name, [[]])
        found = turns.pop(0) if kind == AAAA and len(turns) > 1 else turns[0]
        given = []
        for text in found:
            try:
                address = ipaddress.ip_address(text)
            except ValueError:
                given.append((CNAME, _wire(text)))
                continue
            if kind == (A if address.version == 4 else AAAA):
                given.append((kind, address.packed))
        return given


@dataclass
class Resolved:
    """A network whose names come from that server, and whose every address is one port of this machine."""

    server: tuple[str, int]
    port: int
    connected: list[str] = field(default_factory=list)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        with contextlib.suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        found: list[str] = []
        for kind in (A, AAAA):
            name = host
            for _ in range(_ALIASES):
                answers = await self._ask(name, kind)
                aliases = [str(value) for k, value in answers if k == CNAME]
                found += [str(value) for k, value in answers if k == kind]
                if not aliases:
                    break
                name = aliases[0]
        if not found:
            raise Unavailable(f"the name {host} has no address", code="NO_ADDRESS")
        return found

    async def connect(self, address: str, port: int, timeout: float | None) -> httpcore2.AsyncNetworkStream:
        self.connected.append(address)
        return await Internet().connect("127.0.0.1", self.port, timeout)

    async def _ask(self, name: str, kind: int) -> list[tuple[int, object]]:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[bytes] = loop.create_future()

        class Client(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, addr: object) -> None:
                if not answered.done():
                    answered.set_result(data)

        transport, _ = await loop.create_datagram_endpoint(Client, remote_addr=self.server)
        try:
            head = struct.pack(">HHHHHH", 1, 0x0100, 1, 0, 0, 0)
            transport.sendto(head + _wire(name) + struct.pack(">HH", kind, 1))
            return _read(await asyncio.wait_for(answered, TIMEOUT))
        finally:
            transport.close()


@asynccontextmanager
async def naming(port: int, records: dict[str, list[list[str]]]) -> AsyncIterator[tuple[NameServer, Resolved]]:
    server = NameServer({name: list(turns) for name, turns in records.items()})
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: server, local_addr=("127.0.0.1", 0)
    )
    try:
        yield server, Resolved(transport.get_extra_info("sockname"), port)
    finally:
        transport.close()


def _wire(name: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode("ascii") for part in name.split(".")) + b"\0"


def _name(data: bytes, at: int) -> tuple[str, int]:
    parts = []
    while data[at]:
        parts.append(data[at + 1 : at + 1 + data[at]].decode("ascii"))
        at += 1 + data[at]
    return ".".join(parts), at + 1


def _read(data: bytes) -> list[tuple[int, object]]:
    count = struct.unpack(">H", data[6:8])[0]
    at = _name(data, 12)[1] + 4
    found: list[tuple[int, object]] = []
    for _ in range(count):
        kind, _, _, length = struct.unpack(">HHIH", data[at + 2 : at + 12])
        value = data[at + 12 : at + 12 + length]
        found.append((kind, _name(value, 0)[0] if kind == CNAME else ipaddress.ip_address(value)))
        at += 12 + length
    return found
