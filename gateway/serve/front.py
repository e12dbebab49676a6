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

HEADS_KNOWN = 1000
HEAD_KNOWN = 4 * 1024
LINES_KNOWN = 40
"""How many heads are known when they come again, the bytes of one, and its lines, which take more room than they do."""

_END = b"\r\n\r\n"
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


class Heads:
    """Heads of requests that took the shortcut, by their bytes: what they say, and how long a request with such a head
    is. What of it may change with time (whether a session is alive, say) the shortcut sees each time."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Headers, int]] = {}

    def read(self, request: bytes) -> tuple[Headers, bytes] | None:
        """The headers and the body of a request that came whole, and alone, if its head is known."""
        size = request.find(_END) + len(_END)
        known = self._known.get(request[:size])
        return (known[0], request[size:]) if known is not None and known[1] == len(request) else None

    def keep(self, request: bytes, headers: Headers) -> None:
        """Know the head of a request from now on, unless the request came in pieces or in chunks."""
        size = request.find(_END) + len(_END)
        if size > HEAD_KNOWN or len(headers) > LINES_KNOWN:
            return
        if headers.get(b"content-length") != b"%d" % (len(request) - size):
            return
        if len(self._known) >= HEADS_KNOWN:
            self._known.clear()
        self._known[request[:size]] = headers, len(request)


class Front(HttpToolsProtocol):
    """A request that takes the shortcut is read whole, becomes one task, and its answer leaves in one piece; it never
    gets the scope, events and queues of ASGI. Any other goes on to uvicorn from the beginning, as if nothing had been.

    Clients say the same head over and over, so that of a request whose head is known, byte for byte, only the body is
    looked at; the parser never sees it.
    """

    def __init__(self, shortcut: Shortcut, heads: Heads, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._shortcut = shortcut
        self._heads = heads
        self._said: Headers = {}
        self._body: bytearray | None = None  # of a request that may take it
        self._room = HEAD
        self._fresh = True  # what comes next begins a request
        self._piece = b""  # a request from its beginning, where it came in one piece
        self._rested_at = 0.0

    def data_received(self, data: bytes) -> None:
        if self._fresh and self._at_rest:
            known = self._heads.read(data)
            if known is not None and self._answer(*known, keep_alive=True):
                self._room = HEAD
                return
            self._piece = data
        self._room -= len(data)
        super().data_received(data)
        self._piece = b""
        if self._room < 0 and not self.transport.is_closing():  # the parser would keep all of it
            self.send_400_response(f"the head of the request is larger than {HEAD} bytes")

    def on_message_begin(self) -> None:
        self._fresh = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._promising():
            self._body = bytearray()
        else:
            super().on_headers_complete()
            if self.parser.should_upgrade():  # what comes next is its body or another protocol: no request, at any rate
                self.cycle.keep_alive = False
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
        self._fresh = True
        if self._body is not None:
            keep_alive = self.parser.should_keep_alive()
            if self._answer(self._said, bytes(self._body), keep_alive):
                if keep_alive:
                    self._heads.keep(self._piece, self._said)
                self._body = None
                return
            self._go_on()
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Uvicorn sets a clock after each answer; here it runs on, and finds out when the last one was."""
        self.timeout_keep_alive_task = None
        left = self._rested_at + self.timeout_keep_alive - self.loop.time()
        if left <= 0 and self._at_rest:
            super().timeout_keep_alive_handler()
        elif self._at_rest:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)

    def rest(self) -> None:
        """An answer to what took the shortcut has left."""
        self._rested_at = self.loop.time()
        if self.timeout_keep_alive_task is None or self.pipeline or self.flow.read_paused:
            self.on_response_complete()
        else:
            self.server_state.total_requests += 1

    def shutdown(self) -> None:
        if self._body is not None:  # uvicorn lets those finish of which it knows
            self._go_on()
        super().shutdown()

    @property
    def _at_rest(self) -> bool:
        """Whether everything is answered; the turn of what comes else is when those before have ended."""
        return self.cycle is None or self.cycle.response_complete

    def _promising(self) -> bool:
        if self.url != self._shortcut.path or self.parser.get_method() != b"POST" or not self._at_rest:
            return False
        if self.parser.should_upgrade() or self.expect_100_continue or self.parser.get_http_version() != "1.1":
            return False
        # Spaces around a value are not part of it (RFC 9110, 5.5); the parser leaves those after it.
        self._said = {name: value.strip(b" \t") for name, value in self.headers}
        return len(self._said) == len(self.headers) and self._shortcut.promising(self._said)

    def _answer(self, headers: Headers, body: bytes, keep_alive: bool) -> bool:
        """Whether it is answered here."""
        cycle = _Cycle(self, keep_alive)
        try:
            answering = self._shortcut.answering(headers, b"", body, cycle.receive, cycle.send)
        except Exception:  # which the parser would take for a fault of the client
            log.exception("the short way failed; the long one is taken")
            return False
        if answering is None:
            return False
        self.cycle = cycle  # type: ignore[assignment]  # where uvicorn looks for its own
        task = self.loop.create_task(cycle.run(answering))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        return True

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
            self._front.rest()

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
        lines = [STATUS_LINE[start["status"]]]
        self._chunked = True
        for headers in (self._front.server_state.default_headers, start["headers"]):
            for name, value in headers:
                lines += name, b": ", value, b"\r\n"
                if name == b"content-length":
                    self._chunked = False
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)
