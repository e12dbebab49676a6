"""Starting workers: the sandboxed program and the channel to it; and describing tools in a temporary worker."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from gateway.bundles.spec import INVALID_TOOLSET, Toolset
from gateway.bundles.tool_kinds import PythonTool
from gateway.errors import GatewayError, Invalid
from gateway.runtime.worker_packages import WORKER, WorkerPackages
from gateway.runtime.worker_process import OUTPUT_LIMIT, WORKER_DIED, Worker, WorkerSpec
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
    sandbox: Sandbox, spec: WorkerSpec, library: WorkerPackages, limits: Limits, frame_bytes: int
) -> Worker:
    """Start a worker in its sandbox, without waiting for its interpreter; it reads its first call when ready."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            program, root = _program(sandbox, spec, library, limits, theirs.fileno(), frame_bytes)
            process = await sandbox.start(program)
        worker = Worker(process, spec.toolset, root, limits, frame_bytes)
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
    sandbox: Sandbox, spec: WorkerSpec, library: WorkerPackages, limits: Limits, channel: int, frame_bytes: int
) -> tuple[Program, str]:
    hidden = hidden_paths(spec.hidden)
    kept = spec.protected
    workspace = Mount(spec.workspace.resolve(), WORKSPACE, writable=spec.writable, protected=kept, hidden=hidden)
    toolset = Mount(spec.directory.resolve(), TOOLSET)
    packages = [] if spec.packages is None else [Mount(spec.packages, PACKAGES)]
    root, home = sandbox.inside(toolset), sandbox.inside(workspace)
    setup = {"channel": channel, "limit": frame_bytes, "toolset": spec.toolset, "directory": root, "workspace": home}
    if not spec.programs and seccomp.is_supported():
        setup["filter"] = seccomp.build_without_programs().hex()
    path = [*(sandbox.inside(mount) for mount in packages), str(library.directory)]
    program = Program(
        argv=(str(library.interpreter), *_FLAGS, "-c", _LAUNCH, orjson.dumps(setup).decode(), *path),
        mounts=(workspace, toolset, *packages),
        readable=library.readable,
        env={**_ENVIRONMENT, **spec.env},
        cwd=home,
        pass_fds=(channel,),
        limits=limits,
    )
    return program, root


_TEST = "import sys; sys.path[:0] = sys.argv[1:4]; import pytest; sys.exit(pytest.main(sys.argv[4:]))"


def build_test_program(
    sandbox: Sandbox,
    directory: Path,
    packages: Path,
    library: WorkerPackages,
    arguments: Sequence[str],
    limits: Limits,
) -> Program:
    """Describe a run of pytest in the toolset's folder."""
    toolset, installed = Mount(directory.resolve(), TOOLSET), Mount(packages, PACKAGES)
    root = sandbox.inside(toolset)
    path = (root, sandbox.inside(installed), str(library.directory))
    options = ("--rootdir", root, "-p", "no:cacheprovider", *arguments)
    return Program(
        argv=(str(library.interpreter), *_FLAGS, "-c", _TEST, *path, *options),
        mounts=(toolset, installed),
        readable=library.readable,
        env=_ENVIRONMENT,
        cwd=root,
        limits=limits,
    )


DESCRIBE_SECONDS = 20.0
_KILL_SECONDS = 5.0


# By tool id: a `covalt_toolset.ToolDescription` as a mapping, or the reason why there is none.
Descriptions = dict[str, Mapping[str, Any] | str]


async def describe_tools(
    start: Callable[[WorkerSpec], Awaitable[Worker]],
    spec: Toolset,
    directory: Path,
    packages: Path | None,
    env: Mapping[str, str],
    scratch: Path,
) -> Descriptions:
    """Describe each Python tool in a worker that is thrown away, since loading code runs it.

    Refused when the code ends or blocks the worker.
    """
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
        request = {"do": "describe", "entrypoint": tool.entrypoint, "input_schema": tool.input_schema}
        try:
            async with asyncio.timeout_at(deadline):
                description = await worker.request(request)
        except TimeoutError:
            raise _load_failed(tool, f"its code was not loaded within {DESCRIBE_SECONDS:g} s") from None
        except GatewayError as error:
            if error.code in (WORKER_DIED, OUTPUT_LIMIT):
                reason = error.message.partition("; the next call")[0]
                raise _load_failed(tool, f"while its code was loaded, {reason}", **error.details) from None
            described[tool.id] = error.message
        else:
            described[tool.id] = description
    return described


def _load_failed(tool: PythonTool, reason: str, **details: Any) -> Invalid:
    return Invalid(f"tool {tool.id!r} ({tool.entrypoint}): {reason}", code=INVALID_TOOLSET, tool=tool.id, **details)


def _make_workspace(scratch: Path) -> Path:
    scratch.mkdir(0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=scratch))


async def _clean_up(worker: Worker | None, workspace: Path) -> None:
    if worker is not None:
        worker.kill("was no longer needed")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.wait(), _KILL_SECONDS)
    await asyncio.to_thread(shutil.rmtree, workspace, ignore_errors=True)
