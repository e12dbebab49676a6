"""Network access of a sandboxed program: one listener on its loopback, served by a proxy of the gateway."""

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
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")

_serving = TaskSet()


def network_of(settings: SandboxSettings) -> NetworkPolicy | None:
    """Return the network policy of programs; None for no network. Without a list of hosts, every public address."""
    if not settings.network:
        return None
    hosts = tuple(settings.allowed_hosts)
    return NetworkPolicy(hosts, any_host=not hosts, ports=WEB_PORTS, hosts_setting="sandbox.allowed_hosts")


async def start_with_network(
    program: Program, policy: NetworkPolicy, start: Callable[[Program], Awaitable[Process]]
) -> Process:
    """Start the program with a listener; the proxy serves it for as long as the program runs."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        with theirs:
            process = await start(_with_listener(program, theirs.fileno()))
    except BaseException:
        ours.close()
        raise
    _serving.start(_serve(process, ours, Proxy(policy)))
    return process


def _with_listener(program: Program, channel: int) -> Program:
    interpreter = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    readable = tuple(dict.fromkeys((Path(sys.base_prefix), Path(os.path.realpath(sys.base_prefix)))))
    return replace(
        program,
        argv=(interpreter, "-I", "-S", "-c", _text(), str(channel), *program.argv),
        readable=(*readable, *(path for path in program.readable if path not in readable)),
        env={**program.env, **dict.fromkeys(_PROXY_VARIABLES, _PROXY)},
        pass_fds=(*program.pass_fds, channel),
    )


@cache
def _text() -> str:
    return _INIT.read_text(encoding="utf-8")


async def _serve(process: Process, channel: socket.socket, proxy: Proxy) -> None:
    with channel:
        listener = await _receive(channel)
    if listener is None:  # the program ended before
        return
    async with proxy.serve(listener):
        with suppress(GatewayError):
            await process.wait()


async def _receive(channel: socket.socket) -> socket.socket | None:
    """Receive the listener through the channel."""
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
