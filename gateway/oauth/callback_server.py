"""The local page to which a browser returns after a login."""

from __future__ import annotations

import asyncio
import html
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from urllib.parse import parse_qsl, urlsplit

from gateway.errors import Unavailable
from gateway.tasks import TaskSet

HOST = "127.0.0.1"
PATH = "/callback"
REQUEST_LIMIT = 32 * 1024
REQUEST_SECONDS = 10.0
FINISH_SECONDS = 60.0
CLOSE_SECONDS = 3.0
# Connections at once; more are closed unread.
CONNECTIONS = 32

_DONE = "You are signed in", "You may close this window and go back to the terminal."
_FAILED = "The login did not work", "You may close this window; the terminal says what to do. "
_WRONG_STATE = "This page does not belong to the current login", "You may close this window. "
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Toolgate: {title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 36em; margin: 4em auto; padding: 0 1em }}</style>
</head><body><h1>{title}</h1><p>{text}</p></body></html>
"""
_HEADERS = (
    "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
    "Connection: close\r\n"
)


class CallbackPage:
    """Accepts the redirect that has our `state`, and no other: any program on this machine can connect. The browser
    waits until the login has finished, and shows the outcome."""

    def __init__(self, state: str, path: str) -> None:
        self.uri = ""
        self._state = state
        self._path = path
        self._redirect: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self._outcome: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._connections = TaskSet()
        self._unused: set[asyncio.Task[None]] = set()

    async def wait_for_redirect(self) -> Mapping[str, str]:
        """Wait for the browser, and return the parameters of the redirect."""
        return await asyncio.shield(self._redirect)

    def finish(self, problem: str | None = None) -> None:
        """Show the outcome of the login in the browser."""
        if not self._outcome.done():
            self._outcome.set_result(problem)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS:
            writer.close()
            return
        task = self._connections.start(self._serve(reader, writer))
        self._unused.add(task)
        task.add_done_callback(self._unused.discard)

    async def close(self) -> None:
        """Wait until the last page is sent. Connections that a browser opens in advance and does not use are not waited
        for."""
        self.finish("it was cancelled")
        for task in self._unused:
            task.cancel()
        if self._connections:
            _, late = await asyncio.wait(self._connections, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            self._unused -= {asyncio.current_task()}
            writer.write(await self._respond(head.split(b"\r\n", 1)[0].decode("latin-1")))
            async with asyncio.timeout(REQUEST_SECONDS):
                await writer.drain()

    async def _respond(self, request: str) -> bytes:
        method, _, rest = request.partition(" ")
        url = urlsplit(rest.partition(" ")[0])
        if method != "GET" or url.path != self._path:
            return _page(404, "There is nothing here", "")
        params = dict(parse_qsl(url.query, keep_blank_values=True, max_num_fields=50))
        if not secrets.compare_digest(params.get("state", "").encode(), self._state.encode()):
            return _page(400, *_WRONG_STATE)
        if not self._redirect.done():
            self._redirect.set_result(params)
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                problem = await asyncio.shield(self._outcome)
        except TimeoutError:
            problem = "it took too long"
        title, text = _DONE if problem is None else (_FAILED[0], _FAILED[1] + f"({problem})")
        return _page(200 if problem is None else 400, title, text)


@asynccontextmanager
async def serve_callback(state: str, port: int = 0, path: str = PATH) -> AsyncIterator[CallbackPage]:
    """Serve the page for the login with that state on the loopback address, at this port or any free one."""
    page = CallbackPage(state, path)
    try:
        server = await asyncio.start_server(page.accept, HOST, port, limit=REQUEST_LIMIT)
    except OSError as error:
        raise Unavailable(f"port {port} of {HOST} cannot be used: {error.strerror}", code="PORT_TAKEN") from None
    try:
        page.uri = f"http://{HOST}:{server.sockets[0].getsockname()[1]}{path}"
        yield page
    finally:
        server.close()
        await page.close()


def _page(status: int, title: str, text: str) -> bytes:
    body = _PAGE.format(title=html.escape(title), text=html.escape(text)).encode()
    reason = {200: "OK", 400: "Bad Request", 404: "Not Found"}[status]
    return f"HTTP/1.1 {status} {reason}\r\n{_HEADERS}Content-Length: {len(body)}\r\n\r\n".encode() + body
