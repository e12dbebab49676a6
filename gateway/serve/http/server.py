"""The HTTP server: one socket, one uvicorn, stopped without aborting a call."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import anyio
import uvicorn
from starlette.types import ASGIApp

from gateway.errors import Invalid, Unavailable
from gateway.serve.http.protocol import FastHandler, FastHttpProtocol, HeaderCache

# Seconds an idle connection stays open: longer than clients keep theirs, so that none is closed under a request.
KEEP_ALIVE = 75


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: calls in progress are finished before it stops."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once a second, so that no request needs a timer of its own
            now = asyncio.get_running_loop().time()
            for connection in cast(list[FastHttpProtocol], list(self.server_state.connections)):
                connection.close_if_late(now)
        return await super().on_tick(counter)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"port {port} of {host} is in use; stop what uses it or choose another with --port", code="PORT_IN_USE"
            ) from None
        raise Invalid(f"cannot listen on {host}:{port}: {error.strerror or error}", code="CANNOT_LISTEN") from None
    return listening


async def serve_http(
    app: ASGIApp,
    fast_path: FastHandler,
    listening: socket.socket,
    stop: anyio.Event,
    drain: Callable[[], Awaitable[None]],
) -> None:
    """Serve until `stop` is set; then await `drain` before the connections are closed. Requests that the fast path
    answers do not reach the application."""
    server = _Server(
        uvicorn.Config(
            app,
            http=cast(type[asyncio.Protocol], partial(FastHttpProtocol, fast_path, HeaderCache())),
            ws="none",  # even if a WebSocket library is installed
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # the address of a client decides nothing
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=1,
            lifespan="on",
        )
    )

    async def wait_for_stop() -> None:
        await stop.wait()
        await drain()
        server.should_exit = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_for_stop)
        await server.serve(sockets=[listening])
        tasks.cancel_scope.cancel()
