"""A network for a program that has none: one door in its sandbox, and a proxy of ours behind it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.errors import GatewayError
from gateway.net.policy import WEB_PORTS, NetworkPolicy
from gateway.sandbox import Process, Program
from gateway.sandbox.network_init import PORT
from gateway.sandbox.proxy import Proxy
from gateway.tasks import TaskSet

if TYPE_CHECKING:
    from gateway.config import SandboxSettings

_DOORWAY = Path(__file__).with_name("network_init.py")
_PROXY = f"http://127.0.0.1:{PORT}"
_NAMES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")

_serving = TaskSet()


def network_of(settings: SandboxSettings) -> NetworkPolicy | None:
    """Where programs may go; None for nowhere. Without a list of hosts it is every one with a public address."""
    if not settings.network:
        return None
    hosts = tuple(settings.allowed_hosts)
    return NetworkPolicy(hosts, any_host=not hosts, ports=WEB_PORTS, hosts_setting="sandbox.allowed_hosts")


async def connected(program: Program, policy: NetworkPolicy, start: Callable[[Program], Awaitable[Process]]) -> Process:
    """Start the program with a door; the proxy behind it is there for as long as the program is."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        with theirs:
            process = await start(_with_door(program, theirs.fileno()))
    except BaseException:
        ours.close()
        raise
    _serving.start(_serve(process, ours, Proxy(policy)))
    return process


def _with_door(program: Program, channel: int) -> Program:
    interpreter = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    readable = tuple(dict.fromkeys((Path(sys.base_prefix), Path(os.path.realpath(sys.base_prefix)))))
    return replace(
        program,
        argv=(interpreter, "-I", "-S", "-c", _text(), str(channel), *program.argv),
        readable=(*readable, *(path for path in program.readable if path not in readable)),
        env={**program.env, **dict.fromkeys(_NAMES, _PROXY)},
        pass_fds=(*program.pass_fds, channel),
    )


@cache
def _text() -> str:
    return _DOORWAY.read_text(encoding="utf-8")


async def _serve(process: Process, channel: socket.socket, proxy: Proxy) -> None:
    with channel:
        door = await _received(channel)
    if door is None:  # it ended before
        return
    async with proxy.behind(door):
        with suppress(GatewayError):
            await process.wait()


async def _received(channel: socket.socket) -> socket.socket | None:
    """The listener that comes through the channel."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(channel, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(channel)
    with suppress(OSError):
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        for descriptor in descriptors:
            return socket.socket(fileno=descriptor)
    return None
