"""Runs a program from start to end: its output kept within bounds, its time too."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import anyio

from gateway.errors import Unavailable
from gateway.sandbox import Exit, Process, Program, Sandbox

_log = logging.getLogger(__name__)
_KIBIBYTE = 1024
OUTPUT_LIMIT = 256 * _KIBIBYTE
HARD_LIMIT = 32 * _KIBIBYTE * _KIBIBYTE
_CHUNK = 64 * _KIBIBYTE
_PATIENCE = 10.0
# Seconds to read what an ended program left in its pipes: the event loop may be busy, or someone else holds them.
_LAST_WORDS = 5.0

# Is told which stream, and what was written to it.
Said = Callable[[str, bytes], None]


@dataclass(frozen=True)
class Finished:
    """What a program wrote and how it ended. Of output beyond the limit the middle is left out."""

    stdout: bytes
    stderr: bytes
    exit: Exit
    duration: float
    stdout_truncated: bool = False
    stderr_truncated: bool = False


async def run(
    sandbox: Sandbox,
    program: Program,
    *,
    input: bytes = b"",  # noqa: A002 - what `subprocess` calls it
    timeout: float,
    output_limit: int = OUTPUT_LIMIT,
    hard_limit: int = HARD_LIMIT,
    said: Said | None = None,
) -> Finished:
    """Run it to its end, or kill it: for its time, for a stream beyond `hard_limit`, or when cancelled.

    `said` hears what it writes while it runs: `"stdout"` or `"stderr"`, and up to `output_limit` bytes of each.
    """
    began = time.monotonic()
    process = await sandbox.start(program, stdin=bool(input))
    limits = {"output_limit": output_limit, "hard_limit": hard_limit}
    finished = await finish(process, input=input, timeout=timeout, said=said, **limits)
    return dataclasses.replace(finished, duration=time.monotonic() - began)


async def finish(
    process: Process,
    *,
    input: bytes = b"",  # noqa: A002 - as above
    timeout: float,
    output_limit: int = OUTPUT_LIMIT,
    hard_limit: int = HARD_LIMIT,
    said: Said | None = None,
) -> Finished:
    """The same for a program that was just started; its time begins now."""
    began = time.monotonic()
    kept = (
        Kept(output_limit, hard_limit, heard(said, "stdout")),
        Kept(output_limit, hard_limit, heard(said, "stderr")),
    )
    try:
        exit_ = await _follow(process, input, timeout, *kept)
    except BaseException:
        process.kill()
        with anyio.move_on_after(_PATIENCE, shield=True), suppress(Unavailable):
            await process.wait()
        raise
    out, err = kept
    return Finished(out.content, err.content, exit_, time.monotonic() - began, out.truncated, err.truncated)


def heard(said: Said | None, stream: str) -> Callable[[bytes], None]:
    """What hears a stream; one that fails hears no more, and the program does not suffer for it."""
    ears = [] if said is None else [said]

    def hear(data: bytes) -> None:
        for ear in ears:
            try:
                ear(stream, data)
            except Exception:
                _log.exception("what a program writes could not be told")
                ears.clear()
                return

    return hear


class Kept:
    """The beginning and the end of a stream; `hear` is told of it up to the limit."""

    def __init__(self, limit: int, hard_limit: int, hear: Callable[[bytes], None] = lambda _: None) -> None:
        self._limit = limit
        self._hear = hear
        self._half = limit // 2
        self._hard_limit = hard_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def add(self, data: bytes) -> bool:
        """False once there is more than anyone could mean."""
        if told := data[: max(self._limit - self._size, 0)]:
            self._hear(told)
        self._size += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._half + _CHUNK:
            del self._tail[: -self._half]
        return self._size <= self._hard_limit

    @property
    def truncated(self) -> bool:
        return self._size > 2 * self._half

    @property
    def content(self) -> bytes:
        if not self.truncated:
            return bytes(self._head + self._tail)
        left_out = self._size - 2 * self._half
        return bytes(self._head) + b"\n... %d bytes left out ...\n" % left_out + bytes(self._tail[-self._half :])


async def _follow(process: Process, given: bytes, timeout: float, out: Kept, err: Kept) -> Exit:
    tasks = [
        asyncio.ensure_future(_drain(process, process.stdout, out)),
        asyncio.ensure_future(_drain(process, process.stderr, err)),
        asyncio.ensure_future(_feed(process, given)),
    ]
    try:
        exit_ = await _end(process, timeout)
        await asyncio.wait(tasks[:2], timeout=_LAST_WORDS)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return exit_


async def _end(process: Process, timeout: float) -> Exit:
    try:
        async with asyncio.timeout(timeout):
            return await process.wait()
    except TimeoutError:
        process.kill("timeout")
        return dataclasses.replace(await process.wait(), killed="timeout")


async def _drain(process: Process, stream: asyncio.StreamReader, kept: Kept) -> None:
    while data := await stream.read(_CHUNK):
        if not kept.add(data):
            process.kill("output")


async def _feed(process: Process, given: bytes) -> None:
    if process.stdin is None:
        return
    with suppress(ConnectionError):  # the program need not read what it is given
        for start in range(0, len(given), _CHUNK):
            process.stdin.write(given[start : start + _CHUNK])
            await process.stdin.drain()
    process.stdin.close()
