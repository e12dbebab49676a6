"""Descriptions of what a tool would do to the chat's files, for the person who is asked about the call."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from gateway.errors import GatewayError
from gateway.sources.builtin import patch as patches
from gateway.text import count_bytes
from gateway.tools import Tool
from gateway.workspace import Parts, Root, parse, show_path
from gateway.workspace.diff import unified_diff
from gateway.workspace.unversioned import UnversionedFiles, find_unversioned

# Bytes of a file that are compared; of a larger one only the size is shown.
DIFF_BYTES = 64 * 1024

# Files counted in a directory that is to be deleted.
COUNT_LIMIT = 1000


def find_unversioned_files(root: Root, attached: bool, tool: Tool, arguments: Mapping[str, Any]) -> UnversionedFiles:
    """Return the files that a call of a builtin may change or delete and that no version has."""
    if tool.owner is not None or not (tool.path_arguments or tool.patch_argument):
        return UnversionedFiles()
    paths: list[str] = []
    for name in tool.path_arguments or ():
        value = arguments.get(name)
        paths += value if isinstance(value, list) else [] if value is None else [value]
    try:
        if tool.patch_argument is not None:
            files = patches.parse(str(arguments.get(tool.patch_argument)))
            paths += [path for file in files for path in (file.old, file.new) if path is not None]
        return find_unversioned(root, attached, map(parse, paths))
    except (GatewayError, OSError, UnicodeError, ValueError):  # the tool itself will report what is wrong
        return UnversionedFiles()


def preview_write(root: Root, arguments: Mapping[str, Any]) -> str | None:
    parts, content = parse(arguments["path"]), arguments["content"]
    file = root.find(parts)
    if file is None:
        return f"{show_path(parts)}: a new file of {len(content)} characters"
    before = _read_text(root, parts)
    if before is None or arguments.get("encoding") == "base64" or len(content) > DIFF_BYTES:
        return f"{show_path(parts)}: {file.stat.st_size} bytes are replaced"
    return unified_diff(show_path(parts), before, content) or f"{show_path(parts)}: no change"


def preview_edit(root: Root, arguments: Mapping[str, Any]) -> str | None:
    parts = parse(arguments["path"])
    before = _read_text(root, parts)
    if before is None:
        return None
    after = before
    for edit in arguments["edits"]:
        after = after.replace(edit["oldText"], edit["newText"], -1 if edit.get("replaceAll") else 1)
        if len(after) > 2 * DIFF_BYTES:
            return None
    return unified_diff(show_path(parts), before, after)


def preview_patch(_: Root, arguments: Mapping[str, Any]) -> str:
    return str(arguments["patch"])


def preview_move(root: Root, arguments: Mapping[str, Any]) -> str:
    source, target = parse(arguments["from"]), parse(arguments["to"])
    file = root.find(target)
    replaced = f", which replaces {file.stat.st_size} bytes" if file and file.kind == "file" else ""
    return f"{show_path(source)} is moved to {show_path(target)}{replaced}"


def preview_delete(root: Root, arguments: Mapping[str, Any]) -> str | None:
    parts = parse(arguments["path"])
    file = root.find(parts)
    if file is None:
        return None
    if file.kind != "directory":
        return f"{show_path(parts)} is deleted ({count_bytes(file.stat.st_size)})"
    with root.walk(parts) as entries:
        count = sum(1 for _ in islice(entries, COUNT_LIMIT))
    at_least = "at least " if count == COUNT_LIMIT else ""
    return f"{show_path(parts)}/ is deleted, with {at_least}{count} files and directories in it"


def _read_text(root: Root, parts: Parts) -> str | None:
    """Return the text of a file; None if it is large or binary."""
    with root.open(parts) as file:
        content = file.read(DIFF_BYTES + 1)
    if len(content) > DIFF_BYTES or b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
