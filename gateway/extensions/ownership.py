"""Ownership: a chat, and so its files, belongs to the principal that first used it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from gateway.calls import Call
from gateway.errors import Forbidden
from gateway.extensions import Extension

# Make `principal` the owner of `chat` if it has none; answers who owns it.
Claim = Callable[[str, str], Awaitable[str]]

REMEMBERED = 10_000


class Ownership(Extension):
    """Refuses a call into somebody else's chat. Owners never change, so they are remembered."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._owners: OrderedDict[str, str] = OrderedDict()

    async def before_execute(self, call: Call) -> None:
        owner = self._owners.get(call.chat)
        if owner is None:
            owner = self._owners[call.chat] = await self._claim(call.chat, call.caller.principal)
            if len(self._owners) > REMEMBERED:
                self._owners.popitem(last=False)
        if owner != call.caller.principal:
            raise Forbidden(f"chat {call.chat!r} belongs to someone else; use another chat id", code="CHAT_FORBIDDEN")
