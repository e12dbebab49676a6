"""Resources of an upstream that somebody follows: subscribed to once, for however many, and again after every loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from gateway.errors import GatewayError, Invalid
from gateway.mcp_client import Link
from gateway.sources.upstreams.connection import UpstreamConnection
from gateway.sources.upstreams.resource_updates import AGAIN_SECONDS, Listened, Subscribed

LIMIT = 1000

log = logging.getLogger(__name__)

Told = Callable[[], None]


class Subscriptions:
    """The followers of one server's resources. `lane` is where its notifications come from; for as long as anybody
    follows anything it stays open, and is opened again when it was lost."""

    def __init__(self, lane: Callable[[], UpstreamConnection]) -> None:
        self._lane = lane
        self._followers: dict[str, list[Told]] = {}
        self._way: Listened | Subscribed | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def follow(self, uri: str, told: Told) -> Callable[[], None]:
        """Call `told` when the resource changes, until the returned function is called."""
        if uri not in self._followers and len(self._followers) >= LIMIT:
            raise Invalid(f"{LIMIT} resources of this server are followed already")
        self._followers.setdefault(uri, []).append(told)
        try:
            lane = self._lane()
            with lane.use():
                await self._over(await lane.link()).add(uri)
        except BaseException:
            self._unfollow(uri, told)
            raise
        if self._keeping is None:
            self._keeping = self._spawn(self._keep(lane))
        return lambda: self._unfollow(uri, told)

    def updated(self, uri: Any) -> None:
        """The server says that a resource has changed."""
        for told in list(self._followers.get(uri, ())):
            told()

    def renew(self, link: Link) -> None:
        """A new link knows nothing of what was subscribed to over the last one."""
        if self._followers:
            before, way = self._way, self._over(link)
            self._spawn(self._renewed(way, [*self._followers], again=before is not None))

    def close(self) -> None:
        if self._way is not None:
            self._way.close()
        for task in self._tasks:
            task.cancel()

    def _over(self, link: Link) -> Listened | Subscribed:
        """How what is followed is heard of over this link."""
        if self._way is None or self._way.link is not link:
            if self._way is not None:
                self._way.close()
            self._way = (Listened if link.modern else Subscribed)(link, self._followers.__contains__, self.updated)
        return self._way

    async def _renewed(self, way: Listened | Subscribed, uris: Sequence[str], again: bool) -> None:
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
                    link = await lane.link()
                except GatewayError as error:
                    log.debug("what is followed is not heard of now: %s", error)
                    await asyncio.sleep(max(lane.wait, 0.1))
                else:
                    await link.closed()

    def _unfollow(self, uri: str, told: Told) -> None:
        followers = self._followers.get(uri, [])
        if told not in followers:
            return
        followers.remove(told)
        if not followers:
            del self._followers[uri]
            self._spawn(self._release(uri))

    async def _release(self, uri: str) -> None:
        if self._way is not None:
            await self._way.drop(uri)
        if not self._followers and self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
