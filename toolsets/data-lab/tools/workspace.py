"""Paths of the workspace: where they lead, and that they stay inside."""

from __future__ import annotations

from pathlib import Path

from covalt_toolset import get_context


def inside(path: str) -> Path:
    """The file a path names; refused when it leads out of the workspace, also by way of a link."""
    workspace = get_context().workspace.resolve()
    try:
        target = (workspace / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a NUL character, links in a circle
        raise ValueError(f"{path!r} is no path: {error}") from None
    if not target.is_relative_to(workspace):
        raise ValueError(f"{path!r} leads out of the workspace; give a path relative to it, such as 'data/sales.csv'")
    return target
