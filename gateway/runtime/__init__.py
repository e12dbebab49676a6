"""Toolset code in sandboxed worker processes: one per toolset and workspace for calls, one in passing for schemas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.bundles.spec import Toolset
from gateway.calls import Progress, no_progress
from gateway.config import SandboxSettings
from gateway.runtime import worker_packages as shelves
from gateway.runtime.environments import PackageEnvironments, ResolvedPackages
from gateway.runtime.function_call import FunctionCall, WorkerSpec
from gateway.runtime.pool import WorkerPool
from gateway.runtime.start import Descriptions, describe_tools, start_worker
from gateway.runtime.worker_process import Worker
from gateway.sandbox import Limits, Sandbox

__all__ = ["Descriptions", "FunctionCall", "PackageEnvironments", "ResolvedPackages", "WorkerRuntime"]

# How large one call's arguments or result may be, as JSON.
FRAME_BYTES = 32 * 1024 * 1024

_DESCRIPTIONS = 2
_MEBIBYTE = 1024 * 1024


class WorkerRuntime:
    """Runs toolsets' functions. Nothing is started or looked up before the first call needs it.

    `sandbox` is asked for the sandbox whenever a worker is to be started, and remembers its own answer.
    `directory` is a folder of the runtime's own.
    """

    def __init__(
        self,
        sandbox: Callable[[], Awaitable[Sandbox]],
        directory: Path,
        settings: SandboxSettings,
        frame_bytes: int = FRAME_BYTES,
    ) -> None:
        self._sandbox = sandbox
        self._directory = directory
        self._limits = Limits(memory=settings.memory_mb * _MEBIBYTE)
        self._frame_bytes = frame_bytes
        self._pool = WorkerPool(self._start, settings.workers, settings.worker_idle)
        self._shelf: asyncio.Task[shelves.WorkerPackages] | None = None
        self._describing = asyncio.Semaphore(_DESCRIPTIONS)
        self.environments = PackageEnvironments(directory / "environments", settings.allow_source_packages)

    @property
    def workers(self) -> int:
        """How many worker processes there are."""
        return self._pool.living

    async def call(self, job: FunctionCall) -> Any:
        """What the function returned, as JSON. Refused with `INVALID_ARGUMENTS`; fails with `EXECUTION_ERROR`,
        `INVALID_OUTPUT`, `OUTPUT_LIMIT` or `WORKER_DIED`. Cancelled, it returns at once, and so does the tool."""
        packages = await self.environments.ensure(job.requirements) if job.requirements else None
        async with self._pool.worker(WorkerSpec.of(job, packages)) as worker:
            return await worker.request(
                {
                    "do": "call",
                    "entrypoint": job.entrypoint,
                    "arguments": job.arguments,
                    "chat": job.chat,
                    "call": job.id,
                },
                job.progress,
            )

    async def describe(
        self,
        spec: Toolset,
        directory: Path,
        progress: Progress = no_progress,
        env: Mapping[str, str] | None = None,
    ) -> Descriptions:
        """What each Python tool of the toolset in `directory` takes and gives, from its code, run in a worker
        of its own with an empty workspace. `INVALID_TOOLSET` when the code ends or hangs the worker."""
        packages = await self.environments.ensure(spec.dependencies, progress) if spec.dependencies else None
        async with self._describing:
            return await describe_tools(self._start, spec, directory, packages, env or {}, self._directory / "scratch")

    async def retire(self, directory: Path) -> None:
        """After a toolset's version was replaced or removed: no further call goes to its workers."""
        self._pool.retire(directory)

    async def close(self) -> None:
        """End every worker and what is being installed; returns within seconds, whatever they do."""
        await self._pool.close()
        await self.environments.close()

    async def _start(self, place: WorkerSpec) -> Worker:
        sandbox = await self._sandbox()
        return await start_worker(sandbox, place, await self._shelved(), self._limits, self._frame_bytes)

    async def _shelved(self) -> shelves.WorkerPackages:
        if self._shelf is None or (self._shelf.done() and self._shelf.exception() is not None):
            making = asyncio.to_thread(shelves.make, self._directory)
            self._shelf = asyncio.get_running_loop().create_task(making)
        return await asyncio.shield(self._shelf)
