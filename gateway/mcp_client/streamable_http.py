"""What both kinds of streamable HTTP have in common: a POST per request, answered with JSON or with a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from gateway.calls import RawResult
from gateway.mcp_client.errors import BadAnswer, LinkLost, Unauthorized
from gateway.mcp_client.http_connection import Reply
from gateway.mcp_client.http_headers import header_lines
from gateway.mcp_client.messages import decode
from gateway.mcp_client.pending_request import Exchange
from gateway.mcp_client.sse_events import Event

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
