"""Finds protected files of a person's own folder among the arguments of a tool that changes files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from gateway.calls import Call
from gateway.errors import Unavailable
from gateway.extensions.approval.arguments import Look, TooMuch, folded
from gateway.tools import Access, Tool
from gateway.workspace.protected import PROTECTED_NAMES

_NAMED = 3

# Returns the protected files in those of the paths that are directories.
Inside = Callable[[Call, Sequence[str]], Awaitable[Sequence[str]]]


class Touched(NamedTuple):
    """Why a person is asked about a call, and the protected paths that its arguments name."""

    reason: str
    paths: tuple[str, ...]


def may_touch(tool: Tool) -> bool:
    """Return whether arguments of the tool can name files that it changes."""
    if tool.path_arguments is None and tool.patch_argument is None:
        return tool.access is Access.WRITE
    return bool(tool.path_arguments or tool.patch_argument)


async def protected_in(call: Call, inside: Inside | None = None) -> Touched | None:
    """The protected files that the call names; None if there are none. Of a tool that does not declare which arguments
    are paths, every text counts that could be one. A tool that may move or delete a directory touches those in it."""
    tool = call.target
    try:
        paths = await _paths(call)
        if inside is not None and tool.path_arguments and tool.destructive:
            paths = [*paths, *await inside(call, paths)]
    except TooMuch:
        return Touched(f"{tool.id} may touch protected files: its arguments are too many to look at", ())
    except Unavailable as error:
        return Touched(f"{tool.id} may touch protected files: {error.message}", ())
    found = tuple(dict.fromkeys(path for path in paths if PROTECTED_NAMES.intersection(folded(path).split("/"))))
    if not found:
        return None
    named = ", ".join(repr(path[:200]) for path in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    files = "this file" if len(found) == 1 else "these files"
    return Touched(f"{tool.id} touches {named}{more}, and other programs on this machine obey {files}", found)


async def _paths(call: Call) -> Sequence[str]:
    tool = call.target
    if tool.path_arguments is None or tool.patch_argument is not None:
        # A patch that cannot be read changes nothing: its tool refuses it.
        return await Look(call).paths() or []
    values = [call.arguments.get(name) for name in tool.path_arguments]
    return [str(path) for value in values for path in (value if isinstance(value, list) else [value])]
