"""The connection clients speak HTTP over: uvicorn's, with a shortcut past it for nearly all there is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from starlette.types import Message, Receive, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .express import SIZE

Headers = Mapping[bytes, bytes]

HEAD = 64 * 1024
"""Bytes of a request that may come in a row without being of its body: a head, or what stands around chunks."""

_COPIED = 64 * 1024
"""Bytes of an answer up to which one copy of it is cheaper than two pieces."""

_FAILED = b"Internal Server Error"

log = logging.getLogger(__name__)


class Shortcut(Protocol):
    """Answers what is posted to one path, where it can."""

    path: bytes

    def promising(self, headers: Headers) -> bool:
        """Whether the body of a request with such headers is worth a look."""
        ...

    def answering(
        self, headers: Headers, query: bytes, body: bytes, receive: Receive, send: Send
    ) -> Coroutine[Any, Any, None] | None:
        """What answers it, with ASGI's messages; None leaves it to the application."""
        ...


class Front(HttpToolsProtocol):
    """A request that takes the shortcut is read whole, becomes one task, and its answer leaves in one piece; it never
    gets the scope, events and queues of ASGI. Any other goes on to uvicorn from the beginning, as if nothing had been.
    """

    def __init__(self, shortcut: Shortcut, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._shortcut = shortcut
        self._said: Headers = {}
        self._body: bytearray | None = None  # of a request that may take it
        self._room = HEAD

    def data_received(self, data: bytes) -> None:
        self._room -= len(data)
        super().data_received(data)
        if self._room < 0 and not self.transport.is_closing():  # the parser would keep all of it
            self.send_400_response(f"the head of the request is larger than {HEAD} bytes")

    def on_headers_complete(self) -> None:
        if self._promising():
            self._body = bytearray()
        else:
            super().on_headers_complete()
        self.headers = []  # what comes after the last chunk is none of the scope's

    def on_body(self, body: bytes) -> None:
        self._room = HEAD
        if self._body is None:
            super().on_body(body)
            return
        self._body += body
        if len(self._body) > SIZE:
            self._go_on()

    def on_message_complete(self) -> None:
        self._room = HEAD
        if self._body is not None:
            cycle = _Cycle(self, self.parser.should_keep_alive())
            try:
                answering = self._shortcut.answering(self._said, b"", bytes(self._body), cycle.receive, cycle.send)
            except Exception:  # which the parser would take for a fault of the client
                log.exception("the short way failed; the long one is taken")
                answering = None
            if answering is not None:
                self._body, self.cycle = None, cycle  # type: ignore[assignment]  # where uvicorn looks for its own
                task = self.loop.create_task(cycle.run(answering))
                task.add_done_callback(self.tasks.discard)
                self.tasks.add(task)
                return
            self._go_on()
        super().on_message_complete()

    def shutdown(self) -> None:
        if self._body is not None:  # uvicorn lets those finish of which it knows
            self._go_on()
        super().shutdown()

    def _promising(self) -> bool:
        if self.url != self._shortcut.path or self.parser.get_method() != b"POST":
            return False
        if self.parser.should_upgrade() or self.expect_100_continue or self.parser.get_http_version() != "1.1":
            return False
        if self.cycle is not None and not self.cycle.response_complete:  # its turn comes when those before have ended
            return False
        # Spaces around a value are not part of it (RFC 9110, 5.5); the parser leaves those after it.
        self._said = {name: value.strip(b" \t") for name, value in self.headers}
        return len(self._said) == len(self.headers) and self._shortcut.promising(self._said)

    def _go_on(self) -> None:
        """Tell uvicorn what was kept from it."""
        body, self._body = self._body, None
        super().on_headers_complete()
        if body:
            super().on_body(bytes(body))


class _Cycle:
    """One request and its answer, as far as uvicorn's protocol asks for them: `disconnected`, `message_event.set` when
    its client has left, `keep_alive`, and whether the next one may begin."""

    def __init__(self, front: Front, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        self._front = front
        self._head: bytes | None = b""  # None once it has left
        self._chunked = False
        self._left: asyncio.Future[None] | None = None

    @property
    def message_event(self) -> _Cycle:
        return self

    def set(self) -> None:
        if self._left is not None and not self._left.done():
            self._left.set_result(None)

    async def run(self, answering: Coroutine[Any, Any, None]) -> None:
        try:
            await answering
        except Exception:
            log.exception("a request could not be answered")
            await self._fail()
        finally:
            if not self.response_complete:
                self._front.transport.close()

    async def receive(self) -> Message:
        """ASGI's, when everything was read: returns once the client has left."""
        if not self.disconnected:
            self._left = self._front.loop.create_future()
            await self._left
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """ASGI's. An answer without its length goes in chunks."""
        if message["type"] == "http.response.start":
            self._head = self._written(message)
            return
        if self._front.flow.write_paused and not self.disconnected:
            await self._front.flow.drain()
        if self.disconnected or self._front.transport.is_closing():
            return
        body, more = message["body"], message.get("more_body", False)
        if self._chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        self._write(body)
        if not more:
            self.response_complete = True
            if not self.keep_alive:
                self._front.transport.close()
            self._front.on_response_complete()

    async def _fail(self) -> None:
        if self._head is None:  # too late for words
            return
        self.keep_alive = False
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(_FAILED))]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": _FAILED})

    def _write(self, body: bytes) -> None:
        head, self._head = self._head, None
        if head is None:
            self._front.transport.write(body)
        elif len(body) <= _COPIED:
            self._front.transport.write(head + body)
        else:
            self._front.transport.writelines((head, body))

    def _written(self, start: Message) -> bytes:
        """The head of an answer."""
        headers = [*self._front.server_state.default_headers, *start["headers"]]
        self._chunked = not any(name == b"content-length" for name, _ in headers)
        if self._chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        if not self.keep_alive:
            headers.append((b"connection", b"close"))
        return b"%b%b\r\n" % (STATUS_LINE[start["status"]], b"".join(b"%b: %b\r\n" % line for line in headers))
