"""Whose question is it? Where nothing on the wire says, only what cannot be mistaken is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.mcp_client.errors import McpFault
from gateway.mcp_client.pending_request import Exchange
from gateway.protocol import jsonrpc

# So long a request that was called off may still ask, unless the server shows sooner that it knows.
ABANDONED_SECONDS = 5.0

# What a server works on while it asks; whoever sends something else with an asker counts as well.
_ASKING = ("tools/call", "prompts/get", "resources/read", "completion/complete")


class Attribution:
    """Which of the requests under way a message without an origin belongs to."""

    def __init__(self, under_way: Mapping[int, Exchange], clock: Callable[[], float]) -> None:
        self._under_way = under_way
        self._clock = clock
        self._abandoned: dict[int, float] = {}

    def abandoned(self, exchange: Exchange) -> None:
        """Nobody waits for it any more, but the server may not know yet."""
        self._forget()
        self._abandoned[exchange.number] = self._clock() + ABANDONED_SECONDS

    def settled(self, number: int) -> None:
        """The server has answered it after all, or has read that it need not."""
        self._abandoned.pop(number, None)

    def may_ask(self) -> bool:
        """Whether any request is under way for whose sake a server would ask."""
        return any(_may_ask(exchange) for exchange in self._under_way.values())

    def whose(self, method: str, origin: Exchange | None) -> Exchange:
        """The request a question belongs to, which has an asker; `McpFault` when that is not certain."""
        if origin is not None and _may_ask(origin):
            return _asked(method, origin)
        candidates = [exchange for exchange in self._under_way.values() if _may_ask(exchange)]
        if not candidates:
            raise McpFault(jsonrpc.INVALID_REQUEST, f"{method} is answered only while a call runs, and none does")
        self._forget()
        if len(candidates) > 1 or self._abandoned:
            raise McpFault(
                jsonrpc.INVALID_REQUEST,
                f"{method} cannot be answered: several calls run on this connection, and nothing says which one asks",
            )
        return _asked(method, candidates[0])

    def logger(self) -> Exchange | None:
        """The request a log message belongs to: the only one there is."""
        self._forget()
        calls = [exchange for exchange in self._under_way.values() if exchange.acknowledged is None]
        return calls[0] if len(calls) == 1 and not self._abandoned else None

    def _forget(self) -> None:
        now = self._clock()
        for number in [number for number, until in self._abandoned.items() if until <= now]:
            del self._abandoned[number]


def _may_ask(exchange: Exchange) -> bool:
    return exchange.ask is not None or exchange.method in _ASKING


def _asked(method: str, exchange: Exchange) -> Exchange:
    if exchange.ask is None:
        raise McpFault(jsonrpc.METHOD_NOT_FOUND, f"nobody answers {method} for this call")
    return exchange
