"""The streamable HTTP transport: a POST per request, answered with JSON or with a stream of events.

`SessionTransport` is for the handshake versions, `StatelessTransport` for the modern one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from gateway import protocol
from gateway.calls import RawResult, to_json
from gateway.errors import GatewayError, Unavailable
from gateway.mcp_client.http_connection import HttpReply
from gateway.mcp_client.http_headers import header_lines, routing_headers
from gateway.mcp_client.http_pool import HttpPool
from gateway.mcp_client.messages import ConnectionLost, InvalidResponse, Message, Unauthorized, Unreachable, decode
from gateway.mcp_client.pending_request import PendingRequest
from gateway.protocol import jsonrpc
from gateway.protocol.sse import Event

if TYPE_CHECKING:
    from gateway.mcp_client.client import McpClient

POST_HEADERS = header_lines((("content-type", "application/json"), ("accept", "application/json, text/event-stream")))
GET_HEADERS = header_lines((("accept", "text/event-stream"),))

# Requests without side effects, which may be sent twice. Calls of tools are not among them.
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

# The time a server has to accept a notification or an answer.
SEND_SECONDS = 30.0

# Attempts in a row to resume a stream.
RESUMPTIONS = 3
DELETE_SECONDS = 2.0
_RETRY_SECONDS = 1.0
_RETRY_FLOOR, _RETRY_LIMIT = 0.05, 30.0

# Tools whose routing headers are cached.
CACHED_TOOLS = 10_000

_log = logging.getLogger(__name__)


class HttpTransport:
    """Common part of the HTTP transports on which messages of several requests share one connection."""

    isolates_requests = False
    needs_pings = True

    def __init__(self, client: McpClient, pool: HttpPool) -> None:
        self._client = client
        self._pool = pool

    async def send(self, message: Message) -> None:
        raise NotImplementedError

    def send_nowait(self, message: Message) -> None:
        self._client.spawn(self._try_to_send(message))

    async def _try_to_send(self, message: Message) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self.send(message)
        except (Unavailable, TimeoutError) as error:
            _log.debug("a message to %s was not sent: %s", self._client.label, error)


class SessionTransport(HttpTransport):
    """The handshake versions. A request of the server belongs to the request of ours on whose stream it comes. A
    server that has forgotten the session ends the connection."""

    def __init__(self, client: McpClient, pool: HttpPool) -> None:
        super().__init__(client, pool)
        self._session: str | None = None
        self._initialized = False
        self._lines = b""
        self._lines_for: tuple[str, str | None] | None = None  # version and session

    async def send_request(self, pending: PendingRequest, message: Message) -> None:
        sink = _EventSink(self._client, pending)
        pending.sent = True
        try:
            response = await self._post(message, sink, pending.method in REPEATABLE)
        except ConnectionLost:
            if sink.last_id is None:
                raise
            await self._resume(sink, pending)
            return
        if pending.method == "initialize":
            self._session = response.header(b"mcp-session-id") or None
            self._initialized = True
        self._check_session(response)
        if response.streaming and not pending.response.done() and sink.last_id is not None:
            await self._resume(sink, pending)
        _complete(self._client, pending, response)

    async def send(self, message: Message) -> None:
        response = await self._post(message)
        require_authorized(self._client, message.get("method", "an answer"), response)
        if message.get("method") == "notifications/initialized" and self._session is not None:
            self._client.spawn(self._read_notifications())

    async def close(self) -> None:
        if self._session is not None:
            with suppress(TimeoutError, GatewayError):
                async with asyncio.timeout(DELETE_SECONDS):
                    await self._pool.send("DELETE", self._headers())
        self._pool.close()

    def _post(self, message: Message, sink: _EventSink | None = None, repeatable: bool = False) -> Awaitable[HttpReply]:
        headers = POST_HEADERS + self._headers()
        return self._pool.send("POST", headers, to_json(message), sink=sink, repeatable=repeatable)

    def _headers(self, last_id: str | None = None) -> bytes:
        """Return the headers of every request after the handshake."""
        if not self._initialized:
            return b""
        key = self._client.protocol_version, self._session
        if self._lines_for != key:
            named = [] if self._session is None else [("mcp-session-id", self._session)]
            self._lines_for, self._lines = key, header_lines([(protocol.MCP_PROTOCOL_VERSION_HEADER, key[0]), *named])
        return self._lines if last_id is None else self._lines + header_lines([("last-event-id", last_id)])

    def _check_session(self, response: HttpReply) -> None:
        """Raise when the server has ended the session: by 404, or by 400 and a message in some older servers."""
        if self._session is None or response.status not in (400, 404):
            return
        match response.status, decode(response.body):
            case 404, [{"error": {"code": jsonrpc.METHOD_NOT_FOUND}}]:
                return
            case 400, [{"error": {"message": str(text)}}] if "session" in text.lower():
                pass
            case 400, _:
                return
        self._session = None
        lost = ConnectionLost(f"{self._client.label} has ended our session")
        self._client.lose(lost)
        raise lost.copy()

    async def _resume(self, sink: _EventSink, pending: PendingRequest) -> None:
        """Resume a stream that broke off after its last event, with servers that support it. Some end it again and
        again during a long call."""
        failures = 0
        while failures < RESUMPTIONS:
            failures += 1
            wait = _RETRY_SECONDS if sink.retry is None else sink.retry / 1000
            await asyncio.sleep(min(max(wait, _RETRY_FLOOR), _RETRY_LIMIT))
            with suppress(ConnectionLost, Unreachable):
                response = await self._pool.send("GET", GET_HEADERS + self._headers(sink.last_id), sink=sink)
                if not response.streaming:
                    break
                failures = 0
            if pending.response.done():
                return
        raise ConnectionLost(f"{self._client.label} broke off {pending.method}, and it could not be resumed")

    async def _read_notifications(self) -> None:
        """Read the stream for messages that belong to no request, and open it again when it breaks off."""
        sink = _EventSink(self._client)
        failures = 0
        while self._client.lost is None:
            failures += 1
            try:
                response = await self._pool.send("GET", GET_HEADERS + self._headers(sink.last_id), sink=sink)
                self._check_session(response)
                if response.streaming:
                    failures = 0
                elif response.status < 500:
                    return  # the server offers no such stream
            except Unavailable as error:
                _log.debug("the stream of %s broke off: %s", self._client.label, error)
            wait = _RETRY_SECONDS * 2 ** min(failures, 5) if sink.retry is None else sink.retry / 1000
            await asyncio.sleep(min(wait, _RETRY_LIMIT))


class StatelessTransport:
    """The modern version. Closing its stream cancels a request. A failure concerns one request only."""

    isolates_requests = True
    needs_pings = False  # this version has none

    def __init__(self, client: McpClient, pool: HttpPool) -> None:
        self._client = client
        self._pool = pool
        self._cached_headers: dict[str, bytes] = {}

    async def send_request(self, pending: PendingRequest, message: Message) -> None:
        body = to_json(message)
        response = await self._pool.send(
            "POST",
            POST_HEADERS + self._routing_headers(pending.method, message["params"]),
            body,
            sink=partial(_receive_event, self._client, pending),
            repeatable=pending.method in REPEATABLE,
        )
        _complete(self._client, pending, response)
        if pending.method == "tools/list":
            match pending.response.result():
                case {"tools": list(tools)}:
                    self._client.record_headers(tools)

    async def send(self, message: Message) -> None:
        """Do nothing: only requests are sent, and closing its connection has cancelled a request already."""

    def send_nowait(self, message: Message) -> None:
        pass

    async def close(self) -> None:
        self._pool.close()

    def _routing_headers(self, method: str, params: dict[str, Any]) -> bytes:
        name, client = params.get("name"), self._client
        if method != "tools/call" or name in client.header_maps:
            return header_lines(routing_headers(client.protocol_version, method, params, client.header_maps))
        lines = self._cached_headers.get(name)  # type: ignore[arg-type]  # any other type is not found
        if lines is None:
            if len(self._cached_headers) >= CACHED_TOOLS:
                self._cached_headers.clear()
            lines = header_lines(routing_headers(client.protocol_version, method, params, {}))
            self._cached_headers[str(name)] = lines
        return lines


class _EventSink:
    """Receives the events of a stream, for one request or for none; `last_id` is where to resume it."""

    def __init__(self, client: McpClient, pending: PendingRequest | None = None) -> None:
        self.last_id: str | None = None
        self.retry: int | None = None
        self._client = client
        self._pending = pending

    def __call__(self, event: Event) -> bool:
        if event.id is not None:
            self.last_id = event.id
        if event.retry is not None:
            self.retry = event.retry
        return _receive_event(self._client, self._pending, event)


def _receive_event(client: McpClient, pending: PendingRequest | None, event: Event) -> bool:
    """Return whether the request has its response now."""
    if event.kind == "message" and event.data:
        for message in decode(event.data):
            client.receive(message, pending)
    return pending is not None and pending.response.done()


def _complete(client: McpClient, pending: PendingRequest, response: HttpReply) -> None:
    """Complete a request with what its HTTP response holds; raise when that is no answer."""
    if pending.response.done():
        return
    if response.streaming:
        raise ConnectionLost(f"{client.label} ended the stream of {pending.method} without an answer")
    require_authorized(client, pending.method, response)
    if response.media_type == "application/json":
        raw = None if pending.reply_to is None else _raw_result(pending.reply_to, bytes(response.body))
        if raw is not None:
            pending.complete(raw)
            return
        for message in decode(response.body):
            client.receive(message, pending)
    if not pending.response.done():
        reason = f"{client.label} answered {pending.method} with HTTP {response.status} and no JSON-RPC"
        raise InvalidResponse(reason, status=response.status)


def _raw_result(reply_to: int | str, body: bytes) -> RawResult | None:
    """Return the result in a message that can be forwarded unchanged: strict JSON, and nothing but a complete result
    for this id."""
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


def require_authorized(client: McpClient, method: str, response: HttpReply) -> None:
    if response.status in (401, 403):
        raise Unauthorized(
            f"{client.label} refused {method} with HTTP {response.status}: check the credentials in its headers",
            response.header(b"www-authenticate"),
        )
