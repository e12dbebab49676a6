"""What a worker's interpreter finds besides its standard library: links to exactly the packages it needs."""

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
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import Unavailable

WORKER = "toolgate_worker"
_PACKAGES = ("covalt_toolset", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")


@dataclass(frozen=True)
class WorkerPackages:
    """`directory` goes on the worker's path; `readable` is everything its interpreter must be able to open."""

    directory: Path
    interpreter: Path
    readable: tuple[Path, ...]


def make(directory: Path) -> WorkerPackages:
    """The shelf in `directory`, made when it is not there; blocking, for a thread."""
    items = {f"{WORKER}": Path(__file__).parent / "worker", **{name: _location(name) for name in _PACKAGES}}
    places = sorted((location.name if name != WORKER else WORKER, location) for name, location in items.items())
    digest = hashlib.sha256("\0".join(f"{name}\0{place}" for name, place in places).encode()).hexdigest()[:16]
    shelf = directory / f"shelf-{digest}"
    if not shelf.is_dir():
        _build(shelf, dict(places))
    readable = _outermost([shelf, interpreter(), *_interpreter_folders(), *(place.resolve() for _, place in places)])
    return WorkerPackages(shelf, interpreter(), readable)


def interpreter() -> Path:
    """The one we run on, without the virtual environment it may be in."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def minimum_versions() -> tuple[str, ...]:
    """What a toolset's own packages must fit, since the worker meets them first: Pydantic's requirements."""
    needed = importlib.metadata.requires("pydantic") or []
    plain = [line for line in needed if ";" not in line and not line.startswith("pydantic-core")]
    return ("pydantic>=2.11", *sorted(plain))


def _location(name: str) -> Path:
    """The folder or file of a package, wherever it is installed; it is not imported for that."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise Unavailable(f"the package {name!r}, which toolsets need, is not installed; install toolgate again")
    origin = Path(spec.origin)
    return origin.parent if spec.submodule_search_locations else origin


def _build(shelf: Path, places: dict[str, Path]) -> None:
    """Made aside and renamed. Bytecode is written where the packages lie, if we may: a worker writes none."""
    shelf.parent.mkdir(0o700, parents=True, exist_ok=True)
    aside = shelf.with_name(f"{shelf.name}.{secrets.token_hex(4)}.tmp")
    aside.mkdir()
    for name, place in places.items():
        (aside / name).symlink_to(place.resolve())
        with contextlib.suppress(OSError):
            compileall.compile_dir(place, quiet=2) if place.is_dir() else compileall.compile_file(place, quiet=2)
    try:
        aside.rename(shelf)
    except OSError:  # another process was first
        shutil.rmtree(aside)


def _interpreter_folders() -> list[Path]:
    """Where the interpreter and its standard library live, and a shared libpython if there is one."""
    folders = {sys.base_prefix, sys.base_exec_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        folders.add(sysconfig.get_config_var("LIBDIR"))
    named = [Path(folder) for folder in sorted(filter(None, folders))]
    return [folder for folder in named if folder.is_dir() and folder != Path(folder.anchor)]


def _outermost(paths: list[Path]) -> tuple[Path, ...]:
    """Each path once, and none that lies within another. A prefix may be a link, so both names are kept."""
    every = sorted({*paths, *(Path(os.path.realpath(path)) for path in paths)})
    return tuple(path for path in every if not any(path != other and path.is_relative_to(other) for other in every))
