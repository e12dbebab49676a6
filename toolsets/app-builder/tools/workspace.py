"""Paths in the workspace."""

from __future__ import annotations

from pathlib import Path

from covalt_toolset import get_context


def resolve_path(path: str) -> Path:
    """Resolve a path; refused when it leads out of the workspace, also through a link.

    The sandbox enforces this anyway; the check gives a readable error.
    """
    workspace = get_context().workspace.resolve()
    try:
        target = (workspace / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a NUL character or a cycle of links
        raise ValueError(f"{path!r} is no path: {error}") from None
    if not target.is_relative_to(workspace):
        raise ValueError(f"{path!r} leads out of the workspace; give a path relative to it, such as 'src/app.py'")
    return target


def relative_path(target: Path) -> str:
    """Return a path relative to the workspace."""
    return target.relative_to(get_context().workspace.resolve()).as_posix()
