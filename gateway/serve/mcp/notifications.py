"""Notifications of changed lists and files: who follows what, and sending them as fast as a client reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import GatewayError, Invalid
from gateway.serve.mcp.resources import Reader, Relay
from gateway.serve.mcp.uris import Address, FileAddress
from gateway.tasks import TaskSet
from gateway.workspace.tree import Changes
from gateway.workspace.tree import Changes as FileChanges
from gateway.workspace.versions import Versions

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


class Notifications:
    """Every subscriber: sessions of the handshake versions are notified of changed lists without asking, and of the
    files they subscribed to; a modern client opens a stream for what it wants."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._subscribers: dict[Subscriber, None] = {}
        self._followers: dict[str, set[Subscriber]] = {}
        self._unwatch: Callable[[], None] | None = None
        self._tasks = TaskSet()

    def add(self, subscriber: Subscriber) -> None:
        self._subscribers[subscriber] = None

    def remove(self, subscriber: Subscriber) -> None:
        del self._subscribers[subscriber]
        subscriber.close()
        self._drop(subscriber, subscriber.chats)

    def follow_list(self, subscriber: Subscriber, chat: str) -> None:
        """Notify the subscriber when files are added to the chat's list or removed from it."""
        if subscriber.follow_list(chat):
            self._index(subscriber, chat)

    def follow_file(self, subscriber: Subscriber, uri: str, address: Address) -> None:
        """Notify the subscriber, under this URI, when the file changes."""
        if (file := subscriber.follow_file(uri, address)) is not None:
            self._index(subscriber, file.chat)

    async def follow_upstream(self, subscriber: Subscriber, uri: str, relay: Relay, reader: Reader) -> None:
        """Notify the subscriber when an upstream reports that its resource changed."""

        def changed() -> None:
            subscriber.notify(Change(RESOURCE_UPDATED, uri))

        subscriber.follow_upstream(uri, await relay.follow(uri, changed, reader.caller, reader.chat))

    async def follow_all(
        self,
        subscriber: Subscriber,
        files: Mapping[str, Address],
        upstream: Iterable[str],
        relay: Relay,
        reader: Reader,
    ) -> list[str]:
        """Follow files and resources of upstreams; return the URIs that could be followed."""
        for uri, address in files.items():
            self.follow_file(subscriber, uri, address)
        followed = list(files)
        for uri in upstream:
            try:
                await self.follow_upstream(subscriber, uri, relay, reader)
                followed.append(uri)
            except GatewayError as refusal:
                log.debug("%r cannot be followed: %s", uri[:200], refusal)
        return followed

    def unfollow(self, subscriber: Subscriber, uri: str) -> None:
        before = subscriber.chats
        subscriber.files.pop(uri, None)
        subscriber.unfollow_upstream(uri)
        self._drop(subscriber, before - subscriber.chats)

    def tools_changed(self) -> None:
        for subscriber in self._subscribers:
            subscriber.notify(TOOLS_CHANGED)

    def upstreams_changed(self) -> None:
        """Prompts and resources of upstreams may have changed."""
        for subscriber in self._subscribers:
            subscriber.notify(PROMPTS_CHANGED)
            subscriber.notify(RESOURCES_CHANGED)

    def _files_changed(self, chat: str, what: FileChanges) -> None:
        followers = self._followers.get(chat)
        if not followers:
            return
        changes = {subscriber: found for subscriber in followers if (found := subscriber.changes_in(chat, what))}
        if changes:
            self._tasks.start(self._notify(chat, changes))

    async def _notify(self, chat: str, changes: Mapping[Subscriber, list[Change]]) -> None:
        """Check again whose chat it is: it may have had no owner when a subscriber began to follow it."""
        allowed = {principal: await self._may_read(chat, principal) for principal in {one.principal for one in changes}}
        for subscriber, found in changes.items():
            for change in found if allowed[subscriber.principal] else ():
                subscriber.notify(change)

    async def _may_read(self, chat: str, principal: str) -> bool:
        try:
            return await self._versions.may_read(chat, principal)
        except GatewayError as refusal:
            log.debug("%r is not notified of changes in chat %r: %s", principal, chat, refusal)
            return False

    def _index(self, subscriber: Subscriber, chat: str) -> None:
        self._followers.setdefault(chat, set()).add(subscriber)
        self._watch_if_followed()

    def _drop(self, subscriber: Subscriber, chats: set[str]) -> None:
        for chat in chats:
            self._followers[chat].discard(subscriber)
            if not self._followers[chat]:
                del self._followers[chat]
        self._watch_if_followed()

    def _watch_if_followed(self) -> None:
        """Watch files only while somebody follows one: calls that change files then need not compare them."""
        if self._followers and self._unwatch is None:
            self._unwatch = self._versions.watch(self._files_changed)
        elif not self._followers and self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
