"""Files in a person's own folder that other programs on the machine obey: who writes them makes those programs act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...calls import Call
from .looking import folded, patched

OBEYED = frozenset(
    {
        ".git",  # hooks, and settings that name programs
        ".hg",
        ".envrc",  # run by direnv on entering the folder
        ".vscode",  # tasks, and paths of interpreters and linters
        ".idea",
        ".cursor",  # servers and hooks that clients start
        ".claude",
        ".mcp.json",
        "toolgate.yaml",  # our own rules
    }
)
"""Names, at any depth: of files, or of directories with all that is in them."""

GUARDED: Mapping[str, Sequence[str]] = {
    "write_file": ("path",),
    "edit_file": ("path",),
    "delete_file": ("path",),
    "web_download": ("path",),
    "move_file": ("from", "to"),
    "apply_patch": (),
}
"""The tools that change files, and the arguments that say which."""


async def obeyed(call: Call) -> str | None:
    """Why a person is asked about a call that changes such a file; None for any other."""
    named = GUARDED[call.target.id]
    # A patch that cannot be read changes nothing: its tool refuses it.
    paths = [str(call.arguments.get(name)) for name in named] if named else await patched(call.arguments) or []
    for path in paths:
        if OBEYED.intersection(folded(path).split("/")):
            return f"{call.target.id} touches {path[:200]!r}, and other programs on this machine obey this file"
    return None
