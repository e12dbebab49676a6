"""Programs in the background of a chat: they go on after the call that started them, within limits."""

from __future__ import annotations

import asyncio
import codecs
import itertools
from contextlib import suppress
from dataclasses import replace

import anyio

from gateway.errors import Conflict, GatewayError, NotFound
from gateway.sandbox import Exit, Process, Program, Sandbox
from gateway.sandbox.loopback import PublishedPort

# Processes at once, over all chats.
TOTAL = 24

# Ended processes whose output is kept, of a chat and over all chats.
ENDED_KEPT, ENDED_TOTAL = 8, 64

# Characters of output that are kept; the newest.
OUTPUT_KEPT = 128 * 1024

# A program that prints faster than this waits, so that it cannot occupy the event loop.
_BYTES_PER_SECOND = 4 * 1024 * 1024

_CHUNK = 64 * 1024
_DRAIN_SECONDS = 2.0
_POLL_SECONDS = 0.1
# Seconds between SIGTERM and SIGKILL.
_GRACE = 3.0


class BackgroundProcess:
    """A program in the background. `exit` is None while it runs."""

    def __init__(self, id_: str, command: str, directory: str, published: PublishedPort | None) -> None:
        self.id = id_
        self.command = command
        self.directory = directory
        self.published = published
        self.listening = False
        self.exit: Exit | None = None
        self.length = 0
        self._kept = ""
        self._news = asyncio.Event()
        self._process: Process | None = None
        self.task: asyncio.Task[None]

    def output(self, since: int = 0) -> tuple[str, int]:
        """Return the output after a position, and the number of characters in between that were not kept."""
        first = self.length - len(self._kept)
        return self._kept[max(since - first, 0) :], max(first - since, 0)

    async def run(self, sandbox: Sandbox, program: Program, seconds: float, started: asyncio.Future[None]) -> None:
        """Run it to its end; `started` tells the start or why it failed."""
        try:
            process = self._process = await sandbox.start(program)
        except BaseException as error:
            self.exit = Exit(127)
            if isinstance(error, Exception) and not started.cancelled():
                started.set_exception(error)
            started.cancel()
            with anyio.CancelScope(shield=True):
                await self._close()
            return
        if not started.cancelled():  # else the task is cancelled too
            started.set_result(None)
        reading = [asyncio.ensure_future(self._read(stream)) for stream in (process.stdout, process.stderr)]
        try:
            ended = await _wait(process, seconds)
        except GatewayError as error:  # the sandbox ended before the program began
            ended = Exit(127)
            self._add(f"{error.message}\n")
        except asyncio.CancelledError:
            process.kill()
            ended = Exit(137)
            with anyio.move_on_after(_DRAIN_SECONDS + _GRACE, shield=True), suppress(GatewayError):
                ended = await process.wait()
        with anyio.CancelScope(shield=True):
            await asyncio.wait(reading, timeout=_DRAIN_SECONDS)
            for task in reading:
                task.cancel()
            await self._close()
            self.exit = ended
            self._tell()

    async def wait(self, seconds: float, *, since: int | None = None) -> None:
        """Wait until it has ended; or prints something after `since`; or accepts connections at its port."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.exit is None and not (since is not None and self.length > since):
                    if since is None and await self.is_listening():
                        return
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._news.wait(), _POLL_SECONDS if since is None else None)

    async def is_listening(self) -> bool:
        """Return whether it accepts connections at its port."""
        if self.published is not None and self.exit is None and not self.listening:
            self.listening = await self.published.is_listening()
        return self.listening

    async def stop(self) -> None:
        """End it, with SIGTERM first, and wait for its end."""
        if self._process is not None and self.exit is None:
            self._process.terminate()
            await asyncio.wait([self.task], timeout=_GRACE)
        self.task.cancel()
        await asyncio.wait([self.task])

    async def _read(self, stream: asyncio.StreamReader) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := await stream.read(_CHUNK):
            self._add(decoder.decode(data))
            await asyncio.sleep(len(data) / _BYTES_PER_SECOND)

    def _add(self, text: str) -> None:
        self._kept = (self._kept + text)[-OUTPUT_KEPT:]
        self.length += len(text)
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _close(self) -> None:
        self.listening = False
        if self.published is not None:
            await self.published.close()


async def _wait(process: Process, seconds: float) -> Exit:
    try:
        async with asyncio.timeout(seconds):
            return await process.wait()
    except TimeoutError:
        process.kill("timeout")
        return replace(await process.wait(), killed="timeout")


class ProcessTable:
    """The processes of every chat of one gateway: at most `per_chat` at once, each for `seconds`."""

    def __init__(self, per_chat: int, seconds: float) -> None:
        self.seconds = seconds
        self._per_chat = per_chat
        self._chats: dict[str, dict[str, BackgroundProcess]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)

    async def start(
        self, chat: str, sandbox: Sandbox, program: Program, command: str, directory: str, port: int | None
    ) -> BackgroundProcess:
        """Start a program; with a `port`, its loopback must be given, and is published."""
        self._require_room(chat)
        published = PublishedPort(program.loopback, port) if program.loopback and port else None
        process = BackgroundProcess(f"p{next(self._numbers)}", command, directory, published)
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        process.task = asyncio.get_running_loop().create_task(process.run(sandbox, program, self.seconds, started))
        self._chats.setdefault(chat, {})[process.id] = process
        try:
            await started
            if published is not None:
                await published.open()
        except BaseException:
            process.task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([process.task])
            self._chats.get(chat, {}).pop(process.id, None)
            raise
        return process

    def list(self, chat: str) -> list[BackgroundProcess]:
        return list(self._chats.get(chat, {}).values())

    def find(self, chat: str, id_: str) -> BackgroundProcess:
        found = self._chats.get(chat, {}).get(id_)
        if found is None:
            raise NotFound(f"there is no process {id_!r} in this chat; see list_processes", code="PROCESS_NOT_FOUND")
        return found

    def end_chat(self, chat: str) -> None:
        """Kill the processes of a chat."""
        for process in self._chats.pop(chat, {}).values():
            self._ending.add(process.task)
            process.task.add_done_callback(self._ending.discard)
            process.task.cancel()

    async def close(self) -> None:
        """Kill every process and wait for its end."""
        for chat in list(self._chats):
            self.end_chat(chat)
        if self._ending:
            await asyncio.wait(self._ending)

    def _require_room(self, chat: str) -> None:
        known = self._chats.get(chat, {})
        ended = [process for process in known.values() if process.exit is not None]
        for process in ended[:-ENDED_KEPT]:
            del known[process.id]
        everywhere = [(name, each.id) for name in self._chats for each in self.list(name) if each.exit is not None]
        for name, id_ in everywhere[:-ENDED_TOTAL]:
            del self._chats[name][id_]
        total = sum(process.exit is None for chat in self._chats for process in self.list(chat))
        if sum(process.exit is None for process in known.values()) >= self._per_chat or total >= TOTAL:
            whose = f"{self._per_chat} processes of this chat" if total < TOTAL else f"{TOTAL} processes"
            raise Conflict(f"{whose} run already; end one with stop_process", code="TOO_MANY_PROCESSES")
