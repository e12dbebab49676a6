"""What this machine has to work with: a sandbox, and the programs that can run in it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.errors import GatewayError
from gateway.sandbox import SYSTEM_FOLDERS, Sandbox
from gateway.sandbox.monty import installed

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
