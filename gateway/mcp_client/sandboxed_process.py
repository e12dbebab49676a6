"""Servers in the sandbox: the program to start, and the files it can see.

Besides system folders and the paths of its confinement, a server sees what its command needs to run. That is derived
from links, scripts and settings of environments, never from files that the server or its toolset could have written.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.errors import Unavailable
from gateway.mcp_client.endpoints import Confinement, StdioEndpoint
from gateway.mcp_client.messages import Unreachable
from gateway.mcp_client.process import find_program
from gateway.net.policy import WEB_PORTS, NetworkPolicy
from gateway.sandbox import SYSTEM_FOLDERS, Limits, Mount, Process, Program
from gateway.sandbox.detect import choose
from gateway.sandbox.disk_usage import measure
from gateway.workspace.protected import find_protected, paths_to_mount

_MEBIBYTE = 1024 * 1024
_INHERITED = ("PATH", "LANG")
_USER = "sandbox"
_REFUSED_FOLDERS = tuple(map(Path, ("/proc", "/sys", "/dev")))
_PROJECT_FILES = ("package.json", "pyproject.toml")
_PREFIX_FOLDERS = ("bin", "lib", "lib64")
# Where version managers such as pyenv and asdf, whose shims ask them, keep the programs.
_VERSIONS = ("versions", "installs")
# Links and interpreters followed from a command.
_STEPS = 16

_OUTSIDE = "if you trust the server with all your rights, set its `sandbox` to false"


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
    """Return the program of a server with its mounts, environment and limits; blocking. `Unreachable` for a path that
    it may not have."""
    _prepare_home(confinement)
    paths = _resolve_paths(confinement)
    own = [confinement.home, *([confinement.toolset] if confinement.toolset else [])]
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env |= {"HOME": str(confinement.home), "USER": _USER, "LOGNAME": _USER}  # the sandbox has no user database
    env |= {"NODE_USE_ENV_PROXY": "1"} if confinement.network else {}
    env |= endpoint.env
    cwd = Path(endpoint.cwd or Path.cwd())
    command = find_program(endpoint, str(cwd), env.get("PATH", os.defpath))
    untrusted = [*own, *(path for path, writable in paths.items() if writable)]
    dependencies = _Dependencies(untrusted, env.get("PATH", os.defpath))
    dependencies.add(Path(command), project=confinement.toolset is None)
    if confinement.toolset is None:  # a toolset could name any file in its arguments
        for path in (Path(cwd, argument) for argument in endpoint.args):
            if path.is_file():
                dependencies.add(path, project=True)
    readable = [
        *(path for path in dependencies.paths if not _is_private(path, confinement) and not _holds_home(path)),
        *own[1:],
        *(path for path, writable in paths.items() if not writable),
    ]
    mounts = [Mount(confinement.home, str(confinement.home), writable=True)]
    for path, writable in paths.items():
        if writable:
            source = path.resolve()
            protected = paths_to_mount(find_protected(source), ()) if source.is_dir() else ()
            mounts.append(Mount(source, str(path), writable=True, protected=protected))
    is_seen = any(cwd.is_relative_to(path) for path in (*readable, *paths, *own, *map(Path, SYSTEM_FOLDERS)))
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
    """Return the usual limits of programs, without a time limit."""
    return Limits.from_settings(confinement.settings, per_task=False)


def _prepare_home(confinement: Confinement) -> None:
    confinement.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    limit, used = _limits(confinement), measure(confinement.home)
    if used.bytes > limit.disk or used.files > limit.files:
        raise Unreachable(
            f"its folder {confinement.home} has {used.bytes // _MEBIBYTE} MiB in {used.files} files, more than "
            f"allowed ({limit.disk // _MEBIBYTE} MiB, {limit.files} files); remove files that it does not need"
        )


def _resolve_paths(confinement: Confinement) -> dict[Path, bool]:
    """Return the paths of the confinement, and whether each is writable. A path inside a writable one is refused: the
    server could replace it by a link to anything."""
    paths: dict[Path, bool] = {}
    for text in confinement.paths:
        path = _absolute_path(text.removesuffix(":rw"), confinement)
        writable = text.endswith(":rw")
        real = path.resolve()
        if not real.exists():
            raise Unreachable(f"{path}, a path of its sandbox, does not exist: create it, or remove it from `sandbox`")
        if real == Path("/") or any(real.is_relative_to(folder) for folder in _REFUSED_FOLDERS):
            raise Unreachable(f"{path} cannot be a path of its sandbox: name the folders that it needs")
        if _is_private(real, confinement):
            own = confinement.toolset is not None and real.is_relative_to(confinement.toolset.resolve())
            if not own or writable:
                raise Unreachable(
                    f"{path} contains or is inside the gateway's data directory, {confinement.data_dir}, "
                    "which no server may access; name other folders (a server can keep files in its HOME)"
                )
        paths[path] = writable or paths.get(path, False)
    for path in paths:
        for other, writable in paths.items():
            is_inside = path.is_relative_to(other) or path.resolve().is_relative_to(other.resolve())
            if writable and path != other and is_inside:
                raise Unreachable(f"{path} is inside {other}:rw; remove it from `sandbox`")
    return paths


def _absolute_path(text: str, confinement: Confinement) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise Unreachable(f"{text}, a path of its sandbox: there is no such user") from None
    return Path(os.path.normpath(Path(confinement.toolset or Path.cwd(), path)))


def _is_private(path: Path, confinement: Confinement) -> bool:
    """Return whether a path contains the gateway's data or is part of it."""
    data = confinement.data_dir.resolve()
    return path.is_relative_to(data) or data.is_relative_to(path)


def _holds_home(folder: Path) -> bool:
    return Path(os.path.expanduser("~")).is_relative_to(folder)  # noqa: PTH111 - an account may have no home


class _Dependencies:
    """Paths that programs and scripts need to run: their installations, interpreters, and targets of links. Files in
    `untrusted` folders are not followed; interpreters are looked up in `search`, a PATH."""

    def __init__(self, untrusted: Sequence[Path], search: str) -> None:
        self.paths: dict[Path, None] = {}
        self._untrusted = {path for folder in untrusted for path in (folder, folder.resolve())}
        self._search = search

    def add(self, file: Path, *, project: bool) -> None:
        for _ in range(_STEPS):
            real = file.parent.resolve() / file.name
            if any(path.is_relative_to(folder) for path in (file, real) for folder in self._untrusted):
                return
            self.paths |= {path: None for path in _installation_paths(file, project) if not _is_system(path)}
            if file.is_symlink():
                file = Path(os.path.normpath(real.parent / file.readlink()))
            elif (interpreter := _find_interpreter(file, self._search)) is not None:
                file = interpreter
            else:
                return


def _installation_paths(file: Path, project: bool) -> Iterator[Path]:
    folder, parts = file.parent, file.parts
    if "node_modules" in parts:
        yield Path(*parts[: parts.index("node_modules") + 1])
    elif (folder.parent / "pyvenv.cfg").is_file():
        yield folder.parent
        yield from _base_python(folder.parent)
    elif folder.name == "shims" and any((folder.parent / name).is_dir() for name in _VERSIONS):
        yield from (folder.parent, folder.parent.resolve())
    elif folder.name == "bin":
        yield from _prefix_folders(folder.parent)
    else:
        yield next((above for above in file.parents if project and _is_project(above)), file)


def _base_python(environment: Path) -> Iterator[Path]:
    """Yield the folders of the Python that a virtual environment was made with."""
    for line in (environment / "pyvenv.cfg").read_text(errors="replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "home" and Path(value.strip()).name == "bin":
            yield from _prefix_folders(Path(value.strip()).parent)


def _prefix_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders of programs and libraries below a prefix; the rest of a folder like ~/.local is private."""
    for name in _PREFIX_FOLDERS:
        for path in (folder / name, (folder / name).resolve()):
            if path.is_dir():
                yield path


def _is_project(folder: Path) -> bool:
    return not _holds_home(folder) and any((folder / name).is_file() for name in _PROJECT_FILES)


def _is_system(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in SYSTEM_FOLDERS)


def _find_interpreter(file: Path, search: str) -> Path | None:
    """Return the interpreter that the first line of a script names."""
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
