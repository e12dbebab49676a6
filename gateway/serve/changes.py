"""Changes: telling clients of both protocol eras that a list or a file has changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import event_to_notification

from ..errors import GatewayError
from ..workspace.tree import Changes as FileChanges
from ..workspace.versions import Versions
from .relays import Relay
from .resources import Reader
from .subscriber import Subscriber
from .uris import Address

STREAMS = 1024
"""`subscriptions/listen` requests open at a time."""

Context = ServerRequestContext[Any, Any]
log = logging.getLogger(__name__)


class Changes:
    """Clients of the 2026-07-28 era ask with `subscriptions/listen`, each of which is served by a
    handler of the SDK. The SDK has nothing for the handshake era: there every initialized
    connection is told of changed tools, of changes in lists of files it has asked for, and of the
    files it subscribed to."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._connections: dict[Any, Subscriber] = {}
        self._streams: dict[Subscriber, ListenHandler] = {}
        self._followers: dict[str, set[Subscriber]] = {}
        self._unwatch: Callable[[], None] | None = None
        self._telling: set[asyncio.Task[None]] = set()

    def connection(self, session: ServerSession, principal: str) -> Subscriber:
        """The handshake-era connection a request came over, remembered for as long as it lives."""
        connection = session._connection  # the SDK has no public way to a connection's end
        subscriber = self._connections.get(connection)
        if subscriber is None:

            async def send(event: ServerEvent) -> None:
                await session.send_notification(event_to_notification(event, {}))

            subscriber = self._connections[connection] = Subscriber(principal, send)
            connection.exit_stack.callback(self._disconnected, connection)
        return subscriber

    def level(self, session: ServerSession) -> str | None:
        """The level of log messages the connection asked for, if it is known and has."""
        subscriber = self._connections.get(session._connection)
        return subscriber.level if subscriber is not None else None

    def look_at(self, subscriber: Subscriber, chat: str) -> None:
        """Tell the subscriber when files come to the chat's list or go from it."""
        if subscriber.look_at(chat):
            self._index(subscriber, chat)

    def follow(self, subscriber: Subscriber, uri: str, address: Address) -> None:
        """Tell the subscriber, under this URI, when the file changes."""
        if (file := subscriber.follow(uri, address)) is not None:
            self._index(subscriber, file.chat)

    async def relay(self, subscriber: Subscriber, uri: str, relay: Relay, reader: Reader) -> None:
        """Tell the subscriber when an upstream says that its resource has changed."""
        told = partial(subscriber.tell, ResourceUpdated(uri))
        subscriber.heed(uri, await relay.follow(uri, told, reader.caller, reader.chat))

    async def _relayed(self, subscriber: Subscriber, uri: str, relay: Relay, reader: Reader) -> bool:
        try:
            await self.relay(subscriber, uri, relay, reader)
        except GatewayError as refusal:
            log.debug("%r cannot be followed: %s", uri[:200], refusal)
            return False
        return True

    def unfollow(self, subscriber: Subscriber, uri: str) -> None:
        before = subscriber.chats
        subscriber.files.pop(uri, None)
        subscriber.drop(uri)
        self._drop(subscriber, before - subscriber.chats)

    async def listen(
        self,
        context: Context,
        wanted: types.SubscriptionFilter,
        reader: Reader,
        files: Mapping[str, Address],
        relay: Relay,
    ) -> types.SubscriptionsListenResult:
        """Serve one stream until it ends. What of `wanted` is not among `files` is an upstream's; what that does not
        let us follow is left out of what is acknowledged."""
        if len(self._streams) >= STREAMS:
            raise MCPError(types.INTERNAL_ERROR, f"{STREAMS} streams are open already; try again later")
        bus = InMemorySubscriptionBus()
        subscriber = Subscriber(reader.principal, bus.publish)
        stream = self._streams[subscriber] = ListenHandler(bus)
        try:
            if wanted.resources_list_changed:
                self.look_at(subscriber, reader.chat)
            for uri, address in files.items():
                self.follow(subscriber, uri, address)
            followed = list(files)
            for uri in wanted.resource_subscriptions or ():
                if uri not in files and await self._relayed(subscriber, uri, relay, reader):
                    followed.append(uri)
            honored = wanted.model_copy(update={"resource_subscriptions": followed})
            return await stream(context, types.SubscriptionsListenRequestParams(notifications=honored))
        finally:
            del self._streams[subscriber]
            self._forget(subscriber)

    def tools_changed(self) -> None:
        for subscriber in (*self._connections.values(), *self._streams):
            subscriber.tell(ToolsListChanged())

    def others_changed(self) -> None:
        """What upstreams have besides tools may be another now."""
        for subscriber in (*self._connections.values(), *self._streams):
            subscriber.tell(PromptsListChanged())
            subscriber.tell(ResourcesListChanged())

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()

    def _files_changed(self, chat: str, what: FileChanges) -> None:
        followers = self._followers.get(chat)
        if not followers:
            return
        news = {subscriber: told for subscriber in followers if (told := subscriber.news(chat, what))}
        if news:
            task = asyncio.get_running_loop().create_task(self._tell(chat, news))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, chat: str, news: Mapping[Subscriber, list[ServerEvent]]) -> None:
        """Ask again whose chat it is: it may have been nobody's when a subscriber came."""
        allowed = {principal: await self._allows(chat, principal) for principal in {one.principal for one in news}}
        for subscriber, events in news.items():
            for event in events if allowed[subscriber.principal] else ():
                subscriber.tell(event)

    async def _allows(self, chat: str, principal: str) -> bool:
        try:
            return await self._versions.may_read(chat, principal)
        except GatewayError as refusal:
            log.debug("%r is told nothing of chat %r: %s", principal, chat, refusal)
            return False

    def _disconnected(self, connection: Any) -> None:
        self._forget(self._connections.pop(connection))

    def _forget(self, subscriber: Subscriber) -> None:
        subscriber.leave()
        self._drop(subscriber, subscriber.chats)

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
        """While nobody follows anything, calls that change files need not find out what they changed."""
        if self._followers and self._unwatch is None:
            self._unwatch = self._versions.watch(self._files_changed)
        elif not self._followers and self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
