"""The packages on a worker's path besides the standard library: a folder of links to exactly those it needs."""

from __future__ import annotations

import compileall
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import secrets
import shutil
import sys
import sysconfig
from pathlib import Path

from gateway.errors import Unavailable
from gateway.value import Value

WORKER = "toolgate_worker"
_PACKAGES = ("covalt_toolset", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")


class WorkerPackages(Value):
    """The worker's packages and interpreter: `directory` goes on its path, its sandbox must show `readable`."""

    directory: Path
    interpreter: Path
    readable: tuple[Path, ...]


def link_packages(directory: Path) -> WorkerPackages:
    """Create the folder of links in `directory` unless it exists; blocking, for a thread."""
    items = {WORKER: Path(__file__).parent / "worker", **{name: _location(name) for name in _PACKAGES}}
    places = sorted((location.name if name != WORKER else WORKER, location) for name, location in items.items())
    digest = hashlib.sha256("\0".join(f"{name}\0{place}" for name, place in places).encode()).hexdigest()[:16]
    folder = directory / f"shelf-{digest}"
    if not folder.is_dir():
        _build(folder, dict(places))
    readable = _outermost([folder, interpreter(), *_interpreter_folders(), *(place.resolve() for _, place in places)])
    return WorkerPackages(folder, interpreter(), readable)


def interpreter() -> Path:
    """Return the interpreter of this process, outside any virtual environment."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def minimum_versions() -> tuple[str, ...]:
    """Return constraints for a toolset's own packages, which come first on the path: Pydantic's requirements."""
    needed = importlib.metadata.requires("pydantic") or []
    plain = [line for line in needed if ";" not in line and not line.startswith("pydantic-core")]
    return ("pydantic>=2.11", *sorted(plain))


def _location(name: str) -> Path:
    """Return the folder or file of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise Unavailable(f"the package {name!r}, which toolsets need, is not installed; install toolgate again")
    origin = Path(spec.origin)
    return origin.parent if spec.submodule_search_locations else origin


def _build(folder: Path, places: dict[str, Path]) -> None:
    """Create the folder under a temporary name and rename it. Packages are compiled where they are installed, if that
    is writable: a worker writes no bytecode."""
    folder.parent.mkdir(0o700, parents=True, exist_ok=True)
    temporary = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir()
    for name, place in places.items():
        (temporary / name).symlink_to(place.resolve())
        with contextlib.suppress(OSError):
            compileall.compile_dir(place, quiet=2) if place.is_dir() else compileall.compile_file(place, quiet=2)
    try:
        temporary.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(temporary)


def _interpreter_folders() -> list[Path]:
    """Folders of the interpreter, its standard library, and a shared libpython if there is one."""
    folders = {sys.base_prefix, sys.base_exec_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        folders.add(sysconfig.get_config_var("LIBDIR"))
    named = [Path(folder) for folder in sorted(filter(None, folders))]
    return [folder for folder in named if folder.is_dir() and folder != Path(folder.anchor)]


def _outermost(paths: list[Path]) -> tuple[Path, ...]:
    """Remove repeated and nested paths. A prefix may be a link, so its own and its real path are kept."""
    every = sorted({*paths, *(Path(os.path.realpath(path)) for path in paths)})
    return tuple(path for path in every if not any(path != other and path.is_relative_to(other) for other in every))
