"""Subscriptions to an upstream's resources: one per resource for all listeners, renewed after every reconnection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.mcp_client import McpClient, Subscription
from gateway.protocol.jsonrpc import RpcError
from gateway.sources.upstreams.connection import UpstreamConnection
from gateway.tasks import TaskSet

# Pause before a stream that the server ended is opened again.
AGAIN_SECONDS = 5.0

# Timeout of a subscribe request.
SUBSCRIBE_SECONDS = 30.0

# Streams to one server before they are merged, and the limit if merging fails. Each may cost it a connection.
STREAMS, STREAMS_LIMIT = 8, 32

log = logging.getLogger(__name__)

Wanted = Callable[[str], bool]
Updated = Callable[[str], None]


class ResourceSubscriptions:
    """Handshake era: `resources/subscribe` for each resource; updates arrive on the connection itself."""

    def __init__(self, link: McpClient, wanted: Wanted, _: Updated) -> None:
        self.link = link
        self._wanted = wanted
        self._covered: set[str] = set()
        self._busy = asyncio.Lock()  # subscribe and unsubscribe must not overtake each other

    async def add(self, uri: str) -> None:
        async with self._busy:
            if uri not in self._covered and self._wanted(uri):
                await self.link.request("resources/subscribe", {"uri": uri}, timeout=SUBSCRIBE_SECONDS)
                self._covered.add(uri)

    async def add_all(self, uris: Iterable[str]) -> None:
        """Subscribe to all; resources that the server refuses are skipped."""
        for uri in uris:
            try:
                await self.add(uri)
            except RpcError as fault:
                log.warning("%s refused to subscribe to %s again: %s", self.link.label, uri, fault)

    async def drop(self, uri: str) -> None:
        async with self._busy:
            if uri not in self._covered or self._wanted(uri):
                return
            self._covered.discard(uri)
            if self.link.lost is not None:
                return
            try:
                await self.link.request("resources/unsubscribe", {"uri": uri}, timeout=SUBSCRIBE_SECONDS)
            except (GatewayError, RpcError) as error:
                log.debug("%s could not be unsubscribed from: %s", uri, error)

    def close(self) -> None:
        """Nothing to do: the server's subscriptions end with the connection."""


class ResourceStreams:
    """Modern era: a few `subscriptions/listen` streams that together cover all resources."""

    def __init__(self, link: McpClient, wanted: Wanted, updated: Updated) -> None:
        self.link = link
        self._wanted = wanted
        self._updated = updated
        self._streams: list[_ResourceStream] = []
        self._busy = asyncio.Lock()

    async def add(self, uri: str) -> None:
        async with self._busy:
            await self._cover([uri])

    async def add_all(self, uris: Iterable[str]) -> None:
        """Cover all resources; a server that refuses is not asked again."""
        async with self._busy:
            try:
                await self._cover(uris)
            except RpcError as fault:
                log.warning("%s refused to subscribe again: %s", self.link.label, fault)

    async def drop(self, _: str) -> None:
        """Close streams without any resource that is still wanted."""
        async with self._busy:
            for stream in self._streams:
                if not any(map(self._wanted, stream.uris)):
                    stream.close()
            self._streams = [stream for stream in self._streams if not stream.closed]

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    async def _cover(self, uris: Iterable[str]) -> None:
        covered = {uri for stream in self._streams for uri in stream.uris}
        new = [uri for uri in uris if uri not in covered and self._wanted(uri)]
        if not new:
            return
        if len(self._streams) >= STREAMS_LIMIT:
            raise Unavailable(
                f"{self.link.label} allows no more subscriptions; unsubscribe from a resource first", code="OVERLOADED"
            )
        self._streams.append(await _ResourceStream.open(self.link, new, self._updated))
        if len(self._streams) > STREAMS:
            await self._merge()

    async def _merge(self) -> None:
        uris = [uri for stream in self._streams for uri in stream.uris if self._wanted(uri)]
        try:
            merged = await _ResourceStream.open(self.link, uris, self._updated)
        except (GatewayError, RpcError) as error:
            log.debug("%s refused to merge subscriptions: %s", self.link.label, error)
            return
        self.close()
        self._streams = [merged]


class _ResourceStream:
    """One stream for some resources, reopened for as long as the client lives."""

    def __init__(self, link: McpClient, uris: Sequence[str], updated: Updated, listening: Subscription) -> None:
        self.uris = frozenset(uris)
        self.closed = False
        self._link = link
        self._updated = updated
        self._listening = listening
        self._task = asyncio.get_running_loop().create_task(self._keep())

    @classmethod
    async def open(cls, link: McpClient, uris: Sequence[str], updated: Updated) -> _ResourceStream:
        return cls(link, uris, updated, await _listen(link, uris))

    def close(self) -> None:
        self.closed = True
        self._task.cancel()
        self._listening.close()

    async def _keep(self) -> None:
        await self._listening.wait()
        while self._link.lost is None:
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                self._listening = await _listen(self._link, self.uris)
            except (GatewayError, RpcError) as error:
                log.debug("%s refused a subscription: %s", self._link.label, error)
                continue
            for uri in self.uris:
                self._updated(uri)  # updates in between were missed
            await self._listening.wait()


async def _listen(link: McpClient, uris: Iterable[str]) -> Subscription:
    return await link.listen({"resourceSubscriptions": sorted(uris)}, timeout=SUBSCRIBE_SECONDS)


LIMIT = 1000


Listener = Callable[[], None]


class Subscriptions:
    """The listeners of one server's resources. `connection` gives the connection on which notifications arrive; while
    there are listeners, it is kept open and reopened after a loss."""

    def __init__(self, connection: Callable[[], UpstreamConnection]) -> None:
        self._connection = connection
        self._listeners: dict[str, list[Listener]] = {}
        self._current: ResourceStreams | ResourceSubscriptions | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._tasks = TaskSet()

    async def subscribe(self, uri: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` when the resource changes, until the returned function is called."""
        if uri not in self._listeners and len(self._listeners) >= LIMIT:
            raise Invalid(f"{LIMIT} resources of this server have subscriptions already; unsubscribe from one first")
        self._listeners.setdefault(uri, []).append(listener)
        try:
            connection = self._connection()
            with connection.use():
                await self._subscriptions_over(await connection.connect()).add(uri)
        except BaseException:
            self._unsubscribe(uri, listener)
            raise
        if self._keeping is None:
            self._keeping = self._tasks.start(self._keep(connection))
        return lambda: self._unsubscribe(uri, listener)

    def notify(self, uri: Any) -> None:
        """Tell the listeners of a resource that it changed."""
        for listener in list(self._listeners.get(uri, ())):
            listener()

    def resubscribe(self, link: McpClient) -> None:
        """Subscribe again over a new client."""
        if self._listeners:
            before, subscriptions = self._current, self._subscriptions_over(link)
            self._tasks.start(self._resubscribe(subscriptions, [*self._listeners], again=before is not None))

    def close(self) -> None:
        if self._current is not None:
            self._current.close()
        self._tasks.cancel()

    def _subscriptions_over(self, link: McpClient) -> ResourceStreams | ResourceSubscriptions:
        """The subscriptions over this client."""
        if self._current is None or self._current.link is not link:
            if self._current is not None:
                self._current.close()
            self._current = (ResourceStreams if link.modern else ResourceSubscriptions)(
                link, self._listeners.__contains__, self.notify
            )
        return self._current

    async def _resubscribe(
        self, subscriptions: ResourceStreams | ResourceSubscriptions, uris: Sequence[str], again: bool
    ) -> None:
        while subscriptions.link.lost is None:
            try:
                await subscriptions.add_all(uris)
            except GatewayError as error:
                log.debug("%s could not be subscribed to yet: %s", subscriptions.link.label, error)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            for uri in uris if again else ():
                self.notify(uri)  # updates in between were missed
            return

    async def _keep(self, connection: UpstreamConnection) -> None:
        """Keep the connection open for the listeners."""
        with connection.use():
            while True:
                try:
                    link = await connection.connect()
                except GatewayError as error:
                    log.debug("subscriptions are interrupted: %s", error)
                    await asyncio.sleep(max(connection.wait, 0.1))
                else:
                    await link.wait_closed()

    def _unsubscribe(self, uri: str, listener: Listener) -> None:
        listeners = self._listeners.get(uri, [])
        if listener not in listeners:
            return
        listeners.remove(listener)
        if not listeners:
            del self._listeners[uri]
            self._tasks.start(self._release(uri))

    async def _release(self, uri: str) -> None:
        if self._current is not None:
            await self._current.drop(uri)
        if not self._listeners and self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
