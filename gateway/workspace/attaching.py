"""Which chat a gateway works in by itself, and the folder attached to it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..calls import check_chat
from ..config import Settings
from ..errors import Invalid


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
    return {chat: settings.workspace}
