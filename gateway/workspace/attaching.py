"""Which chat a gateway works in by itself, and the folder attached to it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gateway.calls import check_chat
from gateway.config import Settings
from gateway.errors import Invalid


def default_chat(settings: Settings) -> str | None:
    """The chat of calls that name none; an attached folder has one of its own, told by its real path."""
    if settings.chat is not None:
        return check_chat(settings.chat)
    if settings.workspace is None:
        return None
    digest = hashlib.sha256(str(settings.workspace.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return f"folder-{digest[:16]}"


def attached(settings: Settings) -> dict[str, Path]:
    """The folders that stand in for a chat's own, by chat."""
    chat = default_chat(settings)
    if settings.workspace is None or chat is None:
        return {}
    if not settings.workspace.is_dir():
        raise Invalid(f"--workspace {str(settings.workspace)!r} is no folder", code="WORKSPACE_NOT_FOUND")
    workspace, data = settings.workspace.resolve(), settings.data_dir.resolve()
    if data.is_relative_to(workspace) or workspace.is_relative_to(data):
        # Who can write there could allow its own calls, and read everybody's.
        raise Invalid(
            f"the workspace {str(workspace)!r} and the data directory {str(data)!r} lie one in the other, where tools "
            "could reach what they are held to; choose another with --data-dir, or a folder deeper down",
            code="WORKSPACE_HOLDS_DATA",
        )
    return {chat: settings.workspace}
