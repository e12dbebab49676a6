"""What a call would do to the chat's files, for whoever is asked about it: paths, and a short diff."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import anyio
import anyio.to_thread

from gateway.calls import Call
from gateway.errors import GatewayError
from gateway.workspace import Parts, Root, Workspaces, parse, show_path
from gateway.workspace.diff import unified_diff
from gateway.workspace.protected import find_protected

# Bytes of a file that are compared; of a larger one only the size is told.
READ = 64 * 1024

# Files counted in a directory that is to go.
COUNTED = 1000

PATHS = 200
WORKERS = 2


class FilePreview:
    """Looks at the chat's workspace and changes nothing. It never refuses: what cannot be told is left out."""

    def __init__(self, workspaces: Workspaces) -> None:
        self._workspaces = workspaces
        self._workers = anyio.CapacityLimiter(WORKERS)

    async def changes(self, call: Call) -> str | None:
        """What a builtin that changes files would change; None for any other tool, and for a call that names the
        message it starts from: its files may be others than those that are there now."""
        tell = _TOLD.get(call.target.id) if call.target.kind == "builtin" and call.target.owner is None else None
        if tell is None or call.message is not None:
            return None
        return await anyio.to_thread.run_sync(self._told, tell, call, limiter=self._workers)

    async def overwrites(self, call: Call, paths: Sequence[str]) -> bool:
        """Whether a file is there under one of the paths; of too many, it is taken that one is."""
        if len(paths) > PATHS:
            return True
        return await anyio.to_thread.run_sync(self._is_there, call, paths, limiter=self._workers)

    async def protected_inside(self, call: Call, paths: Sequence[str]) -> Sequence[str]:
        """Return the protected files in those of the paths that are directories; raise `Unavailable` where there are
        too many of them."""
        return await anyio.to_thread.run_sync(self._protected_inside, call, paths, limiter=self._workers)

    def _protected_inside(self, call: Call, paths: Sequence[str]) -> list[str]:
        with self._workspaces.root(call.chat) as root:
            directories = [show_path(parse(path)) for path in paths if _is_directory(root, path)]
        folder = self._workspaces.path(call.chat)
        return [f"{above}/{each.path}" for above in directories for each in find_protected(folder / above)]

    def _told(self, tell: Callable[[Root, Mapping[str, Any]], str | None], call: Call) -> str | None:
        try:
            with self._workspaces.root(call.chat) as root:
                told = tell(root, call.arguments)
        except (GatewayError, OSError, UnicodeError):  # the tool itself will say what is wrong
            return None
        return told

    def _is_there(self, call: Call, paths: Sequence[str]) -> bool:
        with self._workspaces.root(call.chat) as root:
            return any(_is_file(root, path) for path in paths)


def _is_file(root: Root, path: str) -> bool:
    try:
        found = root.find(parse(path.removeprefix("/workspace/")))
    except GatewayError:
        return False
    return found is not None and found.kind != "directory"


def _is_directory(root: Root, path: str) -> bool:
    try:
        found = root.find(parse(path))
    except GatewayError:  # the tool itself will say what is wrong
        return False
    return found is not None and found.kind == "directory"


def _written(root: Root, arguments: Mapping[str, Any]) -> str | None:
    parts, content = parse(arguments["path"]), arguments["content"]
    found = root.find(parts)
    if found is None:
        return f"{show_path(parts)}: a new file of {len(content)} characters"
    before = _text(root, parts)
    if before is None or arguments.get("encoding") == "base64" or len(content) > READ:
        return f"{show_path(parts)}: {found.stat.st_size} bytes are replaced"
    return unified_diff(show_path(parts), before, content) or f"{show_path(parts)}: stays as it is"


def _edited(root: Root, arguments: Mapping[str, Any]) -> str | None:
    parts = parse(arguments["path"])
    before = _text(root, parts)
    if before is None:
        return None
    after = before
    for edit in arguments["edits"]:
        after = after.replace(edit["oldText"], edit["newText"], -1 if edit.get("replaceAll") else 1)
        if len(after) > 2 * READ:
            return None
    return unified_diff(show_path(parts), before, after)


def _patched(_: Root, arguments: Mapping[str, Any]) -> str:
    return str(arguments["patch"])


def _moved(root: Root, arguments: Mapping[str, Any]) -> str:
    source, target = parse(arguments["from"]), parse(arguments["to"])
    found = root.find(target)
    replaced = f", replacing {found.stat.st_size} bytes that are there" if found and found.kind == "file" else ""
    return f"{show_path(source)} becomes {show_path(target)}{replaced}"


def _deleted(root: Root, arguments: Mapping[str, Any]) -> str | None:
    parts = parse(arguments["path"])
    found = root.find(parts)
    if found is None:
        return None
    if found.kind != "directory":
        return f"{show_path(parts)} goes ({found.stat.st_size} bytes)"
    with root.walk(parts) as inside:
        count = sum(1 for _ in islice(inside, COUNTED))
    at_least = "at least " if count == COUNTED else ""
    return f"{show_path(parts)}/ goes, with {at_least}{count} files and directories in it"


def _text(root: Root, parts: Parts) -> str | None:
    with root.open(parts) as file:
        content = file.read(READ + 1)
    if len(content) > READ or b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


_TOLD: Mapping[str, Callable[[Root, Mapping[str, Any]], str | None]] = {
    "write_file": _written,
    "edit_file": _edited,
    "apply_patch": _patched,
    "move_file": _moved,
    "delete_file": _deleted,
}
