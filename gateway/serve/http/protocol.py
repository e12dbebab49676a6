"""The connection clients speak HTTP over: uvicorn's, with a shortcut past it for nearly all there is."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from starlette.types import Message, Receive, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.serve.mcp.fastpath import SIZE

Headers = Mapping[bytes, bytes]

# Maximum bytes of a request head, from the request line to the empty line. Trailers and chunk headers have the same
# limit, checked once per read.
HEAD = 64 * 1024

# Time limit for a request head from its first byte, and for a new connection to send that byte.
HEAD_SECONDS = 30.0

# Time limits for a request body: between two reads, and in total. A body of known length has, up to the total, the
# first limit and a second for each `BODY_RATE` bytes.
BODY_IDLE_SECONDS, BODY_SECONDS, BODY_RATE = 30.0, 300.0, 16 * 1024

# Maximum number of empty lines in a body in chunks: each could be its end. JSON has none within its strings.
EMPTY_LINES = 1000

HEADS_KNOWN = 1000
HEAD_KNOWN = 4 * 1024
# How many heads are known when they come again, the bytes of one, and its lines, which take more room than they do.
LINES_KNOWN = 40

_END = b"\r\n\r\n"
_LINE_ENDS = re.compile(rb"[\r\n]*")
# Bytes of an answer up to which one copy of it is cheaper than two pieces.
_COPIED = 64 * 1024

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


class HeaderCache:
    """Parsed request headers, keyed by their raw bytes, with the length of a request that begins so. What may change
    with time, such as whether a session is alive, is checked for each request."""

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


class FastHttpProtocol(HttpToolsProtocol):
    """A request that takes the shortcut is read whole, becomes one task, and its answer leaves in one piece; it never
    gets the scope, events and queues of ASGI. Any other goes on to uvicorn from the beginning, as if nothing had been.

    Clients say the same head over and over, so that of a request whose head is known, byte for byte, only the body is
    looked at; the parser never sees it.
    """

    def __init__(self, shortcut: Shortcut, heads: HeaderCache, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._shortcut = shortcut
        self._heads = heads
        self._said: Headers = {}
        self._body: bytearray | None = None  # of a request that may take it
        self._room = HEAD
        self._fresh = True  # what comes next begins a request
        self._in_head = True  # the head of the current or next request is incomplete
        self._unread = 0  # bytes of a body of known length that have not arrived
        self._body_seconds = 0.0  # time limit for the body
        self._tail = b""  # the last bytes read, which may be the beginning of an empty line
        self._empty_lines = 0  # in the request so far, outside of a body of known length
        self._started_at = self.loop.time()  # of the incomplete head or body; 0 during the read it begins in
        self._read_at = 0.0  # when bytes of an incomplete request arrived last
        self._piece = b""  # a request from its beginning, where it came in one piece
        self._rested_at = 0.0

    def data_received(self, data: bytes) -> None:
        if self._fresh and self._at_rest:
            known = self._heads.read(data)
            if known is not None and self._answer(*known, keep_alive=True):
                return
            self._piece = data
        self._parse(data)
        self._piece = b""
        if not self._fresh or self._at_rest:  # incomplete, or answered before it was complete
            self._read_at = self.loop.time()
            self._started_at = self._started_at or self._read_at

    def close_if_late(self, now: float) -> None:
        """Close the connection if its client is too slow to send a request. Called about once a second."""
        if self.transport.is_closing():
            return
        if self._fresh:  # from the first response on, the keep-alive timer closes it
            if self._at_rest and self.timeout_keep_alive_task is None and now - self._started_at > HEAD_SECONDS:
                self.transport.close()
        elif self.pipeline or self.flow.read_paused or (self._in_head and not self._at_rest):
            self._started_at = self._read_at = now  # the client waits for us
        elif self._in_head:
            if now - self._started_at > HEAD_SECONDS:
                self._refuse(408, f"the head of the request did not arrive within {HEAD_SECONDS:g} seconds")
        elif now - self._read_at > BODY_IDLE_SECONDS or now - self._started_at > min(self._body_seconds, BODY_SECONDS):
            self._refuse(408, "the body of the request arrived too slowly")

    def on_message_begin(self) -> None:
        self._fresh = False
        self._started_at = 0.0
        self._empty_lines = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._room = HEAD
        self._started_at = 0.0
        self._unread = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        self._body_seconds = BODY_IDLE_SECONDS + self._unread / BODY_RATE if self._unread else BODY_SECONDS
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
        self._fresh = self._in_head = True
        self._started_at = 0.0
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

    def _parse(self, data: bytes) -> None:
        """Give the parser each head and each body separately: it does not tell how many bytes a head has."""
        start = 0
        while not (self.transport.is_closing() or self.parser.should_upgrade()):
            if self._fresh:
                start = _LINE_ENDS.match(data, start).end()  # type: ignore[union-attr]  # it matches anything
            if start == len(data):
                return
            end = self._find_end(data, start)
            if self._unread:
                self._unread -= end - start
            else:
                self._room -= end - start
                self._empty_lines += not self._tail  # otherwise there is none in this part
            if self._room >= 0 or not self._in_head:
                super().data_received(data if end - start == len(data) else data[start:end])
            if self._room < 0 and not self.transport.is_closing():
                self._refuse(431, f"the head of the request is larger than {HEAD} bytes")
            elif self._empty_lines > EMPTY_LINES and not self.transport.is_closing():
                self._refuse(400, f"the body in chunks has more than {EMPTY_LINES} empty lines")
            start = end

    def _find_end(self, data: bytes, start: int) -> int:
        """Return where the current head or body ends at the earliest, or the end of the data."""
        if self._unread:
            return min(start + self._unread, len(data))
        # A head ends with an empty line, and so does a body in chunks.
        tail, self._tail = self._tail, b""
        if tail and (found := (tail + data[start : start + 3]).find(_END)) >= 0:
            return start + found + len(_END) - len(tail)
        if (found := data.find(_END, start)) >= 0:
            return found + len(_END)
        self._tail = (tail + data[max(start, len(data) - 3) :])[-3:]
        return len(data)

    def _refuse(self, status: int, message: str) -> None:
        """Answer a request that is not read to its end, and close the connection."""
        if self._in_head and not self._at_rest:
            self.cycle.keep_alive = False  # it closes after the response to the request before
            return
        if self._in_head or self._body is not None or not (self.cycle.response_started or self.pipeline):
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(message))]
            head = _Cycle(self, keep_alive=False).write_head({"status": status, "headers": headers})
            self.transport.write(head + message.encode())
        self.transport.close()

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

    def __init__(self, front: FastHttpProtocol, keep_alive: bool) -> None:
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
            self._head = self.write_head(message)
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

    def write_head(self, start: Message) -> bytes:
        """Return the head of a response as bytes."""
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
