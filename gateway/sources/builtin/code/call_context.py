"""The context of one call of a code tool: the chat's files, this machine's programs, and the sandbox."""

from __future__ import annotations

import asyncio
import codecs
import logging
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar

import anyio

from gateway.calls import Call, Progress, no_progress
from gateway.errors import GatewayError, NotFound, Unavailable
from gateway.net.policy import NetworkPolicy
from gateway.sandbox import SYSTEM_FOLDERS, Limits, Mount, Program, Sandbox
from gateway.sandbox.loopback import Loopback
from gateway.sandbox.monty import is_installed
from gateway.sandbox.run import OUTPUT_LIMIT, FinishedProgram, run
from gateway.sources.builtin.code.background import ProcessTable
from gateway.sources.builtin.code.python_runner import PythonRunner, Script
from gateway.tools import Hides, hide_nothing
from gateway.value import Value
from gateway.workspace import Entry, Parts, Root, parse
from gateway.workspace.hidden import Hidden, hidden_paths
from gateway.workspace.protected import Protected, paths_to_mount
from gateway.workspace.protected_copies import protect_files

_log = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds between two progress reports. Most programs end before the first.
REPORT_INTERVAL = 0.3

# Seconds without output after which a program is reported as still running.
SILENCE = 10.0

# Characters of output in a report; the newest are kept.
REPORT_LENGTH = 2000

# Seconds to wait for the report under way when the program has ended.
_REPORT_PATIENCE = 1.0

# Where programs are searched. The sandbox sees these directories too; the gateway's own PATH is not used.
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"

# The workspace, in a sandbox with its own file system.
WORKSPACE = "/workspace"

VENV, NODE_MODULES = ".venv", "node_modules"
_WORKSPACE_PROGRAMS = (f"{VENV}/bin", f"{NODE_MODULES}/.bin")

NO_FORMATTER = (
    "no formatter is installed: ruff, black, prettier, gofmt, rustfmt or shfmt is needed, on this machine in one of "
    f"{SEARCH_PATH.replace(':', ', ')}, or in {VENV} or {NODE_MODULES} of the attached folder; with sandbox.network, "
    "install_package can install one into a workspace"
)

_TOOLS = ("bash", "sh", "git", "pytest", "npm", "node", "go", "cargo", "make")
FORMATTERS = ("ruff", "black", "prettier", "gofmt", "rustfmt", "shfmt")

# Programs that install_package can install, by package manager.
_PACKAGED = {"pytest": "pip", "ruff": "pip", "black": "pip", "prettier": "npm"}

# Node and git fail on system settings that exist but cannot be opened (Landlock). git also fails on files of another
# user, which a gateway that runs as root makes when it runs programs as someone else.
_ENVIRONMENT = {
    "OPENSSL_CONF": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


class Interpreter(Value):
    """A Python without the gateway's packages, and the paths that must be readable for it to run."""

    path: str
    readable: tuple[Path, ...] = ()


class Host(Value):
    """The sandbox and programs of this machine. `sandbox_error` is the reason where no sandbox works; `monty` is True
    where Monty runs code instead."""

    sandbox: Sandbox | None = None
    sandbox_error: GatewayError | None = None
    python: Interpreter | None = None
    programs: Mapping[str, str] = field(default_factory=dict)
    monty: bool = False


async def detect_host(choose_sandbox: Callable[[], Awaitable[Sandbox]]) -> Host:
    """Find the sandbox and the programs of this machine."""
    try:
        sandbox, error = await choose_sandbox(), None
    except GatewayError as unavailable:
        sandbox, error = None, unavailable
    return await in_thread(_find_programs, sandbox, error)


def _find_programs(sandbox: Sandbox | None, error: GatewayError | None) -> Host:
    paths = {name: shutil.which(name, path=SEARCH_PATH) for name in (*_TOOLS, *FORMATTERS)}
    programs = {name: path for name, path in paths.items() if path}
    return Host(sandbox, error, find_interpreter(), programs, monty=sandbox is None and is_installed())


def find_interpreter() -> Interpreter | None:
    """Return the Python of the system; else the one that the gateway's environment was made from."""
    if (path := shutil.which("python3", path=SEARCH_PATH)) is not None:
        return Interpreter(path)
    executable = getattr(sys, "_base_executable", None) or sys.executable
    prefix = Path(sys.base_prefix)
    return Interpreter(os.path.realpath(executable), (prefix,)) if executable and prefix.is_dir() else None


def has_formatter(folder: Path) -> bool:
    """Return whether the environments of a workspace have a formatter. Blocks."""
    return any((folder / programs / name).exists() for programs in _WORKSPACE_PROGRAMS for name in FORMATTERS)


def _is_in_sandbox(path: Path) -> bool:
    """Return whether the target of a link is part of the system, and so exists in a sandbox."""
    target = os.path.realpath(path)
    return target.startswith(tuple(f"{folder}/" for folder in SYSTEM_FOLDERS))


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a blocking function in a thread. Wait for it also when cancelled: the caller closes what it uses."""
    future = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(future)
    finally:
        if not future.done():
            with anyio.CancelScope(shield=True):
                await asyncio.wait([future])


class OutputReporter:
    """Reports a program's output as progress while it runs.

    A task sends the reports, so that a slow receiver does not delay the program; between two reports only the newest
    output is kept. Use it as an async context manager and pass it every chunk by `add`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._pending = ""
        self._has_output = asyncio.Event()
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> OutputReporter:
        if self._progress is not no_progress:
            self._task = asyncio.get_running_loop().create_task(self._report())
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_REPORT_PATIENCE)

    def add(self, stream: str, chunk: bytes) -> None:
        if self._task is not None:
            text = self._decoders[stream].decode(chunk[-4 * REPORT_LENGTH :])
            self._pending = (self._pending + text)[-REPORT_LENGTH:]
            self._has_output.set()

    async def _report(self) -> None:
        started = time.monotonic()
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            with suppress(TimeoutError):
                async with asyncio.timeout(SILENCE):
                    await self._has_output.wait()
            self._has_output.clear()
            message, self._pending = self._pending, ""
            try:
                await self._progress(round(time.monotonic() - started, 3), None, message or "still running")
            except Exception:  # a receiver that fails must not break the call
                _log.debug("a progress report could not be delivered", exc_info=True)


class CodeContext(Value):
    """The call of a code tool, with everything the tool uses besides its arguments.

    `processes` are those in the background of every chat. `timeout` is the most a program may take, `network` the hosts
    that a program run `online` may reach, `indexes` the package indexes that the operator named, by manager. With
    `can_execute` programs of the workspace may run. `attached`
    is True for a person's own folder, whose versions do not contain every file; `protected` are the files in it that
    other programs obey, recorded in `store` while a program runs. `hides` tells which files rules hide from this call;
    `hidden` are those that exist."""

    call: Call
    folder: Path
    root: Root
    sandbox: Sandbox
    python_runner: PythonRunner
    processes: ProcessTable
    host: Host
    limits: Limits
    timeout: float
    network: NetworkPolicy | None = None
    attached: bool = False
    can_execute: bool = True
    can_install: bool = False
    indexes: Mapping[str, str | None] = field(default_factory=dict)
    hides: Hides = hide_nothing
    hidden: Hidden = ()
    protected: Protected = ()
    store: Path | None = None

    @property
    def workspace_path(self) -> str:
        """The path of the workspace in the sandbox."""
        return self.sandbox.inside(Mount(self.folder, WORKSPACE))

    def sandbox_path(self, path: str) -> str:
        """Return the path in the sandbox of a caller's path; refuse one outside of the workspace."""
        return "/".join((self.workspace_path, *parse(path)))

    def directory(self, path: str) -> str:
        """Return the path in the sandbox of a directory; refuse one that does not exist."""
        parts = parse(path)
        entry = self.find(parts) if parts else None
        if parts and (entry is None or entry.kind != "directory"):
            raise NotFound(f"there is no directory {path!r} in the workspace", code="FILE_NOT_FOUND")
        return self.sandbox_path(path)

    def python(self) -> Interpreter:
        """Return the Python of the workspace's virtual environment if there is one; else the machine's."""
        if self.has_venv():
            return Interpreter(f"{self.workspace_path}/{VENV}/bin/python", self._system_python().readable)
        return self._system_python()

    def has_venv(self) -> bool:
        """Return whether the workspace has a virtual environment whose Python exists in the sandbox."""
        if self.find((VENV, "pyvenv.cfg")) is None:
            return False
        binary = self.find((VENV, "bin", "python"))
        return binary is not None and (binary.kind == "file" or _is_in_sandbox(self.folder / VENV / "bin" / "python"))

    def find(self, parts: Parts) -> Entry | None:
        """Return the entry at a path that contains no links; None where there is none."""
        try:
            return self.root.find(parts)
        except GatewayError:
            return None

    def discard(self, *paths: Parts) -> None:
        """Remove files and whole directories as far as possible. Blocks."""
        for parts in paths:
            entry = self.find(parts)
            with suppress(GatewayError, OSError):
                if entry is not None and entry.kind == "directory":
                    deque(self.root.remove_tree(parts), maxlen=0)
                elif entry is not None:
                    self.root.remove(parts)

    def find_program(self, name: str) -> str | None:
        """Return the path of a program: installed in the workspace, else on the machine."""
        for folder in _WORKSPACE_PROGRAMS if self.can_execute else ():
            if self.find((*folder.split("/"), name)) is not None:
                return f"{self.workspace_path}/{folder}/{name}"
        return self.host.programs.get(name)

    def script_interpreter(self, name: str) -> Interpreter | None:
        """Return the Python to run a script of the workspace's virtual environment with; None for any other program.
        The script itself names its Python by a path of the host, which need not exist in the sandbox."""
        parts = (*_WORKSPACE_PROGRAMS[0].split("/"), name)
        if not self.can_execute or not self.has_venv() or self.find(parts) is None:
            return None
        with suppress(GatewayError), self.root.open(parts) as file:
            return self.python() if file.read(2) == b"#!" else None
        return None

    def program(
        self,
        *argv: str,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        writable: bool = True,
        readable: Sequence[Path] = (),
        pass_fds: Sequence[int] = (),
        online: bool = False,
        untrusted: bool = False,
        sees_hidden: bool = False,
    ) -> Program:
        """Describe a program that works on the chat's files and sees no others of the gateway.

        One that is `untrusted` runs code of others: in an attached folder it cannot change files that other programs
        obey. One that `sees_hidden` files must not print them."""
        # A path that need not exist marks the program as one to protect files from, whatever exists.
        protected = (*self._mounted, "toolgate.yaml") if untrusted and self.attached else ()
        hidden = () if sees_hidden else hidden_paths(self.hidden)
        own = ":".join(f"{self.workspace_path}/{folder}" for folder in _WORKSPACE_PROGRAMS)
        return Program(
            argv=argv,
            mounts=(Mount(self.folder, WORKSPACE, writable=writable, protected=protected, hidden=hidden),),
            readable=tuple(readable),
            env={
                "PATH": f"{own}:{SEARCH_PATH}",
                "HOME": "/tmp",  # noqa: S108 - the sandbox's own
                "TMPDIR": "/tmp",  # noqa: S108
                "LANG": "C.UTF-8",
                **_ENVIRONMENT,
                **(env or {}),
            },
            cwd=cwd or self.workspace_path,
            pass_fds=tuple(pass_fds),
            limits=self.limits,
            network=self.network if online else None,
        )

    def background_program(
        self, *argv: str, cwd: str, env: Mapping[str, str], pass_fds: Sequence[int], loopback: Loopback | None
    ) -> Program:
        """Describe a program that goes on after the call. It can only read a person's own folder: nobody compares its
        files then, or undoes what a program does to protected ones."""
        program = self.program(*argv, cwd=cwd, env=env, writable=not self.attached, pass_fds=pass_fds, online=True)
        limits = replace(self.limits, cpu_seconds=None, per_task=False)
        return replace(program, limits=limits, loopback=loopback)

    async def run(
        self,
        program: Program,
        *,
        timeout: float | None = None,
        stdin: bytes = b"",
        output_limit: int = OUTPUT_LIMIT,
        quiet: bool = False,
    ) -> FinishedProgram:
        """Run a program to its end and report its output as progress. Cancelling ends it."""
        async with (
            self._protect(program),
            OutputReporter(no_progress if quiet else self.call.progress) as reporter,
        ):
            return await run(
                self.sandbox,
                program,
                input=stdin,
                timeout=timeout or self.timeout,
                output_limit=output_limit,
                on_output=reporter.add,
            )

    async def run_python(
        self, code: str, args: Sequence[str], env: Mapping[str, str], timeout: float | None
    ) -> FinishedProgram:
        """Run Python code to its end and report its output as progress. Cancelling ends it."""
        script = Script(code, args, env, timeout or self.timeout)
        async with self._protect(), OutputReporter(self.call.progress) as reporter:
            return await self.python_runner.run(self, script, reporter.add)

    @asynccontextmanager
    async def _protect(self, program: Program | None = None) -> AsyncIterator[None]:
        """Undo what an untrusted program does to protected files of an attached folder."""
        untrusted = program is None or any(mount.protected for mount in program.mounts)
        if not untrusted or not self.attached:
            yield
            return
        assert self.store is not None  # noqa: S101 - an attached folder has one
        tool, store = self.call.target.id, self.store / self.call.id
        # A person agreed to the program: a repository that it creates stays.
        async with protect_files(tool, self.folder, store, self.protected, self._mounted, repositories=True):
            yield

    @property
    def _mounted(self) -> tuple[str, ...]:
        return paths_to_mount(self.protected, ()) if self.sandbox.protects_paths else ()

    def reason_for_attached_folder(self, action: str) -> str | None:
        """Return the reason to ask before a program may write to a person's own folder. A chat's own workspace needs
        none: its versions contain all but the packages, which can be installed again."""
        if not self.attached:
            return None
        lost = "directories that git ignores, and large files, are in no version to go back to"
        return f"{action} with write access to {self.folder}; {lost}"

    def require_network(self) -> NetworkPolicy:
        """Return the hosts that programs may reach; refuse while the network is off."""
        if self.network is None:
            message = "the network is off in the sandbox; turn it on with sandbox.network: true"
            raise Unavailable(message, code="NETWORK_OFF")
        return self.network

    def install_hint(self, *programs: str) -> str:
        """Return how to install one of these programs with this gateway's settings."""
        managers = {"pip": self.can_install, "npm": self.can_install and "npm" in self.host.programs}
        packages = [program for program in programs if managers.get(_PACKAGED.get(program, ""))]
        if packages:
            return f"install {' or '.join(packages)} into the workspace with install_package"
        folders = SEARCH_PATH.replace(":", ", ")
        return f"install {' or '.join(programs)} on this machine, in one of {folders}, and restart the gateway"

    def _system_python(self) -> Interpreter:
        if self.host.python is None:
            raise Unavailable("there is no python3 on this machine; install it", code="PROGRAM_NOT_FOUND")
        return self.host.python
