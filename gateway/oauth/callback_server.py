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
CONCLUDE_SECONDS = 60.0
CLOSE_SECONDS = 3.0
# Connections at once; more are closed unread.
VISITORS = 32

_DONE = "You are signed in", "You may close this window and go back to the terminal."
_FAILED = "The login did not work", "You may close this window; the terminal says what to do. "
_STRANGE = "This is not the login that is open", "You may close this window. "
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


class Callback:
    """Takes the answer that carries our `state`, and no other: anyone on this machine can knock here. The browser
    waits until the login has come to its end, and is told which."""

    def __init__(self, state: str, path: str) -> None:
        self.uri = ""
        self._state = state
        self._path = path
        self._answer: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self._end: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._visitors = TaskSet()
        self._silent: set[asyncio.Task[None]] = set()

    async def answer(self) -> Mapping[str, str]:
        """The parameters the browser brought."""
        return await asyncio.shield(self._answer)

    def conclude(self, problem: str | None = None) -> None:
        """Tell the browser how it went."""
        if not self._end.done():
            self._end.set_result(problem)

    def visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._visitors) >= VISITORS:
            writer.close()
            return
        task = self._visitors.start(self._serve(reader, writer))
        self._silent.add(task)
        task.add_done_callback(self._silent.discard)

    async def close(self) -> None:
        """Let the last page out. Browsers also connect to be ready, and then ask nothing: those are not waited for."""
        self.conclude("it was called off")
        for task in self._silent:
            task.cancel()
        if self._visitors:
            _, late = await asyncio.wait(self._visitors, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            self._silent -= {asyncio.current_task()}
            writer.write(await self._reply(head.split(b"\r\n", 1)[0].decode("latin-1")))
            async with asyncio.timeout(REQUEST_SECONDS):
                await writer.drain()

    async def _reply(self, request: str) -> bytes:
        method, _, rest = request.partition(" ")
        url = urlsplit(rest.partition(" ")[0])
        if method != "GET" or url.path != self._path:
            return _page(404, "There is nothing here", "")
        given = dict(parse_qsl(url.query, keep_blank_values=True, max_num_fields=50))
        if not secrets.compare_digest(given.get("state", "").encode(), self._state.encode()):
            return _page(400, *_STRANGE)
        if not self._answer.done():
            self._answer.set_result(given)
        try:
            async with asyncio.timeout(CONCLUDE_SECONDS):
                problem = await asyncio.shield(self._end)
        except TimeoutError:
            problem = "it took too long"
        title, text = _DONE if problem is None else (_FAILED[0], _FAILED[1] + f"({problem})")
        return _page(200 if problem is None else 400, title, text)


@asynccontextmanager
async def callback(state: str, port: int = 0, path: str = PATH) -> AsyncIterator[Callback]:
    """The page for the login with that state, on this machine's own address alone; any free port, or that one."""
    page = Callback(state, path)
    try:
        server = await asyncio.start_server(page.visit, HOST, port, limit=REQUEST_LIMIT)
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
