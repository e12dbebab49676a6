"""Resources of an upstream that somebody follows: subscribed to once, for however many, and again after every loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ...errors import GatewayError, Invalid
from .link import Link, McpFault

LIMIT = 1000
AGAIN_SECONDS = 5.0

log = logging.getLogger(__name__)

Told = Callable[[], None]


class Subscriptions:
    """The followers of one server's resources. `link` is where its notifications come from."""

    def __init__(self, link: Callable[[], Awaitable[Link]]) -> None:
        self._link = link
        self._followers: dict[str, list[Told]] = {}
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def follow(self, uri: str, told: Told) -> Callable[[], None]:
        """Call `told` when the resource changes, until the returned function is called."""
        if uri not in self._followers:
            if len(self._followers) >= LIMIT:
                raise Invalid(f"{LIMIT} resources of this server are followed already")
            await self._subscribe(await self._link(), uri)
        self._followers.setdefault(uri, []).append(told)
        return lambda: self._unfollow(uri, told)

    def updated(self, uri: Any) -> None:
        """The server says that a resource has changed."""
        for told in list(self._followers.get(uri, ())):
            told()

    def renew(self, link: Link) -> None:
        """A new link knows nothing of what was subscribed to over the last one."""
        for uri in self._followers:
            self._spawn(self._renewed(link, uri))

    def close(self) -> None:
        for task in (*self._listening.values(), *self._tasks):
            task.cancel()

    async def _subscribe(self, link: Link, uri: str) -> None:
        if not link.modern:
            await link.request("resources/subscribe", {"uri": uri}, timeout=30.0)
            return
        if (old := self._listening.pop(uri, None)) is not None:
            old.cancel()
        self._listening[uri] = asyncio.get_running_loop().create_task(self._listen(link, uri))

    async def _listen(self, link: Link, uri: str) -> None:
        while link.lost is None:
            try:
                listening = await link.listen({"resourceSubscriptions": [uri]})
                await listening.ended()
            except (GatewayError, McpFault) as error:
                log.debug("%s does not tell of %s: %s", link.label, uri, error)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _renewed(self, link: Link, uri: str) -> None:
        try:
            await self._subscribe(link, uri)
        except (GatewayError, McpFault) as error:
            log.warning("%s no longer tells of %s: %s", link.label, uri, error)

    def _unfollow(self, uri: str, told: Told) -> None:
        followers = self._followers.get(uri, [])
        if told in followers:
            followers.remove(told)
        if followers or uri not in self._followers:
            return
        del self._followers[uri]
        if (task := self._listening.pop(uri, None)) is not None:
            task.cancel()
        else:
            self._spawn(self._unsubscribe(uri))

    async def _unsubscribe(self, uri: str) -> None:
        try:
            await (await self._link()).request("resources/unsubscribe", {"uri": uri}, timeout=30.0)
        except (GatewayError, McpFault) as error:
            log.debug("%s could not be unsubscribed from: %s", uri, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
