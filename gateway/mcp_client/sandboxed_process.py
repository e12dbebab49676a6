"""A server in the sandbox: the program that is started there, and what it sees of the machine.

Beside the system's folders and what it is given, a server sees what its command needs to run. That is derived from
links, scripts and settings of environments, so nothing is derived from files that the server or the toolset that
brings it could have written.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.errors import Unavailable
from gateway.mcp_client.endpoints import Confinement, StdioEndpoint
from gateway.mcp_client.errors import Unreachable
from gateway.mcp_client.process import find_program
from gateway.net.policy import WEB_PORTS, NetworkPolicy
from gateway.sandbox import SYSTEM_FOLDERS, Limits, Mount, Process, Program
from gateway.sandbox.detect import choose
from gateway.sandbox.disk_usage import measure
from gateway.workspace.protected import find_protected, paths_to_mount

_MEBIBYTE = 1024 * 1024
_INHERITED = ("PATH", "LANG")
_USER = "sandbox"
_NEVER_GIVEN = tuple(map(Path, ("/proc", "/sys", "/dev")))
_PROJECT_FILES = ("package.json", "pyproject.toml")
_PREFIX_FOLDERS = ("bin", "lib", "lib64")
# Links and interpreters that are followed from a command.
_STEPS = 16

_OUTSIDE = "if you trust the server with all rights of your account, set its `sandbox` to false"


async def start_sandboxed(endpoint: StdioEndpoint, confinement: Confinement) -> Process:
    """Start a server in the sandbox. `Unavailable` when that is not possible: it is never started without one."""
    try:
        sandbox = await choose(confinement.settings)
        program = await asyncio.to_thread(plan_program, endpoint, confinement)
        return await sandbox.start(program, stdin=True)
    except Unavailable as error:
        if error.code in ("SANDBOX_UNAVAILABLE", "NETWORK_UNAVAILABLE"):
            message = f"{endpoint.label} runs only in a sandbox: {error.message}; or, {_OUTSIDE}"
            raise Unavailable(message, code=error.code, **error.details) from None
        raise
    except OSError as error:  # a path that it needs cannot be read
        raise Unreachable(f"{endpoint.label} cannot be started: {error}") from None


def plan_program(endpoint: StdioEndpoint, confinement: Confinement) -> Program:
    """The program of a server, and all it is given; blocking. `Unreachable` for what it cannot be given."""
    _prepare_home(confinement)
    given = _given_paths(confinement)
    own = [confinement.home, *([confinement.toolset] if confinement.toolset else [])]
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env |= {"HOME": str(confinement.home), "USER": _USER, "LOGNAME": _USER}  # there are no accounts to look it up in
    env |= {"NODE_USE_ENV_PROXY": "1"} if confinement.network else {}
    env |= endpoint.env
    cwd = Path(endpoint.cwd or Path.cwd())
    command = find_program(endpoint.command, str(cwd), env.get("PATH", os.defpath))
    needed = _Needs([*own, *(path for path, writable in given.items() if writable)], env.get("PATH", os.defpath))
    needed.add(Path(command), project=confinement.toolset is None)
    if confinement.toolset is None:  # a toolset's arguments could name any file
        for path in (Path(cwd, argument) for argument in endpoint.args):
            if path.is_file():
                needed.add(path, project=True)
    readable = [
        *(path for path in needed.paths if not _is_private(path, confinement) and not _holds_home(path)),
        *own[1:],
        *(path for path, writable in given.items() if not writable),
    ]
    mounts = [Mount(confinement.home, str(confinement.home), writable=True)]
    for path, writable in given.items():
        if writable:
            source = path.resolve()
            kept = paths_to_mount(find_protected(source), ()) if source.is_dir() else ()
            mounts.append(Mount(source, str(path), writable=True, protected=kept))
    is_seen = any(cwd.is_relative_to(path) for path in (*readable, *given, *own, *map(Path, SYSTEM_FOLDERS)))
    return Program(
        argv=(command, *endpoint.args),
        mounts=tuple(sorted(mounts, key=lambda mount: len(Path(mount.target).parts))),
        readable=tuple(sorted(readable, key=lambda path: len(path.parts))),
        env=env,
        cwd=str(cwd if is_seen else confinement.home),
        limits=_limits(confinement),
        network=_policy(confinement),
    )


def _policy(confinement: Confinement) -> NetworkPolicy | None:
    if not confinement.network:
        return None
    private = confinement.allow_private
    return NetworkPolicy(
        confinement.network, allow_private=private, ports=WEB_PORTS, hosts_setting="its sandbox.network"
    )


def _limits(confinement: Confinement) -> Limits:
    """Those of other programs, but for the time: a server runs for days."""
    return Limits(memory=confinement.settings.memory_mb * _MEBIBYTE, per_task=False)


def _prepare_home(confinement: Confinement) -> None:
    confinement.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    limit, used = _limits(confinement), measure(confinement.home)
    if used.bytes > limit.disk or used.files > limit.files:
        raise Unreachable(
            f"its folder {confinement.home} has {used.bytes // _MEBIBYTE} MiB in {used.files} files, more than it may "
            f"keep ({limit.disk // _MEBIBYTE} MiB, {limit.files} files); remove what it does not need"
        )


def _given_paths(confinement: Confinement) -> dict[Path, bool]:
    """The paths that a server is given, and whether it may write there. One inside a writable path is refused: the
    server could replace it by a link to anything."""
    found: dict[Path, bool] = {}
    for text in confinement.paths:
        path = _absolute(text.removesuffix(":rw"), confinement)
        writable = text.endswith(":rw")
        real = path.resolve()
        if not real.exists():
            raise Unreachable(f"{path}, a path of its sandbox, is not there: create it, or remove it from `sandbox`")
        if real == Path("/") or any(real.is_relative_to(folder) for folder in _NEVER_GIVEN):
            raise Unreachable(f"{path} cannot be a path of its sandbox: name the folders that it needs")
        if _is_private(real, confinement):
            own = confinement.toolset is not None and real.is_relative_to(confinement.toolset.resolve())
            if not own or writable:
                raise Unreachable(
                    f"{path} has or is in the gateway's own data, {confinement.data_dir}, which no server is given; "
                    "name other folders (a server can keep files in its HOME)"
                )
        found[path] = writable or found.get(path, False)
    for path in found:
        for other, writable in found.items():
            inside = path.is_relative_to(other) or path.resolve().is_relative_to(other.resolve())
            if writable and path != other and inside:
                raise Unreachable(f"{path} is given with {other}:rw, in which it lies; remove it from `sandbox`")
    return found


def _absolute(text: str, confinement: Confinement) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise Unreachable(f"{text}, a path of its sandbox: there is no such user") from None
    return Path(os.path.normpath(Path(confinement.toolset or Path.cwd(), path)))


def _is_private(path: Path, confinement: Confinement) -> bool:
    """True for what holds the gateway's data or is part of it."""
    data = confinement.data_dir.resolve()
    return path.is_relative_to(data) or data.is_relative_to(path)


def _holds_home(folder: Path) -> bool:
    return Path(os.path.expanduser("~")).is_relative_to(folder)  # noqa: PTH111 - an account may have no home


class _Needs:
    """What programs and scripts need to run: what they are installed with, their interpreters, and where links lead.
    Nothing is taken from files in `strange` folders, nor from what `search`, the PATH, does not lead to."""

    def __init__(self, strange: Sequence[Path], search: str) -> None:
        self.paths: dict[Path, None] = {}
        self._strange = {path for folder in strange for path in (folder, folder.resolve())}
        self._search = search

    def add(self, file: Path, *, project: bool) -> None:
        for _ in range(_STEPS):
            real = file.parent.resolve() / file.name
            if any(path.is_relative_to(folder) for path in (file, real) for folder in self._strange):
                return
            self.paths |= {path: None for path in _installation(file, project) if not _is_system(path)}
            if file.is_symlink():
                file = Path(os.path.normpath(real.parent / file.readlink()))
            elif (interpreter := _interpreter(file, self._search)) is not None:
                file = interpreter
            else:
                return


def _installation(file: Path, project: bool) -> Iterator[Path]:
    folder, parts = file.parent, file.parts
    if "node_modules" in parts:
        yield Path(*parts[: parts.index("node_modules") + 1])
    elif (folder.parent / "pyvenv.cfg").is_file():
        yield folder.parent
        yield from _base_of(folder.parent)
    elif folder.name == "bin":
        yield from _prefix(folder.parent)
    else:
        yield next((above for above in file.parents if project and _is_project(above)), file)


def _base_of(environment: Path) -> Iterator[Path]:
    """The Python that a virtual environment was made with."""
    for line in (environment / "pyvenv.cfg").read_text(errors="replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "home" and Path(value.strip()).name == "bin":
            yield from _prefix(Path(value.strip()).parent)


def _prefix(folder: Path) -> Iterator[Path]:
    """Where programs and their libraries are: of a folder such as ~/.local nothing else is theirs."""
    for name in _PREFIX_FOLDERS:
        for path in (folder / name, (folder / name).resolve()):
            if path.is_dir():
                yield path


def _is_project(folder: Path) -> bool:
    return not _holds_home(folder) and any((folder / name).is_file() for name in _PROJECT_FILES)


def _is_system(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in SYSTEM_FOLDERS)


def _interpreter(file: Path, search: str) -> Path | None:
    """The interpreter that the first line of a script names."""
    try:
        with file.open("rb") as script:
            line = script.readline(256)
    except OSError:
        return None
    words = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    if len(words) > 1 and Path(words[0]).name == "env":
        named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
        words = [shutil.which(named, path=search) or ""]
    return Path(words[0]) if words and Path(words[0]).is_absolute() else None
