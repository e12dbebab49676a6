"""Imports a toolset's modules as a package of their own, so that toolsets in one process do not clash.

The package name is derived from the toolset's directory, and its modules import each other as their
author expects: `from .files import x`, `from tools.files import x` and `import files` all give the
same module. For the last two, each module gets its own `__import__`, which searches the toolset before
other packages. `sys.path` is unchanged, and no other module is affected.
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

# The folder whose modules can be imported without its name.
TOOLS = "tools"


@functools.cache
def modules_of(root: Path) -> ToolsetModules:
    """Make the modules under the directory `root` importable."""
    modules = ToolsetModules(root)
    sys.meta_path.insert(0, modules)
    return modules


class ToolsetModules:
    """A finder in `sys.meta_path` for the modules of one toolset."""

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
        module = PathFinder.find_spec(fullname, path, target)
        if module is not None and isinstance(module.loader, SourceFileLoader):
            module.loader = _SourceLoader(fullname, module.loader.path, self._builtins)
        return module

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
        package = None if level else self._package_of(first)
        if package is None:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if fromlist:
            return builtins.__import__(f"{package}.{name}", globals, locals, fromlist, 0)
        importlib.import_module(f"{package}.{name}")
        return sys.modules[f"{package}.{first}"]

    def _package_of(self, first: str) -> str | None:
        if first in sys.stdlib_module_names:
            return None
        if _contains(self.root, first):
            return self.package
        return f"{self.package}.{TOOLS}" if _contains(self.root / TOOLS, first) else None


class _SourceLoader(SourceFileLoader):
    """Always compiles the source: bytecode in a bundle is neither read nor written."""

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


def _contains(directory: Path, name: str) -> bool:
    """Return whether the module exists; a folder without Python files, such as `assets`, is none."""
    return (directory / f"{name}.py").is_file() or next((directory / name).rglob("*.py"), None) is not None
