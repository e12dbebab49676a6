"""Notifications of changed lists and resources: subscribers, what they subscribed to, and sending at their pace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from gateway.errors import GatewayError, Invalid
from gateway.serve.mcp.render_resources import ResourceReader
from gateway.serve.mcp.resources import Relay
from gateway.serve.mcp.uris import Address, FileAddress
from gateway.tasks import TaskSet
from gateway.value import Value
from gateway.workspace.tree import Changes as FileChanges
from gateway.workspace.versions import Versions

# The time a client has to read one notification, in seconds.
SEND_SECONDS = 5.0

# The time between a change and its notification, in seconds. Changes of a burst are sent once, and a client that closes
# after its last answer is sent nothing more: the Python SDK 1 fails if it is.
SETTLE_SECONDS = 0.1

# Maximum number of files, and of lists of files, per subscriber.
SUBSCRIPTIONS = 1000

log = logging.getLogger(__name__)


class Change(Value):
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
_LIST_CHANGES = {"tools": TOOLS_CHANGED, "prompts": PROMPTS_CHANGED, "resources": RESOURCES_CHANGED}
RESOURCE_UPDATED = "notifications/resources/updated"

Send = Callable[[Change], Awaitable[None]]


class Subscriber:
    """A session of a handshake version, or one `subscriptions/listen` stream of a modern one.

    A change waits here until the client reads, and equal changes wait once: a client that does not read delays nobody
    and takes no more memory.
    """

    def __init__(self, principal: str, send: Send) -> None:
        self.principal = principal
        self.lists: set[str] = set()
        self.files: dict[str, FileAddress] = {}
        self._upstream: dict[str, Callable[[], None]] = {}
        self._send = send
        self._waiting: dict[Change, None] = {}
        self._sending: asyncio.Task[None] | None = None
        self._muted = False

    @property
    def chats(self) -> set[str]:
        """Every chat of the lists and files this subscriber subscribed to."""
        return {*self.lists, *(address.chat for address in self.files.values())}

    def subscribe_list(self, chat: str) -> bool:
        """Subscribe to the chat's list of files; return False at the limit."""
        if len(self.lists) < SUBSCRIPTIONS:
            self.lists.add(chat)
        return chat in self.lists

    def subscribe_file(self, uri: str, address: Address) -> FileAddress | None:
        """Subscribe to a file under this URI; return None for an earlier version, which never changes."""
        if not isinstance(address, FileAddress) or address.manifest is not None:
            return None
        if len(self.files) >= SUBSCRIPTIONS and uri not in self.files:
            raise Invalid(f"{SUBSCRIPTIONS} resources are subscribed to already; unsubscribe from one first")
        self.files[uri] = address
        return address

    def subscribe_upstream(self, uri: str, unsubscribe: Callable[[], None]) -> None:
        """Keep the function that ends the subscription to an upstream's resource."""
        self.unsubscribe_upstream(uri)
        self._upstream[uri] = unsubscribe

    def unsubscribe_upstream(self, uri: str) -> None:
        if (unsubscribe := self._upstream.pop(uri, None)) is not None:
            unsubscribe()

    def changes_in(self, chat: str, files: FileChanges) -> list[Change]:
        """Return the notifications that changed files of a chat mean for this subscriber."""
        return list(self._changes_in(chat, files))

    def notify(self, change: Change) -> None:
        """Send a change as soon as the client reads."""
        self._waiting[change] = None
        if self._sending is None and not self._muted:
            self._sending = asyncio.get_running_loop().create_task(self._send_changes())

    def mute(self) -> None:
        """Send nothing any more."""
        self._muted = True
        if self._sending is not None:
            self._sending.cancel()

    def close(self) -> None:
        for uri in list(self._upstream):
            self.unsubscribe_upstream(uri)
        self.mute()

    def _changes_in(self, chat: str, files: FileChanges) -> Iterator[Change]:
        if chat in self.lists and any(not path.endswith("/") for path in (*files.added, *files.deleted)):
            yield RESOURCES_CHANGED
        if self.files:
            touched = {*files.added, *files.changed, *files.deleted}
            for uri, address in self.files.items():
                if address.chat == chat and address.path in touched:
                    yield Change(RESOURCE_UPDATED, uri)

    async def _send_changes(self) -> None:
        try:
            await asyncio.sleep(SETTLE_SECONDS)
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
    """All subscribers. Sessions of the handshake versions are notified of changed lists without a subscription, and of
    resources they subscribed to; a modern client opens a stream for what it wants."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._subscribers: dict[Subscriber, None] = {}
        self._by_chat: dict[str, set[Subscriber]] = {}
        self._unwatch: Callable[[], None] | None = None
        self._tasks = TaskSet()

    def add(self, subscriber: Subscriber) -> None:
        self._subscribers[subscriber] = None

    def remove(self, subscriber: Subscriber) -> None:
        del self._subscribers[subscriber]
        subscriber.close()
        self._drop(subscriber, subscriber.chats)

    def mute(self) -> None:
        """Notify nobody any more, where all clients are closing: some fail if they are sent anything then."""
        for subscriber in self._subscribers:
            subscriber.mute()

    def subscribe_list(self, subscriber: Subscriber, chat: str) -> None:
        """Notify the subscriber when files are added to the chat's list or removed from it."""
        if subscriber.subscribe_list(chat):
            self._index(subscriber, chat)

    def subscribe_file(self, subscriber: Subscriber, uri: str, address: Address) -> None:
        """Notify the subscriber, under this URI, when the file changes."""
        if (file := subscriber.subscribe_file(uri, address)) is not None:
            self._index(subscriber, file.chat)

    async def subscribe_upstream(self, subscriber: Subscriber, uri: str, relay: Relay, reader: ResourceReader) -> None:
        """Notify the subscriber when an upstream reports that its resource changed."""

        def notify() -> None:
            subscriber.notify(Change(RESOURCE_UPDATED, uri))

        subscriber.subscribe_upstream(uri, await relay.follow(uri, notify, reader.caller, reader.chat))

    async def subscribe_all(
        self,
        subscriber: Subscriber,
        files: Mapping[str, Address],
        upstream: Iterable[str],
        relay: Relay,
        reader: ResourceReader,
    ) -> list[str]:
        """Subscribe to files and resources of upstreams; return the URIs for which that succeeded."""
        for uri, address in files.items():
            self.subscribe_file(subscriber, uri, address)
        subscribed = list(files)
        for uri in upstream:
            try:
                await self.subscribe_upstream(subscriber, uri, relay, reader)
                subscribed.append(uri)
            except GatewayError as refusal:
                log.debug("cannot subscribe to %r: %s", uri[:200], refusal)
        return subscribed

    def unsubscribe(self, subscriber: Subscriber, uri: str) -> None:
        before = subscriber.chats
        subscriber.files.pop(uri, None)
        subscriber.unsubscribe_upstream(uri)
        self._drop(subscriber, before - subscriber.chats)

    def notify_lists(self, lists: Collection[str]) -> None:
        """Notify all clients that these lists may have changed."""
        changes = [change for what, change in _LIST_CHANGES.items() if what in lists]
        for subscriber in self._subscribers:
            for change in changes:
                subscriber.notify(change)

    def _notify_files(self, chat: str, files: FileChanges) -> None:
        subscribers = self._by_chat.get(chat)
        if not subscribers:
            return
        changes = {subscriber: found for subscriber in subscribers if (found := subscriber.changes_in(chat, files))}
        if changes:
            self._tasks.start(self._notify(chat, changes))

    async def _notify(self, chat: str, changes: Mapping[Subscriber, list[Change]]) -> None:
        """Send changes of a chat to its owner: it may have had no owner when others subscribed."""
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
        self._by_chat.setdefault(chat, set()).add(subscriber)
        self._watch_if_needed()

    def _drop(self, subscriber: Subscriber, chats: set[str]) -> None:
        for chat in chats:
            self._by_chat[chat].discard(subscriber)
            if not self._by_chat[chat]:
                del self._by_chat[chat]
        self._watch_if_needed()

    def _watch_if_needed(self) -> None:
        """Watch files only while there is a subscription: otherwise calls need not compare the files they change."""
        if self._by_chat and self._unwatch is None:
            self._unwatch = self._versions.watch(self._notify_files)
        elif not self._by_chat and self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
