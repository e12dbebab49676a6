"""The stdio transport: one line per message, to and from a server process."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sys
import termios
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gateway.calls import to_json
from gateway.errors import Unavailable
from gateway.mcp_client.endpoints import StdioEndpoint
from gateway.mcp_client.messages import MESSAGE_LIMIT, ConnectionLost, Message, decode, error_response, request_number
from gateway.mcp_client.pending_request import PendingRequest
from gateway.mcp_client.process import ServerProcess, start_process
from gateway.protocol import jsonrpc

if TYPE_CHECKING:
    from gateway.mcp_client.client import McpClient

# The time a process has to end after it closed its output, so that its exit code is known.
EXIT_SECONDS = 1.0

# The time between checks whether a server still has requests to answer. An idle one costs next to nothing.
IDLE_CHECK_SECONDS = 0.5

# Bytes kept of either end of a line over the limit.
_END = 512

# Lines on stdout that were no messages, of which the first are kept.
_STRAY_LINES = 3
_STRAY_BYTES = 200

_log = logging.getLogger(__name__)


class StdioTransport:
    """A request of the server does not say which request of ours it belongs to; see `Attribution`. `stray_lines` are
    the first lines on stdout that were no messages."""

    isolates_requests = False
    needs_pings = False  # nothing between the two processes ends a silent connection

    def __init__(self, client: McpClient) -> None:
        self._client = client
        self.stray_lines: list[str] = []
        self._lines = LineSplitter(MESSAGE_LIMIT)
        self._loop = asyncio.get_running_loop()
        self._process: ServerProcess
        self._input: PipeGauge
        self._watching: asyncio.Task[None]

    async def start(self, endpoint: StdioEndpoint) -> None:
        self._process = await start_process(endpoint)
        self._input = PipeGauge(self._process.stdin)
        await self._process.listen(self._read)  # its first lines may arrive before this returns
        self._watching = self._loop.create_task(self._watch())
        self._loop.call_later(IDLE_CHECK_SECONDS, self._check_idle)

    async def send_request(self, pending: PendingRequest, message: Message) -> None:
        line = to_json(message) + b"\n"
        pending.sent = True
        if not self._process.busy:
            self._process.set_busy(True)
            self._loop.call_later(IDLE_CHECK_SECONDS, self._check_idle)
        self._input.write(line)
        try:
            await self._process.stdin.drain()
        except ConnectionError:
            return  # `_watch` reports why

    async def send(self, message: Message) -> None:
        self.send_nowait(message)

    def send_nowait(self, message: Message) -> None:
        if not self._process.stdin.is_closing():
            self._process.stdin.write(to_json(message) + b"\n")

    @property
    def was_read(self) -> bool:
        """Return whether the server has read anything; True if that cannot be told."""
        return self._input.was_read

    @property
    def stderr(self) -> str:
        """The last lines of the process on stderr."""
        return self._process.stderr.tail

    def negotiated(self) -> None:
        """Stop watching whether the server reads."""
        self._input.close()

    async def close(self) -> None:
        self._input.close()
        await self._process.end()
        self._watching.cancel()

    def _check_idle(self) -> None:
        if self._client.is_waiting:
            self._loop.call_later(IDLE_CHECK_SECONDS, self._check_idle)
        else:
            self._process.set_busy(False)

    def _read(self, chunk: bytes) -> None:
        for line in self._lines.feed(chunk):
            if isinstance(line, OversizedLine):
                self._fail_request(line)
                continue
            messages = decode(line)
            if not messages and line.strip():
                self._note_stray(line)
            for message in messages:
                self._client.receive(message)

    def _note_stray(self, line: bytes) -> None:
        text = line[:_STRAY_BYTES].decode(errors="replace").strip()
        _log.debug("%s wrote a line that is no message: %r", self._client.label, text)
        if len(self.stray_lines) < _STRAY_LINES:
            self.stray_lines.append(text)
            self._process.stderr.note(f"a line on stdout is no message: {text}")

    def _fail_request(self, line: OversizedLine) -> None:
        _log.warning("%s sent a message over %d bytes, which was dropped", self._client.label, MESSAGE_LIMIT)
        if line.request_number is not None:
            message = f"the answer has more than {MESSAGE_LIMIT} bytes"
            error = {"code": jsonrpc.INTERNAL_ERROR, "message": message}
            self._client.receive(error_response(line.request_number, error))

    async def _watch(self) -> None:
        await self._process.output_ended.wait()
        label = self._client.label
        try:
            ended = await self._process.wait(EXIT_SECONDS)
        except Unavailable as error:
            self._client.lose(ConnectionLost(f"{label}: {error.message}"))
            return
        how = "closed its output" if ended is None else f"ended with exit code {ended.code}"
        if ended is not None and ended.killed:
            how = f"was ended because it went over the sandbox's limit of {ended.killed}"
        if self.stray_lines and self._client.server_info is None:
            how += f"; it wrote {self.stray_lines[0]!r} to stdout, which is no MCP message"
        code = None if ended is None else ended.code
        self._client.lose(ConnectionLost(f"{label} {how}", exit_code=code, stderr=self._process.stderr.tail))


class PipeGauge:
    """Counts what a process has not read of the first message to it. Until it is closed, the process sees no end of its
    input."""

    def __init__(self, stdin: asyncio.StreamWriter) -> None:
        self._stdin = stdin
        self._written: int | None = None
        pipe = stdin.transport.get_extra_info("pipe")
        has_ended = pipe is not None and pipe.closed
        self._was_read = not has_ended
        self._fd = -1 if pipe is None or has_ended else os.dup(pipe.fileno())

    def write(self, line: bytes) -> None:
        transport = self._stdin.transport
        if not transport.is_closing():  # the process has ended; uvloop would raise RuntimeError
            self._stdin.write(line)
        if self._written is None:
            arrived = not transport.is_closing() and not transport.get_write_buffer_size()
            self._written = len(line) if arrived else 0

    @property
    def was_read(self) -> bool:
        if self._fd < 0 or self._written is None:
            return self._was_read
        try:
            unread = int.from_bytes(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)), sys.byteorder)
        except OSError:  # not every system tells the writer
            return True
        return unread < self._written

    def close(self) -> None:
        self._was_read = self.was_read
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class LineSplitter:
    """Splits chunks into lines. Of a line over the limit only both ends are kept, for the id of its request."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._overflow: bytes | None = None

    def feed(self, chunk: bytes) -> Iterator[bytes | OversizedLine]:
        if b"\n" not in chunk:
            self._add(chunk)
            return
        first, *complete, rest = chunk.split(b"\n")
        self._add(first)
        yield self._take()
        for line in complete:
            yield line if len(line) <= self._limit else OversizedLine(line[:_END] + line[-_END:])
        self._add(rest)

    def _add(self, part: bytes) -> None:
        if not part:
            return
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._limit:
            line = b"".join(self._parts)
            self._overflow = self._overflow or line[:_END]
            self._parts = [line[-_END:]]

    def _take(self) -> bytes | OversizedLine:
        parts, self._parts = self._parts, []
        overflow, self._overflow = self._overflow, None
        self._size = 0
        line = parts[0] if len(parts) == 1 else b"".join(parts)
        return line if overflow is None else OversizedLine(overflow + line)


class OversizedLine:
    """A line over the limit; `request_number` is that of the request it answers, if it can be found."""

    def __init__(self, ends: bytes) -> None:
        self.request_number = request_number(jsonrpc.find_id(ends))
