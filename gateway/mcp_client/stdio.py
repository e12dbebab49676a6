"""The stdio transport: one line per message, to and from a server process."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway.calls import to_json
from gateway.errors import Unavailable
from gateway.mcp_client.endpoints import StdioEndpoint
from gateway.mcp_client.errors import LinkLost
from gateway.mcp_client.messages import MESSAGE_LIMIT, Message, decode, refusal
from gateway.mcp_client.pending_request import Exchange
from gateway.mcp_client.process import ServerProcess, start_process
from gateway.protocol import jsonrpc

if TYPE_CHECKING:
    from gateway.mcp_client.client import Link


_LEADING_ID = re.compile(rb'\{"jsonrpc":\s?"2\.0",\s?"id":\s?"?(\d{1,15})"?')
_TRAILING_ID = re.compile(rb',\s?"id":\s?"?(\d{1,15})"?\}\s*$')
_KEPT = 512


class Lines:
    """`too_long` is what is left of the line just refused, both its ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._overflow: bytes | None = None

    def feed(self, chunk: bytes) -> Iterator[bytes | TooLong]:
        if b"\n" not in chunk:
            self._keep(chunk)
            return
        first, *complete, rest = chunk.split(b"\n")
        self._keep(first)
        yield self._take()
        for line in complete:
            yield line if len(line) <= self._limit else TooLong(line[:_KEPT] + line[-_KEPT:])
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        if not part:
            return
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._limit:
            head = self._overflow or b"".join(self._parts)[:_KEPT]
            self._overflow = head
            self._parts = [b"".join(self._parts)[-_KEPT:]]

    def _take(self) -> bytes | TooLong:
        parts, self._parts = self._parts, []
        overflow, self._overflow = self._overflow, None
        self._size = 0
        line = parts[0] if len(parts) == 1 else b"".join(parts)
        return line if overflow is None else TooLong(overflow + line)


class TooLong:
    """A line over the limit. The number of the request it answers is found only where it must be the
    message's own: right at the start or the end."""

    def __init__(self, ends: bytes) -> None:
        match = _LEADING_ID.match(ends) or _TRAILING_ID.search(ends[-_KEPT:])
        self.number = int(match[1]) if match else None


# How long a child that closed its output has to end by itself, so that we learn how.
FAREWELL_SECONDS = 1.0

# How often it is seen whether a server still has requests to answer; one that has none costs next to nothing.
CALM_SECONDS = 0.5

_log = logging.getLogger(__name__)


class StdioWire:
    """Nothing on this wire says which request a question of the server belongs to; see `Attribution`."""

    one_each = False

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lines = Lines(MESSAGE_LIMIT)
        self._loop = asyncio.get_running_loop()
        self._process: ServerProcess
        self._watching: asyncio.Task[None]

    async def start(self, endpoint: StdioEndpoint) -> None:
        self._process = await start_process(endpoint, self._read)
        self._watching = self._loop.create_task(self._watch())
        self._loop.call_later(CALM_SECONDS, self._calm_down)

    async def carry(self, exchange: Exchange, message: Message) -> None:
        line = to_json(message) + b"\n"
        exchange.sent = True
        if not self._process.busy:
            self._process.set_busy(True)
            self._loop.call_later(CALM_SECONDS, self._calm_down)
        self._process.stdin.write(line)
        with suppress(ConnectionError):  # the end of its output tells why
            await self._process.stdin.drain()

    async def tell(self, message: Message) -> None:
        self.say(message)

    def say(self, message: Message) -> None:
        if not self._process.stdin.is_closing():
            self._process.stdin.write(to_json(message) + b"\n")

    async def close(self) -> None:
        await self._process.end()
        self._watching.cancel()

    def _calm_down(self) -> None:
        if self._link.is_waiting:
            self._loop.call_later(CALM_SECONDS, self._calm_down)
        else:
            self._process.set_busy(False)

    def _read(self, chunk: bytes) -> None:
        for line in self._lines.feed(chunk):
            if isinstance(line, TooLong):
                self._refuse(line)
                continue
            messages = decode(line)
            if not messages and line.strip():
                _log.debug("%s wrote what is no message: %.200r", self._link.label, line)
            for message in messages:
                self._link.receive(message)

    def _refuse(self, line: TooLong) -> None:
        _log.warning("%s sent a message over %d bytes, which was dropped", self._link.label, MESSAGE_LIMIT)
        if line.number is not None:
            error = {
                "code": jsonrpc.INTERNAL_ERROR,
                "message": f"the answer has more than {MESSAGE_LIMIT} bytes",
            }
            self._link.receive(refusal(line.number, error))

    async def _watch(self) -> None:
        await self._process.output_ended.wait()
        label = self._link.label
        try:
            ended = await self._process.wait(FAREWELL_SECONDS)
        except Unavailable as error:
            self._link.lose(LinkLost(f"{label}: {error.message}"))
            return
        how = "closed its output" if ended is None else f"ended with exit code {ended.code}"
        if ended is not None and ended.killed:
            how = f"was ended because it went over the sandbox's limit of {ended.killed}"
        code = None if ended is None else ended.code
        self._link.lose(LinkLost(f"{label} {how}", exit_code=code, stderr=self._process.stderr.tail))
