"""Loads the function of an entrypoint such as `tools.files:write_file`."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import BadEntrypoint, did_you_mean
from .importing import TOOLS, ToolsetModules, modules_of
from .signature import Function

# Packages with another name than their module.
_PACKAGES = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
}
_ENTRYPOINT = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


def load(entrypoint: str, root: Path) -> Function:
    """Return the function `module.path:function` of the toolset in `root`.

    The module is searched in `root`, then in its `tools/`. A refusal names the missing file, a similar name, or
    the line of the toolset's file at which the import failed.
    """
    match = _ENTRYPOINT.fullmatch(entrypoint)
    if match is None:
        raise BadEntrypoint(f"entrypoint {entrypoint!r} is not of the form 'module.path:function'")
    modules = modules_of(root.resolve())
    name = _find(match[1], entrypoint, modules.root)
    return _function(_import(name, entrypoint, modules), match[2], entrypoint, _file(modules.root, name))


def _find(name: str, entrypoint: str, root: Path) -> str:
    """Return the module's name relative to the root."""
    for candidate in (name, f"{TOOLS}.{name}"):
        if (root / _file(root, candidate)).is_file():
            return candidate
    files = " nor ".join(_file(root, candidate) for candidate in (name, f"{TOOLS}.{name}"))
    hint = did_you_mean(name, _module_names(root))
    raise BadEntrypoint(f"entrypoint {entrypoint!r}: there is no {files} in {root}{hint}")


def _import(name: str, entrypoint: str, modules: ToolsetModules) -> ModuleType:
    try:
        return modules.module(name)
    except (Exception, SystemExit) as error:  # untrusted code may raise anything on import
        reason = f"{type(error).__name__}: {_message(error)}".replace(f"{modules.package}.", "")
        place = _place(error, modules.root) or _file(modules.root, name)
        if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith(modules.package):
            reason += _dependency_hint(error.name.partition(".")[0])
        raise BadEntrypoint(f"entrypoint {entrypoint!r}: {place}: {reason}") from error


def _dependency_hint(module: str) -> str:
    """Return the line to add to toolset.yaml for a module that is not installed."""
    if module in sys.stdlib_module_names:
        return "; this Python was built without it"
    package = _PACKAGES.get(module, module.replace("_", "-"))
    return f"; if it is a package, add it to toolset.yaml: dependencies: [{package}]"


def _function(module: ModuleType, name: str, entrypoint: str, file: str) -> Function:
    function: Any = getattr(module, name, None)
    if function is None:
        functions = [key for key, value in vars(module).items() if _is_function(value) and not key.startswith("_")]
        raise BadEntrypoint(f"entrypoint {entrypoint!r}: {file} has no {name!r}{did_you_mean(name, functions)}")
    if not _is_function(function):
        raise BadEntrypoint(f"entrypoint {entrypoint!r}: {name!r} in {file} is not a function")
    checked: Function = function
    return checked


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _file(root: Path, name: str) -> str:
    path = name.replace(".", "/")
    package = f"{path}/__init__.py"
    return package if (root / package).is_file() else f"{path}.py"


def _module_names(root: Path) -> Iterator[str]:
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _place(error: BaseException, root: Path) -> str | None:
    """Return the last line of the traceback that is in the toolset's files."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    own = [(Path(file), line) for file, line in places if Path(file).is_relative_to(root)]
    return f"{own[-1][0].relative_to(root).as_posix()} line {own[-1][1]}" if own else None


def _message(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error)
