"""The one guarded way to run a program: what to run, what it may see and use, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from gateway.net.policy import NetworkPolicy


_MEBIBYTE = 1024 * 1024

# The weakness of a sandbox that does not keep paths.
PUT_BACK = (
    "protected files of an attached folder, such as git hooks, are put back after a program ends, not held before"
)

# The limit for which a program was ended.
Killed = Literal["memory", "disk", "processes", "output", "timeout"]

# Takes what a program writes, as it comes.
Hear = Callable[[bytes], None]


@dataclass(frozen=True)
class Limits:
    """What a program and all it starts may use. `memory`, `processes`, `disk` and `files` are totals
    of the whole tree; its writable folders may grow by `disk` bytes and `files` files: each time that it
    is `busy` anew, or in its whole life if not `per_task`. Threads count as processes, as they do for the
    kernel."""

    memory: int = 1024 * _MEBIBYTE
    processes: int = 256
    disk: int = 1024 * _MEBIBYTE
    files: int = 100_000
    file_bytes: int = 512 * _MEBIBYTE
    tmp_bytes: int = 64 * _MEBIBYTE
    open_files: int = 256
    cpu_seconds: int | None = None
    per_task: bool = True


@dataclass(frozen=True)
class Mount:
    """A folder of ours that a program may see. `target` is where it finds it, in a sandbox with a file
    system of its own; `Sandbox.inside` says where it really is. `kept` are paths in a writable one that stay as
    they are, where the sandbox `keeps_paths`. `hidden` are files and folders in it that a program can neither read nor
    change, each with the reason; a sandbox that cannot hide them refuses to start it."""

    source: Path
    target: str
    writable: bool = False
    kept: tuple[str, ...] = ()
    hidden: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.source.is_absolute():  # what it is relative to depends on who looks
            raise ValueError(f"a mount needs a whole path, not {str(self.source)!r}")


@dataclass(frozen=True)
class Program:
    """What to run, and everything it is given: nothing is inherited. `argv[0]` is an absolute path;
    `readable` are files and folders it sees read-only under their own names. In a sandbox that has no
    `/tmp` of its own, `HOME` and `TMPDIR` lead to a folder that is removed afterwards. With `network` it
    reaches the hosts that allows by HTTP, through a proxy its environment names; without, nobody."""

    argv: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    readable: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    pass_fds: tuple[int, ...] = ()
    limits: Limits = Limits()
    network: NetworkPolicy | None = None


@dataclass(frozen=True)
class Exit:
    """How a program ended: its code (128 + n for signal n), and the limit it was ended for."""

    code: int
    killed: Killed | None = None


class Process(Protocol):
    """A program that runs. It and all it started die with the gateway, whatever kills that.

    Its limits are looked at many times a second while it is `busy`, as it is from the start; one
    that only waits for its next task should say so.
    """

    pid: int
    busy: bool
    stdin: asyncio.StreamWriter | None
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    async def listen(self, stdout: Hear, stderr: Hear) -> None:
        """Hand over what it writes, from its first byte on, instead of keeping it to be read; before anyone has read.
        The readers still show when a stream has ended."""
        ...

    def terminate(self) -> None:
        """Ask it to end, by SIGTERM; it may take its time, or not listen."""
        ...

    def kill(self, reason: Killed | None = None) -> None:
        """End the whole tree now; harmless when it has ended. `reason` is told by `Exit.killed`."""
        ...

    async def wait(self) -> Exit:
        """How it ended, once nothing of it is left; `SANDBOX_UNAVAILABLE` when it never began."""
        ...


class Sandbox(Protocol):
    """One way of running programs apart from us. `weaknesses` is what an operator should know of it, `keeps_paths`
    whether it holds what is `kept` of a mount."""

    name: str
    weaknesses: tuple[str, ...]
    keeps_paths: bool

    def inside(self, mount: Mount) -> str:
        """The path under which a program finds the mount."""
        ...

    async def start(self, program: Program, *, stdin: bool = False) -> Process:
        """Start it, from the event loop's own thread; `SANDBOX_UNAVAILABLE` when that fails."""
        ...


SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/ssl/certs")
