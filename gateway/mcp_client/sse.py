"""The wire of the old HTTP+SSE: one stream for all the server says, and a POST for each thing we say."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from gateway.calls import to_json
from gateway.errors import GatewayError, Unavailable
from gateway.mcp_client.errors import BadAnswer, LinkLost
from gateway.mcp_client.http_connection import Reply
from gateway.mcp_client.http_headers import Target
from gateway.mcp_client.http_pool import Pool
from gateway.mcp_client.messages import Message, decode
from gateway.mcp_client.pending_request import Exchange
from gateway.mcp_client.streamable_http import HEARD, POSTED, TELL_SECONDS, check
from gateway.protocol.sse import Event

if TYPE_CHECKING:
    from gateway.mcp_client.client import Link

_log = logging.getLogger(__name__)


class SseWire:
    """As on stdio, nothing says which request a question of the server belongs to."""

    one_each = False

    def __init__(self, link: Link, pool: Pool) -> None:
        self._link = link
        self._pool = pool
        self._target: asyncio.Future[Target] = asyncio.get_running_loop().create_future()
        self._hearing = asyncio.get_running_loop().create_task(self._hear())

    async def ready(self) -> None:
        """Returns when the server has said where to post; refused when it does not."""
        either: list[asyncio.Future[Any]] = [self._target, self._hearing]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._target.done():
            raise self._hearing.result()

    async def carry(self, exchange: Exchange, message: Message) -> None:
        exchange.sent = True
        await self._post(message, exchange.method)

    async def tell(self, message: Message) -> None:
        await self._post(message, message.get("method", "an answer"))

    def say(self, message: Message) -> None:
        self._link.spawn(self._try_to_tell(message))

    async def close(self) -> None:
        self._hearing.cancel()
        self._pool.close()

    async def _post(self, message: Message, method: str) -> None:
        reply = await self._pool.send("POST", POSTED, to_json(message), target=await asyncio.shield(self._target))
        check(self._link, method, reply)
        if not 200 <= reply.status < 300:
            raise BadAnswer(f"{self._link.label} refused {method} with HTTP {reply.status}", status=reply.status)

    async def _try_to_tell(self, message: Message) -> None:
        try:
            async with asyncio.timeout(TELL_SECONDS):
                await self.tell(message)
        except (Unavailable, TimeoutError) as error:
            _log.debug("%s was not told something: %s", self._link.label, error)

    async def _hear(self) -> GatewayError:
        """Until the stream ends: why it did."""
        try:
            reply = await self._pool.send("GET", HEARD, sink=self._take)
            ended = self._ending(reply)
        except GatewayError as error:
            ended = error
        self._link.lose(LinkLost(f"the stream of {self._link.label} ended: {ended.message}"))
        return ended

    def _ending(self, reply: Reply) -> GatewayError:
        try:
            check(self._link, "its stream", reply)
        except Unavailable as error:
            return error
        if not reply.streaming:
            return BadAnswer(f"{self._link.label} answered HTTP {reply.status} and no stream", status=reply.status)
        return LinkLost("the server closed it")

    def _take(self, event: Event) -> bool:
        if event.kind == "endpoint" and not self._target.done():
            target = self._pool.target.joined(event.data.decode(errors="replace").strip())
            if target.origin != self._pool.target.origin:
                _log.warning("%s would have us post to another origin, which we do not", self._link.label)
                return True
            self._target.set_result(target)
        elif event.kind == "message" and event.data:
            for message in decode(event.data):
                self._link.receive(message)
        return False
