"""The log of `toolgate serve`: on the terminal, and in a file of bounded size; as text or as lines of JSON."""

from __future__ import annotations

import json
import logging
import logging.handlers
import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.errors import Unavailable
from gateway.secrets import KNOWN, MaskingFormatter

# Loggers shown on a terminal: clients, calls, questions, upstreams, edits of toolsets.
EVENTS = (
    *("gateway.clients", "gateway.calls", "gateway.approval.store", "gateway.sources.upstreams"),
    "gateway.sources.toolsets",
)
FILE_BYTES = 5 * 1024 * 1024
FILES = 3
# Records kept while the terminal is stopped; later ones are lost.
QUEUED = 10_000


class _TerminalFormatter(MaskingFormatter):
    """An event is a line with its time; anything else also has its level."""

    def format(self, record: logging.LogRecord) -> str:
        moment = self.formatTime(record, "%H:%M:%S")
        level = "" if record.levelno == logging.INFO else f"{record.levelname}: "
        return f"{moment} {level}{super().format(record)}"


class JsonFormatter(MaskingFormatter):
    """One line of JSON for each record; that of a call has its fields under `call`."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (call := getattr(record, "call", None)) is not None:
            fields["call"] = {name: value for name, value in call.items() if value is not None}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(KNOWN.mask_value(fields), ensure_ascii=False, default=str)


@contextmanager
def log_in_background(file: Path | None, *, terminal: bool, warnings_only: bool, as_json: bool) -> Iterator[None]:
    """Log from a thread: a terminal that is stopped with Ctrl-S, or a slow disk, must not stop the gateway. With
    `warnings_only`, a stderr that is not a terminal gets warnings and errors only, unless `as_json`."""
    handlers: list[logging.Handler] = []
    if terminal or as_json:
        handlers.append(logging.StreamHandler(sys.stderr))
        handlers[-1].setFormatter(JsonFormatter() if as_json else _TerminalFormatter("%(message)s"))
    else:
        handlers += logging.getLogger().handlers
        for handler in handlers if warnings_only else ():
            handler.setLevel(logging.WARNING)
    if file is not None:
        handlers.append(_open_file(file))
        if as_json:
            handlers[-1].setFormatter(JsonFormatter())
    records: queue.Queue[logging.LogRecord] = queue.Queue(QUEUED)
    listener = logging.handlers.QueueListener(records, *handlers, respect_handler_level=True)
    queued = _QueueHandler(records)
    root = logging.getLogger()
    before, root.handlers = root.handlers, [queued]
    listener.start()
    try:
        yield
    finally:
        root.handlers = before
        listener.stop()


class _QueueHandler(logging.handlers.QueueHandler):
    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            return


def _open_file(path: Path) -> logging.Handler:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler = logging.handlers.RotatingFileHandler(path, "a", FILE_BYTES, FILES - 1, encoding="utf-8")
        path.chmod(0o600)
    except OSError as error:
        message = f"the log file {path} cannot be written: {error.strerror}; name another with --log-file"
        raise Unavailable(message, code="LOG_UNUSABLE") from None
    handler.setFormatter(MaskingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler
