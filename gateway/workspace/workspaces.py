"""Each chat's folder of files: made at first use, or a folder of yours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.errors import NotFound
from gateway.names import chat_directory
from gateway.workspace import unlock
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
            unlock.ensure(self._attached[chat], ours=False)
            return self._attached[chat]
        workspace = self.directory(chat) / "workspace"
        if not workspace.is_dir():
            workspace.parent.mkdir(_PRIVATE, parents=True, exist_ok=True)
            workspace.mkdir(_PRIVATE, exist_ok=True)
        unlock.ensure(workspace, ours=True)
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
