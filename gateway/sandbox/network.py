"""Sockets of a sandboxed program that the gateway uses: the listener of its proxy, and those to reach its ports."""

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

_INIT = Path(__file__).with_name("network_init.py")
_PROXY = f"http://127.0.0.1:{PORT}"
_SOCKETS = 128
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")

_serving = TaskSet()


def network_of(settings: SandboxSettings) -> NetworkPolicy | None:
    """Return the network policy of programs; None for no network. Without a list of hosts, every public address."""
    if not settings.network:
        return None
    hosts = tuple(settings.allowed_hosts)
    return NetworkPolicy(hosts, any_host=not hosts, ports=WEB_PORTS, hosts_setting="sandbox.allowed_hosts")


async def start_with_sockets(program: Program, start: Callable[[Program], Awaitable[Process]]) -> Process:
    """Start the program after its sockets were opened inside; its proxy serves for as long as it runs."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        with theirs:
            process = await start(_with_sockets(program, theirs.fileno()))
    except BaseException:
        ours.close()
        raise
    _serving.start(_serve(process, ours, program))
    return process


def _with_sockets(program: Program, channel: int) -> Program:
    interpreter = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    readable = tuple(dict.fromkeys((Path(sys.base_prefix), Path(os.path.realpath(sys.base_prefix)))))
    proxied, connections = program.network is not None, program.loopback.connections if program.loopback else 0
    options = (str(channel), "proxied" if proxied else "", str(connections))
    return replace(
        program,
        argv=(interpreter, "-I", "-S", "-c", _text(), *options, *program.argv),
        readable=(*readable, *(path for path in program.readable if path not in readable)),
        env={**program.env, **(dict.fromkeys(_PROXY_VARIABLES, _PROXY) if proxied else {})},
        pass_fds=(*program.pass_fds, channel),
    )


@cache
def _text() -> str:
    return _INIT.read_text(encoding="utf-8")


async def _serve(process: Process, channel: socket.socket, program: Program) -> None:
    with channel:
        sockets = await _receive(channel)
    if not sockets:  # the program ended before
        return
    listener = sockets.pop(0) if program.network is not None else None
    if program.loopback is not None:
        program.loopback.receive(sockets)
    if listener is not None and program.network is not None:
        async with Proxy(program.network).serve(listener):
            with suppress(GatewayError):
                await process.wait()


async def _receive(channel: socket.socket) -> list[socket.socket]:
    """Receive the sockets through the channel."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(channel, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(channel)
    with suppress(OSError):
        _, descriptors, _, _ = socket.recv_fds(channel, 1, _SOCKETS)
        return [socket.socket(fileno=descriptor) for descriptor in descriptors]
    return []
