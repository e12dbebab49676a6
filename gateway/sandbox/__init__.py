"""Running untrusted programs: the program, its limits and mounts, and the protocols of sandboxes and processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from gateway.config import SandboxSettings
    from gateway.net.policy import NetworkPolicy
    from gateway.sandbox.loopback import Loopback


_MEBIBYTE = 1024 * 1024

# The weakness of a sandbox that cannot protect paths.
RESTORED_AFTERWARDS = (
    "protected files of an attached folder, such as git hooks, are restored after a program ends, not while it runs"
)

# The limit for which a program was killed.
Killed = Literal["memory", "disk", "processes", "output", "timeout"]

# Called with the output of a program as it arrives.
OutputCallback = Callable[[bytes], None]


@dataclass(frozen=True)
class Limits:
    """Limits of a program and everything it starts. `memory`, `processes`, `disk` and `files` are totals of the process
    tree. Its writable folders may grow by `disk` bytes and `files` files in each task (from one `busy` to the next), or
    in its whole life if not `per_task`. Threads count as processes, as in the kernel."""

    memory: int = 1024 * _MEBIBYTE
    processes: int = 256
    disk: int = 1024 * _MEBIBYTE
    files: int = 100_000
    file_bytes: int = 512 * _MEBIBYTE
    tmp_bytes: int = 64 * _MEBIBYTE
    open_files: int = 256
    cpu_seconds: int | None = None
    per_task: bool = True

    @classmethod
    def from_settings(cls, settings: SandboxSettings, cpu_seconds: int | None = None, per_task: bool = True) -> Limits:
        """Make the limits of a program; `cpu_seconds` are None where calls have limits of their own."""
        return cls(memory=settings.memory_mb * _MEBIBYTE, cpu_seconds=cpu_seconds, per_task=per_task)


@dataclass(frozen=True)
class Mount:
    """A folder that a program may see. `target` is its path inside a sandbox with its own file system; `Sandbox.inside`
    returns the actual path. `protected` are paths in a writable one that stay unchanged, if the sandbox
    `protects_paths`. `hidden` are files and folders that the program can neither read nor change, each with the reason;
    a sandbox that cannot hide them refuses to start."""

    source: Path
    target: str
    writable: bool = False
    protected: tuple[str, ...] = ()
    hidden: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.source.is_absolute():  # a relative path means different places in different processes
            raise ValueError(f"a mount needs an absolute path, not {str(self.source)!r}")


@dataclass(frozen=True)
class Program:
    """A program to run with everything it gets; nothing is inherited. `argv[0]` is an absolute path; `readable` are
    files and folders it sees read-only under their own names. In a sandbox without its own `/tmp`, `HOME` and `TMPDIR`
    are a folder that is removed afterwards. With `network` it reaches the allowed hosts by HTTP, through a proxy named
    in its environment. A sandbox with its own network namespace always has a loopback in it; `loopback` then gets
    sockets to reach the program's ports, and a sandbox without one refuses."""

    argv: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    readable: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    pass_fds: tuple[int, ...] = ()
    limits: Limits = Limits()
    network: NetworkPolicy | None = None
    loopback: Loopback | None = None


@dataclass(frozen=True)
class Exit:
    """The end of a program: its exit code (128 + n for signal n), and the limit it was killed for."""

    code: int
    killed: Killed | None = None


class Process(Protocol):
    """A running program. It and everything it started die with the gateway, even if that is killed.

    Its limits are checked many times a second while it is `busy`, which it is from the start; set it to False while
    the program waits for its next task.
    """

    pid: int
    busy: bool
    stdin: asyncio.StreamWriter | None
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    async def listen(self, stdout: OutputCallback, stderr: OutputCallback) -> None:
        """Pass all output to callbacks instead of the stream readers. Call it before anybody has read; the readers
        still show the end of a stream."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM; the program may ignore it."""
        ...

    def kill(self, reason: Killed | None = None) -> None:
        """Kill the whole process tree; harmless if it has ended. `reason` becomes `Exit.killed`."""
        ...

    async def wait(self) -> Exit:
        """Return its exit when the whole tree has ended; `SANDBOX_UNAVAILABLE` if it never started."""
        ...


class Sandbox(Protocol):
    """A way to run programs isolated from the gateway. `weaknesses` are for the operator; `protects_paths` is True if
    protected paths of a mount stay unchanged while a program runs."""

    name: str
    weaknesses: tuple[str, ...]
    protects_paths: bool

    def inside(self, mount: Mount) -> str:
        """Return the path of the mount inside the sandbox."""
        ...

    async def start(self, program: Program, *, stdin: bool = False) -> Process:
        """Start a program, from the event loop's thread; `SANDBOX_UNAVAILABLE` if that fails."""
        ...


SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/ssl/certs")
