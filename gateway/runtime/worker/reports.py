"""What a call says while it works: progress, as often as anyone can read it, and a bounded number of log lines."""

from __future__ import annotations

import threading
import time

from covalt_toolset import Log, Progress

from .channel import Channel

_INTERVAL = 0.02
_LINES_LIMIT = 500
_LINE_LIMIT = 4 * 1024


class Reports:
    """One call's way out. Of reports that come too fast the last one is sent, a moment later."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._lock = threading.Lock()
        self._sent_at = 0.0
        self._pending: Progress | None = None
        self._later: threading.Timer | None = None
        self._lines = 0
        self._closed = False

    def __call__(self, report: Progress | Log) -> None:
        if not self._channel.ours:
            return
        with self._lock:
            if self._closed:
                return
            if isinstance(report, Log):
                self._log(report)
            else:
                self._progress(Progress(*_checked(report)))

    def close(self) -> None:
        """The answer comes next: what is pending goes out before it, and nothing after."""
        with self._lock:
            self._flush()
            self._closed = True

    def _progress(self, report: Progress) -> None:
        self._pending = report
        wait = self._sent_at + _INTERVAL - time.monotonic()
        if wait <= 0:
            self._flush()
        elif self._later is None:
            self._later = threading.Timer(wait, self._flush_later)
            self._later.daemon = True
            self._later.start()

    def _flush_later(self) -> None:
        with self._lock:
            self._later = None
            self._flush()

    def _flush(self) -> None:
        if self._pending is not None and not self._closed:
            self._channel.send({"id": self._number, "progress": self._pending})
            self._pending = None
            self._sent_at = time.monotonic()

    def _log(self, line: Log) -> None:
        self._lines += 1
        if self._lines <= _LINES_LIMIT:
            self._channel.send({"id": self._number, "log": [line.level, str(line.message)[:_LINE_LIMIT]]})


def _checked(report: Progress) -> tuple[float, float | None, str | None]:
    total = None if report.total is None else float(report.total)
    message = None if report.message is None else str(report.message)[:_LINE_LIMIT]
    return float(report.done), total, message
