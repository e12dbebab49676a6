"""Toolset code in sandboxed worker processes: one per toolset and workspace for calls, a temporary one for schemas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.bundles.spec import Toolset
from gateway.calls import Progress, no_progress
from gateway.config import SandboxSettings
from gateway.runtime.environments import PackageEnvironments
from gateway.runtime.pool import WorkerPool
from gateway.runtime.start import Descriptions, build_test_program, describe_tools, start_worker
from gateway.runtime.worker_packages import WorkerPackages, link_packages
from gateway.runtime.worker_process import FunctionCall, Worker, WorkerSpec
from gateway.sandbox import Limits, Sandbox
from gateway.sandbox.run import FinishedProgram, OutputListener, run

__all__ = ["Descriptions", "FunctionCall", "PackageEnvironments", "WorkerRuntime"]

# Limit of one call's arguments or result, as JSON.
FRAME_BYTES = 32 * 1024 * 1024

# The package that runs a toolset's tests, and the time they may take.
PYTEST = "pytest>=8"
TEST_SECONDS = 900.0

# Temporary workers that describe tools at the same time.
_DESCRIPTIONS = 2


class WorkerRuntime:
    """Runs functions of toolsets. Nothing is started before the first call needs it.

    `sandbox` is called for each worker start, and caches its result. `directory` belongs to the runtime alone.
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
        self._limits = Limits.from_settings(settings)
        self._frame_bytes = frame_bytes
        self._pool = WorkerPool(self._start, settings.workers, settings.worker_idle)
        self._library: asyncio.Task[WorkerPackages] | None = None
        self._describing = asyncio.Semaphore(_DESCRIPTIONS)
        self.environments = PackageEnvironments(directory / "environments", settings.allow_source_packages)

    @property
    def workers(self) -> int:
        """The number of worker processes."""
        return self._pool.worker_count

    async def call(self, call: FunctionCall) -> Any:
        """Call the function and return its result as JSON. Refused with `INVALID_ARGUMENTS`; fails with
        `EXECUTION_ERROR`, `INVALID_OUTPUT`, `OUTPUT_LIMIT` or `WORKER_DIED`. Cancellation also cancels the function."""
        packages = await self.environments.ensure(call.requirements) if call.requirements else None
        async with self._pool.worker(WorkerSpec.of(call, packages)) as worker:
            return await worker.request(
                {
                    "do": "call",
                    "entrypoint": call.entrypoint,
                    "arguments": call.arguments,
                    "chat": call.chat,
                    "call": call.id,
                    "every_report": call.every_report,
                },
                call.progress,
            )

    async def describe(
        self,
        spec: Toolset,
        directory: Path,
        progress: Progress = no_progress,
        env: Mapping[str, str] | None = None,
    ) -> Descriptions:
        """Describe each Python tool of the toolset in `directory` from its code, in a temporary worker with an empty
        workspace. `INVALID_TOOLSET` when the code ends or blocks the worker."""
        packages = await self.environments.ensure(spec.dependencies, progress) if spec.dependencies else None
        async with self._describing:
            return await describe_tools(self._start, spec, directory, packages, env or {}, self._directory / "scratch")

    async def run_tests(
        self,
        spec: Toolset,
        directory: Path,
        arguments: Sequence[str],
        on_output: OutputListener | None = None,
        progress: Progress = no_progress,
    ) -> FinishedProgram:
        """Run pytest on the toolset in `directory`, which is only read, in a sandbox without secrets or network."""
        packages = await self.environments.ensure((*spec.dependencies, PYTEST), progress)
        assert packages is not None  # noqa: S101 - there is a requirement
        sandbox, library = await self._sandbox(), await self._link_packages()
        program = build_test_program(sandbox, directory, packages, library, arguments, self._limits)
        return await run(sandbox, program, timeout=TEST_SECONDS, on_output=on_output)

    async def retire(self, directory: Path) -> None:
        """Send no further call to the workers of a toolset version that was replaced or removed."""
        self._pool.retire(directory)

    async def close(self) -> None:
        """End every worker and every installation of packages; returns within seconds."""
        await self._pool.close()
        await self.environments.close()

    async def _start(self, place: WorkerSpec) -> Worker:
        sandbox = await self._sandbox()
        return await start_worker(sandbox, place, await self._link_packages(), self._limits, self._frame_bytes)

    async def _link_packages(self) -> WorkerPackages:
        if self._library is None or (self._library.done() and self._library.exception() is not None):
            linking = asyncio.to_thread(link_packages, self._directory)
            self._library = asyncio.get_running_loop().create_task(linking)
        return await asyncio.shield(self._library)
