"""What a link needs of the way its messages travel; one module each for those there are."""

from __future__ import annotations

from typing import Protocol

from gateway.mcp_client.messages import Message
from gateway.mcp_client.pending_request import Exchange


class Wire(Protocol):
    """How messages travel. What it hears it gives to `Link.receive`, and its end to `Link.lose`.
    `one_each` says that each request travels apart, so that any id will do for it."""

    one_each: bool

    async def carry(self, exchange: Exchange, message: Message) -> None:
        """Send a request. Returns when it is sent, or when it is answered, whichever the wire can tell."""
        ...

    async def tell(self, message: Message) -> None:
        """Send a notification or an answer of ours; returns when what is sent next comes after it."""
        ...

    def say(self, message: Message) -> None:
        """The same, when it can be; nobody waits for it."""
        ...

    async def close(self) -> None:
        """Let go of everything, in bounded time."""
        ...
