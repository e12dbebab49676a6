"""One HTTP/1.1 connection, used for one request after another, and the response in progress on it."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, cast

import httptools

from gateway.mcp_client.messages import MESSAGE_LIMIT
from gateway.protocol.sse import Event, EventParser, EventTooLarge

# Bytes of all headers of a response.
HEADER_LIMIT = 64 * 1024

# The time a stream has to end after it brought its answer, before its connection is closed.
STREAM_END_SECONDS = 5.0

# The time for which an idle connection counts as open.
JUST_USED_SECONDS = 0.05

# Heads of responses that a pool caches, and bytes of one.
CACHED_HEADS, CACHED_HEAD_SIZE = 256, 2 * 1024

# Stands for the cached head of a stream in the parser's input.
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

_CHALLENGE = b"www-authenticate"

# Receives the events of a stream; true when it needs no more of them.
Sink = Callable[[Event], bool]


class HttpReply:
    """A response to one request. `done` is set when it is complete or its sink needs no more; its value is why the
    response broke off, if it did."""

    # Bytes of the body, and the content encodings that were requested.
    limit = MESSAGE_LIMIT
    encodings: ClassVar[frozenset[bytes]] = frozenset({b"identity"})

    status = 0
    media_type = ""
    headers: Mapping[bytes, bytes] = MappingProxyType({})
    body: bytes | bytearray = b""
    streaming = False
    begun = False

    def __init__(self, done: asyncio.Future[str | None], sink: Sink | None) -> None:
        self.sink = sink
        self.done = done

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    def complete(self, problem: str | None = None) -> None:
        if not self.done.done():
            self.done.set_result(problem)


class ResponseHeads:
    """Heads of plain JSON responses and event streams, parsed, by their raw bytes: a server repeats them. Those with a
    date change each second, and those of results of other sizes differ."""

    def __init__(self) -> None:
        # With the size of the response, 0 for a stream.
        self._heads: dict[bytes, tuple[int, Mapping[bytes, bytes]]] = {}

    def find(self, data: bytes, limit: int) -> tuple[bytes, Mapping[bytes, bytes], bool] | None:
        """Return what follows a cached head, its headers, and whether it begins a stream; any other response must have
        arrived whole, and alone."""
        size = data.find(b"\r\n\r\n") + 4
        head = self._heads.get(data[:size])
        if head is None or (head[0] and (head[0] != len(data) or head[0] - size > limit)):
            return None
        return data[size:], head[1], not head[0]

    def add(self, data: bytes, response: HttpReply) -> None:
        """Cache the head with which this data begins, if the connection is used again after the response. Unless it is
        a stream, the data is all of it."""
        size, headers, length = data.find(b"\r\n\r\n") + 4, response.headers, len(data)
        if response.status != 200 or size > CACHED_HEAD_SIZE or b"content-encoding" in headers:
            return
        if response.streaming:
            # As many headers as lines: none is there twice, and no trailers are among them.
            is_known = data.startswith(b"HTTP/1.1 200 ") and data.count(b"\r\n", 0, size) == len(headers) + 2
            is_known &= headers.get(b"transfer-encoding") == b"chunked"
            is_known &= headers.get(b"connection", b"keep-alive").lower() == b"keep-alive"
            length, headers = 0, {**headers}  # without trailers that may follow
        else:
            is_known = response.media_type == "application/json" and length - size == len(response.body)
            is_known &= headers.get(b"content-length") == b"%d" % len(response.body)
            is_known &= not headers.keys() & {b"transfer-encoding", b"keep-alive"}
        if not is_known:
            return
        if len(self._heads) >= CACHED_HEADS:
            self._heads.clear()
        self._heads[data[:size]] = length, headers


class HttpConnection(asyncio.Protocol):
    """`on_idle` is called when it can take another request, `on_closed` when it never will."""

    def __init__(
        self,
        on_idle: Callable[[HttpConnection], None],
        on_closed: Callable[[HttpConnection], None],
        heads: ResponseHeads,
    ) -> None:
        self.usable = False
        self.idle_since = 0.0
        self.keep_alive: float | None = None
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._heads = heads
        self._headers: dict[bytes, bytes] = {}
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._response: HttpReply | None = None
        self._events: EventParser | None = None
        self._header_size = 0
        self._stream_timer: asyncio.TimerHandle | None = None

    def send(self, frame: bytes, response: HttpReply) -> None:
        self._response = response
        self._header_size = 0
        self._transport.write(frame)

    def is_just_used(self, now: float) -> bool:
        """Return whether it is surely open: no server closes a connection so soon without saying so."""
        if self.keep_alive is not None or now > self.idle_since + JUST_USED_SECONDS:
            return False
        return self.usable and not self._transport.is_closing()

    def is_stale(self, now: float) -> bool:
        """Return whether data came while it was idle: most likely its end, which the loop has not reported yet. That
        is a system call, spared while it was just used."""
        if not self.usable or self._transport.is_closing():
            return True
        return now > self.idle_since + JUST_USED_SECONDS and bool(self._poll.poll(0))

    def abort(self) -> None:
        """Close it, also during a request; for a modern server that cancels the request."""
        self.usable = False
        self._transport.abort()

    def cancel(self, response: HttpReply) -> None:
        """Close it if this response is still in progress; it may serve another by now."""
        if self._response is response:
            self.abort()

    def limit_stream(self, response: HttpReply) -> None:
        """Give a stream that has brought its answer a limited time to end; the connection is used again after that."""
        if self._response is response and self._stream_timer is None:
            self._stream_timer = self._loop.call_later(STREAM_END_SECONDS, self.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.usable = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._stop_timer()
        response, self._response = self._response, None
        if response is not None:
            # Without a length, the end of the connection is the end of the body.
            has_no_length = response.status and not {b"content-length", b"transfer-encoding"} & response.headers.keys()
            response.complete(None if has_no_length and exc is None else str(exc or "the connection was closed"))
        self._on_closed(self)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:  # data without a request
            self.abort()
            return
        is_first, cached = not response.begun, None
        if is_first:
            cached = self._heads.find(data, response.limit)
            if cached is not None and not cached[2]:
                response.begun, response.status, response.media_type = True, 200, "application/json"
                response.body, response.headers, _ = cached
                self.keep_alive = None
                self._end(response, stays_open=True)
                return
            self._headers = {}
            if cached is not None:
                data, self._headers = _STREAM_HEAD + cached[0], {**cached[1]}
            response.begun, response.body, response.headers = True, bytearray(), self._headers
        try:
            self._parser.feed_data(data)
            if is_first and cached is None and self.usable:
                self._heads.add(data, response)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            self._fail(str(cause) if isinstance(cause, _RejectedResponse) else f"no HTTP: {error}")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_size += len(name) + len(value)
        if self._header_size > HEADER_LIMIT:
            raise _RejectedResponse(f"more than {HEADER_LIMIT} bytes of headers")
        if self._response is not None:
            name, headers = name.lower(), self._headers
            if name in headers and name == _CHALLENGE:  # one header per authentication scheme
                value = headers[name] + b", " + value
            headers[name] = value

    def on_headers_complete(self) -> None:
        response = self._response
        if response is None:
            return
        response.status = self._parser.get_status_code()
        response.media_type = _parse_media_type(response.headers.get(b"content-type", b""))
        encoding = response.headers.get(b"content-encoding")
        if encoding is not None and encoding.lower() not in response.encodings:
            raise _RejectedResponse("compressed in a way that was not requested")
        response.streaming = (
            response.sink is not None and response.status == 200 and response.media_type == "text/event-stream"
        )
        self._events = EventParser(MESSAGE_LIMIT) if response.streaming else None

    def on_body(self, data: bytes) -> None:
        response = self._response
        if response is None:
            return
        if self._events is None:
            response.body += data
            if len(response.body) > response.limit:
                raise _RejectedResponse(f"more than {response.limit} bytes")
            return
        try:
            for event in self._events.feed(data):
                if response.sink is not None and not response.done.done() and response.sink(event):
                    response.complete()
        except EventTooLarge:
            raise _RejectedResponse(f"an event of more than {MESSAGE_LIMIT} bytes") from None

    def on_message_complete(self) -> None:
        response = self._response
        if response is None:
            return
        if 100 <= response.status < 200:
            self._headers.clear()
            return
        header = response.headers.get(b"keep-alive")
        self.keep_alive = None if header is None else _parse_keep_alive(header)
        self._end(response, self._parser.should_keep_alive())

    def _end(self, response: HttpReply, stays_open: bool) -> None:
        """Take the next request, if the connection stays open, and complete the response."""
        self._response = None
        if self._stream_timer is not None:
            self._stop_timer()
        self.idle_since = self._loop.time()
        if stays_open and not self._transport.is_closing():
            self._on_idle(self)
        else:
            self.usable = False
            self._transport.close()
        response.complete()

    def _fail(self, problem: str) -> None:
        response, self._response = self._response, None
        self.abort()
        if response is not None:
            response.complete(problem)

    def _stop_timer(self) -> None:
        if self._stream_timer is not None:
            self._stream_timer.cancel()
            self._stream_timer = None


class _RejectedResponse(Exception):
    """A response that breaks a limit or a rule of ours."""


@lru_cache(maxsize=64)  # servers send one of a few values
def _parse_media_type(content_type: bytes) -> str:
    return content_type.decode("latin-1").partition(";")[0].strip().lower()


def _parse_keep_alive(header: bytes) -> float | None:
    """Return the seconds for which a server keeps an idle connection."""
    for part in header.lower().split(b","):
        name, _, value = part.strip().partition(b"=")
        if name == b"timeout" and value.isdigit():
            return float(value[:6])
    return None
