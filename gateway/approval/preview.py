"""The effect of a call on the chat's files, for rules and for the person who is asked about it."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.to_thread

from gateway.calls import Call
from gateway.errors import GatewayError
from gateway.sources.builtin.preview import find_unversioned_files
from gateway.tools import FilePreview
from gateway.workspace import Root, Workspaces, parse, show_path
from gateway.workspace.protected import find_named_hooks, find_protected

# Paths that are looked up for one call.
PATH_LIMIT = 200
WORKERS = 2


class WorkspacePreview:
    """Reads the chat's workspace in a thread and changes nothing."""

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces
        self._workers = anyio.CapacityLimiter(WORKERS)

    async def changes(self, call: Call) -> str | None:
        """Return what the tool declares as its preview; None if it has none or cannot tell. None also for a call that
        names the message to start from: the files of that version may be others."""
        preview = call.target.preview
        if preview is None or call.message is not None:
            return None
        return await anyio.to_thread.run_sync(self._describe, preview, call, limiter=self._workers)

    async def overwrites(self, call: Call, paths: Sequence[str]) -> bool:
        """Return whether a file exists under one of the paths; True if there are too many to look up."""
        if len(paths) > PATH_LIMIT:
            return True
        return await anyio.to_thread.run_sync(self._has_file, call, paths, limiter=self._workers)

    async def find_protected_inside(self, call: Call, paths: Sequence[str]) -> Sequence[str]:
        """Return the protected files in those of the paths that are directories, and the paths that are hooks; raise
        `Unavailable` if there are too many of them."""
        return await anyio.to_thread.run_sync(self._find_protected, call, paths, limiter=self._workers)

    def _describe(self, preview: FilePreview, call: Call) -> str | None:
        try:
            with self._workspaces.root(call.chat) as root:
                text = preview(root, call.arguments)
                attached = self._workspaces.is_attached(call.chat)
                unversioned = find_unversioned_files(root, attached, call.target, call.arguments)
                return f"{text}\n{unversioned}" if text and unversioned.files else text
        except (GatewayError, OSError, UnicodeError):  # the tool itself will report what is wrong
            return None

    def _has_file(self, call: Call, paths: Sequence[str]) -> bool:
        with self._workspaces.root(call.chat) as root:
            return any(_kind(root, path.removeprefix("/workspace/")) not in (None, "directory") for path in paths)

    def _find_protected(self, call: Call, paths: Sequence[str]) -> list[str]:
        with self._workspaces.root(call.chat) as root:
            directories = [show_path(parse(path)) for path in paths if _kind(root, path) == "directory"]
        folder = self._workspaces.path(call.chat)
        inside = [f"{each}/{file.path}" for each in directories for file in find_protected(folder / each)]
        return [*inside, *find_named_hooks(folder, paths)]


def _kind(root: Root, path: str) -> str | None:
    """Return the kind of the file under a path; None if there is none, or the path is refused."""
    try:
        file = root.find(parse(path))
    except GatewayError:  # the tool itself will report what is wrong
        return None
    return None if file is None else file.kind
