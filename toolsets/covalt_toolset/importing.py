"""A toolset's modules as a package of their own, so that two toolsets in one process never meet.

The package has a name made from the toolset's directory, and its modules import each other as their
author would expect: `from .files import x`, `from tools.files import x` and `import files` all lead
to the same module. For the last two, each module gets its own `__import__`, which looks into the
toolset first. `sys.path` is not touched, and no other module sees anything of it.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

# The folder whose modules are also found without naming it.
TOOLS = "tools"


@functools.cache
def modules_of(root: Path) -> ToolsetModules:
    """The modules under the directory `root`, importable from now on."""
    modules = ToolsetModules(root)
    sys.meta_path.insert(0, modules)
    return modules


class ToolsetModules:
    """Finds the modules of one toolset under its package name; stands in `sys.meta_path`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        digest = hashlib.sha256(str(root).encode(errors="surrogateescape")).hexdigest()[:12]
        self.package = f"toolset_{re.sub(r'[^0-9a-zA-Z]+', '_', root.name)}_{digest}"
        self._builtins = {**vars(builtins), "__import__": self._import}

    def module(self, name: str) -> ModuleType:
        """Import the module of this dotted name, relative to the root."""
        importlib.invalidate_caches()
        return importlib.import_module(f"{self.package}.{name}")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self.package:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(self.root)]
            return spec
        if not fullname.startswith(f"{self.package}."):
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = _Source(fullname, found.loader.path, self._builtins)
        return found

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the names `__import__` has
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """`__import__` for the toolset's modules: the standard library, then the toolset, then the rest."""
        first = name.partition(".")[0]
        home = None if level else self._home(first)
        if home is None:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if fromlist:
            return builtins.__import__(f"{home}.{name}", globals, locals, fromlist, 0)
        importlib.import_module(f"{home}.{name}")
        return sys.modules[f"{home}.{first}"]

    def _home(self, first: str) -> str | None:
        if first in sys.stdlib_module_names:
            return None
        if _holds(self.root, first):
            return self.package
        return f"{self.package}.{TOOLS}" if _holds(self.root / TOOLS, first) else None


class _Source(SourceFileLoader):
    """Runs the source itself: bytecode that came with a bundle is not read, and none is left in it."""

    def __init__(self, fullname: str, path: str, names: dict[str, Any]) -> None:
        super().__init__(fullname, path)
        self._names = names

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._names
        super().exec_module(module)


def _holds(directory: Path, name: str) -> bool:
    """Whether the module is here; a folder without Python in it, such as `assets`, is none."""
    return (directory / f"{name}.py").is_file() or next((directory / name).rglob("*.py"), None) is not None
