"""From a place to a worker that runs there: what its process is given, and the channel to it."""

from __future__ import annotations

import asyncio
import socket

import orjson

from gateway.runtime.job import Place
from gateway.runtime.worker_packages import WORKER, Shelf
from gateway.runtime.worker_process import Worker
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


async def start(sandbox: Sandbox, place: Place, shelf: Shelf, limits: Limits, frame_bytes: int) -> Worker:
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
    sandbox: Sandbox, place: Place, shelf: Shelf, limits: Limits, channel: int, frame_bytes: int
) -> tuple[Program, str]:
    hidden = hidden_paths(place.hidden)
    kept = place.protected
    workspace = Mount(place.workspace.resolve(), WORKSPACE, writable=place.writable, kept=kept, hidden=hidden)
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
