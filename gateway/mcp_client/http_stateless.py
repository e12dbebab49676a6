"""The wire of modern HTTP: nothing connects one request with another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.calls import to_json
from gateway.mcp_client import routing_headers
from gateway.mcp_client.http_headers import header_lines
from gateway.mcp_client.http_pool import Pool
from gateway.mcp_client.messages import Message
from gateway.mcp_client.pending_request import Exchange
from gateway.mcp_client.streamable_http import POSTED, REPEATABLE, hear, settle

if TYPE_CHECKING:
    from gateway.mcp_client.client import Link


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
            return header_lines(routing_headers.routing_headers(link.era, method, params, link.header_maps))
        lines = self._called.get(name)  # type: ignore[arg-type]  # whatever it is, it is one of these or it is not
        if lines is None:
            if len(self._called) >= TOOLS:
                self._called.clear()
            lines = self._called[str(name)] = header_lines(
                routing_headers.routing_headers(link.era, method, params, {})
            )
        return lines
