"""The old HTTP+SSE transport: one event stream for all messages of the server, and a POST for each of ours."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from gateway.calls import to_json
from gateway.errors import GatewayError, Unavailable
from gateway.mcp_client.http_connection import HttpReply
from gateway.mcp_client.http_headers import HttpTarget
from gateway.mcp_client.http_pool import HttpPool
from gateway.mcp_client.messages import ConnectionLost, InvalidResponse, Message, decode
from gateway.mcp_client.pending_request import PendingRequest
from gateway.mcp_client.streamable_http import GET_HEADERS, POST_HEADERS, HttpTransport, require_authorized
from gateway.protocol.sse import Event

if TYPE_CHECKING:
    from gateway.mcp_client.client import McpClient

_log = logging.getLogger(__name__)


class SseTransport(HttpTransport):
    """As on stdio, a request of the server does not say which request of ours it belongs to."""

    def __init__(self, client: McpClient, pool: HttpPool) -> None:
        super().__init__(client, pool)
        loop = asyncio.get_running_loop()
        self._target: asyncio.Future[HttpTarget] = loop.create_future()
        self._reading = loop.create_task(self._read_stream())

    async def wait_until_ready(self) -> None:
        """Wait until the server has named the URL for POSTs; raise why it did not."""
        either: list[asyncio.Future[Any]] = [self._target, self._reading]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._target.done():
            raise self._reading.result()

    async def send_request(self, pending: PendingRequest, message: Message) -> None:
        pending.sent = True
        await self._post(message, pending.method)

    async def send(self, message: Message) -> None:
        await self._post(message, message.get("method", "an answer"))

    async def close(self) -> None:
        self._reading.cancel()
        self._pool.close()

    async def _post(self, message: Message, method: str) -> None:
        target = await asyncio.shield(self._target)
        response = await self._pool.send("POST", POST_HEADERS, to_json(message), target=target)
        require_authorized(self._client, method, response)
        if not 200 <= response.status < 300:
            reason = f"{self._client.label} refused {method} with HTTP {response.status}"
            raise InvalidResponse(reason, status=response.status)

    async def _read_stream(self) -> GatewayError:
        """Read the stream to its end, and return why it ended."""
        try:
            response = await self._pool.send("GET", GET_HEADERS, sink=self._receive_event)
            error = self._stream_error(response)
        except GatewayError as failure:
            error = failure
        self._client.lose(ConnectionLost(f"the stream of {self._client.label} ended: {error.message}"))
        return error

    def _stream_error(self, response: HttpReply) -> GatewayError:
        try:
            require_authorized(self._client, "its stream", response)
        except Unavailable as error:
            return error
        if not response.streaming:
            reason = f"{self._client.label} answered HTTP {response.status} and no stream"
            return InvalidResponse(reason, status=response.status)
        return ConnectionLost("the server closed it")

    def _receive_event(self, event: Event) -> bool:
        if event.kind == "endpoint" and not self._target.done():
            target = self._pool.target.join(event.data.decode(errors="replace").strip())
            if target.origin != self._pool.target.origin:
                _log.warning("%s names another origin for POSTs, which is refused", self._client.label)
                return True
            self._target.set_result(target)
        elif event.kind == "message" and event.data:
            for message in decode(event.data):
                self._client.receive(message)
        return False
