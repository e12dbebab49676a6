"""The folder of each chat: created at first use, or an attached folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, closing, nullcontext
from pathlib import Path

import anyio

from gateway.calls import check_chat
from gateway.config import Settings
from gateway.errors import Invalid, NotFound
from gateway.files import FileLock, replace_private
from gateway.names import chat_directory
from gateway.workspace.openat import PathOpener, ensure_accessible
from gateway.workspace.paths import Root

_OWNER_ONLY = 0o700
# The beginning of the chat of an attached folder, and the file in its directory that has the folder's path.
_FOLDER_CHAT, _FOLDER_FILE = "folder-", "folder"


class ChatLock:
    """`async with lock.held():` is alone with the chat's files, among the tasks of this process and among processes. A
    killed holder releases it by dying."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tasks = anyio.Lock(fast_acquire=True)

    @asynccontextmanager
    async def held(self, waiting: Callable[[], AbstractContextManager[object]] = nullcontext) -> AsyncIterator[None]:
        """Be alone with the chat's files; where others are, wait inside `waiting`."""
        if self._tasks.locked():
            with waiting():
                await self._tasks.acquire()
        else:
            self._tasks.acquire_nowait()
        try:
            with closing(FileLock(self._path)) as lock:
                if not lock.try_acquire():
                    with waiting():
                        await lock.acquire()
                yield
        finally:
            self._tasks.release()


class Workspaces:
    """Finds the workspace of a chat; `attached` maps chats to attached folders."""

    def __init__(
        self, data_dir: Path, attached: Mapping[str, Path] | None = None, opener: PathOpener | None = None
    ) -> None:
        self._chats = data_dir / "chats"
        self._attached = dict(attached or {})
        self._opener = opener
        self._recorded: dict[str, Path] = {}

    def directory(self, chat: str) -> Path:
        """Return the gateway's own directory for a chat: its workspace, blobs and lock."""
        return self._chats / chat_directory(chat)

    def path(self, chat: str) -> Path:
        """Return the folder of the chat's files, created if needed. An inaccessible attached folder is refused; our own
        becomes accessible again."""
        if chat in self._attached:
            ensure_accessible(self._attached[chat], ours=False)
            self._record_folder(chat)
            return self._attached[chat]
        workspace = self.directory(chat) / "workspace"
        if not workspace.is_dir():
            workspace.parent.mkdir(_OWNER_ONLY, parents=True, exist_ok=True)
            workspace.mkdir(_OWNER_ONLY, exist_ok=True)
        ensure_accessible(workspace, ours=True)
        return workspace

    def is_attached(self, chat: str) -> bool:
        """Return whether the chat works in an attached folder."""
        return chat in self._attached

    def attached_folder(self, chat: str) -> Path | None:
        """Return the attached folder of a chat in this process; None if it has none."""
        return self._attached.get(chat)

    def folder(self, chat: str) -> Path | None:
        """Return the attached folder of a chat, of any process, by which people know it; None if it has none or was
        named by a person."""
        if not chat.startswith(_FOLDER_CHAT):
            return None
        if chat in self._attached:
            return self._attached[chat].resolve()
        if chat not in self._recorded:
            try:
                self._recorded[chat] = Path(os.fsdecode((self.directory(chat) / _FOLDER_FILE).read_bytes()))
            except OSError:
                return None
        return self._recorded[chat]

    def _record_folder(self, chat: str) -> None:
        if chat not in self._recorded and chat.startswith(_FOLDER_CHAT):
            folder, file = self._attached[chat].resolve(), self.directory(chat) / _FOLDER_FILE
            if not file.exists():
                file.parent.mkdir(_OWNER_ONLY, parents=True, exist_ok=True)
                replace_private(file, os.fsencode(folder))
            self._recorded[chat] = folder

    def protection_store(self, chat: str) -> Path:
        """Return the directory for copies of protected files while a program runs."""
        return self.directory(chat) / "protected"

    def root(self, chat: str) -> Root:
        """Open the chat's workspace, for use in a `with` statement."""
        path = self.path(chat)
        try:
            return Root(path, self._opener)
        except (FileNotFoundError, NotADirectoryError) as error:
            message = f"the folder {str(path)!r} of chat {chat!r} does not exist; create it or attach another one"
            raise NotFound(message, code="WORKSPACE_NOT_FOUND") from error


def default_chat(settings: Settings) -> str | None:
    """Return the chat of calls that name none; an attached folder has its own, derived from its real path."""
    if settings.chat is not None:
        return check_chat(settings.chat)
    if settings.workspace is None:
        return None
    digest = hashlib.sha256(str(settings.workspace.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{_FOLDER_CHAT}{digest[:16]}"


def attached_folders(settings: Settings) -> dict[str, Path]:
    """Return the attached folders by chat."""
    chat = default_chat(settings)
    if settings.workspace is None or chat is None:
        return {}
    if not settings.workspace.is_dir():
        message = f"the workspace {str(settings.workspace)!r} is not a folder; make it, or name another one"
        raise Invalid(message, code="WORKSPACE_NOT_FOUND")
    workspace, data = settings.workspace.resolve(), settings.data_dir.resolve()
    if data.is_relative_to(workspace) or workspace.is_relative_to(data):
        # A tool that can write the data directory could approve its own calls and read everybody's.
        raise Invalid(
            f"the workspace {str(workspace)!r} and the data directory {str(data)!r} are nested, so tools "
            "could change the gateway's own data; choose another with --data-dir, or a folder deeper down",
            code="WORKSPACE_HOLDS_DATA",
        )
    return {chat: settings.workspace}
