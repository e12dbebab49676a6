"""A library on a real database and a real disk, and an inspector that runs nothing."""

from __future__ import annotations

import io
import re
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.bundles import BundleLimits, PythonTool, Toolset
from gateway.bundles.installed import InstalledToolset
from gateway.bundles.library import CheckRenderer, ToolsetLibrary
from gateway.calls import Progress
from gateway.db.sqlite import SqliteDatabase
from gateway.render import declare

TABLES = (
    "toolsets",
    "toolset_files",
    "tools",
    "tool_overrides",
    "toolset_mcp_servers",
    "user_overrides",
    "server_consents",
)
HEAD = 'id: demo\nname: Demo\nversion: "1.0.0"\n'
TWO_TOOLS = HEAD + "tools:\n- {id: a, entrypoint: 'files:a'}\n- {id: b, entrypoint: 'more:b'}\n"
CODE = {"tools/files.py": "def a(): ...\n", "tools/more.py": "def b(): ...\n"}


class Reading:
    """Reads the code instead of running it: a function that is defined is a tool without arguments.
    `answers` says otherwise, by tool id."""

    def __init__(self, answers: Mapping[str, Any] | None = None) -> None:
        self.answers = dict(answers or {})
        self.asked: list[Path] = []

    async def describe(self, spec: Toolset, directory: Path, progress: Progress) -> dict[str, Any]:
        self.asked.append(directory)
        return {tool.id: self._answer(tool, directory) for tool in spec.tools if isinstance(tool, PythonTool)}

    def _answer(self, tool: PythonTool, directory: Path) -> Any:
        if tool.id in self.answers:
            return self.answers[tool.id]
        module, _, function = tool.entrypoint.partition(":")
        path = module.replace(".", "/")
        found = [place for place in (f"{path}.py", f"tools/{path}.py") if (directory / place).is_file()]
        if not found or not re.search(rf"^def {function}\b", (directory / found[0]).read_text(), re.MULTILINE):
            return f"{tool.entrypoint!r}: there is no {function!r}"
        return {"name": function, "description": f"The {function}.", "input_schema": {"type": "object"}}


def accept_any_renderer(kind: str, config: Mapping[str, Any]) -> None:
    """Stand-in for the check of renderers."""


@asynccontextmanager
async def opened(
    data: Path, inspector: Any = None, limits: BundleLimits | None = None, check_renderer: CheckRenderer = declare
) -> AsyncIterator[ToolsetLibrary]:
    db = await SqliteDatabase.open(data / "toolgate.db")
    try:
        yield ToolsetLibrary(db, data, inspector or Reading(), check_renderer, limits or BundleLimits())
    finally:
        await db.close()


def folder(place: Path, manifest: str, files: Mapping[str, str | bytes] | None = None) -> Path:
    """A folder with exactly this in it."""
    for path in sorted(place.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for name, content in {"toolset.yaml": manifest, **(CODE if files is None else files)}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return place


async def install(library: ToolsetLibrary, source: Path, **options: Any) -> InstalledToolset:
    kind = "local" if source.is_dir() else "zip"
    return await library.install(source, **{"source_type": kind, "source_ref": str(source), **options})


async def exported(library: ToolsetLibrary, toolset_id: str = "demo") -> bytes:
    out = io.BytesIO()
    await library.export(toolset_id, out)
    return out.getvalue()


def rows(data: Path) -> dict[str, int]:
    connection = sqlite3.connect(data / "toolgate.db")
    try:
        return {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES}
    finally:
        connection.close()


def on_disk(data: Path) -> set[str]:
    """Everything under the folder of toolsets."""
    place = data / "toolsets"
    return {path.relative_to(place).as_posix() for path in place.rglob("*")}


NO_ROWS = dict.fromkeys(TABLES, 0)
