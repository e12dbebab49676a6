"""Where one call works: the chat's files, the sandbox, and how programs are run in it."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import anyio

from gateway.calls import Call, Progress, no_progress
from gateway.errors import GatewayError, NotFound, Unavailable
from gateway.net.policy import NetworkPolicy
from gateway.sandbox import SYSTEM_FOLDERS, Limits, Mount, Program, Sandbox
from gateway.sandbox.monty import installed
from gateway.sandbox.run import OUTPUT_LIMIT, Finished, run
from gateway.sources.builtin.code.python_runner import Python, Script
from gateway.tools import Hides, hide_nothing
from gateway.workspace import Entry, Parts, Root, parse
from gateway.workspace.hidden import Hidden, hidden_paths
from gateway.workspace.protected import Protected, paths_to_mount
from gateway.workspace.protected_copies import protect_files

# Seconds between two reports: as often as a person can follow. Before the first, most programs have ended.
INTERVAL = 0.3

# Seconds after which a program that writes nothing is reported to be alive.
SILENCE = 10.0

# Characters of a report; of more, the newest.
MESSAGE = 2000

_PATIENCE = 1.0
_log = logging.getLogger(__name__)


class Live:
    """Reports in a task of its own, so that a caller who is slow to take them holds up nothing: between two
    reports only the newest output is kept. Use it in an `async with`, and hand `said` to whoever reads."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._new = ""
        self._heard = asyncio.Event()
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._telling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Live:
        if self._progress is not no_progress:
            self._telling = asyncio.get_running_loop().create_task(self._tell())
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait([self._telling], timeout=_PATIENCE)

    def said(self, stream: str, chunk: bytes) -> None:
        if self._telling is not None:
            text = self._decoders[stream].decode(chunk[-4 * MESSAGE :])
            self._new = (self._new + text)[-MESSAGE:]
            self._heard.set()

    async def _tell(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(INTERVAL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENCE):
                    await self._heard.wait()
            self._heard.clear()
            message, self._new = self._new, ""
            try:
                await self._progress(round(time.monotonic() - began, 3), None, message or "still running")
            except Exception:  # whoever watches must not break the call
                _log.debug("a progress report was not taken", exc_info=True)


# Where programs are looked for that a sandbox sees too; never on the gateway's own PATH.
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"

_WANTED = ("bash", "sh", "git", "pytest", "npm", "node", "go", "cargo", "make")
_FORMATTERS = ("ruff", "black", "prettier", "gofmt", "rustfmt", "shfmt")


@dataclass(frozen=True)
class Interpreter:
    """A Python that knows nothing of the gateway's own packages, and what must be readable for it to run."""

    path: str
    readable: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Machine:
    """`sandbox` is None where none works; `lack` then says why, and `monty` whether it can run code instead."""

    sandbox: Sandbox | None = None
    lack: GatewayError | None = None
    python: Interpreter | None = None
    programs: Mapping[str, str] = field(default_factory=dict)
    monty: bool = False


def look(sandbox: Sandbox | None, lack: GatewayError | None) -> Machine:
    """What is here; blocks, for a thread."""
    found = {name: shutil.which(name, path=SEARCH_PATH) for name in (*_WANTED, *_FORMATTERS)}
    programs = {name: path for name, path in found.items() if path}
    return Machine(sandbox, lack, interpreter(), programs, monty=sandbox is None and installed())


async def tried(choice: Callable[[], Awaitable[Sandbox]]) -> tuple[Sandbox | None, GatewayError | None]:
    """The sandbox that was found, or why there is none."""
    try:
        return await choice(), None
    except GatewayError as lack:
        return None, lack


def interpreter() -> Interpreter | None:
    """The system's own Python; else the one our environment was made from, without that environment."""
    if (found := shutil.which("python3", path=SEARCH_PATH)) is not None:
        return Interpreter(found)
    ours = getattr(sys, "_base_executable", None) or sys.executable
    prefix = Path(sys.base_prefix)
    return Interpreter(os.path.realpath(ours), (prefix,)) if ours and prefix.is_dir() else None


def visible(path: Path) -> bool:
    """Whether what a link leads to, however far, is there in a sandbox: a part of the system."""
    real = os.path.realpath(path)
    return real.startswith(tuple(f"{folder}/" for folder in SYSTEM_FOLDERS))


T = TypeVar("T")

# Where a program finds the chat's files, in a sandbox with a file system of its own.
WORKSPACE = "/workspace"

VENV, NODE_MODULES = ".venv", "node_modules"
_OWN_PROGRAMS = (f"{VENV}/bin", f"{NODE_MODULES}/.bin")

# Programs that install_package can install, and with what.
_PACKAGED = {"pytest": "pip", "ruff": "pip", "black": "pip", "prettier": "npm"}

# Node and git stop where the machine's settings are there and cannot be opened, as under Landlock, and git where
# files are another user's, as they are when a gateway that is root runs programs as someone else.
_AT_HOME = {
    "OPENSSL_CONF": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call it in a thread and stay until it is done, also when cancelled: what it works with is closed afterwards."""
    future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(future)
    finally:
        if not future.done():
            with anyio.CancelScope(shield=True):
                await asyncio.wait([future])


@dataclass(frozen=True)
class Bench:
    """What a development tool works with besides its arguments. `timeout` is the longest a program may take,
    `network` where those may go that are run `online`; None is nowhere. `attached` is a folder of a person's own, of
    which versions do not keep everything: `protected` are the files in it that other programs obey, noted in `store`
    while a program runs. `installs` says whether install_package can be called. `hides` names the files that rules
    keep from this call, and `hidden` those of them that are there."""

    call: Call
    folder: Path
    root: Root
    sandbox: Sandbox
    pythons: Python
    machine: Machine
    limits: Limits
    timeout: float
    network: NetworkPolicy | None = None
    attached: bool = False
    installs: bool = False
    hides: Hides = hide_nothing
    hidden: Hidden = ()
    protected: Protected = ()
    store: Path | None = None

    @property
    def inside(self) -> str:
        """The path under which programs find the workspace."""
        return self.sandbox.inside(Mount(self.folder, WORKSPACE))

    def place(self, path: str) -> str:
        """A caller's path as programs find it; refused when it leads out of the workspace."""
        return "/".join((self.inside, *parse(path)))

    def directory(self, path: str) -> str:
        """The same for a directory, which must be there."""
        parts = parse(path)
        found = self.found(parts) if parts else None
        if parts and (found is None or found.kind != "directory"):
            raise NotFound(f"there is no directory {path!r} in the workspace", code="FILE_NOT_FOUND")
        return self.place(path)

    def python(self) -> Interpreter:
        """The Python of the workspace's own environment, where packages were installed; else the machine's."""
        if self.has_venv():
            return Interpreter(f"{self.inside}/{VENV}/bin/python", self._system_python().readable)
        return self._system_python()

    def has_venv(self) -> bool:
        """Whether the workspace has an environment whose Python is there in the sandbox too."""
        if self.found((VENV, "pyvenv.cfg")) is None:
            return False
        binary = self.found((VENV, "bin", "python"))
        return binary is not None and (binary.kind == "file" or visible(self.folder / VENV / "bin" / "python"))

    def found(self, parts: Parts) -> Entry | None:
        """What is there, if one can get there without following a link."""
        try:
            return self.root.find(parts)
        except GatewayError:
            return None

    def discard(self, *places: Parts) -> None:
        """Remove what is there, a directory with all that is in it; what cannot be removed stays. Blocks."""
        for parts in places:
            found = self.found(parts)
            with suppress(GatewayError, OSError):
                if found is not None and found.kind == "directory":
                    deque(self.root.remove_tree(parts), maxlen=0)
                elif found is not None:
                    self.root.remove(parts)

    def find(self, name: str) -> str | None:
        """Where a program is: among the workspace's own, else on the machine."""
        for folder in _OWN_PROGRAMS:
            parts: Parts = (*folder.split("/"), name)
            if self.found(parts) is not None:
                return f"{self.inside}/{folder}/{name}"
        return self.machine.programs.get(name)

    def program(
        self,
        *argv: str,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        writable: bool = True,
        readable: Sequence[Path] = (),
        pass_fds: Sequence[int] = (),
        online: bool = False,
        free: bool = False,
        sees_hidden: bool = False,
    ) -> Program:
        """A program that works on the chat's files, and sees nothing else of ours. One that is `free` does what
        others wrote: in a person's own folder it is kept from what other programs of that person obey. One that
        `sees_hidden` files must not let them be seen in what it prints."""
        # A path that need not be there marks the program as one to protect files from, whatever is there.
        protected = (*self._mounted, "toolgate.yaml") if free and self.attached else ()
        hidden = () if sees_hidden else hidden_paths(self.hidden)
        own = ":".join(f"{self.inside}/{folder}" for folder in _OWN_PROGRAMS)
        return Program(
            argv=argv,
            mounts=(Mount(self.folder, WORKSPACE, writable=writable, kept=protected, hidden=hidden),),
            readable=tuple(readable),
            env={
                "PATH": f"{own}:{SEARCH_PATH}",
                "HOME": "/tmp",  # noqa: S108 - the sandbox's own
                "TMPDIR": "/tmp",  # noqa: S108
                "LANG": "C.UTF-8",
                **_AT_HOME,
                **(env or {}),
            },
            cwd=cwd or self.inside,
            pass_fds=tuple(pass_fds),
            limits=self.limits,
            network=self.network if online else None,
        )

    async def run(
        self,
        program: Program,
        *,
        timeout: float | None = None,
        given: bytes = b"",
        output_limit: int = OUTPUT_LIMIT,
        quiet: bool = False,
    ) -> Finished:
        """Run it to its end, telling the caller what it writes meanwhile. Who is cancelled here ends it."""
        async with self._kept(program), Live(no_progress if quiet else self.call.progress) as live:
            return await run(
                self.sandbox,
                program,
                input=given,
                timeout=timeout or self.timeout,
                output_limit=output_limit,
                said=live.said,
            )

    async def run_python(
        self, code: str, args: Sequence[str], env: Mapping[str, str], timeout: float | None
    ) -> Finished:
        """The same for Python code, by whatever runs it here."""
        script = Script(code, args, env, timeout or self.timeout)
        async with self._kept(), Live(self.call.progress) as live:
            return await self.pythons.run(self, script, live.said)

    @asynccontextmanager
    async def _kept(self, program: Program | None = None) -> AsyncIterator[None]:
        """A free program changes nothing in a person's own folder that other programs obey."""
        free = program is None or any(mount.kept for mount in program.mounts)
        if not free or not self.attached:
            yield
            return
        assert self.store is not None  # noqa: S101 - an attached folder has one
        tool, store = self.call.target.id, self.store / self.call.id
        # Somebody agreed to the program: a repository that it makes stays, as does all in it.
        async with protect_files(tool, self.folder, store, self.protected, self._mounted, repositories=True):
            yield

    @property
    def _mounted(self) -> tuple[str, ...]:
        return paths_to_mount(self.protected, ()) if self.sandbox.keeps_paths else ()

    def own_files(self, what: str) -> str | None:
        """Why to ask before a program may do what it likes with the files: they are a person's own. A chat's own
        workspace can be had back as it was, all but the packages, which can be installed again."""
        if not self.attached:
            return None
        return f"{what} with write access to {self.folder}; files that git ignores are in no version to go back to"

    def require_network(self) -> NetworkPolicy:
        """Where programs may go; refused while that is nowhere."""
        if self.network is None:
            message = "the network is off in the sandbox; turn it on with sandbox.network: true"
            raise Unavailable(message, code="NETWORK_OFF")
        return self.network

    def to_get(self, *programs: str) -> str:
        """What one can do here to have one of these programs, as the gateway is set."""
        managers = {"pip": self.installs, "npm": self.installs and "npm" in self.machine.programs}
        packages = [each for each in programs if managers.get(_PACKAGED.get(each, ""))]
        if packages:
            return f"install {' or '.join(packages)} into the workspace with install_package"
        folders = SEARCH_PATH.replace(":", ", ")
        return f"install {' or '.join(programs)} on this machine, in one of {folders}, and start the gateway again"

    def _system_python(self) -> Interpreter:
        if self.machine.python is None:
            raise Unavailable("there is no python3 on this machine; install it", code="PROGRAM_NOT_FOUND")
        return self.machine.python
