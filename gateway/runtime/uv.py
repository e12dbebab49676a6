"""uv, the program that resolves and installs packages: found, run within bounds, its complaints made readable."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.runtime import worker_packages

DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
SECONDS = 600.0
_TOLD_BYTES = 64 * 1024
_INHERITED = re.compile(r"(PATH|HOME|LANG|TMPDIR|SSL_CERT_(FILE|DIR)|UV_.*|(HTTPS?|ALL|NO)_PROXY)", re.IGNORECASE)
_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_FRAME = re.compile(r"^[\s×╰─▶├│]*(?:error:|cause:|Caused by:)?\s*")
_UNREACHABLE = re.compile(r"Request failed|[Ff]ailed to fetch|error sending request|dns error|timed out")


class Uv:
    """Runs `uv pip …` in the folder `cwd`. `lock` is a descriptor it inherits, so that a lock held by it
    lasts as long as uv does, even when we are killed."""

    def __init__(self, cwd: Path, cache: Path, lock: int, options: Sequence[str]) -> None:
        self._cwd = cwd
        self._lock = lock
        self._options = (*options, "--no-config", "--no-progress", "--color", "never", "--cache-dir", str(cache))

    async def __call__(self, command: str, *arguments: str) -> None:
        """Refused with `DEPENDENCY_FAILED` and the first useful line of what uv says."""
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
                told = await _read(process)
                code = await process.wait()
        except TimeoutError:
            message = f"installing packages took longer than {SECONDS / 60:.0f} minutes"
            raise Unavailable(message, code=DEPENDENCY_FAILED) from None
        finally:
            await _end(process)
        if code:
            raise _refusal(told)


def find() -> str:
    """The program, as the package `uv` brings it, or as it is on the PATH."""
    with contextlib.suppress(ImportError, FileNotFoundError, AttributeError):
        found: str = importlib.import_module("uv").find_uv_bin()
        return found
    on_path = shutil.which("uv")
    if on_path is None:
        message = "toolsets with dependencies need uv, which is not here; install it with 'pip install uv'"
        raise Unavailable(message, code=DEPENDENCY_FAILED)
    return on_path


def inherits(name: str) -> bool:
    """Whether uv needs this variable of our environment; with `allow_source`, what it builds sees it too."""
    return _INHERITED.fullmatch(name) is not None


async def _read(process: asyncio.subprocess.Process) -> str:
    """All it says on stderr, of which the end is kept."""
    told = b""
    assert process.stderr is not None  # noqa: S101 - it was asked for
    while chunk := await process.stderr.read(_TOLD_BYTES):
        told = (told + chunk)[-_TOLD_BYTES:]
    return told.decode("utf-8", "replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(process.wait())


def _refusal(told: str) -> GatewayError:
    lines = [_CREDENTIALS.sub("//", _FRAME.sub("", line)).strip() for line in _complaint(told)]
    lines = [line for line in lines if line] or ["uv failed without a word"]
    first = lines[1] if len(lines) > 1 and lines[0].startswith("No solution found") else lines[0]
    if "building from source is disabled" in told or "--no-build" in told:
        first += "; allow building from source with sandbox.allow_source_packages, which runs the package's code"
    message = f"the toolset's packages could not be installed: {first[:1000]}"
    if _UNREACHABLE.search("\n".join(lines)):
        return Unavailable(message, code=DEPENDENCY_FAILED)
    return Invalid(message, code=DEPENDENCY_FAILED)


def _complaint(told: str) -> list[str]:
    """From the first line that complains; before it uv says what it is doing."""
    lines = told.splitlines()
    start = next((index for index, line in enumerate(lines) if re.match(r"\s*(error:|×)", line)), 0)
    return lines[start : start + 20]
