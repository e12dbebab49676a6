"""Progress of long work, on stderr: one line that is rewritten on a terminal, plain lines elsewhere, and nothing with
--json or --quiet."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import click

from gateway.cli.options import QUIET
from gateway.text import visible

# Work that takes less is not shown on a terminal.
DELAY_SECONDS = 0.7
_TICK_SECONDS = 0.1
# The time between plain lines, of which the first and those of new steps are always written.
_PLAIN_SECONDS = 1.0
_BAR = 20
_MANY_FILES = 500
_current: ProgressLine | None = None


class ProgressLine:
    """The line that shows what is being done. It takes reports as a `gateway.calls.Progress`."""

    def __init__(self, label: str, *, terminal: bool, silent: bool) -> None:
        self._text = label
        self._terminal = terminal
        self._silent = silent
        self._started = time.monotonic()
        self._share: float | None = None
        self._drawn = False
        self._paused = False
        self._written_at = 0.0
        self._count_files: Callable[[], int] = lambda: 0
        self._files = 0

    async def __call__(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self.report(done, total, message)

    def report(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self._share = min(max(done / total, 0.0), 1.0) if total else None
        percent = f" ({self._share:.0%})" if self._share is not None else f" ({done:g})" if done else ""
        if message:
            self._text = message
        self._write_plain(f"{self._text}{percent}", force=False)

    def step(self, text: str) -> None:
        """Begin another step, which is written even if it is short."""
        self._text, self._share = text, None
        self._write_plain(text, force=True)

    def watch_files(self, count: Callable[[], int]) -> None:
        """Say how many files of a folder were read so far, once there are many."""
        self._count_files = count

    def draw(self) -> None:
        """Show the line as it is now, on a terminal and if the work takes long enough to be shown."""
        if (files := self._count_files()) != self._files and files >= _MANY_FILES:
            self._files = files
            self._text = f"reading the folder into its first version: {files} files"
            self._write_plain(self._text, force=False)
        elapsed = time.monotonic() - self._started
        if self._silent or self._paused or not self._terminal or elapsed < DELAY_SECONDS:
            return
        filled = round((self._share or 0.0) * _BAR)
        bar = "" if self._share is None else f"[{'#' * filled}{'-' * (_BAR - filled)}] {self._share:4.0%}  "
        width = shutil.get_terminal_size().columns - len(bar) - 12
        line = " ".join(visible(self._text).split())
        text = line if len(line) <= width else f"{line[: max(width - 1, 1)]}…"
        click.echo(f"\r\x1b[K{bar}{text}  {elapsed:.0f} s", nl=False, err=True, color=True)
        self._drawn = True

    def clear(self) -> None:
        """Remove the line from the terminal, before something else is written."""
        if self._drawn:
            click.echo("\r\x1b[K", nl=False, err=True, color=True)
            self._drawn = False

    def stop(self) -> None:
        """Leave the terminal to what is written from now on."""
        self.clear()
        self._silent = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to a question."""
        self.clear()
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def _write_plain(self, text: str, *, force: bool) -> None:
        now = time.monotonic()
        if self._terminal or self._silent or not (force or now - self._written_at >= _PLAIN_SECONDS):
            return
        self._written_at = now
        click.echo(f"… {' '.join(visible(text).split())}", err=True)


@asynccontextmanager
async def show_progress(label: str | None) -> AsyncIterator[ProgressLine]:
    """Show what is done inside, which begins with `label`; nothing without one."""
    global _current
    context = click.get_current_context(silent=True)
    given = {**context.params, **context.meta} if context is not None else {}
    silent = label is None or bool(given.get("as_json") or given.get(QUIET))
    line = _current = ProgressLine(label or "", terminal=sys.stderr.isatty(), silent=silent)
    ticking = asyncio.create_task(_tick(line))
    try:
        yield line
    finally:
        _current = None
        ticking.cancel()
        line.clear()


def clear_progress() -> None:
    """Remove the line, if one is shown, before a question or a result is written."""
    if _current is not None:
        _current.clear()


async def _tick(line: ProgressLine) -> None:
    while True:
        await asyncio.sleep(_TICK_SECONDS)
        line.draw()
