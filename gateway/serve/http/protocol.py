"""The HTTP protocol of one connection: uvicorn's, with a fast path around ASGI for most MCP requests, and without
uvicorn's events and queues for most of REST."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from starlette.types import Message, Receive, Scope, Send
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

# Limits of the header cache: heads, bytes of a head, and header lines of a head, which take more memory than bytes.
CACHED_HEADS, CACHED_HEAD_SIZE, CACHED_HEAD_LINES = 1000, 4 * 1024, 40

_END = b"\r\n\r\n"
_LINE_ENDS = re.compile(rb"[\r\n]*")
# Size of a response up to which one copy of it is cheaper than a second write.
_COPIED = 64 * 1024

_LENGTH_AND_CLOSE = b"content-length: %d\r\nconnection: close\r\n\r\n"
_FAILED = b"Internal Server Error"
_WITHOUT_BODY = (204, 304)

# Beginnings of paths whose POST requests, and GET requests without a body, are given to the application whole.
_REST = (b"/api/", b"/tools/", b"/openapi/")
# In the scope of an application that may send whole responses (see `_FastCycle.send`).
WHOLE_RESPONSE = "toolgate.response"

log = logging.getLogger(__name__)


class FastHandler(Protocol):
    """Answers POST requests to some paths without ASGI, where it can. `Any` is a request head as the handler parsed it,
    which is cached."""

    paths: frozenset[bytes]

    def parse_head(self, path: bytes, query: bytes, headers: Headers) -> Any | None:
        """Return the parsed head of a request whose body should be read; None leaves the request to the application."""
        ...

    def answer(self, head: Any, body: bytes, receive: Receive, send: Send) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that answers with ASGI messages, or with whole responses (see `_FastCycle.send`); None
        leaves the request to the application."""
        ...


class HeaderCache:
    """Parsed request heads, keyed by their raw bytes, with the length of the whole request. A handler checks for each
    request what may change with time, such as whether a session is alive or a key revoked."""

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[Any, int]] = {}

    def find(self, request: bytes) -> tuple[Any, bytes] | None:
        """Return the cached head and the body of a request that arrived whole, and alone."""
        size = request.find(b"\r\n\r\n") + 4
        cached = self._heads.get(request[:size])
        return (cached[0], request[size:]) if cached is not None and cached[1] == len(request) else None

    def add(self, request: bytes, head: Any, headers: Headers) -> None:
        """Cache a head, unless its request arrived in pieces or has a body in chunks."""
        size = request.find(_END) + len(_END)
        if size > CACHED_HEAD_SIZE or len(headers) > CACHED_HEAD_LINES:
            return
        if headers.get(b"content-length", b"0") != b"%d" % (len(request) - size) or b"transfer-encoding" in headers:
            return
        if len(self._heads) >= CACHED_HEADS:
            self._heads.clear()
        self._heads[request[:size]] = head, len(request)


class FastHttpProtocol(HttpToolsProtocol):
    """A request on the fast path is read whole, becomes one task, and its response is written in one piece, without
    the scope, events and queues of ASGI. Any other request is given to uvicorn from its beginning.

    Clients repeat the same head, byte for byte. Of a request whose head is cached only the body is parsed.
    """

    def __init__(self, handler: FastHandler, cache: HeaderCache, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._handler = handler
        self._cache = cache
        self._headers: Headers = {}
        self._head: Any = None  # as the handler parsed it
        self._body: bytearray | None = None  # of a request that may take the fast path
        self._head_room = HEAD
        self._between_requests = True
        self._in_head = True  # the head of the current or next request is incomplete
        self._unread = 0  # bytes of a body of known length that have not arrived
        self._body_seconds = 0.0  # time limit for the body
        self._tail = b""  # the last bytes read, which may be the beginning of an empty line
        self._empty_lines = 0  # in the request so far, outside of a body of known length
        self._started_at = self.loop.time()  # of the incomplete head or body; 0 during the read it begins in
        self._read_at = 0.0  # when bytes of an incomplete request arrived last
        self._request = b""  # the data being parsed, if it begins with a request
        self._idle_since = 0.0

    def data_received(self, data: bytes) -> None:
        if self._between_requests and self._is_idle:
            cached = self._cache.find(data)
            if cached is not None and self._answer(cached[0], cached[1], True):
                return
            self._request = data
        self._parse(data)
        self._request = b""
        if not self._between_requests or self._is_idle:  # incomplete, or answered before it was complete
            self._read_at = self.loop.time()
            self._started_at = self._started_at or self._read_at

    def close_if_late(self, now: float) -> None:
        """Close the connection if its client is too slow to send a request. Called about once a second."""
        if self.transport.is_closing():
            return
        if self._between_requests:  # from the first response on, the keep-alive timer closes it
            if self._is_idle and self.timeout_keep_alive_task is None and now - self._started_at > HEAD_SECONDS:
                self.transport.close()
        elif self.pipeline or self.flow.read_paused or (self._in_head and not self._is_idle):
            self._started_at = self._read_at = now  # the client waits for us
        elif self._in_head:
            if now - self._started_at > HEAD_SECONDS:
                self._refuse(408, f"the head of the request did not arrive within {HEAD_SECONDS:g} seconds")
        elif now - self._read_at > BODY_IDLE_SECONDS or now - self._started_at > min(self._body_seconds, BODY_SECONDS):
            self._refuse(408, "the body of the request arrived too slowly")

    def on_message_begin(self) -> None:
        self._between_requests = False
        self._started_at = 0.0
        self._empty_lines = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_room = HEAD
        self._started_at = 0.0
        self._unread = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        self._body_seconds = BODY_IDLE_SECONDS + self._unread / BODY_RATE if self._unread else BODY_SECONDS
        if self._parse_head():
            self._body = bytearray()
        else:
            super().on_headers_complete()
            if self.parser.should_upgrade():  # the next bytes are a body or another protocol, but no request
                self.cycle.keep_alive = False
        self.headers = []  # trailers do not belong to the scope

    def on_body(self, body: bytes) -> None:
        self._head_room = HEAD
        if self._body is None:
            super().on_body(body)
            return
        self._body += body
        if len(self._body) > SIZE:
            self._leave_fast_path()

    def on_message_complete(self) -> None:
        self._head_room = HEAD
        self._between_requests = self._in_head = True
        self._started_at = 0.0
        if self._body is not None:
            keep_alive = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
            if self._answer(self._head, bytes(self._body), keep_alive):
                if keep_alive:
                    self._cache.add(self._request, self._head, self._headers)
                self._body = None
                return
            self._leave_fast_path()
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection. Uvicorn starts a timer after each response; here one timer runs on, and is
        started again for the rest of the time."""
        self.timeout_keep_alive_task = None
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0 and self._is_idle:
            super().timeout_keep_alive_handler()
        elif self._is_idle:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)

    def on_fast_response_complete(self) -> None:
        """Go on after the response to a request of the fast path."""
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None or self.pipeline or self.flow.read_paused:
            self.on_response_complete()
        else:
            self.server_state.total_requests += 1

    def shutdown(self) -> None:
        if self._body is not None:  # uvicorn lets the requests finish that it knows
            self._leave_fast_path()
        super().shutdown()

    @property
    def _is_idle(self) -> bool:
        """True if every request so far is answered."""
        return self.cycle is None or self.cycle.response_complete

    def _parse(self, data: bytes) -> None:
        """Give the parser each head and each body separately: it does not tell how many bytes a head has."""
        start = 0
        while not (self.transport.is_closing() or self.parser.should_upgrade()):
            if self._between_requests:
                start = _LINE_ENDS.match(data, start).end()  # type: ignore[union-attr]  # it matches anything
            if start == len(data):
                return
            end = self._find_end(data, start)
            if self._unread:
                self._unread -= end - start
            else:
                self._head_room -= end - start
                self._empty_lines += not self._tail  # otherwise there is none in this part
            if self._head_room >= 0 or not self._in_head:
                super().data_received(data if end - start == len(data) else data[start:end])
            if self._head_room < 0 and not self.transport.is_closing():
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
        if self._in_head and not self._is_idle:
            self.cycle.keep_alive = False  # it closes after the response to the request before
            return
        if self._in_head or self._body is not None or not (self.cycle.response_started or self.pipeline):
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(message))]
            head = _FastCycle(self, keep_alive=False).encode_head({"status": status, "headers": headers})
            self.transport.write(head + message.encode())
        self.transport.close()

    def _parse_head(self) -> bool:
        """Parse the head of a request for the fast path; return whether its body is to be read for it."""
        path, _, query = self.url.partition(b"?")
        method, is_rest = self.parser.get_method(), path.startswith(_REST)
        if method != b"POST" and not (method == b"GET" and is_rest):
            return False
        if not (is_rest or path in self._handler.paths) or not self._is_idle:
            return False
        if self.parser.should_upgrade() or self.expect_100_continue or b"#" in query:
            return False
        # Spaces around a value are not part of it (RFC 9110, 5.5); the parser leaves those after it.
        self._headers = {name: value.strip(b" \t") for name, value in self.headers}
        if len(self._headers) != len(self.headers):  # a header is there twice
            return False
        has_body = self._unread or b"transfer-encoding" in self._headers
        if not is_rest:
            self._head = self._handler.parse_head(path, query, self._headers)
        elif b"expect" in self._headers or (method == b"GET" and has_body):
            self._head = None
        else:
            path_text, headers = unquote(path.decode("latin-1")), list(self._headers.items())
            self._head = _WholeHead(method.decode("ascii"), path_text, path, query, headers)
        return self._head is not None

    def _answer(self, head: Any, body: bytes, keep_alive: bool) -> bool:
        """Start to answer a request on the fast path; return whether that is possible."""
        cycle = _FastCycle(self, keep_alive)
        answer: Coroutine[Any, Any, None] | None
        try:
            if type(head) is _WholeHead:
                answer = self._give_to_application(head, body, cycle)
            else:
                answer = self._handler.answer(head, body, cycle.receive, cycle.send)
        except Exception:  # the parser would take it for an error of the client
            log.exception("the fast path failed; the request goes to the application")
            return False
        if answer is None:
            return False
        self.cycle = cycle  # type: ignore[assignment]  # where uvicorn looks for its own
        task = self.loop.create_task(answer)
        task.add_done_callback(cycle.finish)
        self.tasks.add(task)
        return True

    def _give_to_application(self, head: _WholeHead, body: bytes, cycle: _FastCycle) -> Coroutine[Any, Any, None]:
        """Return the application's answer to a request that arrived whole, without uvicorn's events and queues."""
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "method": head.method,
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "headers": head.headers,
            "state": self.app_state.copy(),
            "extensions": {WHOLE_RESPONSE: {}},
        }
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return unread.pop() if unread else await cycle.receive()

        answer: Coroutine[Any, Any, None] = self.app(scope, receive, cycle.send)
        return answer

    def _leave_fast_path(self) -> None:
        """Give uvicorn the request from its beginning."""
        body, self._body = self._body, None
        super().on_headers_complete()
        if body:
            super().on_body(bytes(body))


class _WholeHead(NamedTuple):
    """The head of a request that the application gets whole."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]


class _FastCycle:
    """One request and its response. It has what uvicorn's protocol uses of a cycle: `disconnected`, `keep_alive`,
    `response_complete`, and `message_event.set`, called when the client has disconnected."""

    def __init__(self, protocol: FastHttpProtocol, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        self._protocol = protocol
        self._head: bytes | None = b""  # None once it is written
        self._chunked = False
        self._disconnect: asyncio.Future[None] | None = None

    @property
    def message_event(self) -> _FastCycle:
        return self

    def set(self) -> None:
        if self._disconnect is not None and not self._disconnect.done():
            self._disconnect.set_result(None)

    def finish(self, task: asyncio.Task[None]) -> None:
        """End the request whose task has ended."""
        self._protocol.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a request could not be answered", exc_info=error)
            self._fail()
        if not self.response_complete:
            self._protocol.transport.close()

    async def receive(self) -> Message:
        """ASGI's `receive` after the whole body: it returns once the client has disconnected."""
        if not self.disconnected:
            self._disconnect = self._protocol.loop.create_future()
            await self._disconnect
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """ASGI's `send`. A response without a content length is sent in chunks; one of the type `http.response` is
        whole, with its headers as `lines`. A disconnect ends one half way, also for a client that does not read."""
        kind, protocol = message["type"], self._protocol
        if kind == "http.disconnect":
            if not self.response_complete:
                protocol.transport.abort()
            return
        if kind == "http.response.start":
            self._head = self.encode_head(message)
            return
        if protocol.flow.write_paused and not self.disconnected:
            await protocol.flow.drain()
        if self.disconnected or protocol.transport.is_closing():
            return
        body = message["body"]
        if kind == "http.response":
            first = _first_lines(message["status"], *protocol.server_state.default_headers)
            length = (b"content-length: %d\r\n\r\n" if self.keep_alive else _LENGTH_AND_CLOSE) % len(body)
            self._head = first + message["lines"] + length
        elif self._chunked:
            last = b"" if message.get("more_body", False) else b"0\r\n\r\n"
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + last
        self._write(body)
        if not message.get("more_body", False):
            self.response_complete = True
            if not self.keep_alive:
                protocol.transport.close()
            protocol.on_fast_response_complete()

    def _fail(self) -> None:
        if self._head is None or self._protocol.transport.is_closing():  # the response has begun, or nobody reads it
            return
        self.keep_alive = False
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(_FAILED))]
        self._protocol.transport.write(self.encode_head({"status": 500, "headers": headers}) + _FAILED)

    def _write(self, body: bytes) -> None:
        head, self._head = self._head, None
        if head is None:
            self._protocol.transport.write(body)
        elif len(body) <= _COPIED:
            self._protocol.transport.write(head + body)
        else:
            self._protocol.transport.writelines((head, body))

    def encode_head(self, start: Message) -> bytes:
        status, headers = start["status"], start["headers"]
        lines = [_first_lines(status, *self._protocol.server_state.default_headers)]
        lines += [b"%b: %b\r\n" % header for header in headers]
        self._chunked = status not in _WITHOUT_BODY and not any(name == b"content-length" for name, _ in headers)
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)


@lru_cache(maxsize=16)  # the default headers have the date
def _first_lines(status: int, *headers: tuple[bytes, bytes]) -> bytes:
    """Encode a status and the headers of all responses."""
    return STATUS_LINE[status] + b"".join([b"%b: %b\r\n" % header for header in headers])
