"""One request under way: its answer, its reports, and what the server asks for its sake."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.calls import Progress

# Log messages kept while the listener is busy; the oldest go first.
REPORT_LIMIT = 256

# Reports that may wait for the listener before progress is coalesced. A server's messages can arrive several in one
# read, also when the listener keeps up, and clients expect each report of a short burst.
PROGRESS_LIMIT = 8

FLUSH_SECONDS = 1.0

# Answers a request the server makes while a call runs; may raise `McpFault`.
Asker = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

Log = Callable[[dict[str, Any]], Awaitable[None]]

_log = logging.getLogger(__name__)


class Exchange:
    """`answer` is the result, or the exception to raise: one nobody waits for any more leaves no trace. `reply_to`
    is the id it goes by on a wire of its own, where that is not its number."""

    __slots__ = ("acknowledged", "answer", "ask", "asked", "method", "number", "reply_to", "reports", "sent")

    def __init__(
        self,
        number: int,
        method: str,
        answer: asyncio.Future[dict[str, Any] | Exception],
        ask: Asker | None = None,
        reports: Reports | None = None,
    ) -> None:
        self.number = number
        self.method = method
        self.answer = answer
        self.ask = ask
        self.asked: set[asyncio.Task[Any]] = set()
        self.reply_to: int | str | None = None
        self.reports = reports
        self.sent = False
        self.acknowledged: asyncio.Future[dict[str, Any]] | None = None

    def settle(self, answer: dict[str, Any] | Exception) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class Reports:
    """Progress reports and log messages of a call, passed on in order by one task. Once `PROGRESS_LIMIT` of them
    wait for a slow listener, a new progress report replaces the one before it."""

    def __init__(self, progress: Progress | None, log: Log | None) -> None:
        self.wants_log = log is not None
        self._progress = progress
        self._logged = log
        self._waiting: deque[tuple[Callable[..., Awaitable[None]], tuple[Any, ...]]] = deque(maxlen=REPORT_LIMIT)
        self._telling: asyncio.Task[None] | None = None

    def progress(self, params: dict[str, Any]) -> None:
        done, total, message = params.get("progress"), params.get("total"), params.get("message")
        if self._progress is None or not isinstance(done, int | float):
            return
        total = total if isinstance(total, int | float) else None
        message = message if isinstance(message, str) else None
        if len(self._waiting) >= PROGRESS_LIMIT and self._waiting[-1][0] is self._progress:
            self._waiting.pop()
        self._add(self._progress, (done, total, message))

    def log(self, params: dict[str, Any]) -> None:
        if self._logged is not None:
            self._add(self._logged, (params,))

    async def told(self) -> None:
        """Wait until the last report was told, but not for ever."""
        if self._telling is not None:
            await asyncio.wait([self._telling], timeout=FLUSH_SECONDS)

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()

    def _add(self, tell: Callable[..., Awaitable[None]], said: tuple[Any, ...]) -> None:
        self._waiting.append((tell, said))
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        try:
            while self._waiting:
                tell, said = self._waiting.popleft()
                try:
                    await tell(*said)
                except Exception:  # whoever listens must not break the call
                    _log.debug("a report was not taken", exc_info=True)
        finally:
            self._telling = None
