"""What a program writes, told to the caller while it runs."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import time

from gateway.calls import Progress, no_progress

# Seconds between two reports: as often as a person can follow. Before the first, most programs have ended.
INTERVAL = 0.3

# Seconds after which a program that writes nothing is reported to be alive.
SILENCE = 10.0

# Characters of a report; of more, the newest.
MESSAGE = 2000

_PATIENCE = 1.0
_log = logging.getLogger(__name__)


class Live:
    """Reports in a task of its own, so that a caller who is slow to take them holds up nothing: between two
    reports only the newest output is kept. Use it in an `async with`, and hand `said` to whoever reads."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._new = ""
        self._heard = asyncio.Event()
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._telling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Live:
        if self._progress is not no_progress:
            self._telling = asyncio.get_running_loop().create_task(self._tell())
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait([self._telling], timeout=_PATIENCE)

    def said(self, stream: str, chunk: bytes) -> None:
        if self._telling is not None:
            text = self._decoders[stream].decode(chunk[-4 * MESSAGE :])
            self._new = (self._new + text)[-MESSAGE:]
            self._heard.set()

    async def _tell(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(INTERVAL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENCE):
                    await self._heard.wait()
            self._heard.clear()
            message, self._new = self._new, ""
            try:
                await self._progress(round(time.monotonic() - began, 3), None, message or "still running")
            except Exception:  # whoever watches must not break the call
                _log.debug("a progress report was not taken", exc_info=True)
