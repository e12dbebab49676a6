"""Schemas from a toolset's code: loading it runs it, so it is loaded in a worker that is thrown away."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.bundles.kinds import PythonTool
from gateway.bundles.spec import INVALID_TOOLSET, Toolset
from gateway.errors import GatewayError, Invalid
from gateway.runtime.errors import OUTPUT_LIMIT, WORKER_DIED
from gateway.runtime.job import Place
from gateway.runtime.worker_process import Worker

SECONDS = 20.0
_END_SECONDS = 5.0


# By tool id: a `covalt_toolset.ToolDescription` as a mapping, or in words why there is none.
Described = dict[str, Mapping[str, Any] | str]


async def describe(
    start: Callable[[Place], Awaitable[Worker]],
    spec: Toolset,
    directory: Path,
    packages: Path | None,
    env: Mapping[str, str],
    scratch: Path,
) -> Described:
    """Ask a worker of its own for each Python tool in turn; refused when the code ends or hangs it."""
    tools = [tool for tool in spec.tools if isinstance(tool, PythonTool)]
    if not tools:
        return {}
    workspace = await asyncio.to_thread(_empty, scratch)
    worker: Worker | None = None
    try:
        worker = await start(Place(spec.id, directory, workspace, packages, env))
        return await _ask(worker, tools)
    finally:
        await asyncio.shield(asyncio.get_running_loop().create_task(_clean_up(worker, workspace)))


async def _ask(worker: Worker, tools: list[PythonTool]) -> Described:
    described: Described = {}
    deadline = asyncio.get_running_loop().time() + SECONDS
    for tool in tools:
        question = {"do": "describe", "entrypoint": tool.entrypoint, "input_schema": tool.input_schema}
        try:
            async with asyncio.timeout_at(deadline):
                answer = await worker.request(question)
        except TimeoutError:
            raise _refused(tool, f"its code was not loaded within {SECONDS:g} s") from None
        except GatewayError as error:
            if error.code in (WORKER_DIED, OUTPUT_LIMIT):
                told = error.message.partition("; the next call")[0]
                raise _refused(tool, f"while its code was loaded, {told}", **error.details) from None
            described[tool.id] = error.message
        else:
            described[tool.id] = answer
    return described


def _refused(tool: PythonTool, why: str, **details: Any) -> Invalid:
    return Invalid(f"tool {tool.id!r} ({tool.entrypoint}): {why}", code=INVALID_TOOLSET, tool=tool.id, **details)


def _empty(scratch: Path) -> Path:
    scratch.mkdir(0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=scratch))


async def _clean_up(worker: Worker | None, workspace: Path) -> None:
    if worker is not None:
        worker.kill("was of no more use")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.wait(), _END_SECONDS)
    await asyncio.to_thread(shutil.rmtree, workspace, ignore_errors=True)
