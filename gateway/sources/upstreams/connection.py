"""A reconnecting connection to an upstream server: opened on demand, with exponential back-off after failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager

from gateway.errors import GatewayError, Unavailable
from gateway.mcp_client import ConnectionLost, McpClient, Unauthorized
from gateway.protocol.jsonrpc import RpcError
from gateway.tasks import TaskSet, backoff

# Back-off after a failed start, doubled with every failure.
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0

# Interval of checks whether a server may be retried early, for example after a login.
LOOK_SECONDS = 1.0

# A client that lived shorter than this counts as a failed start.
STEADY_SECONDS = 10.0

# Codes of failures that only a change of the settings or the machine corrects; they are passed on.
_KEPT_CODES = ("SANDBOX_UNAVAILABLE", "NETWORK_UNAVAILABLE")

log = logging.getLogger(__name__)

Open = Callable[[], Awaitable[McpClient]]
Opened = Callable[[McpClient], None]


class ConnectionBusy(Exception):
    """The connection is waiting for user input; use another one."""


class UpstreamConnection:
    """Opens one MCP client for all callers; during back-off, callers fail at once.

    `opened` is called with each new client before any caller gets it. A connection unused for `idle` seconds is closed,
    and `on_idle` is called. While `may_retry` returns True, back-off is skipped: what the server lacked is there now.
    """

    def __init__(
        self,
        name: str,
        open_: Open,
        opened: Opened,
        idle: float | None = None,
        on_idle: Callable[[UpstreamConnection], None] = lambda _: None,
        may_retry: Callable[[], bool] = lambda: False,
    ) -> None:
        self._name = name
        self._open = open_
        self._opened = opened
        self._idle = idle
        self._on_idle = on_idle
        self._may_retry = may_retry
        self._link: McpClient | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failures = 0
        self._since = 0.0
        self._not_before = 0.0
        self._error: str | None = None
        self._logged: str | None = None
        self._code = "UPSTREAM_UNAVAILABLE"
        self._closed = False
        self.users = 0
        self._rested_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._retiring = TaskSet()
        self._turns = _Turns()
        self._loop = asyncio.get_running_loop()

    @property
    def error(self) -> str | None:
        """The reason of the last failure or loss, while there is no client."""
        return self._link.lost.message if self._link is not None and self._link.lost is not None else self._error

    @property
    def connected(self) -> bool:
        return self.client is not None

    @property
    def used(self) -> bool:
        return self.users > 0 or self._opening is not None

    @property
    def awaiting_input(self) -> bool:
        """True while a call waits for user input."""
        return self._turns.questions > 0

    @property
    def wait(self) -> float:
        """Seconds of back-off left."""
        wait = self._not_before - self._loop.time()
        return 0.0 if wait <= 0 or self._may_retry() else wait

    async def pause(self) -> None:
        """Wait until the connection may be retried."""
        await asyncio.sleep(0.1)
        while (wait := self.wait) > 0:  # noqa: ASYNC110 - a login may happen in another process
            await asyncio.sleep(min(wait, LOOK_SECONDS))

    @property
    def client(self) -> McpClient | None:
        """The open client, if there is one."""
        link = self._link
        return link if link is not None and link.lost is None else None

    async def connect(self) -> McpClient:
        """The open client, opened if necessary; raises `UPSTREAM_UNAVAILABLE` if that fails or back-off is not over."""
        if (link := self.client) is not None:
            return link
        if self._opening is None:
            self._record_loss()
            if self._closed or self.wait > 0:
                raise self._unavailable()
            self._opening = self._loop.create_task(self._reopen())
        # `asyncio.wait`: a cancelled caller does not cancel the task that others wait for, nor the reverse.
        await asyncio.wait([self._opening])
        if (link := self.client) is None:
            raise self._unavailable()
        return link

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keep the connection from closing as idle."""
        self.users += 1
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """End what began with one more of `users`."""
        self.users -= 1
        if not self.users:
            self.rest()

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """Use the connection exclusively; raises `ConnectionBusy` while a call waits for user input."""
        return self._turns.take()

    def waiting_for_input(self) -> AbstractContextManager[None]:
        """Mark that a call waits for user input."""
        return self._turns.asked()

    async def close(self) -> None:
        """Close for good; running requests fail."""
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

    async def _reopen(self) -> None:
        try:
            link = await self._open()
        except (GatewayError, RpcError) as error:
            code = "UPSTREAM_UNAUTHORIZED" if isinstance(error, Unauthorized) else None
            kept_code = next((kept for kept in _KEPT_CODES if kept == error.code), code)
            self._fail(error.message, kept_code, logs=self._logs(error))
            return
        except Exception:  # nobody awaits this task: a bug must not go unnoticed
            log.exception("upstream %s failed unexpectedly", self._name)
            self._fail("the gateway failed to connect to it; see the gateway's log")
            return
        finally:
            self._opening = None
        again = " again" if self._error is not None else ""
        log.info("upstream %s is connected%s (protocol %s)", self._name, again, link.protocol_version)
        self._error, self._link, self._since, self._logged = None, link, self._loop.time(), None
        self._opened(link)
        if not self.users:
            self.rest()

    def _logs(self, error: Exception | None) -> str:
        """Name the command that shows why a program ended: its stderr may be private, and is not quoted here."""
        ended = isinstance(error, ConnectionLost) and error.exit_code is not None
        return f"; see: toolgate upstream logs {self._name}" if ended else ""

    def _fail(self, reason: str, code: str | None = None, logs: str = "") -> None:
        self._failures += 1
        self._error, self._code = reason, code or "UPSTREAM_UNAVAILABLE"
        self._not_before = self._loop.time() + backoff(self._failures, FIRST_WAIT, LONGEST_WAIT)
        # Once for each reason: attempts go on, with the same result.
        log.log(
            logging.DEBUG if reason == self._logged else logging.WARNING,
            *("upstream %s did not start: %s%s", self._name, reason, logs),
        )
        self._logged = reason

    def _record_loss(self) -> None:
        """Record how the last client ended: one that was lost early counts as a failed start."""
        link, self._link = self._link, None
        if link is None or link.lost is None or self._closed:
            return
        lived = self._loop.time() - self._since
        self._error, self._code = link.lost.message, "UPSTREAM_UNAVAILABLE"
        logs = self._logs(link.lost)
        log.warning("upstream %s was lost after %.1f s: %s%s", self._name, lived, link.lost.message, logs)
        self._failures = 0 if lived >= STEADY_SECONDS else self._failures + 1
        if self._failures > 1:  # the first loss is retried at once
            self._not_before = self._loop.time() + backoff(self._failures - 1, FIRST_WAIT, LONGEST_WAIT)

    def _unavailable(self) -> Unavailable:
        wait = self.wait
        when = f"; the next attempt is in {wait:.1f} s" if wait and not self._closed else ""
        reason = self._error or "it did not start"
        return Unavailable(
            f"the upstream server {self._name!r} is not available: {reason}{when}",
            code=self._code,
            server=self._name,
            retry_after=round(wait, 1),
        )

    def rest(self) -> None:
        """Start the idle timer: the last user has left."""
        self._rested_at = self._loop.time()
        if self._timer is None:  # a running timer checks when it was used last
            self._start_timer(self._idle)

    def _start_timer(self, seconds: float | None) -> None:
        self._stop_timer()
        if seconds is not None and not self._closed:
            self._timer = self._loop.call_later(seconds, self._close_if_idle)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_idle(self) -> None:
        """Close the connection if it was unused for long enough."""
        self._timer = None
        if self._idle is None or self.users:  # the last user calls `rest`
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
            self._on_idle(self)


class _Turns:
    """A lock that is refused while a call waits for user input."""

    def __init__(self) -> None:
        self._taken = False
        self.questions = 0
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        while self._taken or self.questions:
            if self.questions:
                raise ConnectionBusy
            await self._wait_for_change()
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

    async def _wait_for_change(self) -> None:
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
