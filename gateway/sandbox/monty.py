"""Monty, an interpreter for a subset of Python, where no sandbox works.

Monty (the extra `toolgate-mcp[monty]`) has no programs, packages or network, so it is not a `Sandbox`: it takes code
and a folder and returns what `run` does. Each piece of code gets a fresh worker process and one of our threads; Monty's
own async interface leaves threads behind that sometimes abort the gateway at exit.
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
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio

from gateway.sandbox import Exit, Killed, Limits
from gateway.sandbox.disk_usage import DiskSize, DiskUsage
from gateway.sandbox.process import unavailable
from gateway.sandbox.run import (
    HARD_LIMIT,
    OUTPUT_LIMIT,
    BoundedOutput,
    FinishedProgram,
    OutputListener,
    output_callback,
)
from gateway.sandbox.watchdog import Watch

# Modules that code can import.
MODULES = (
    *("asyncio", "base64", "binascii", "bisect", "collections", "copy", "csv", "dataclasses", "datetime", "decimal"),
    *("functools", "hashlib", "itertools", "json", "math", "os", "pathlib", "random", "re", "sys", "time", "tomllib"),
    *("typing", "unicodedata"),
)

_PACKAGE = "pydantic_monty"
_FOLDER = "/workspace"
# Seconds beyond its timeout before code is killed that waits for us, such as for a file.
_GRACE = 0.5

# Upper bound of its memory limit: a failure is sent to us in one piece.
_MEMORY = 256 * 1024 * 1024

_KILLED_CODE = 128 + 9

# Calls a function of the host, in the event loop: its name, positional arguments and arguments by name.
HostFunction = Callable[[str, Sequence[Any], Mapping[str, Any]], Coroutine[Any, Any, Any]]


class FunctionFailed(Exception):
    """A function of the host failed; the code gets a RuntimeError with this message."""


@dataclass(frozen=True)
class FinishedCode:
    """The output of code that calls functions, the value of its last expression, and how many calls it did not wait
    for."""

    program: FinishedProgram
    value: Any
    not_awaited: int = 0


def is_installed() -> bool:
    return importlib.util.find_spec(_PACKAGE) is not None


class Monty:
    """Runs code concurrently in at most `workers` processes, started on demand.

        async with Monty() as monty:
            finished = await monty.run("print(1)", folder=workspace, timeout=10)

    The folder is `/workspace` inside and the working directory. Links in it cannot lead elsewhere.
    """

    name = "monty"
    protects_paths = False
    weaknesses: tuple[str, ...] = (
        "code runs in an interpreter for a subset of Python and its library: no packages, no bash",
    )

    def __init__(self, workers: int = 4) -> None:
        if not is_installed():
            raise unavailable("Monty is not installed; pip install 'toolgate-mcp[monty]'")
        self._workers = workers
        self._slots = asyncio.Semaphore(workers)
        self._threads = ThreadPoolExecutor(workers, "toolgate-monty")
        self._opening = threading.Lock()
        self._pool: Any = None
        self._running: set[_RunningCode] = set()

    async def __aenter__(self) -> Monty:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End running code, and leave no process behind."""
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
        on_output: OutputListener | None = None,
    ) -> FinishedProgram:
        """Run code to its end. A traceback is written to stderr, with exit code 1. Cancelling ends the code."""
        given = _Code(code, folder, dict(env or {}), limits, timeout)
        loop = asyncio.get_running_loop()
        outputs = {
            name: BoundedOutput(output_limit, hard_limit, _in_loop(loop, output_callback(on_output, name)))
            for name in ("stdout", "stderr")
        }
        return (await self._run(given, outputs, timeout + _GRACE)).program

    async def run_with_functions(
        self, code: str, function: HostFunction, *, limits: Limits, timeout: float, output_limit: int = OUTPUT_LIMIT
    ) -> FinishedCode:
        """Run code that has no folder and calls functions: every name that it does not define is one. The time that
        they take does not count. Cancelling ends the code; running functions are cancelled when it ends."""
        outputs = {name: BoundedOutput(output_limit, HARD_LIMIT) for name in ("stdout", "stderr")}
        return await self._run(_Code(code, None, {}, limits, timeout, function), outputs, None)

    async def _run(self, code: _Code, outputs: Mapping[str, BoundedOutput], limit: float | None) -> FinishedCode:
        loop = asyncio.get_running_loop()
        async with self._slots:
            pool = await loop.run_in_executor(self._threads, self._open_pool)
            began = time.monotonic()
            running = _RunningCode(code, outputs, loop)
            exit_ = await self._wait_for(running, pool, limit)
        out, err = outputs["stdout"], outputs["stderr"]
        seconds = time.monotonic() - began
        finished = FinishedProgram(out.content, err.content, exit_, seconds, out.truncated, err.truncated)
        return FinishedCode(finished, running.value, running.not_awaited)

    async def _wait_for(self, running: _RunningCode, pool: Any, timeout: float | None) -> Exit:
        loop = asyncio.get_running_loop()
        self._running.add(running)
        late = None if timeout is None else loop.call_later(timeout, running.end, "timeout")
        serving = loop.run_in_executor(self._threads, running.serve, pool)
        try:
            return await asyncio.shield(serving)
        finally:
            if late is not None:
                late.cancel()
            running.end()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([serving])
            self._running.discard(running)

    def _open_pool(self) -> Any:
        """Return the pool, opened at first use, because importing it is slow. Called in a thread."""
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
    function: HostFunction | None = None


class _RunningCode:
    """Running code: `serve` runs in its thread, `end` may be called from any other."""

    def __init__(self, code: _Code, outputs: Mapping[str, BoundedOutput], loop: asyncio.AbstractEventLoop) -> None:
        self._code = code
        self._outputs = outputs
        self._loop = loop
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._killed: Killed | None = None
        self._worker: int | None = None
        self._calls: dict[int, Future[Any]] = {}  # running functions by the id of their call
        self.value: Any = None
        self.not_awaited = 0

    def end(self, killed: Killed | None = None) -> None:
        """Kill it; harmless if it has ended."""
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
            self._killed = killed
            if self._worker is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._worker, signal.SIGKILL)
            for call in list(self._calls.values()):  # its thread may wait for them
                call.cancel()

    def serve(self, pool: Any) -> Exit:
        """Run the code; return its exit. Errors are written to stderr."""
        module = importlib.import_module(_PACKAGE)
        bounds = {
            "max_feed_duration_secs": self._code.timeout,
            "max_memory": min(self._code.limits.memory, _MEMORY),
            "max_suspensions": 2**31,  # the timeout limits it
        }
        try:
            with pool.checkout(limits=bounds, os_policy={"sleep": "call_host"}) as session:
                self._feed(module, session)
        except module.MontyError as error:
            return self._convert_error(module, error)
        except OSError as error:
            raise unavailable(f"Monty does not start: {error}") from error
        return Exit(_KILLED_CODE, self._killed) if self._killed else Exit(0)

    def _feed(self, module: Any, session: Any) -> None:
        folder, limits = self._code.folder, self._code.limits
        with ExitStack() as held:
            mount = folder and held.enter_context(
                module.MountDir(
                    host_path=folder, virtual_path=_FOLDER, mode="read-write", write_bytes_limit=limits.disk
                )
            )
            meters = [DiskUsage([folder], DiskSize(limits.disk, limits.files), session.worker_pid)] if folder else []
            watch = Watch(limits, session.worker_pid, meters)
            watch.start(self._loop, self.end)
            held.callback(watch.stop)
            if not held.enter_context(self._killable(session.worker_pid)):
                return
            answer = functools.partial(self._answer, module)
            if self._code.function is not None:
                snapshot = session.feed_start(self._code.text, print_callback=self._on_print, os=answer)
                self._call_functions(module, snapshot, self._code.function)
                return
            # The value of a last expression would be sent to us, however large; this makes it None.
            text = f"{self._code.text}\nNone"
            session.feed_run(text, print_callback=self._on_print, mount=mount, os=answer)

    def _call_functions(self, module: Any, snapshot: Any, function: HostFunction) -> None:
        """Answer the calls of the code until it ends. Functions run in the event loop, at the same time if the code
        does not wait for each."""
        try:
            while not isinstance(snapshot, module.MontyComplete):
                if isinstance(snapshot, module.FutureSnapshot):
                    snapshot = snapshot.resume(self._wait_for_calls(snapshot.pending_call_ids))
                elif isinstance(snapshot, module.FunctionSnapshot) and not snapshot.is_os_function:
                    name, arguments, named = str(snapshot.function_name), snapshot.args, snapshot.kwargs
                    call = asyncio.run_coroutine_threadsafe(function(name, arguments, named), self._loop)
                    self._add_call(snapshot.call_id, call)
                    snapshot = snapshot.resume({"future": ...})
                elif isinstance(snapshot, module.NameLookupSnapshot):
                    snapshot = snapshot.resume()  # a name that is not called; the code gets a NameError
                else:
                    snapshot = snapshot.resume_auto()
            self.value, self.not_awaited = snapshot.output, len(self._calls)
        finally:
            for call in list(self._calls.values()):
                call.cancel()

    def _add_call(self, number: int, call: Future[Any]) -> None:
        with self._lock:
            self._calls[number] = call
            if self._over.is_set():
                call.cancel()

    def _wait_for_calls(self, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Wait until one of the calls has ended; return the results of those that have."""
        calls = {self._calls[number]: number for number in numbers}
        done, _ = wait(calls, return_when=FIRST_COMPLETED)
        results = {}
        for call in done:
            number = calls[call]
            try:
                results[number] = {"return_value": call.result()}
            except FunctionFailed as failed:
                results[number] = {"exc_type": "RuntimeError", "message": str(failed)}
            except CancelledError:
                results[number] = {"exc_type": "RuntimeError", "message": "the call was cancelled"}
            del self._calls[number]
        return results

    @contextmanager
    def _killable(self, worker: int) -> Iterator[bool]:
        """Allow that process to be killed meanwhile; yields False if the code was ended before."""
        with self._lock:
            self._worker = worker
            wanted = not self._over.is_set()
        try:
            yield wanted
        finally:
            with self._lock:
                self._worker = None

    def _on_print(self, stream: str, text: str) -> None:
        if not self._outputs[stream].add(text.encode("utf-8", "replace")):
            self.end("output")

    def _answer(self, module: Any, *, name: str, args: tuple[Any, ...], **_other: Any) -> Any:
        """Answer calls to the host besides the folder: environment variables and sleep only."""
        if name == "os.environ":
            return self._code.env
        if name == "os.getenv":
            return self._code.env.get(*args)
        if name in ("time.sleep", "asyncio.sleep"):
            self._over.wait(min(args[0], threading.TIMEOUT_MAX))
            return None
        return module.NOT_HANDLED

    def _convert_error(self, module: Any, error: Any) -> Exit:
        if self._killed:
            return Exit(_KILLED_CODE, self._killed)
        if isinstance(error, module.MontyCrashedError):
            self._outputs["stderr"].add(f"{error}\n".encode())
            return Exit(_KILLED_CODE, "timeout" if error.timed_out else None)
        text = error.display() if hasattr(error, "display") else str(error)
        text = text.replace('"<python-input-0>"', '"<code>"') + "\n"
        self._outputs["stderr"].add(text.encode("utf-8", "replace"))
        killed = _limit(error)
        return Exit(_KILLED_CODE if killed else 1, killed)


def _in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return a callback that may be called from another thread."""

    def call(data: bytes) -> None:
        loop.call_soon_threadsafe(callback, data)

    return call


def _limit(error: Any) -> Killed | None:
    """Return the limit that was exceeded, from the exception that Monty raises."""
    message, inner = str(error), error.exception()
    if isinstance(inner, MemoryError) and "memory limit" in message:
        return "memory"
    if isinstance(inner, TimeoutError) and "time limit exceeded" in message:
        return "timeout"
    return None
