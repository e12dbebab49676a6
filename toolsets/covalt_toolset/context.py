"""Where a tool runs: its chat's workspace, who called, and the way to report back while it works."""

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
    """How far a call has come; without `total` nobody knows how far it has to go."""

    done: float
    total: float | None = None
    message: str | None = None


class Log(NamedTuple):
    """A line for whoever watches the call; the model does not read it."""

    message: str
    level: Level = "info"


@dataclass(frozen=True)
class ToolContext:
    """What a tool knows besides its arguments.

    `send` carries reports to whoever runs the tool. Without it, as in a unit test, they are
    collected in `progress_reports` and `log_lines`.
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
        """Say how far the call has come."""
        report = Progress(done, total, message)
        self.progress_reports.append(report) if self.send is None else self.send(report)

    def log(self, message: str, level: Level = "info") -> None:
        """Write a line for whoever watches the call; an unknown level is refused."""
        if level not in _LEVELS:
            raise ValueError(f"level {level!r} is none of {', '.join(_LEVELS)}")
        line = Log(message, level)
        self.log_lines.append(line) if self.send is None else self.send(line)


_LEVELS = typing.get_args(Level)
_current: ContextVar[ToolContext | None] = ContextVar("covalt_toolset.context", default=None)


def get_context() -> ToolContext:
    """The context of the call that is running; refused where none is."""
    current = _current.get()
    if current is None:
        raise RuntimeError(_OUTSIDE)
    return current


_OUTSIDE = (
    "get_context() called outside of tool execution; in a unit test, stand inside "
    "'with covalt_toolset.context(workspace=tmp_path):', and in a thread of your own, "
    "pass it what you need of the context"
)


def set_context(context: ToolContext) -> None:
    """From here on `get_context()` answers `context`, in this task or thread."""
    _current.set(context)


def clear_context() -> None:
    """From here on no tool is running, in this task or thread."""
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
    """A call's context for the length of a `with` block; the one around it comes back afterwards."""
    here = ToolContext(workspace, chat_id, toolset_id, tool_call_id, toolset_dir or Path.cwd(), send)
    token = _current.set(here)
    try:
        yield here
    finally:
        _current.reset(token)
