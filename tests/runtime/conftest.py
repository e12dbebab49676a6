"""A toolset in a folder, a runtime around it, and `call` to run its functions in real worker processes."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.bundles.spec import Toolset, load
from gateway.calls import Progress, no_progress
from gateway.config import SandboxSettings
from gateway.runtime import FunctionCall, WorkerRuntime
from gateway.sandbox import Sandbox

from .sandboxes import MAKERS, sandbox

_ids = itertools.count(1)


class Bench:
    """One toolset, written by the test, and workspaces for it."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.folder = folder
        self.directory = folder / "toolset"
        self.sandbox = sandbox
        self.runtimes: list[WorkerRuntime] = []
        self.runtime = self.open()

    def open(self, **settings: Any) -> WorkerRuntime:
        """A runtime of its own settings."""
        self.runtime = WorkerRuntime(self._sandbox, self.folder / "runtime", SandboxSettings(**settings))
        self.runtimes.append(self.runtime)
        return self.runtime

    async def _sandbox(self) -> Sandbox:
        return self.sandbox

    def write(self, source: str, file: str = "tools/it.py") -> None:
        path = self.directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))

    def workspace(self, name: str = "ws") -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    def job(
        self,
        function: str,
        arguments: dict[str, Any],
        workspace: str = "ws",
        env: dict[str, str] | None = None,
        progress: Progress = no_progress,
        requirements: tuple[str, ...] = (),
        every_report: bool = True,
    ) -> FunctionCall:
        return FunctionCall(
            toolset="it",
            directory=self.directory,
            entrypoint=function if ":" in function else f"tools.it:{function}",
            arguments=arguments,
            workspace=self.workspace(workspace),
            chat="demo",
            id=f"call-{next(_ids)}",
            requirements=requirements,
            env=env or {},
            progress=progress,
            every_report=every_report,
        )

    async def call(self, function: str, /, **arguments: Any) -> Any:
        return await self.runtime.call(self.job(function, arguments))

    async def describe(self, *entrypoints: str, **tool: Any) -> dict[str, Any]:
        tools = [{"id": entry.partition(":")[2], "entrypoint": entry, **tool} for entry in entrypoints]
        return dict(await self.runtime.describe(self.spec(tools), self.directory))

    def spec(self, tools: list[dict[str, Any]], **more: Any) -> Toolset:
        return load(json.dumps({"id": "it", "name": "It", "version": "1.0.0", "tools": tools, **more}))


Open = Callable[[Sandbox], Bench]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    benches: list[Bench] = []

    def make(sandbox: Sandbox) -> Bench:
        benches.append(Bench(tmp_path, sandbox))
        return benches[-1]

    yield make
    for bench in benches:
        for runtime in bench.runtimes:
            await runtime.close()
            assert runtime.workers == 0


@pytest.fixture
async def bench(opened: Open) -> Bench:
    """Workers that are held by nothing but their limits: what is tested is ours alone."""
    return opened(await sandbox("unconfined"))


@pytest.fixture(
    params=[name if name in ("bwrap", "seatbelt") else pytest.param(name, marks=pytest.mark.slow) for name in MAKERS]
)
async def boxed(opened: Open, request: pytest.FixtureRequest) -> Bench:
    """As `bench`, once in each sandbox that works here."""
    return opened(await sandbox(request.param))
