"""A request in progress: its response, its progress reports and log messages, and what the server requests for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.calls import Progress
from gateway.tasks import ReportQueue

# Answers a request of the server while a call runs; may raise `RpcError`.
RequestHandler = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

LogCallback = Callable[[dict[str, Any]], Awaitable[None]]


class PendingRequest:
    """A request that waits for its response.

    `response` holds the result or the exception to raise: an exception set as result is not logged when nobody waits.
    `reply_to` is the id on the wire where that is not `number`. `server_requests` are those made on its behalf.
    """

    server_requests: frozenset[asyncio.Task[Any]] = frozenset()
    reply_to: int | str | None = None
    sent = False
    acknowledged: asyncio.Future[dict[str, Any]] | None = None

    def __init__(
        self,
        number: int,
        method: str,
        response: asyncio.Future[dict[str, Any] | Exception],
        on_request: RequestHandler | None = None,
        reports: CallReports | None = None,
    ) -> None:
        self.number = number
        self.method = method
        self.response = response
        self.on_request = on_request
        self.reports = reports

    def complete(self, response: dict[str, Any] | Exception) -> None:
        if not self.response.done():
            self.response.set_result(response)


class CallReports(ReportQueue):
    """Progress reports and log messages of a call, passed on in the order in which they came."""

    def __init__(self, on_progress: Progress | None, on_log: LogCallback | None) -> None:
        super().__init__()
        self.wants_log = on_log is not None
        self._on_progress = on_progress
        self._on_log = on_log

    def add_progress(self, params: dict[str, Any]) -> None:
        done, total, message = params.get("progress"), params.get("total"), params.get("message")
        if self._on_progress is None or not isinstance(done, int | float):
            return
        total = total if isinstance(total, int | float) else None
        message = message if isinstance(message, str) else None
        self.add(self._on_progress, done, total, message, size=len(message or ""))

    def add_log(self, params: dict[str, Any]) -> None:
        if self._on_log is not None:
            self.add(self._on_log, params, size=len(repr(params)))
