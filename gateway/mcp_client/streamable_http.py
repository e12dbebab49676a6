"""The streamable HTTP transport: a POST per request, answered with JSON or with a stream of events."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from gateway import protocol
from gateway.calls import RawResult, to_json
from gateway.errors import GatewayError, Unavailable
from gateway.mcp_client.errors import BadAnswer, LinkLost, Unauthorized, Unreachable
from gateway.mcp_client.http_connection import Reply
from gateway.mcp_client.http_headers import header_lines, routing_headers
from gateway.mcp_client.http_pool import Pool
from gateway.mcp_client.messages import Message, decode
from gateway.mcp_client.pending_request import Exchange
from gateway.protocol import jsonrpc
from gateway.protocol.sse import Event

if TYPE_CHECKING:
    from gateway.mcp_client.client import Link


POSTED = header_lines((("content-type", "application/json"), ("accept", "application/json, text/event-stream")))
HEARD = header_lines((("accept", "text/event-stream"),))

# Requests that do no harm when a server gets them twice. Calls of tools are not among them.
REPEATABLE = frozenset(
    {
        "completion/complete",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/templates/list",
        "server/discover",
        "subscriptions/listen",
        "tools/list",
    }
)


# How long a server may take to accept what needs no answer.
TELL_SECONDS = 30.0


class Hearing:
    """Takes the events of a stream for the request it answers, or for none, and knows where to resume it."""

    def __init__(self, link: Link, exchange: Exchange | None = None) -> None:
        self.last_id: str | None = None
        self.retry: int | None = None
        self._link = link
        self._exchange = exchange

    def __call__(self, event: Event) -> bool:
        if event.id is not None:
            self.last_id = event.id
        if event.retry is not None:
            self.retry = event.retry
        return hear(self._link, self._exchange, event)


def hear(link: Link, exchange: Exchange | None, event: Event) -> bool:
    """Whether the request has its answer, with this event."""
    if event.kind == "message" and event.data:
        for message in decode(event.data):
            link.receive(message, exchange)
    return exchange is not None and exchange.answer.done()


def settle(link: Link, exchange: Exchange, reply: Reply) -> None:
    """Give the request the answer in its reply; refused when there is none."""
    if exchange.answer.done():
        return
    if reply.streaming:
        raise LinkLost(f"{link.label} ended the stream of {exchange.method} without an answer")
    check(link, exchange.method, reply)
    if reply.kind == "application/json":
        delivered = None if exchange.reply_to is None else _delivered(exchange.reply_to, bytes(reply.body))
        if delivered is not None:
            exchange.settle(delivered)
            return
        for message in decode(reply.body):
            link.receive(message, exchange)
    if not exchange.answer.done():
        raise BadAnswer(
            f"{link.label} answered {exchange.method} with HTTP {reply.status} and no JSON-RPC", status=reply.status
        )


def _delivered(reply_to: int | str, body: bytes) -> RawResult | None:
    """A result in a message that can be passed on as it is: nothing but an answer to this id, and JSON to anybody."""
    try:
        message = orjson.loads(body)
    except ValueError:
        return None
    if not isinstance(message, dict) or len(message) != 3 or message.get("jsonrpc") != "2.0":
        return None
    number, result = message.get("id"), message.get("result")
    if type(number) is not type(reply_to) or number != reply_to or not isinstance(result, dict):
        return None
    return RawResult(result, body) if result.get("resultType") == "complete" else None


def check(link: Link, method: str, reply: Reply) -> None:
    if reply.status in (401, 403):
        raise Unauthorized(
            f"{link.label} refused {method} with HTTP {reply.status}: check the credentials in its headers",
            reply.header(b"www-authenticate"),
        )


RESUMPTIONS = 3
FAREWELL_SECONDS = 2.0
_RETRY_SECONDS = 1.0
_RETRY_LIMIT = 30.0
_log = logging.getLogger(__name__)


class SessionWire:
    """The stream a question comes on says whose it is. A server that forgot the session ends the link."""

    one_each = False

    def __init__(self, link: Link, pool: Pool) -> None:
        self._link = link
        self._pool = pool
        self._session: str | None = None
        self._shaken = False

    async def carry(self, exchange: Exchange, message: Message) -> None:
        hearing = Hearing(self._link, exchange)
        exchange.sent = True
        try:
            reply = await self._post(message, hearing, exchange.method in REPEATABLE)
        except LinkLost:
            if hearing.last_id is None:
                raise
            await self._resume(hearing, exchange)
            return
        if exchange.method == "initialize":
            self._session = reply.header(b"mcp-session-id") or None
            self._shaken = True
        self._check_session(reply)
        if reply.streaming and not exchange.answer.done() and hearing.last_id is not None:
            await self._resume(hearing, exchange)
        settle(self._link, exchange, reply)

    async def tell(self, message: Message) -> None:
        reply = await self._post(message)
        check(self._link, message.get("method", "an answer"), reply)
        if message.get("method") == "notifications/initialized" and self._session is not None:
            self._link.spawn(self._hear_unasked())

    def say(self, message: Message) -> None:
        self._link.spawn(self._try_to_tell(message))

    async def close(self) -> None:
        if self._session is not None:
            with suppress(TimeoutError, GatewayError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self._pool.send("DELETE", self._headers())
        self._pool.close()

    async def _post(self, message: Message, hearing: Hearing | None = None, repeatable: bool = False) -> Reply:
        return await self._pool.send(
            "POST", POSTED + self._headers(), to_json(message), sink=hearing, repeatable=repeatable
        )

    def _headers(self, last_id: str | None = None) -> bytes:
        """What every request after the handshake carries."""
        if not self._shaken:
            return b""
        headers = [(protocol.MCP_PROTOCOL_VERSION_HEADER, self._link.era)]
        if self._session is not None:
            headers.append(("mcp-session-id", self._session))
        if last_id is not None:
            headers.append(("last-event-id", last_id))
        return header_lines(headers)

    def _check_session(self, reply: Reply) -> None:
        """404 says that the session is over; some older servers say it with 400 and in words."""
        if self._session is None or reply.status not in (400, 404):
            return
        match reply.status, decode(reply.body):
            case 404, [{"error": {"code": jsonrpc.METHOD_NOT_FOUND}}]:
                return
            case 400, [{"error": {"message": str(text)}}] if "session" in text.lower():
                pass
            case 400, _:
                return
        self._session = None
        lost = LinkLost(f"{self._link.label} has ended our session")
        self._link.lose(lost)
        raise lost.again()

    async def _try_to_tell(self, message: Message) -> None:
        try:
            async with asyncio.timeout(TELL_SECONDS):
                await self.tell(message)
        except (Unavailable, TimeoutError) as error:
            _log.debug("%s was not told something: %s", self._link.label, error)

    async def _resume(self, hearing: Hearing, exchange: Exchange) -> None:
        """A stream that broke off is taken up again where it ended, by servers that can."""
        for _ in range(RESUMPTIONS):
            await asyncio.sleep(_RETRY_SECONDS if hearing.retry is None else min(hearing.retry / 1000, _RETRY_LIMIT))
            with suppress(LinkLost, Unreachable):
                reply = await self._pool.send("GET", HEARD + self._headers(hearing.last_id), sink=hearing)
                if not reply.streaming:
                    break
            if exchange.answer.done():
                return
        raise LinkLost(f"{self._link.label} broke off {exchange.method}, and it could not be resumed")

    async def _hear_unasked(self) -> None:
        hearing = Hearing(self._link)
        failures = 0
        while self._link.lost is None:
            failures += 1
            try:
                reply = await self._pool.send("GET", HEARD + self._headers(hearing.last_id), sink=hearing)
                self._check_session(reply)
                if reply.streaming:
                    failures = 0
                elif reply.status < 500:
                    return  # it offers no such stream
            except Unavailable as error:
                _log.debug("the stream of %s broke off: %s", self._link.label, error)
            wait = _RETRY_SECONDS * 2 ** min(failures, 5) if hearing.retry is None else hearing.retry / 1000
            await asyncio.sleep(min(wait, _RETRY_LIMIT))


# Tools whose routing headers are remembered.
TOOLS = 10_000


class StatelessWire:
    """To close its stream is to cancel a request. A failure is one request's: the next may well succeed."""

    one_each = True

    def __init__(self, link: Link, pool: Pool) -> None:
        self._link = link
        self._pool = pool
        self._called: dict[str, bytes] = {}

    async def carry(self, exchange: Exchange, message: Message) -> None:
        body = to_json(message)
        reply = await self._pool.send(
            "POST",
            POSTED + self._routing(exchange.method, message["params"]),
            body,
            sink=partial(hear, self._link, exchange),
            repeatable=exchange.method in REPEATABLE,
        )
        settle(self._link, exchange, reply)
        if exchange.method == "tools/list":
            match exchange.answer.result():
                case {"tools": list(tools)}:
                    self._link.note_tools(tools)

    async def tell(self, message: Message) -> None:
        """This wire carries nothing but requests; one that was called off has lost its connection already."""

    def say(self, message: Message) -> None:
        pass

    async def close(self) -> None:
        self._pool.close()

    def _routing(self, method: str, params: dict[str, Any]) -> bytes:
        name, link = params.get("name"), self._link
        if method != "tools/call" or name in link.header_maps:
            return header_lines(routing_headers(link.era, method, params, link.header_maps))
        lines = self._called.get(name)  # type: ignore[arg-type]  # whatever it is, it is one of these or it is not
        if lines is None:
            if len(self._called) >= TOOLS:
                self._called.clear()
            lines = self._called[str(name)] = header_lines(routing_headers(link.era, method, params, {}))
        return lines
