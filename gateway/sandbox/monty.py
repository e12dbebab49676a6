"""Python where nothing can hold a process: code in an interpreter of its own, which knows a part of the language.

Monty (the extra `toolgate[monty]`) has no programs, no packages and no network, so it is no `Sandbox`: it takes
code and a folder, and answers as `run` does. Each piece of code gets a fresh worker process.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from . import Exit, Killed, Limits
from .process import unavailable
from .run import HARD_LIMIT, OUTPUT_LIMIT, Finished, Kept, Said, heard

_PACKAGE = "pydantic_monty"
_FOLDER = "/workspace"
_GRACE = 2.0
"""Seconds beyond its time after which code is given up that waits for us and not for itself."""


def installed() -> bool:
    return importlib.util.find_spec(_PACKAGE) is not None


class Monty:
    """Runs code side by side, in at most `workers` processes.

        async with Monty() as monty:
            finished = await monty.run("print(1)", folder=workspace, timeout=10)

    The folder is `/workspace` inside, and the working folder. Links in it lead nowhere else.
    """

    name = "monty"
    weaknesses: tuple[str, ...] = (
        "code runs in an interpreter that knows a part of Python and of its library only: no packages, no bash",
    )

    def __init__(self, workers: int = 4) -> None:
        if not installed():
            raise unavailable("Monty is not installed; pip install 'toolgate[monty]'")
        self._module: Any = importlib.import_module(_PACKAGE)
        self._pool: Any = self._module.AsyncMonty(min_processes=0, max_processes=workers, max_checkouts_per_worker=1)

    async def __aenter__(self) -> Monty:
        await self._pool.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.__aexit__(kind, error, trace)

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
        """What became of the code: a traceback is on stderr and gives exit code 1."""
        kept = {name: Kept(output_limit, hard_limit, heard(said, name)) for name in ("stdout", "stderr")}

        loop = asyncio.get_running_loop()
        flooded = asyncio.Event()

        def on_print(stream: str, text: str) -> None:  # in a thread of the pool's
            if not kept[stream].add(text.encode("utf-8", "replace")):
                loop.call_soon_threadsafe(flooded.set)

        began = time.monotonic()
        running = asyncio.ensure_future(self._outcome(code, folder, dict(env or {}), limits, timeout, on_print))
        exit_, told = await _unless(flooded, running)
        kept["stderr"].add(told.encode("utf-8", "replace"))
        out, err = kept["stdout"], kept["stderr"]
        return Finished(out.content, err.content, exit_, time.monotonic() - began, out.truncated, err.truncated)

    async def _outcome(
        self, code: str, folder: Path | None, env: dict[str, str], limits: Limits, timeout: float, on_print: Any
    ) -> tuple[Exit, str]:
        module = self._module
        bounds = {"max_feed_duration_secs": timeout, "max_total_sleep_secs": timeout, "max_memory": limits.memory}
        mount = folder and module.MountDir(
            host_path=folder, virtual_path=_FOLDER, mode="read-write", write_bytes_limit=limits.disk
        )
        try:
            async with asyncio.timeout(timeout + _GRACE), self._pool.checkout(limits=bounds) as session:
                await session.feed_run(code, print_callback=on_print, mount=mount, os=module.OSAccess(environ=env))
        except TimeoutError:
            return Exit(137, "timeout"), ""
        except module.MontyCrashedError as error:
            return Exit(137, "timeout" if error.timed_out else "memory"), f"{error}\n"
        except module.MontyError as error:
            killed = _limit(error)
            told = error.display() if hasattr(error, "display") else str(error)
            return Exit(137 if killed else 1, killed), told.replace('"<python-input-0>"', '"<code>"') + "\n"
        finally:
            if mount:
                mount.close()
        return Exit(0), ""


async def _unless(flooded: asyncio.Event, running: asyncio.Future[tuple[Exit, str]]) -> tuple[Exit, str]:
    """What becomes of the code, which is ended once it has said more than anyone could mean."""
    watching = asyncio.ensure_future(flooded.wait())
    try:
        await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
        return (Exit(137, "output"), "") if flooded.is_set() else await running
    finally:
        watching.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _limit(error: Any) -> Killed | None:
    """The limit it ran into, as Monty tells: by the exceptions Python has for it."""
    told, inner = str(error), error.exception()
    if isinstance(inner, MemoryError) and "limit exceeded" in told:
        return "memory"
    if isinstance(inner, TimeoutError) and "limit" in told:
        return "timeout"
    return None
