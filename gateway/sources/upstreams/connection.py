"""One way to an upstream server: opened when it is needed, and again when it was lost, but never in a rush."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager

from gateway.errors import GatewayError, Unavailable
from gateway.mcp_client import McpClient, Unauthorized
from gateway.protocol.jsonrpc import RpcError
from gateway.tasks import TaskSet, backoff

# Seconds until a server that did not start is tried again, doubled with every failure.
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0

# How often it is looked whether a server may be tried before its time.
LOOK_SECONDS = 1.0

# How long a link must have lived for its end to count as bad luck rather than as a failure to start.
STEADY_SECONDS = 10.0

# Of failures that only a change of the settings or the machine mends.
_KEPT_CODES = ("SANDBOX_UNAVAILABLE", "NETWORK_UNAVAILABLE")

log = logging.getLogger(__name__)

Open = Callable[[], Awaitable[McpClient]]
Opened = Callable[[McpClient], None]


class ConnectionBusy(Exception):
    """Somebody is being asked something on this lane, and that may take long: go another way."""


class UpstreamConnection:
    """Hands out its link. One caller opens it for all; while the server keeps failing, callers are told at once.

    `opened` hears of each new link before anybody has it. A lane nobody uses for `idle` seconds is closed, and
    `left` is told. Once `mended` says that what a server lacked is there now, it is tried at once.
    """

    def __init__(
        self,
        name: str,
        open_: Open,
        opened: Opened,
        idle: float | None = None,
        left: Callable[[UpstreamConnection], None] = lambda _: None,
        mended: Callable[[], bool] = lambda: False,
    ) -> None:
        self._name = name
        self._open = open_
        self._opened = opened
        self._idle = idle
        self._left = left
        self._mended = mended
        self._link: McpClient | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failures = 0
        self._since = 0.0
        self._not_before = 0.0
        self._error: str | None = None
        self._code = "UPSTREAM_UNAVAILABLE"
        self._closed = False
        self.users = 0
        self._rested_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._retiring = TaskSet()
        self._turns = _Turns()
        self._use = _Use(self)
        self._loop = asyncio.get_running_loop()

    @property
    def error(self) -> str | None:
        """Why there is no link now, where opening one failed or the last was lost."""
        return self._link.lost.message if self._link is not None and self._link.lost is not None else self._error

    @property
    def connected(self) -> bool:
        return self.client is not None

    @property
    def used(self) -> bool:
        return self.users > 0 or self._opening is not None

    @property
    def awaiting_input(self) -> bool:
        """Whether a call on it waits for an answer."""
        return self._turns.questions > 0

    @property
    def wait(self) -> float:
        """Seconds until it may be tried again."""
        wait = self._not_before - self._loop.time()
        return 0.0 if wait <= 0 or self._mended() else wait

    async def pause(self) -> None:
        """Wait a moment, and until it may be tried again."""
        await asyncio.sleep(0.1)
        while (wait := self.wait) > 0:  # noqa: ASYNC110 - what mends a server may happen in another process
            await asyncio.sleep(min(wait, LOOK_SECONDS))

    @property
    def client(self) -> McpClient | None:
        """The link, if it is there."""
        link = self._link
        return link if link is not None and link.lost is None else None

    async def connect(self) -> McpClient:
        """A live link; `UPSTREAM_UNAVAILABLE` when there is none to be had now."""
        if (link := self.client) is not None:
            return link
        if self._opening is None:
            self._note_end()
            if self._closed or self.wait > 0:
                raise self._unavailable()
            self._opening = self._loop.create_task(self._open_anew())
        # Only waited for: whoever gives up takes the server from nobody else, and its end cancels no caller.
        await asyncio.wait([self._opening])
        if (link := self.client) is None:
            raise self._unavailable()
        return link

    def use(self) -> AbstractContextManager[None]:
        """Keeps the lane from closing as idle."""
        return self._use

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """Have the lane for oneself; refused with `ConnectionBusy` while a call on it waits for an answer."""
        return self._turns.take()

    def waiting_for_input(self) -> AbstractContextManager[None]:
        """While a call on it waits for an answer."""
        return self._turns.asked()

    async def close(self) -> None:
        """End it for good; whatever runs in it fails."""
        self._closed = True
        self._error = "it was removed, or the gateway is stopping"
        self._stop_timer()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._link is not None:
            await self._link.close()
        if self._retiring:
            await asyncio.wait(self._retiring)

    async def _open_anew(self) -> None:
        try:
            link = await self._open()
        except (GatewayError, RpcError) as error:
            code = "UPSTREAM_UNAUTHORIZED" if isinstance(error, Unauthorized) else None
            self._fail(error.message, next((kept for kept in _KEPT_CODES if kept == error.code), code))
            return
        except Exception:  # nobody awaits this task: a bug must not leave the lane closed in silence
            log.exception("upstream %s failed unexpectedly", self._name)
            self._fail("the gateway failed to reach it; its log has the reason")
            return
        finally:
            self._opening = None
        self._error, self._link, self._since = None, link, self._loop.time()
        self._opened(link)
        if not self.users:
            self.rest()

    def _fail(self, reason: str, code: str | None = None) -> None:
        self._failures += 1
        self._error, self._code = reason, code or "UPSTREAM_UNAVAILABLE"
        self._not_before = self._loop.time() + backoff(self._failures, FIRST_WAIT, LONGEST_WAIT)
        log.warning("upstream %s did not start: %s", self._name, reason)

    def _note_end(self) -> None:
        """Take in how the last link ended: one that broke soon after it began counts as a failed start."""
        link, self._link = self._link, None
        if link is None or link.lost is None or self._closed:
            return
        lived = self._loop.time() - self._since
        self._error, self._code = link.lost.message, "UPSTREAM_UNAVAILABLE"
        log.warning("upstream %s was lost after %.1f s: %s", self._name, lived, link.lost.message)
        self._failures = 0 if lived >= STEADY_SECONDS else self._failures + 1
        if self._failures > 1:  # the first time may be bad luck, and whoever calls next gets a fresh one at once
            self._not_before = self._loop.time() + backoff(self._failures - 1, FIRST_WAIT, LONGEST_WAIT)

    def _unavailable(self) -> Unavailable:
        wait = self.wait
        when = f"; it is tried again in {wait:.1f} s" if wait and not self._closed else ""
        reason = self._error or "it did not start"
        return Unavailable(
            f"the upstream server {self._name!r} is not available: {reason}{when}",
            code=self._code,
            server=self._name,
            retry_after=round(wait, 1),
        )

    def rest(self) -> None:
        """Nobody uses it at this moment."""
        self._rested_at = self._loop.time()
        if self._timer is None:  # one that runs already finds out when it was used last
            self._start_timer(self._idle)

    def _start_timer(self, seconds: float | None) -> None:
        self._stop_timer()
        if seconds is not None and not self._closed:
            self._timer = self._loop.call_later(seconds, self._look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Close the lane if nobody has used it for long enough."""
        self._timer = None
        if self._idle is None or self.users:  # the last to use it calls `rest`
            return
        left = self._rested_at + self._idle - self._loop.time()
        if left > 0 or self._opening is not None:
            self._start_timer(max(left, 0.001) if self._opening is None else self._idle)
            return
        link, self._link = self._link, None
        self._failures = 0
        self._retiring.start(self._retire(link))

    async def _retire(self, link: McpClient | None) -> None:
        if link is not None:
            await link.close()
        if not self.used and self._link is None and not self._closed:
            self._left(self)


class _Use:
    """One for all who use a lane: every call does, so it is made but once."""

    def __init__(self, lane: UpstreamConnection) -> None:
        self._lane = lane

    def __enter__(self) -> None:
        self._lane.users += 1

    def __exit__(self, *_: object) -> None:
        self._lane.users -= 1
        if not self._lane.users:
            self._lane.rest()


class _Turns:
    """One at a time, in the order in which they came."""

    def __init__(self) -> None:
        self._taken = False
        self.questions = 0
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        while self._taken or self.questions:
            if self.questions:
                raise ConnectionBusy
            await self._changed()
        self._taken = True
        try:
            yield
        finally:
            self._taken = False
            self._wake()

    @contextmanager
    def asked(self) -> Iterator[None]:
        self.questions += 1
        self._wake()
        try:
            yield
        finally:
            self.questions -= 1
            self._wake()

    async def _changed(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            self._waiting.remove(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
