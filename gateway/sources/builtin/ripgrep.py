"""Searching open files for a pattern in a child process, which can be killed if the pattern takes too long."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import orjson

from gateway.errors import Invalid, Timeout, Unavailable
from gateway.value import Value

_SCRIPT = Path(__file__).with_name("search_script.py")
_POLL_SECONDS = 0.02  # how soon a cancelled call is noticed
_OUTPUT_LIMIT = 32 * 1024 * 1024  # from one child
_EVENT_LIMIT = 4 * 1024 * 1024  # one matching line as JSON; longer ones are left out
_STDERR_LIMIT = 4096
_ERROR_STATUS = 2

# An event in place of matches that were too long.
OMITTED: dict[str, Any] = {"type": "omitted"}


class Query(Value):
    """A search pattern, matched line by line."""

    pattern: str
    literal: bool = False
    case_sensitive: bool = True
    context_lines: int = 0
    per_file: int = 1000


class SearchEngine(Value):
    """The program that searches: ripgrep at this path, else Python's `re`; and its time limit."""

    ripgrep: str | None = None
    seconds: float = 20.0

    @classmethod
    def detect(cls) -> SearchEngine:
        return cls(shutil.which("rg"))

    @property
    def name(self) -> str:
        return "ripgrep" if self.ripgrep else "python"

    def command(self, query: Query, fds: Sequence[int]) -> list[str]:
        paths = [f"/dev/fd/{fd}" for fd in fds] or [os.devnull]
        if self.ripgrep:
            return [self.ripgrep, *_ripgrep_options(query), *paths]
        return [sys.executable, "-I", "-S", "-W", "ignore", str(_SCRIPT), json.dumps(vars(query)), *paths]


def search(
    engine: SearchEngine, query: Query, fds: Sequence[int], deadline: float, check_cancelled: Callable[[], None]
) -> Generator[dict[str, Any], None, None]:
    """Yield events in ripgrep's JSON format, in the order of `fds`.

    The child inherits only these descriptors, and is killed when the generator ends.
    """
    child = subprocess.Popen(
        engine.command(query, fds),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=fds,
        cwd="/",
        env={"LC_ALL": "C.UTF-8"},
    )
    with child:
        try:
            yield from _events(child, query, deadline, check_cancelled)
        finally:
            child.kill()


def _events(
    child: subprocess.Popen[bytes], query: Query, deadline: float, check_cancelled: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    lines, stderr = _LineSplitter(), b""
    for stream, data in _read_output(child, deadline, check_cancelled):
        if stream is child.stderr:
            stderr = (stderr + data)[:_STDERR_LIMIT]
            continue
        yield from (orjson.loads(line) if line else OMITTED for line in lines.feed(data))
        if lines.received > _OUTPUT_LIMIT:
            yield OMITTED
            return
    status = child.wait()
    if stderr and status == _ERROR_STATUS:
        raise _invalid_pattern(query, stderr)
    if stderr or status not in (0, 1, _ERROR_STATUS):  # an error without a message: a file could not be read
        raise Unavailable(f"the search ended with status {status}; try a simpler pattern or a narrower path")


class _LineSplitter:
    """Splits a stream into lines. A line that is too long is returned empty, and uses no memory."""

    def __init__(self) -> None:
        self.received = 0
        self._pending = bytearray()
        self._overlong = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        self.received += len(data)
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._append(end)
            yield b"" if self._overlong else bytes(self._pending)
            self._pending, self._overlong = bytearray(), False
        self._append(rest)

    def _append(self, data: bytes) -> None:
        self._overlong = self._overlong or len(self._pending) + len(data) > _EVENT_LIMIT
        if self._overlong:
            self._pending.clear()
        else:
            self._pending += data


def _read_output(
    child: subprocess.Popen[bytes], deadline: float, check_cancelled: Callable[[], None]
) -> Iterator[tuple[object, bytes]]:
    with selectors.DefaultSelector() as selector:
        for stream in (child.stdout, child.stderr):
            selector.register(cast("IO[bytes]", stream), selectors.EVENT_READ)
        while selector.get_map():
            check_cancelled()
            if time.monotonic() > deadline:
                raise Timeout("the search took too long; simplify the pattern, or narrow path or globs")
            for key, _ in selector.select(_POLL_SECONDS):
                data = os.read(key.fd, 1 << 18)
                if not data:
                    selector.unregister(key.fileobj)
                yield key.fileobj, data


def _invalid_pattern(query: Query, stderr: bytes) -> Invalid:
    reason = stderr.decode("utf-8", "replace").strip().removeprefix("rg: ") or "no reason given"
    advice = "correct it, or set literal to search for the text itself"
    return Invalid(
        f"the pattern {query.pattern[:200]!r} is not a regular expression: {reason}; {advice}", code="INVALID_PATTERN"
    )


def _ripgrep_options(query: Query) -> list[str]:
    return [
        "--json",
        "--no-config",
        "--no-messages",
        "--no-mmap",  # a file that shrinks during the search would crash it
        "--threads=1",  # keeps matches in the order of the files
        "--text",
        "--crlf",
        f"--max-count={query.per_file}",
        f"--context={query.context_lines}",
        "--case-sensitive" if query.case_sensitive else "--ignore-case",
        *(["--fixed-strings"] if query.literal else []),
        f"--regexp={query.pattern}",
        "--",
    ]
