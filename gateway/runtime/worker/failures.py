"""What went wrong in a call, as data: in whose words, of which kind, and where in the toolset's own files."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from covalt_toolset import BadArguments, BadReturn, ToolsetError

TEXT_LIMIT = 8 * 1024


def failure(error: BaseException, root: Path) -> dict[str, Any]:
    """The error as a message's `error`. Paths are told relative to the toolset's directory `root`."""
    told: dict[str, Any] = {"kind": _kind(error), "message": _text(error, root)}
    if told["kind"] == "raised":
        told |= {"type": type(error).__name__[:200], "place": _place(error, root)}
    return told


def _kind(error: BaseException) -> str:
    if isinstance(error, BadArguments):
        return "arguments"
    if isinstance(error, BadReturn):
        return "output"
    return "toolset" if isinstance(error, ToolsetError) else "raised"


def _text(error: BaseException, root: Path) -> str:
    try:
        text = str(error)
    except BaseException:  # a stranger's `__str__`
        return "its text cannot be read"
    text = text.replace(f"{root}/", "").replace(f" in {root}", "").replace(str(root), "the toolset")
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}…"


def _place(error: BaseException, root: Path) -> str | None:
    """The last line of the toolset's own files that had a part in it."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith(f"{root}/"):
            found = f"{file[len(str(root)) + 1 :]} line {line}"
    return found
