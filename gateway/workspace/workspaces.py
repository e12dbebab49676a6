"""Each chat's folder of files: made at first use, or a folder of yours."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from gateway.calls import check_chat
from gateway.config import Settings
from gateway.errors import Invalid, NotFound
from gateway.names import chat_directory
from gateway.workspace.folder_access import ensure_accessible
from gateway.workspace.openat import Way
from gateway.workspace.paths import Root

_PRIVATE = 0o700


class Workspaces:
    """Finds the workspace of a chat; `attached` names folders that stand in for the chat's own."""

    def __init__(self, data_dir: Path, attached: Mapping[str, Path] | None = None, way: Way | None = None) -> None:
        self._chats = data_dir / "chats"
        self._attached = dict(attached or {})
        self._way = way

    def directory(self, chat: str) -> Path:
        """Where the gateway keeps what belongs to a chat: its workspace, and later its versions."""
        return self._chats / chat_directory(chat)

    def path(self, chat: str) -> Path:
        """The folder the chat's files are in, made when it is ours and not there yet. One that is locked is refused
        when it is a person's, and opened again when it is ours."""
        if chat in self._attached:
            ensure_accessible(self._attached[chat], ours=False)
            return self._attached[chat]
        workspace = self.directory(chat) / "workspace"
        if not workspace.is_dir():
            workspace.parent.mkdir(_PRIVATE, parents=True, exist_ok=True)
            workspace.mkdir(_PRIVATE, exist_ok=True)
        ensure_accessible(workspace, ours=True)
        return workspace

    def is_attached(self, chat: str) -> bool:
        """Whether the chat works in a person's own folder."""
        return chat in self._attached

    def protected_store(self, chat: str) -> Path:
        """Where protected files of the chat's folder are noted while a program runs."""
        return self.directory(chat) / "protected"

    def root(self, chat: str) -> Root:
        """The chat's workspace, held open; use it in a `with`."""
        path = self.path(chat)
        try:
            return Root(path, self._way)
        except (FileNotFoundError, NotADirectoryError) as error:
            message = f"the folder {str(path)!r} of chat {chat!r} does not exist; create it or attach another one"
            raise NotFound(message, code="WORKSPACE_NOT_FOUND") from error


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
