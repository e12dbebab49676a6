"""A request in progress: its response, its progress reports and log messages, and what the server requests for it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.calls import Progress

# Log messages kept while the callback is busy; the oldest are dropped first.
REPORT_LIMIT = 256

# Reports that may wait for the callback before progress is coalesced. A server's messages can arrive several in one
# read, also when the callback keeps up, and clients expect each report of a short burst.
PROGRESS_LIMIT = 8

FLUSH_SECONDS = 1.0

# Answers a request of the server while a call runs; may raise `RpcError`.
RequestHandler = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

LogCallback = Callable[[dict[str, Any]], Awaitable[None]]

_log = logging.getLogger(__name__)


class PendingRequest:
    """A request that waits for its response.

    `response` holds the result or the exception to raise: an exception set as result is not logged when nobody waits.
    `reply_to` is the id on the wire where that is not `number`. `server_requests` are those made on its behalf.
    """

    __slots__ = (
        "acknowledged",
        "method",
        "number",
        "on_request",
        "reply_to",
        "reports",
        "response",
        "sent",
        "server_requests",
    )

    def __init__(
        self,
        number: int,
        method: str,
        response: asyncio.Future[dict[str, Any] | Exception],
        on_request: RequestHandler | None = None,
        reports: ReportQueue | None = None,
    ) -> None:
        self.number = number
        self.method = method
        self.response = response
        self.on_request = on_request
        self.server_requests: set[asyncio.Task[Any]] = set()
        self.reply_to: int | str | None = None
        self.reports = reports
        self.sent = False
        self.acknowledged: asyncio.Future[dict[str, Any]] | None = None

    def complete(self, response: dict[str, Any] | Exception) -> None:
        if not self.response.done():
            self.response.set_result(response)


class ReportQueue:
    """Progress reports and log messages of a call, delivered in order by one task. Once `PROGRESS_LIMIT` of them wait
    for a slow callback, a new progress report replaces the one before it."""

    def __init__(self, on_progress: Progress | None, on_log: LogCallback | None) -> None:
        self.wants_log = on_log is not None
        self._on_progress = on_progress
        self._on_log = on_log
        self._waiting: deque[tuple[Callable[..., Awaitable[None]], tuple[Any, ...]]] = deque(maxlen=REPORT_LIMIT)
        self._delivery: asyncio.Task[None] | None = None

    def add_progress(self, params: dict[str, Any]) -> None:
        done, total, message = params.get("progress"), params.get("total"), params.get("message")
        if self._on_progress is None or not isinstance(done, int | float):
            return
        total = total if isinstance(total, int | float) else None
        message = message if isinstance(message, str) else None
        if len(self._waiting) >= PROGRESS_LIMIT and self._waiting[-1][0] is self._on_progress:
            self._waiting.pop()
        self._add(self._on_progress, (done, total, message))

    def add_log(self, params: dict[str, Any]) -> None:
        if self._on_log is not None:
            self._add(self._on_log, (params,))

    async def flush(self) -> None:
        """Wait until the last report is delivered, for `FLUSH_SECONDS` at most."""
        if self._delivery is not None:
            await asyncio.wait([self._delivery], timeout=FLUSH_SECONDS)

    def close(self) -> None:
        if self._delivery is not None:
            self._delivery.cancel()

    def _add(self, callback: Callable[..., Awaitable[None]], arguments: tuple[Any, ...]) -> None:
        self._waiting.append((callback, arguments))
        if self._delivery is None:
            self._delivery = asyncio.get_running_loop().create_task(self._deliver())

    async def _deliver(self) -> None:
        try:
            while self._waiting:
                callback, arguments = self._waiting.popleft()
                try:
                    await callback(*arguments)
                except Exception:  # a failing callback must not break the call
                    _log.debug("the callback for a report failed", exc_info=True)
        finally:
            self._delivery = None
