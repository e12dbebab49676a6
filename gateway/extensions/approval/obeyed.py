"""Asks before a builtin tool changes a protected file of a person's own folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...calls import Call
from ...workspace.protected import PROTECTED_NAMES
from .looking import folded, patched

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
        if PROTECTED_NAMES.intersection(folded(path).split("/")):
            return f"{call.target.id} touches {path[:200]!r}, and other programs on this machine obey this file"
    return None
