"""Detection of the sandbox that works on this machine, by starting a program in each, best first."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gateway.config import SandboxSettings
from gateway.errors import GatewayError, Unavailable
from gateway.sandbox import Limits, Mount, Process, Program, Sandbox
from gateway.sandbox.bwrap import Bubblewrap
from gateway.sandbox.landlock import Landlock
from gateway.sandbox.run import run
from gateway.sandbox.seatbelt import Seatbelt
from gateway.sandbox.supervisor import launch, refuse_hidden, refuse_ports


class Unconfined:
    """No sandbox: programs run with all rights of the gateway's account. Environment, limits and process tree are still
    controlled. For operators who set `allow_unsandboxed`."""

    name = "unconfined"
    protects_paths = False

    def __init__(self) -> None:
        self.weaknesses: tuple[str, ...] = ("programs run with all rights of your account, files and network included",)
        if sys.platform != "linux":
            self.weaknesses += ("memory and the number of processes are not limited on this system",)

    def inside(self, mount: Mount) -> str:
        return str(mount.source)

    async def start(self, program: Program, *, stdin: bool = False) -> Process:
        refuse_hidden(self.name, program)
        refuse_ports(self.name, program)
        scratch = Path(tempfile.mkdtemp(prefix="toolgate-"))
        return await launch(program, stdin=stdin, scratch=scratch, task_limit=None)


_log = logging.getLogger(__name__)
_TIMEOUT = 20.0

# Words in error messages, and the cause they indicate.
_CAUSES = (
    ("not installed", "bubblewrap is not installed"),
    ("uid map", "AppArmor forbids user namespaces to ordinary programs (Ubuntu 23.10 and newer)"),
    ("RTM_NEWADDR", "AppArmor forbids user namespaces to ordinary programs (Ubuntu 23.10 and newer)"),
    ("mount proc", "the container forbids mounting /proc"),
    ("namespace", "user namespaces are disabled here"),
    ("no Landlock", "the kernel has no Landlock (needs Linux 5.13 or newer, with lsm=landlock)"),
)

FIXES = (
    "Debian, Ubuntu: sudo apt install bubblewrap",
    "Fedora: sudo dnf install bubblewrap",
    "Ubuntu 23.10 and newer: add an AppArmor profile that allows userns to /usr/bin/bwrap",
    "Docker: run on a host with Landlock, or allow user namespaces in the container's seccomp profile",
    "any system: pip install 'toolgate-mcp[monty]' (a part of Python, no bash, no toolsets)",
    "last resort: sandbox.allow_unsandboxed: true (code then has all rights of your account)",
)


@dataclass(frozen=True)
class FailedBackend:
    """A sandbox that does not work here, with the cause and the original message."""

    backend: str
    reason: str
    raw: str


@dataclass(frozen=True)
class Survey:
    """The sandbox that works on this machine, or None, and those that failed."""

    sandbox: Sandbox | None
    tried: tuple[FailedBackend, ...] = ()


async def choose(settings: SandboxSettings) -> Sandbox:
    """Return the best sandbox that works here; `SANDBOX_UNAVAILABLE` if there is none, unless the operator allows
    programs to run without one."""
    found = await survey()
    if found.sandbox is not None:
        return found.sandbox
    if settings.allow_unsandboxed:
        return _use_unconfined()
    raise Unavailable(
        f"no sandbox works on this machine, and code never runs without one; {FIXES[0]} (more: toolgate doctor)",
        code="SANDBOX_UNAVAILABLE",
        **_details(found),
    )


async def survey() -> Survey:
    """Try each sandbox; cached for the process."""
    if not _cached_survey:
        _cached_survey.append(await _survey())
    return _cached_survey[0]


def peek_survey() -> Survey | None:
    """Return what `survey` found; None if nobody has asked yet."""
    return _cached_survey[0] if _cached_survey else None


_cached_survey: list[Survey] = []
_cached_unconfined: list[Unconfined] = []


async def _survey() -> Survey:
    tried: list[FailedBackend] = []
    for name, make in _candidates():
        try:
            return Survey(await _try_sandbox(make), tuple(tried))
        except GatewayError as error:
            tried.append(FailedBackend(name, _cause(error.message), error.message))
            _log.info("no %s sandbox: %s", name, error.message)
    return Survey(None, tuple(tried))


def _candidates() -> Iterator[tuple[str, Callable[[], Sandbox]]]:
    if sys.platform == "linux":
        yield "bwrap", Bubblewrap
        yield "landlock", Landlock
    elif sys.platform == "darwin":
        yield "seatbelt", Seatbelt


async def _try_sandbox(make: Callable[[], Sandbox]) -> Sandbox:
    """Return a sandbox after a program has run in it."""
    sandbox = await asyncio.get_running_loop().run_in_executor(None, make)
    with tempfile.TemporaryDirectory(prefix="toolgate-") as folder:
        finished = await run(sandbox, _no_op_program(Path(folder)), timeout=_TIMEOUT)
    if finished.exit.code != 0:
        error_output = finished.stderr.decode(errors="replace").strip()
        raise Unavailable(f"a program that does nothing ended with {finished.exit.code}: {error_output}")
    return sandbox


def _no_op_program(folder: Path) -> Program:
    """Return a program that does nothing, with a workspace."""
    limits, mounts = Limits(cpu_seconds=10), (Mount(folder.resolve(), "/workspace", writable=True),)
    if true := shutil.which("true", path="/usr/bin:/bin"):
        return Program((true,), mounts, limits=limits)
    prefixes = tuple({Path(sys.prefix), Path(sys.base_prefix)})
    return Program((sys.executable, "-I", "-S", "-c", ""), mounts, prefixes, limits=limits)


def _cause(message: str) -> str:
    return next((cause for words, cause in _CAUSES if words in message), message)


def _details(found: Survey) -> dict[str, Any]:
    return {"tried": [asdict(attempt) for attempt in found.tried], "fix": list(FIXES)}


def _use_unconfined() -> Unconfined:
    if not _cached_unconfined:
        _log.warning("no sandbox works here; code runs with all rights of this account (sandbox.allow_unsandboxed)")
        _cached_unconfined.append(Unconfined())
    return _cached_unconfined[0]
