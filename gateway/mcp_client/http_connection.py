"""One HTTP/1.1 connection, used for one request after another, and the response in progress on it."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
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

_CHALLENGE = b"www-authenticate"

# Receives the events of a stream; true when it needs no more of them.
Sink = Callable[[Event], bool]


class HttpReply:
    """A response to one request. `done` is set when it is complete or its sink needs no more; its value is why the
    response broke off, if it did."""

    __slots__ = ("begun", "body", "done", "headers", "media_type", "sink", "status", "streaming")

    # Bytes of the body, and the content encodings that were requested.
    limit = MESSAGE_LIMIT
    encodings: ClassVar[frozenset[bytes]] = frozenset({b"identity"})

    def __init__(self, done: asyncio.Future[str | None], sink: Sink | None) -> None:
        self.status = 0
        self.media_type = ""
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.sink = sink
        self.streaming = False
        self.begun = False
        self.done = done

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    def complete(self, problem: str | None = None) -> None:
        if not self.done.done():
            self.done.set_result(problem)


class HttpConnection(asyncio.Protocol):
    """`on_idle` is called when it can take another request, `on_closed` when it never will."""

    def __init__(self, on_idle: Callable[[HttpConnection], None], on_closed: Callable[[HttpConnection], None]) -> None:
        self.usable = False
        self.idle_since = 0.0
        self.keep_alive: float | None = None
        self._on_idle = on_idle
        self._on_closed = on_closed
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

    def is_stale(self, now: float) -> bool:
        """Return whether data came while it was idle: most likely its end, which the loop has not reported yet. That
        is a system call, spared while it was just used: no server closes a connection so soon without saying so."""
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
        if self._response is None:  # data without a request
            self.abort()
            return
        self._response.begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            self._fail(str(cause) if isinstance(cause, _RejectedResponse) else f"no HTTP: {error}")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_size += len(name) + len(value)
        if self._header_size > HEADER_LIMIT:
            raise _RejectedResponse(f"more than {HEADER_LIMIT} bytes of headers")
        response = self._response
        if response is not None:
            name = name.lower()
            if name == _CHALLENGE and name in response.headers:  # one header per authentication scheme
                value = response.headers[name] + b", " + value
            response.headers[name] = value

    def on_headers_complete(self) -> None:
        response = self._response
        if response is None:
            return
        response.status = self._parser.get_status_code()
        response.media_type = response.header(b"content-type").partition(";")[0].strip().lower()
        if response.headers.get(b"content-encoding", b"identity").lower() not in response.encodings:
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
            response.headers.clear()
            return
        self._response = None
        self._stop_timer()
        self.idle_since = self._loop.time()
        if self._parser.should_keep_alive() and not self._transport.is_closing():
            header = response.headers.get(b"keep-alive")
            self.keep_alive = None if header is None else _parse_keep_alive(header)
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


def _parse_keep_alive(header: bytes) -> float | None:
    """Return the seconds for which a server keeps an idle connection."""
    for part in header.lower().split(b","):
        name, _, value = part.strip().partition(b"=")
        if name == b"timeout" and value.isdigit():
            return float(value[:6])
    return None
