"""How a server of each era is brought to tell of changed resources, over one link."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from gateway.errors import GatewayError, Unavailable
from gateway.mcp_client import Link, Listening, McpFault

# When a server that ended a stream of changes is listened to again.
AGAIN_SECONDS = 5.0

# How long a server may take to agree.
SECONDS = 30.0

# Streams to one server before they are made one, and where that fails. Each may cost it a connection.
STREAMS, STREAMS_LIMIT = 8, 32

log = logging.getLogger(__name__)

Wanted = Callable[[str], bool]
Updated = Callable[[str], None]


class Subscribed:
    """The handshake era: a subscription for each resource, told of on the link itself."""

    def __init__(self, link: Link, wanted: Wanted, _: Updated) -> None:
        self.link = link
        self._wanted = wanted
        self._covered: set[str] = set()
        self._busy = asyncio.Lock()  # to begin and to end must not overtake each other

    async def add(self, uri: str) -> None:
        async with self._busy:
            if uri not in self._covered and self._wanted(uri):
                await self.link.request("resources/subscribe", {"uri": uri}, timeout=SECONDS)
                self._covered.add(uri)

    async def add_all(self, uris: Iterable[str]) -> None:
        """What the server refuses is passed over."""
        for uri in uris:
            try:
                await self.add(uri)
            except McpFault as fault:
                log.warning("%s no longer tells of %s: %s", self.link.label, uri, fault)

    async def drop(self, uri: str) -> None:
        async with self._busy:
            if uri not in self._covered or self._wanted(uri):
                return
            self._covered.discard(uri)
            if self.link.lost is not None:
                return
            try:
                await self.link.request("resources/unsubscribe", {"uri": uri}, timeout=SECONDS)
            except (GatewayError, McpFault) as error:
                log.debug("%s could not be unsubscribed from: %s", uri, error)

    def close(self) -> None:
        """The server's subscriptions end with the link."""


class Listened:
    """The newest era: a few streams for all resources, each made for what was new at the time."""

    def __init__(self, link: Link, wanted: Wanted, updated: Updated) -> None:
        self.link = link
        self._wanted = wanted
        self._updated = updated
        self._streams: list[_Stream] = []
        self._busy = asyncio.Lock()

    async def add(self, uri: str) -> None:
        async with self._busy:
            await self._cover([uri])

    async def add_all(self, uris: Iterable[str]) -> None:
        """A server that refuses is left alone."""
        async with self._busy:
            try:
                await self._cover(uris)
            except McpFault as fault:
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
        self._streams.append(await _Stream.open(self.link, new, self._updated))
        if len(self._streams) > STREAMS:
            await self._merge()

    async def _merge(self) -> None:
        uris = [uri for stream in self._streams for uri in stream.uris if self._wanted(uri)]
        try:
            merged = await _Stream.open(self.link, uris, self._updated)
        except (GatewayError, McpFault) as error:
            log.debug("%s does not tell of all on one stream: %s", self.link.label, error)
            return
        self.close()
        self._streams = [merged]


class _Stream:
    """One subscription to some resources, renewed for as long as the link lives."""

    def __init__(self, link: Link, uris: Sequence[str], updated: Updated, listening: Listening) -> None:
        self.uris = frozenset(uris)
        self.closed = False
        self._link = link
        self._updated = updated
        self._listening = listening
        self._task = asyncio.get_running_loop().create_task(self._keep())

    @classmethod
    async def open(cls, link: Link, uris: Sequence[str], updated: Updated) -> _Stream:
        return cls(link, uris, updated, await _listen(link, uris))

    def close(self) -> None:
        self.closed = True
        self._task.cancel()
        self._listening.close()

    async def _keep(self) -> None:
        await self._listening.ended()
        while self._link.lost is None:
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                self._listening = await _listen(self._link, self.uris)
            except (GatewayError, McpFault) as error:
                log.debug("%s does not tell of changes: %s", self._link.label, error)
                continue
            for uri in self.uris:
                self._updated(uri)  # what changed meanwhile, nobody heard
            await self._listening.ended()


async def _listen(link: Link, uris: Iterable[str]) -> Listening:
    return await link.listen({"resourceSubscriptions": sorted(uris)}, timeout=SECONDS)
