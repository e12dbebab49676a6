"""The sandbox of macOS: a profile that names what may be read and written, and refuses the rest."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from gateway.errors import Invalid
from gateway.sandbox import PUT_BACK, Mount, Process, Program
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
# Not those that tell of other processes: their arguments and environment are among them.
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
    """A program shares processes and the view of files with the machine, and can open only what it is
    given; it has no network. Nothing of the kernel's bounds what a whole tree uses."""

    name = "seatbelt"
    keeps_paths = False
    weaknesses: tuple[str, ...] = (
        "memory and the number of processes of a program are bounded one by one, not together",
        "a process that leaves its group may outlive its program for a moment, as confined as before",
        PUT_BACK,
    )

    def __init__(self, executable: str = EXECUTABLE) -> None:
        if not os.access(executable, os.X_OK):
            raise unavailable(f"{executable} is not there")
        if os.geteuid() == 0:
            raise unavailable("programs never run as root; run the gateway as a normal user")
        self._executable = executable

    def inside(self, mount: Mount) -> str:
        return str(mount.source)

    async def start(self, program: Program, *, stdin: bool = False) -> Process:
        refuse_network(self.name, program)
        refuse_hidden(self.name, program)
        # The system's folder for temporary files is reached by a link, and rules see where it leads.
        scratch = Path(os.path.realpath(tempfile.mkdtemp(prefix="toolgate-")))
        confined = replace(program, argv=(self._executable, "-p", profile(program, scratch), *program.argv))
        return await launch(confined, stdin=stdin, scratch=scratch, task_limit=None)


def profile(program: Program, scratch: Path) -> str:
    """What the program may do, in the words of `sandbox-exec`."""
    writable = [*(mount.source for mount in program.mounts if mount.writable), scratch]
    given = [*program.readable, *(mount.source for mount in program.mounts), scratch]
    readable = list(dict.fromkeys([*_SYSTEM, *_names(given)]))
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
    """Each path as it is called and as it is: a rule holds for what a name leads to."""
    for path in paths:
        yield str(path)
        yield os.path.realpath(path)


def _rule(rights: str, how: str, paths: Iterable[str]) -> str:
    lines = "\n".join(f"  ({how} {_quoted(path)})" for path in paths)
    return f"(allow {rights}\n{lines})\n"


def _quoted(path: str) -> str:
    """A path as a string of the profile's language, in which nothing of it can be a rule."""
    if any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in path):
        raise Invalid(f"{path!r} has characters that cannot be named to the sandbox; choose another folder")
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
