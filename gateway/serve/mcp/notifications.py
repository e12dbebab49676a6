"""Notifying clients of changed lists and files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from gateway.errors import GatewayError
from gateway.serve.mcp.relay import Relay
from gateway.serve.mcp.resources import Reader
from gateway.serve.mcp.subscriber import (
    PROMPTS_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_CHANGED,
    TOOLS_CHANGED,
    Change,
    Subscriber,
)
from gateway.serve.mcp.uris import Address
from gateway.workspace.tree import Changes as FileChanges
from gateway.workspace.versions import Versions

log = logging.getLogger(__name__)


class Notifications:
    """Every subscriber: sessions of the handshake versions are notified of changed lists without asking, and of the
    files they subscribed to; a modern client opens a stream for what it wants."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._subscribers: dict[Subscriber, None] = {}
        self._followers: dict[str, set[Subscriber]] = {}
        self._unwatch: Callable[[], None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

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
            task = asyncio.get_running_loop().create_task(self._notify(chat, changes))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

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
