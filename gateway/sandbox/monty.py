"""Python where nothing can hold a process: code in an interpreter of its own, which knows a part of the language.

Monty (the extra `toolgate-mcp[monty]`) has no programs, no packages and no network, so it is no `Sandbox`: it takes
code and a folder, and answers as `run` does. Each piece of code gets a fresh worker process, and a thread of ours
that serves it; its own way to be awaited leaves threads behind that now and then abort the gateway as it exits.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio

from gateway.sandbox import Exit, Killed, Limits
from gateway.sandbox.disk_usage import DiskUsage, Size
from gateway.sandbox.process import unavailable
from gateway.sandbox.run import HARD_LIMIT, OUTPUT_LIMIT, Finished, Kept, Said, heard
from gateway.sandbox.watchdog import Watch

# What code can import.
MODULES = (
    *("asyncio", "base64", "binascii", "bisect", "collections", "copy", "csv", "dataclasses", "datetime", "decimal"),
    *("functools", "hashlib", "itertools", "json", "math", "os", "pathlib", "random", "re", "sys", "time", "tomllib"),
    *("typing", "unicodedata"),
)

_PACKAGE = "pydantic_monty"
_FOLDER = "/workspace"
# Seconds beyond its time after which code is ended that waits for us and not for itself, as for a file.
_GRACE = 0.5

# The most it may have, whatever is allowed: what it fails with is told to us in one piece.
_MEMORY = 256 * 1024 * 1024

_ENDED = 128 + 9


def installed() -> bool:
    return importlib.util.find_spec(_PACKAGE) is not None


class Monty:
    """Runs code side by side, in at most `workers` processes; the first comes with the first code.

        async with Monty() as monty:
            finished = await monty.run("print(1)", folder=workspace, timeout=10)

    The folder is `/workspace` inside, and the working folder. Links in it lead nowhere else.
    """

    name = "monty"
    keeps_paths = False
    weaknesses: tuple[str, ...] = (
        "code runs in an interpreter that knows a part of Python and of its library only: no packages, no bash",
    )

    def __init__(self, workers: int = 4) -> None:
        if not installed():
            raise unavailable("Monty is not installed; pip install 'toolgate-mcp[monty]'")
        self._workers = workers
        self._places = asyncio.Semaphore(workers)
        self._threads = ThreadPoolExecutor(workers, "toolgate-monty")
        self._opening = threading.Lock()
        self._pool: Any = None
        self._running: set[_Running] = set()

    async def __aenter__(self) -> Monty:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End what runs, and leave no process behind."""
        for running in self._running:
            running.end()
        with anyio.CancelScope(shield=True):
            await asyncio.get_running_loop().run_in_executor(None, self._shut)

    async def run(
        self,
        code: str,
        *,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        timeout: float,
        output_limit: int = OUTPUT_LIMIT,
        hard_limit: int = HARD_LIMIT,
        said: Said | None = None,
    ) -> Finished:
        """What became of the code: a traceback is on stderr and gives exit code 1. Who is cancelled here ends it."""
        loop = asyncio.get_running_loop()
        kept = {
            name: Kept(output_limit, hard_limit, _in_loop(loop, heard(said, name))) for name in ("stdout", "stderr")
        }
        async with self._places:
            pool = await loop.run_in_executor(self._threads, self._opened)
            began = time.monotonic()
            running = _Running(_Code(code, folder, dict(env or {}), limits, timeout), kept, loop)
            exit_ = await self._followed(running, pool, timeout + _GRACE)
        out, err = kept["stdout"], kept["stderr"]
        return Finished(out.content, err.content, exit_, time.monotonic() - began, out.truncated, err.truncated)

    async def _followed(self, running: _Running, pool: Any, patience: float) -> Exit:
        loop = asyncio.get_running_loop()
        self._running.add(running)
        late = loop.call_later(patience, running.end, "timeout")
        serving = loop.run_in_executor(self._threads, running.serve, pool)
        try:
            return await asyncio.shield(serving)
        finally:
            late.cancel()
            running.end()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([serving])
            self._running.discard(running)

    def _opened(self) -> Any:
        """The pool, opened by the first who needs it: to import it takes a while. In a thread."""
        with self._opening:
            if self._pool is None:
                module = importlib.import_module(_PACKAGE)
                pool = module.Monty(min_processes=0, max_processes=self._workers, max_checkouts_per_worker=1)
                self._pool = pool.__enter__()
            return self._pool

    def _shut(self) -> None:
        self._threads.shutdown()
        with self._opening:
            if self._pool is not None:
                self._pool.__exit__(None, None, None)
                self._pool = None


@dataclass(frozen=True)
class _Code:
    text: str
    folder: Path | None
    env: dict[str, str]
    limits: Limits
    timeout: float


class _Running:
    """A piece of code: `serve` stays with it in a thread, `end` ends it from any other."""

    def __init__(self, code: _Code, kept: Mapping[str, Kept], loop: asyncio.AbstractEventLoop) -> None:
        self._code = code
        self._kept = kept
        self._loop = loop
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._killed: Killed | None = None
        self._worker: int | None = None

    def end(self, killed: Killed | None = None) -> None:
        """End it now; harmless when it has ended."""
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
            self._killed = killed
            if self._worker is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._worker, signal.SIGKILL)

    def serve(self, pool: Any) -> Exit:
        """How it ended; what it failed with is told on stderr."""
        module = importlib.import_module(_PACKAGE)
        bounds = {
            "max_feed_duration_secs": self._code.timeout,
            "max_memory": min(self._code.limits.memory, _MEMORY),
            "max_suspensions": 2**31,  # its time is limited
        }
        try:
            with pool.checkout(limits=bounds, os_policy={"sleep": "call_host"}) as session:
                self._feed(module, session)
        except module.MontyError as error:
            return self._failed(module, error)
        except OSError as error:
            raise unavailable(f"Monty does not start: {error}") from error
        return Exit(_ENDED, self._killed) if self._killed else Exit(0)

    def _feed(self, module: Any, session: Any) -> None:
        folder, limits = self._code.folder, self._code.limits
        with ExitStack() as held:
            mount = folder and held.enter_context(
                module.MountDir(
                    host_path=folder, virtual_path=_FOLDER, mode="read-write", write_bytes_limit=limits.disk
                )
            )
            gauges = [DiskUsage([folder], Size(limits.disk, limits.files), session.worker_pid)] if folder else []
            watch = Watch(limits, session.worker_pid, gauges)
            watch.start(self._loop, self.end)
            held.callback(watch.stop)
            if not held.enter_context(self._at_work(session.worker_pid)):
                return
            # The value of a last expression would be handed to us, however large: there is none.
            text = f"{self._code.text}\nNone"
            answer = functools.partial(self._answer, module)
            session.feed_run(text, print_callback=self._printed, mount=mount, os=answer)

    @contextmanager
    def _at_work(self, worker: int) -> Iterator[bool]:
        """While it lasts, that process may be killed; False when the code was ended before."""
        with self._lock:
            self._worker = worker
            wanted = not self._over.is_set()
        try:
            yield wanted
        finally:
            with self._lock:
                self._worker = None

    def _printed(self, stream: str, text: str) -> None:
        if not self._kept[stream].add(text.encode("utf-8", "replace")):
            self.end("output")

    def _answer(self, module: Any, *, name: str, args: tuple[Any, ...], **_other: Any) -> Any:
        """What the code asks of the machine besides its folder: variables and sleep, and no more."""
        if name == "os.environ":
            return self._code.env
        if name == "os.getenv":
            return self._code.env.get(*args)
        if name in ("time.sleep", "asyncio.sleep"):
            self._over.wait(min(args[0], threading.TIMEOUT_MAX))
            return None
        return module.NOT_HANDLED

    def _failed(self, module: Any, error: Any) -> Exit:
        if self._killed:
            return Exit(_ENDED, self._killed)
        if isinstance(error, module.MontyCrashedError):
            self._kept["stderr"].add(f"{error}\n".encode())
            return Exit(_ENDED, "timeout" if error.timed_out else None)
        told = error.display() if hasattr(error, "display") else str(error)
        told = told.replace('"<python-input-0>"', '"<code>"') + "\n"
        self._kept["stderr"].add(told.encode("utf-8", "replace"))
        killed = _limit(error)
        return Exit(_ENDED if killed else 1, killed)


def _in_loop(loop: asyncio.AbstractEventLoop, hear: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """The same for who writes in a thread."""

    def told(data: bytes) -> None:
        loop.call_soon_threadsafe(hear, data)

    return told


def _limit(error: Any) -> Killed | None:
    """The limit it ran into, as Monty tells: by the exceptions Python has for it."""
    told, inner = str(error), error.exception()
    if isinstance(inner, MemoryError) and "memory limit" in told:
        return "memory"
    if isinstance(inner, TimeoutError) and "time limit exceeded" in told:
        return "timeout"
    return None
