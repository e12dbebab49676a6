"""A client that is notified of changes, as fast as it reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gateway.errors import Invalid
from gateway.serve.mcp.uris import Address, FileAddress
from gateway.workspace.tree import Changes

# The time a client has to read one notification.
SEND_SECONDS = 5.0

# Files, and lists of files, that one subscriber may follow.
SUBSCRIPTIONS = 1000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """A change that clients are notified of. `uri` names the resource where it is about one."""

    method: str
    uri: str | None = None

    @property
    def notification(self) -> dict[str, Any]:
        params = {} if self.uri is None else {"params": {"uri": self.uri}}
        return {"jsonrpc": "2.0", "method": self.method, **params}


TOOLS_CHANGED = Change("notifications/tools/list_changed")
PROMPTS_CHANGED = Change("notifications/prompts/list_changed")
RESOURCES_CHANGED = Change("notifications/resources/list_changed")
RESOURCE_UPDATED = "notifications/resources/updated"

Send = Callable[[Change], Awaitable[None]]


class Subscriber:
    """A session of a handshake version, or one `subscriptions/listen` stream of a modern one.

    It knows which chats' file lists and which files it follows. A change waits here until the client reads it, once
    each: a client that does not read holds up nobody, and nothing piles up.
    """

    def __init__(self, principal: str, send: Send) -> None:
        self.principal = principal
        self.lists: set[str] = set()
        self.files: dict[str, FileAddress] = {}
        self._upstream: dict[str, Callable[[], None]] = {}
        self._send = send
        self._waiting: dict[Change, None] = {}
        self._sending: asyncio.Task[None] | None = None

    @property
    def chats(self) -> set[str]:
        """Every chat this subscriber follows something in."""
        return {*self.lists, *(address.chat for address in self.files.values())}

    def follow_list(self, chat: str) -> bool:
        """Follow the chat's list of files; False when too many are followed already."""
        if len(self.lists) < SUBSCRIPTIONS:
            self.lists.add(chat)
        return chat in self.lists

    def follow_file(self, uri: str, address: Address) -> FileAddress | None:
        """Follow a file under this very URI; None for an earlier version, which never changes."""
        if not isinstance(address, FileAddress) or address.manifest is not None:
            return None
        if len(self.files) >= SUBSCRIPTIONS and uri not in self.files:
            raise Invalid(f"{SUBSCRIPTIONS} resources are followed already; unsubscribe from one first")
        self.files[uri] = address
        return address

    def follow_upstream(self, uri: str, unfollow: Callable[[], None]) -> None:
        """Keep the function that ends the subscription to an upstream's resource."""
        self.unfollow_upstream(uri)
        self._upstream[uri] = unfollow

    def unfollow_upstream(self, uri: str) -> None:
        if (unfollow := self._upstream.pop(uri, None)) is not None:
            unfollow()

    def changes_in(self, chat: str, what: Changes) -> list[Change]:
        """Return what of a change in a chat concerns this subscriber."""
        return list(self._changes_in(chat, what))

    def notify(self, change: Change) -> None:
        """Send a change as soon as the client reads."""
        self._waiting[change] = None
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_waiting())

    def close(self) -> None:
        for uri in list(self._upstream):
            self.unfollow_upstream(uri)
        if self._sending is not None:
            self._sending.cancel()

    def _changes_in(self, chat: str, what: Changes) -> Iterator[Change]:
        if chat in self.lists and any(not path.endswith("/") for path in (*what.added, *what.deleted)):
            yield RESOURCES_CHANGED
        if self.files:
            touched = {*what.added, *what.changed, *what.deleted}
            for uri, address in self.files.items():
                if address.chat == chat and address.path in touched:
                    yield Change(RESOURCE_UPDATED, uri)

    async def _send_waiting(self) -> None:
        try:
            await asyncio.sleep(0)  # so that changes of this turn of the event loop are sent together
            while self._waiting:
                change = next(iter(self._waiting))
                del self._waiting[change]
                async with asyncio.timeout(SEND_SECONDS):
                    await self._send(change)
        except Exception as error:
            self._waiting.clear()
            log.debug("a client could not be notified of a change: %r", error)
        finally:
            self._sending = None
