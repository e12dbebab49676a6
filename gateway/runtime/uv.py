"""Runs uv, which resolves and installs packages, within a time limit, and makes its errors readable."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.runtime import worker_packages
from gateway.runtime.package_errors import find_package_error

# Gets a line that uv writes.
LineCallback = Callable[[str], Awaitable[None]]

DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
SECONDS = 600.0
_STDERR_BYTES = 64 * 1024
_INHERITED = re.compile(r"(PATH|HOME|LANG|TMPDIR|SSL_CERT_(FILE|DIR)|UV_.*|(HTTPS?|ALL|NO)_PROXY)", re.IGNORECASE)
_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_FRAME = re.compile(r"^[\s×╰─▶├│]*(?:error:|cause:|Caused by:)?\s*")
_UNREACHABLE = re.compile(r"Request failed|[Ff]ailed to fetch|error sending request|dns error|timed out")


class Uv:
    """Runs `uv pip …` in the folder `cwd`. uv inherits the descriptor `lock`, so that the lock is held until uv has
    ended, even when the gateway is killed."""

    def __init__(self, cwd: Path, cache: Path, lock: int, options: Sequence[str]) -> None:
        self._cwd = cwd
        self._lock = lock
        self._options = (*options, "--no-config", "--no-progress", "--color", "never", "--cache-dir", str(cache))

    async def __call__(self, command: str, *arguments: str, on_line: LineCallback | None = None) -> None:
        """Run a command; fails with `DEPENDENCY_FAILED` and the cause. `on_line` gets what uv reports meanwhile."""
        python = ("--python", str(worker_packages.interpreter()), "--no-python-downloads")
        process = await asyncio.create_subprocess_exec(
            *(find(), "pip", command, *python, *self._options, *arguments),
            cwd=self._cwd,
            env={name: value for name, value in os.environ.items() if inherits(name)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(self._lock,),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(SECONDS):
                stderr = await _read(process, on_line)
                code = await process.wait()
        except TimeoutError:
            message = f"installing packages took longer than {SECONDS / 60:.0f} minutes"
            raise Unavailable(message, code=DEPENDENCY_FAILED) from None
        finally:
            await _end(process)
        if code:
            raise _refusal(stderr)


def find() -> str:
    """Return the path of uv: from the package `uv`, else from PATH."""
    with contextlib.suppress(ImportError, FileNotFoundError, AttributeError):
        path: str = importlib.import_module("uv").find_uv_bin()
        return path
    on_path = shutil.which("uv")
    if on_path is None:
        message = "toolsets with dependencies need uv, which is not installed; install it with 'pip install uv'"
        raise Unavailable(message, code=DEPENDENCY_FAILED)
    return on_path


def inherits(name: str) -> bool:
    """Return whether uv gets this environment variable; with `allow_source`, builds see it too."""
    return _INHERITED.fullmatch(name) is not None


async def _read(process: asyncio.subprocess.Process, on_line: LineCallback | None) -> str:
    """Read stderr to its end; return the last part."""
    stderr, rest = b"", b""
    assert process.stderr is not None  # noqa: S101 - it is a pipe
    while chunk := await process.stderr.read(_STDERR_BYTES):
        stderr = (stderr + chunk)[-_STDERR_BYTES:]
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if on_line is not None:
                await on_line(line.decode("utf-8", "replace").strip())
    return stderr.decode("utf-8", "replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(process.wait())


def _refusal(stderr: str) -> GatewayError:
    lines = [_CREDENTIALS.sub("//", _FRAME.sub("", line)).strip() for line in _error_lines(stderr)]
    lines = [line for line in lines if line] or ["uv failed without a message"]
    known = find_package_error("\n".join(lines))
    is_unsolved = len(lines) > 1 and lines[0].startswith("No solution found")
    cause = known.text if known else lines[1] if is_unsolved else ": ".join(lines)
    if "building from source is disabled" in stderr or "--no-build" in stderr:
        cause += "; allow building from source with sandbox.allow_source_packages, which runs the package's code"
    message = f"the toolset's packages could not be installed: {cause[:1000]}"
    if _UNREACHABLE.search("\n".join(lines)):
        return Unavailable(message, code=DEPENDENCY_FAILED)
    return Invalid(message, code=DEPENDENCY_FAILED)


def _error_lines(stderr: str) -> list[str]:
    """Return the lines from the first error on; uv reports its steps before."""
    lines = stderr.splitlines()
    start = next((index for index, line in enumerate(lines) if re.match(r"\s*(error:|×)", line)), 0)
    return lines[start : start + 20]
