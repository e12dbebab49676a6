"""One call inside a worker, from the side of whoever waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from gateway.calls import Progress
from gateway.errors import GatewayError

_FLUSH_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Running:
    """Its answer, and its reports: while one is being told, only the newest of those that come is kept."""

    def __init__(self, answer: asyncio.Future[Any], progress: Progress, printed_before: int) -> None:
        self.answer = answer
        self.printed_before = printed_before
        self._progress = progress
        self._newest: tuple[float, float | None, str | None] | None = None
        self._telling: asyncio.Task[None] | None = None

    def answered(self, message: dict[str, Any], error: Callable[[Any], GatewayError]) -> bool:
        """Whether the message is an answer; if so, whoever waits has it."""
        if "value" in message:
            if not self.answer.done():
                self.answer.set_result(message["value"])
        elif "error" in message:
            self.fail(error(message["error"]))
        else:
            return False
        return True

    def fail(self, error: GatewayError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def report(self, said: Any) -> None:
        match said:
            case [float() | int() as done, (float() | int() | None) as total, (str() | None) as message]:
                self._newest = (done, total, message)
                if self._telling is None:
                    self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def reported(self) -> None:
        """Wait until the last report was told, but not for ever."""
        if (telling := self._telling) is not None:
            await asyncio.wait([telling], timeout=_FLUSH_SECONDS)
            telling.cancel()

    def close(self) -> None:
        """A call that is cancelled has nobody to tell any more."""
        if self.answer.cancelled() and self._telling is not None:
            self._telling.cancel()

    async def _tell(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while self._newest is not None:
                newest, self._newest = self._newest, None
                try:
                    await self._progress(*newest)
                except Exception:  # whoever watches must not break the call
                    _log.debug("a progress report was not taken", exc_info=True)
        self._telling = None
