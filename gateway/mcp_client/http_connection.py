"""One HTTP/1.1 connection, used for one request after another, and the reply under way on it."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import cast

import httptools

from gateway.mcp_client.messages import MESSAGE_LIMIT
from gateway.protocol.sse import Event, EventParser, EventTooLarge

# Bytes of all headers of a reply.
HEADER_LIMIT = 64 * 1024

# How long a stream that has brought its answer may take to end before its connection is given up.
LINGER_SECONDS = 5.0

_CHALLENGE = b"www-authenticate"

# Takes the events of a stream, as they come; true when it needs no more of them.
Sink = Callable[[Event], bool]


class Reply:
    """What a server answers to one request. `kind` is its media type; `done` is set when it is complete or its
    sink needs no more; its value is why it broke off, if so."""

    __slots__ = ("begun", "body", "done", "headers", "kind", "sink", "status", "streaming")

    def __init__(self, done: asyncio.Future[str | None], sink: Sink | None) -> None:
        self.status = 0
        self.kind = ""
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.sink = sink
        self.streaming = False
        self.begun = False
        self.done = done

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    def settle(self, problem: str | None = None) -> None:
        if not self.done.done():
            self.done.set_result(problem)


class Connection(asyncio.Protocol):
    """`resting` is called when it can take another request, `gone` when it never will."""

    def __init__(self, resting: Callable[[Connection], None], gone: Callable[[Connection], None]) -> None:
        self.usable = False
        self.rested_at = 0.0
        self.keep_alive: float | None = None
        self._resting = resting
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._reply: Reply | None = None
        self._events: EventParser | None = None
        self._header_size = 0
        self._lingering: asyncio.TimerHandle | None = None

    def send(self, frame: bytes, reply: Reply) -> None:
        self._reply = reply
        self._header_size = 0
        self._transport.write(frame)

    def stale(self) -> bool:
        """Whether something came while it rested: its end, most likely, which the loop has not told yet."""
        if not self.usable or self._transport.is_closing():
            return True
        return bool(self._look.poll(0))

    def give_up(self) -> None:
        """Close it, whatever is under way; to a modern server that cancels the request."""
        self.usable = False
        self._transport.abort()

    def leave(self, reply: Reply) -> None:
        """Nobody waits for this reply any more. The connection may serve another by now."""
        if self._reply is reply:
            self.give_up()

    def linger(self, reply: Reply) -> None:
        """The reply has brought what was wanted: its connection is used again once it has ended."""
        if self._reply is reply and self._lingering is None:
            self._lingering = self._loop.call_later(LINGER_SECONDS, self.give_up)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._look = select.poll()
        self._look.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.usable = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._stop_lingering()
        reply, self._reply = self._reply, None
        if reply is not None:
            until_the_end = reply.status and not {b"content-length", b"transfer-encoding"} & reply.headers.keys()
            reply.settle(None if until_the_end and exc is None else str(exc or "the connection was closed"))
        self._gone(self)

    def data_received(self, data: bytes) -> None:
        if self._reply is None:  # nobody asked
            self.give_up()
            return
        self._reply.begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            self._fail(str(cause) if isinstance(cause, _Unfit) else f"no HTTP: {error}")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_size += len(name) + len(value)
        if self._header_size > HEADER_LIMIT:
            raise _Unfit(f"more than {HEADER_LIMIT} bytes of headers")
        reply = self._reply
        if reply is not None:
            name = name.lower()
            if name == _CHALLENGE and name in reply.headers:  # each way to prove who one is may have its own
                value = reply.headers[name] + b", " + value
            reply.headers[name] = value

    def on_headers_complete(self) -> None:
        reply = self._reply
        if reply is None:
            return
        reply.status = self._parser.get_status_code()
        reply.kind = reply.header(b"content-type").partition(";")[0].strip().lower()
        if reply.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise _Unfit("compressed, though we asked for plain")
        reply.streaming = reply.sink is not None and reply.status == 200 and reply.kind == "text/event-stream"
        self._events = EventParser(MESSAGE_LIMIT) if reply.streaming else None

    def on_body(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            return
        if self._events is None:
            reply.body += data
            if len(reply.body) > MESSAGE_LIMIT:
                raise _Unfit(f"more than {MESSAGE_LIMIT} bytes")
            return
        try:
            for event in self._events.feed(data):
                if reply.sink is not None and not reply.done.done() and reply.sink(event):
                    reply.settle()
        except EventTooLarge:
            raise _Unfit(f"an event of more than {MESSAGE_LIMIT} bytes") from None

    def on_message_complete(self) -> None:
        reply = self._reply
        if reply is None:
            return
        if 100 <= reply.status < 200:
            reply.headers.clear()
            return
        self._reply = None
        self._stop_lingering()
        self.rested_at = self._loop.time()
        if self._parser.should_keep_alive() and not self._transport.is_closing():
            said = reply.headers.get(b"keep-alive")
            self.keep_alive = None if said is None else _keep_alive(said)
            self._resting(self)
        else:
            self.usable = False
            self._transport.close()
        reply.settle()

    def _fail(self, problem: str) -> None:
        reply, self._reply = self._reply, None
        self.give_up()
        if reply is not None:
            reply.settle(problem)

    def _stop_lingering(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None


class _Unfit(Exception):
    """A reply we do not take."""


def _keep_alive(header: bytes) -> float | None:
    """The seconds for which a server says it keeps a resting connection."""
    for part in header.lower().split(b","):
        name, _, value = part.strip().partition(b"=")
        if name == b"timeout" and value.isdigit():
            return float(value[:6])
    return None
