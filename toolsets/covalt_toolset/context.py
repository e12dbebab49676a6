"""The context of a running call: its workspace, its ids, and the way to report progress and log lines."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

Level = Literal["debug", "info", "warning", "error"]


class Progress(NamedTuple):
    """Progress of a call; `total` is None when it is unknown."""

    done: float
    total: float | None = None
    message: str | None = None


class Log(NamedTuple):
    """A log line for people who watch the call; the model does not read it."""

    message: str
    level: Level = "info"


@dataclass(frozen=True)
class ToolContext:
    """The context of a call, besides its arguments.

    `send` delivers reports. Without it, as in a unit test, they are collected in `progress_reports` and
    `log_lines`.
    """

    workspace: Path
    chat_id: str = "chat"
    toolset_id: str = "toolset"
    tool_call_id: str = "call"
    toolset_dir: Path = field(default_factory=Path.cwd)
    send: Callable[[Progress | Log], None] | None = field(default=None, repr=False, compare=False)
    progress_reports: list[Progress] = field(default_factory=list, repr=False, compare=False)
    log_lines: list[Log] = field(default_factory=list, repr=False, compare=False)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress."""
        report = Progress(done, total, message)
        self.progress_reports.append(report) if self.send is None else self.send(report)

    def log(self, message: str, level: Level = "info") -> None:
        """Write a log line for people who watch the call; an unknown level is refused."""
        if level not in _LEVELS:
            raise ValueError(f"level {level!r} is none of {', '.join(_LEVELS)}")
        line = Log(message, level)
        self.log_lines.append(line) if self.send is None else self.send(line)


_LEVELS = typing.get_args(Level)
_current: ContextVar[ToolContext | None] = ContextVar("covalt_toolset.context", default=None)


def get_context() -> ToolContext:
    """Return the context of the running call; `RuntimeError` when there is none."""
    current = _current.get()
    if current is None:
        raise RuntimeError(_OUTSIDE)
    return current


_OUTSIDE = (
    "get_context() called outside of tool execution; in a unit test, call it inside "
    "'with covalt_toolset.context(workspace=tmp_path):', and to a thread of your own, "
    "pass the values it needs"
)


def set_context(context: ToolContext) -> None:
    """Make `get_context()` return `context` in this task or thread."""
    _current.set(context)


def clear_context() -> None:
    """Remove the context from this task or thread."""
    _current.set(None)


@contextlib.contextmanager
def context(
    workspace: Path,
    *,
    chat_id: str = "chat",
    toolset_id: str = "toolset",
    tool_call_id: str = "call",
    toolset_dir: Path | None = None,
    send: Callable[[Progress | Log], None] | None = None,
) -> Iterator[ToolContext]:
    """Set a call's context during a `with` block; the previous one is restored afterwards."""
    current = ToolContext(workspace, chat_id, toolset_id, tool_call_id, toolset_dir or Path.cwd(), send)
    token = _current.set(current)
    try:
        yield current
    finally:
        _current.reset(token)
