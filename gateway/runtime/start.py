"""From a place to a worker that runs there: what its process is given, and the channel to it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from gateway.bundles.spec import INVALID_TOOLSET, Toolset
from gateway.bundles.tool_kinds import PythonTool
from gateway.errors import GatewayError, Invalid
from gateway.runtime.function_call import WorkerSpec
from gateway.runtime.worker_packages import WORKER, WorkerPackages
from gateway.runtime.worker_process import OUTPUT_LIMIT, WORKER_DIED, Worker
from gateway.sandbox import Limits, Mount, Program, Sandbox, seccomp
from gateway.workspace.hidden import hidden_paths

WORKSPACE, TOOLSET, PACKAGES = "/workspace", "/toolset", "/packages"
_FLAGS = ("-I", "-S", "-B", "-X", "faulthandler")
_LAUNCH = f"import sys; sys.path += sys.argv[2:]; from {WORKER} import main; main(sys.argv[1])"
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 - the sandbox's own
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}


async def start_worker(
    sandbox: Sandbox, place: WorkerSpec, shelf: WorkerPackages, limits: Limits, frame_bytes: int
) -> Worker:
    """A worker in its sandbox. It reads its first call when its interpreter is up; nobody waits for that here."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            program, root = _program(sandbox, place, shelf, limits, theirs.fileno(), frame_bytes)
            process = await sandbox.start(program)
        worker = Worker(process, place.toolset, root, limits, frame_bytes)
        try:
            ours.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: worker.channel, sock=ours)
        except BaseException:
            worker.kill("could not be reached")
            raise
    except BaseException:
        ours.close()
        raise
    return worker


def _program(
    sandbox: Sandbox, place: WorkerSpec, shelf: WorkerPackages, limits: Limits, channel: int, frame_bytes: int
) -> tuple[Program, str]:
    hidden = hidden_paths(place.hidden)
    kept = place.protected
    workspace = Mount(place.workspace.resolve(), WORKSPACE, writable=place.writable, protected=kept, hidden=hidden)
    toolset = Mount(place.directory.resolve(), TOOLSET)
    packages = [] if place.packages is None else [Mount(place.packages, PACKAGES)]
    root, home = sandbox.inside(toolset), sandbox.inside(workspace)
    setup = {"channel": channel, "limit": frame_bytes, "toolset": place.toolset, "directory": root, "workspace": home}
    if not place.programs and seccomp.supported():
        setup["filter"] = seccomp.build_without_programs().hex()
    path = [*(sandbox.inside(mount) for mount in packages), str(shelf.directory)]
    program = Program(
        argv=(str(shelf.interpreter), *_FLAGS, "-c", _LAUNCH, orjson.dumps(setup).decode(), *path),
        mounts=(workspace, toolset, *packages),
        readable=shelf.readable,
        env={**_ENVIRONMENT, **place.env},
        cwd=home,
        pass_fds=(channel,),
        limits=limits,
    )
    return program, root


DESCRIBE_SECONDS = 20.0
_KILL_SECONDS = 5.0


# By tool id: a `covalt_toolset.ToolDescription` as a mapping, or in words why there is none.
Descriptions = dict[str, Mapping[str, Any] | str]


async def describe_tools(
    start: Callable[[WorkerSpec], Awaitable[Worker]],
    spec: Toolset,
    directory: Path,
    packages: Path | None,
    env: Mapping[str, str],
    scratch: Path,
) -> Descriptions:
    """Ask a worker of its own for each Python tool in turn; refused when the code ends or hangs it."""
    tools = [tool for tool in spec.tools if isinstance(tool, PythonTool)]
    if not tools:
        return {}
    workspace = await asyncio.to_thread(_make_workspace, scratch)
    worker: Worker | None = None
    try:
        worker = await start(WorkerSpec(spec.id, directory, workspace, packages, env))
        return await _describe_each(worker, tools)
    finally:
        await asyncio.shield(asyncio.get_running_loop().create_task(_clean_up(worker, workspace)))


async def _describe_each(worker: Worker, tools: list[PythonTool]) -> Descriptions:
    described: Descriptions = {}
    deadline = asyncio.get_running_loop().time() + DESCRIBE_SECONDS
    for tool in tools:
        question = {"do": "describe", "entrypoint": tool.entrypoint, "input_schema": tool.input_schema}
        try:
            async with asyncio.timeout_at(deadline):
                answer = await worker.request(question)
        except TimeoutError:
            raise _load_failed(tool, f"its code was not loaded within {DESCRIBE_SECONDS:g} s") from None
        except GatewayError as error:
            if error.code in (WORKER_DIED, OUTPUT_LIMIT):
                told = error.message.partition("; the next call")[0]
                raise _load_failed(tool, f"while its code was loaded, {told}", **error.details) from None
            described[tool.id] = error.message
        else:
            described[tool.id] = answer
    return described


def _load_failed(tool: PythonTool, why: str, **details: Any) -> Invalid:
    return Invalid(f"tool {tool.id!r} ({tool.entrypoint}): {why}", code=INVALID_TOOLSET, tool=tool.id, **details)


def _make_workspace(scratch: Path) -> Path:
    scratch.mkdir(0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=scratch))


async def _clean_up(worker: Worker | None, workspace: Path) -> None:
    if worker is not None:
        worker.kill("was of no more use")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.wait(), _KILL_SECONDS)
    await asyncio.to_thread(shutil.rmtree, workspace, ignore_errors=True)
