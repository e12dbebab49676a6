"""Runs a program from start to end, with bounded output and time."""

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
_KILL_TIMEOUT = 10.0
# Seconds to read the pipes of an ended program: the event loop may be busy, or another process holds them open.
_DRAIN_TIMEOUT = 5.0

# Called with the name of a stream and what was written to it.
OutputListener = Callable[[str, bytes], None]


@dataclass(frozen=True)
class FinishedProgram:
    """The output and exit of a program. Output beyond the limit is cut in the middle."""

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
    input: bytes = b"",  # noqa: A002 - as in `subprocess`
    timeout: float,
    output_limit: int = OUTPUT_LIMIT,
    hard_limit: int = HARD_LIMIT,
    on_output: OutputListener | None = None,
) -> FinishedProgram:
    """Run a program to its end, or kill it: on timeout, for a stream beyond `hard_limit`, or when cancelled.

    `on_output` is called with up to `output_limit` bytes of each stream while it runs.
    """
    began = time.monotonic()
    process = await sandbox.start(program, stdin=bool(input))
    limits = {"output_limit": output_limit, "hard_limit": hard_limit}
    finished = await finish(process, input=input, timeout=timeout, on_output=on_output, **limits)
    return dataclasses.replace(finished, duration=time.monotonic() - began)


async def finish(
    process: Process,
    *,
    input: bytes = b"",  # noqa: A002 - as above
    timeout: float,
    output_limit: int = OUTPUT_LIMIT,
    hard_limit: int = HARD_LIMIT,
    on_output: OutputListener | None = None,
) -> FinishedProgram:
    """Wait for a program that was just started, like `run`; its time begins now."""
    began = time.monotonic()
    outputs = (
        BoundedOutput(output_limit, hard_limit, output_callback(on_output, "stdout")),
        BoundedOutput(output_limit, hard_limit, output_callback(on_output, "stderr")),
    )
    try:
        exit_ = await _follow(process, input, timeout, *outputs)
    except BaseException:
        process.kill()
        with anyio.move_on_after(_KILL_TIMEOUT, shield=True), suppress(Unavailable):
            await process.wait()
        raise
    out, err = outputs
    return FinishedProgram(out.content, err.content, exit_, time.monotonic() - began, out.truncated, err.truncated)


def output_callback(on_output: OutputListener | None, stream: str) -> Callable[[bytes], None]:
    """Return a callback for a stream. A listener that fails is not called again; the program is not affected."""
    listeners = [] if on_output is None else [on_output]

    def callback(data: bytes) -> None:
        for listener in listeners:
            try:
                listener(stream, data)
            except Exception:
                _log.exception("a listener for a program's output failed")
                listeners.clear()
                return

    return callback


class BoundedOutput:
    """The beginning and the end of a stream; `callback` gets it up to the limit."""

    def __init__(self, limit: int, hard_limit: int, callback: Callable[[bytes], None] = lambda _: None) -> None:
        self._limit = limit
        self._callback = callback
        self._half = limit // 2
        self._hard_limit = hard_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def add(self, data: bytes) -> bool:
        """Add output; False once it exceeds the hard limit."""
        if part := data[: max(self._limit - self._size, 0)]:
            self._callback(part)
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


async def _follow(process: Process, input_data: bytes, timeout: float, out: BoundedOutput, err: BoundedOutput) -> Exit:
    tasks = [
        asyncio.ensure_future(_drain(process, process.stdout, out)),
        asyncio.ensure_future(_drain(process, process.stderr, err)),
        asyncio.ensure_future(_feed(process, input_data)),
    ]
    try:
        exit_ = await _end(process, timeout)
        await asyncio.wait(tasks[:2], timeout=_DRAIN_TIMEOUT)
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


async def _drain(process: Process, stream: asyncio.StreamReader, output: BoundedOutput) -> None:
    while data := await stream.read(_CHUNK):
        if not output.add(data):
            process.kill("output")


async def _feed(process: Process, input_data: bytes) -> None:
    if process.stdin is None:
        return
    with suppress(ConnectionError):  # the program may not read its input
        for start in range(0, len(input_data), _CHUNK):
            process.stdin.write(input_data[start : start + _CHUNK])
            await process.stdin.drain()
    process.stdin.close()
