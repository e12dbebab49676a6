"""Subscriber: one who is told what changed, at the pace at which it reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from mcp.server.subscriptions import ResourcesListChanged, ResourceUpdated, ServerEvent

from ..errors import Invalid
from ..workspace.tree import Changes
from .uris import Address, FileAddress

PATIENCE = 5.0
"""Seconds a client may take to read one notification."""

SUBSCRIPTIONS = 1000
"""Files, and lists of files, that one subscriber may follow."""

log = logging.getLogger(__name__)

Send = Callable[[ServerEvent], Awaitable[None]]


class Subscriber:
    """A connection of the handshake era, or one `subscriptions/listen` of the 2026-07-28 era.

    It knows which chats' lists of files it looks at and which files it follows, and in the handshake era
    the least `level` of log messages it wants. News waits here
    until it is read, once each: a client that does not read keeps nobody from hearing, and nothing
    piles up.
    """

    def __init__(self, principal: str, send: Send) -> None:
        self.principal = principal
        self.level: str | None = None
        self.lists: set[str] = set()
        self.files: dict[str, FileAddress] = {}
        self._relayed: dict[str, Callable[[], None]] = {}
        self._send = send
        self._waiting: dict[ServerEvent, None] = {}
        self._sending: asyncio.Task[None] | None = None

    @property
    def chats(self) -> set[str]:
        """Every chat of which there may be news."""
        return {*self.lists, *(address.chat for address in self.files.values())}

    def look_at(self, chat: str) -> bool:
        """Follow the chat's list of files; False when it follows too many already."""
        if len(self.lists) < SUBSCRIPTIONS:
            self.lists.add(chat)
        return chat in self.lists

    def follow(self, uri: str, address: Address) -> FileAddress | None:
        """Be told under this very URI when the file changes; None for a version, of which there is never news."""
        if not isinstance(address, FileAddress) or address.manifest is not None:
            return None
        if len(self.files) >= SUBSCRIPTIONS and uri not in self.files:
            raise Invalid(f"{SUBSCRIPTIONS} resources are followed already; give one up first")
        self.files[uri] = address
        return address

    def heed(self, uri: str, unfollow: Callable[[], None]) -> None:
        """Keep the way to give up a resource of an upstream, which this subscriber follows now."""
        self.drop(uri)
        self._relayed[uri] = unfollow

    def drop(self, uri: str) -> None:
        """Give up a resource of an upstream, if it is followed."""
        if (unfollow := self._relayed.pop(uri, None)) is not None:
            unfollow()

    def news(self, chat: str, what: Changes) -> list[ServerEvent]:
        """What of a change in a chat concerns this subscriber."""
        return list(self._news(chat, what))

    def tell(self, event: ServerEvent) -> None:
        self._waiting[event] = None
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_waiting())

    def leave(self) -> None:
        for uri in list(self._relayed):
            self.drop(uri)
        if self._sending is not None:
            self._sending.cancel()

    def _news(self, chat: str, what: Changes) -> Iterator[ServerEvent]:
        if chat in self.lists and any(not path.endswith("/") for path in (*what.added, *what.deleted)):
            yield ResourcesListChanged()
        if self.files:
            touched = {*what.added, *what.changed, *what.deleted}
            for uri, address in self.files.items():
                if address.chat == chat and address.path in touched:
                    yield ResourceUpdated(uri)

    async def _send_waiting(self) -> None:
        try:
            await asyncio.sleep(0)  # let the changes of this turn of the loop gather
            while self._waiting:
                event = next(iter(self._waiting))
                del self._waiting[event]
                async with asyncio.timeout(PATIENCE):
                    await self._send(event)
        except Exception as error:
            self._waiting.clear()
            log.debug("a client could not be told of a change: %r", error)
        finally:
            self._sending = None
