"""Resources of an upstream that somebody follows: subscribed to once, for however many, and again after every loss."""

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

# When a server that ended a stream of changes is listened to again.
AGAIN_SECONDS = 5.0

# How long a server may take to agree.
SUBSCRIBE_SECONDS = 30.0

# Streams to one server before they are made one, and where that fails. Each may cost it a connection.
STREAMS, STREAMS_LIMIT = 8, 32

log = logging.getLogger(__name__)

Wanted = Callable[[str], bool]
Updated = Callable[[str], None]


class ResourceSubscriptions:
    """The handshake era: a subscription for each resource, told of on the link itself."""

    def __init__(self, link: McpClient, wanted: Wanted, _: Updated) -> None:
        self.link = link
        self._wanted = wanted
        self._covered: set[str] = set()
        self._busy = asyncio.Lock()  # to begin and to end must not overtake each other

    async def add(self, uri: str) -> None:
        async with self._busy:
            if uri not in self._covered and self._wanted(uri):
                await self.link.request("resources/subscribe", {"uri": uri}, timeout=SUBSCRIBE_SECONDS)
                self._covered.add(uri)

    async def add_all(self, uris: Iterable[str]) -> None:
        """What the server refuses is passed over."""
        for uri in uris:
            try:
                await self.add(uri)
            except RpcError as fault:
                log.warning("%s no longer tells of %s: %s", self.link.label, uri, fault)

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
        """The server's subscriptions end with the link."""


class ResourceStreams:
    """The newest era: a few streams for all resources, each made for what was new at the time."""

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
        """A server that refuses is left alone."""
        async with self._busy:
            try:
                await self._cover(uris)
            except RpcError as fault:
                log.warning("%s no longer tells of changes: %s", self.link.label, fault)

    async def drop(self, _: str) -> None:
        """A stream goes with the last resource in it that anybody follows."""
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
            raise Unavailable(f"{self.link.label} tells of no more resources; give up one first", code="OVERLOADED")
        self._streams.append(await _ResourceStream.open(self.link, new, self._updated))
        if len(self._streams) > STREAMS:
            await self._merge()

    async def _merge(self) -> None:
        uris = [uri for stream in self._streams for uri in stream.uris if self._wanted(uri)]
        try:
            merged = await _ResourceStream.open(self.link, uris, self._updated)
        except (GatewayError, RpcError) as error:
            log.debug("%s does not tell of all on one stream: %s", self.link.label, error)
            return
        self.close()
        self._streams = [merged]


class _ResourceStream:
    """One subscription to some resources, renewed for as long as the link lives."""

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
                log.debug("%s does not tell of changes: %s", self._link.label, error)
                continue
            for uri in self.uris:
                self._updated(uri)  # what changed meanwhile, nobody heard
            await self._listening.wait()


async def _listen(link: McpClient, uris: Iterable[str]) -> Subscription:
    return await link.listen({"resourceSubscriptions": sorted(uris)}, timeout=SUBSCRIBE_SECONDS)


LIMIT = 1000


Told = Callable[[], None]


class Subscriptions:
    """The followers of one server's resources. `lane` is where its notifications come from; for as long as anybody
    follows anything it stays open, and is opened again when it was lost."""

    def __init__(self, lane: Callable[[], UpstreamConnection]) -> None:
        self._lane = lane
        self._followers: dict[str, list[Told]] = {}
        self._way: ResourceStreams | ResourceSubscriptions | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._tasks = TaskSet()

    async def follow(self, uri: str, told: Told) -> Callable[[], None]:
        """Call `told` when the resource changes, until the returned function is called."""
        if uri not in self._followers and len(self._followers) >= LIMIT:
            raise Invalid(f"{LIMIT} resources of this server are followed already")
        self._followers.setdefault(uri, []).append(told)
        try:
            lane = self._lane()
            with lane.use():
                await self._over(await lane.connect()).add(uri)
        except BaseException:
            self._unfollow(uri, told)
            raise
        if self._keeping is None:
            self._keeping = self._tasks.start(self._keep(lane))
        return lambda: self._unfollow(uri, told)

    def updated(self, uri: Any) -> None:
        """The server says that a resource has changed."""
        for told in list(self._followers.get(uri, ())):
            told()

    def renew(self, link: McpClient) -> None:
        """A new link knows nothing of what was subscribed to over the last one."""
        if self._followers:
            before, way = self._way, self._over(link)
            self._tasks.start(self._renewed(way, [*self._followers], again=before is not None))

    def close(self) -> None:
        if self._way is not None:
            self._way.close()
        self._tasks.cancel()

    def _over(self, link: McpClient) -> ResourceStreams | ResourceSubscriptions:
        """How what is followed is heard of over this link."""
        if self._way is None or self._way.link is not link:
            if self._way is not None:
                self._way.close()
            self._way = (ResourceStreams if link.modern else ResourceSubscriptions)(
                link, self._followers.__contains__, self.updated
            )
        return self._way

    async def _renewed(self, way: ResourceStreams | ResourceSubscriptions, uris: Sequence[str], again: bool) -> None:
        while way.link.lost is None:
            try:
                await way.add_all(uris)
            except GatewayError as error:
                log.debug("%s does not tell of changes yet: %s", way.link.label, error)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            for uri in uris if again else ():
                self.updated(uri)  # what changed meanwhile, nobody heard
            return

    async def _keep(self, lane: UpstreamConnection) -> None:
        """Have the server there for its followers."""
        with lane.use():
            while True:
                try:
                    link = await lane.connect()
                except GatewayError as error:
                    log.debug("what is followed is not heard of now: %s", error)
                    await asyncio.sleep(max(lane.wait, 0.1))
                else:
                    await link.wait_closed()

    def _unfollow(self, uri: str, told: Told) -> None:
        followers = self._followers.get(uri, [])
        if told not in followers:
            return
        followers.remove(told)
        if not followers:
            del self._followers[uri]
            self._tasks.start(self._release(uri))

    async def _release(self, uri: str) -> None:
        if self._way is not None:
            await self._way.drop(uri)
        if not self._followers and self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
