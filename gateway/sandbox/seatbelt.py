"""The sandbox of macOS: a profile of what may be read and written; everything else is denied."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from gateway.errors import Invalid
from gateway.sandbox import RESTORED_AFTERWARDS, Mount, Process, Program
from gateway.sandbox.process import unavailable
from gateway.sandbox.supervisor import launch, refuse_hidden, refuse_network

EXECUTABLE = "/usr/bin/sandbox-exec"

_SYSTEM = (
    "/usr/lib",
    "/usr/bin",
    "/usr/sbin",
    "/usr/libexec",
    "/usr/share",
    "/bin",
    "/sbin",
    "/System/Library",
    "/System/Volumes/Preboot/Cryptexes",
    "/System/Cryptexes",
    "/Library/Developer/CommandLineTools",
    "/Library/Apple/usr/lib",
    "/private/etc/ssl",
    "/private/var/db/timezone",
    "/private/var/db/dyld",
)
_FILES = ("/", "/dev", "/dev/random", "/dev/urandom", "/private/etc/localtime", "/private/var/select/sh")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/dtracehelper")
# None that reveal other processes, such as their arguments and environment.
_SYSCTLS = (
    "kern.argmax",
    "kern.boottime",
    "kern.hostname",
    "kern.maxfilesperproc",
    "kern.maxproc",
    "kern.ngroups",
    "kern.osproductversion",
    "kern.osrelease",
    "kern.ostype",
    "kern.osversion",
    "kern.secure_kernel",
    "kern.usrstack64",
    "kern.version",
    "vm.loadavg",
)

_RULES = f"""\
(version 1)
(deny default)
(allow process-exec process-fork)
(allow signal process-info* (target same-sandbox))
(allow sysctl-read (sysctl-name-prefix "hw.") (sysctl-name-prefix "machdep.cpu.")
{chr(10).join(f'  (sysctl-name "{name}")' for name in _SYSCTLS)})
(allow ipc-posix-sem)
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
"""


class Seatbelt:
    """A program shares the host's processes and file system, can open only its mounts, and has no network. The kernel
    does not limit a whole process tree."""

    name = "seatbelt"
    protects_paths = False
    weaknesses: tuple[str, ...] = (
        "memory and number of processes are limited per process, not for the whole program",
        "a process that leaves its group may outlive its program for a moment, as confined as before",
        RESTORED_AFTERWARDS,
    )

    def __init__(self, executable: str = EXECUTABLE) -> None:
        if not os.access(executable, os.X_OK):
            raise unavailable(f"{executable} does not exist")
        if os.geteuid() == 0:
            raise unavailable("programs never run as root; run the gateway as a normal user")
        self._executable = executable

    def inside(self, mount: Mount) -> str:
        return str(mount.source)

    async def start(self, program: Program, *, stdin: bool = False) -> Process:
        refuse_network(self.name, program)
        refuse_hidden(self.name, program)
        # The system's temporary folder is a link, and rules apply to its target.
        scratch = Path(os.path.realpath(tempfile.mkdtemp(prefix="toolgate-")))
        confined = replace(program, argv=(self._executable, "-p", profile(program, scratch), *program.argv))
        return await launch(confined, stdin=stdin, scratch=scratch, task_limit=None)


def profile(program: Program, scratch: Path) -> str:
    """Return the profile of a program for `sandbox-exec`."""
    writable = [*(mount.source for mount in program.mounts if mount.writable), scratch]
    visible = [*program.readable, *(mount.source for mount in program.mounts), scratch]
    readable = list(dict.fromkeys([*_SYSTEM, *_names(visible)]))
    written = list(dict.fromkeys(_names(writable)))
    above = sorted({str(parent) for name in readable for parent in PurePosixPath(name).parents})
    return "".join(
        (
            _RULES,
            _rule("file-read* file-map-executable", "subpath", readable),
            _rule("file-read*", "literal", [*_FILES, *_DEVICES]),
            _rule("file-read-metadata", "literal", above),
            _rule("file-write*", "subpath", written),
            _rule("file-write-data file-ioctl", "literal", _DEVICES),
            "(deny file-write-setugid)\n",
        )
    )


def _names(paths: Iterable[Path]) -> Iterator[str]:
    """Yield each path and its real path: a rule applies to the target of a link."""
    for path in paths:
        yield str(path)
        yield os.path.realpath(path)


def _rule(rights: str, how: str, paths: Iterable[str]) -> str:
    lines = "\n".join(f"  ({how} {_quote(path)})" for path in paths)
    return f"(allow {rights}\n{lines})\n"


def _quote(path: str) -> str:
    """Quote a path as a string of the profile language."""
    if any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in path):
        raise Invalid(f"{path!r} contains characters that a sandbox profile cannot express; choose another folder")
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
