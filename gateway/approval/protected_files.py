"""Protected files of a person's own folder among the arguments of a tool that changes files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from gateway.approval.arguments import ArgumentsTooLarge, CallArguments, fold
from gateway.calls import Call
from gateway.errors import Unavailable
from gateway.tools import Access, Tool
from gateway.workspace.protected import PROTECTED_NAMES

_PATHS_NAMED = 3

# Returns the protected files in those of the paths that are directories.
ProtectedInside = Callable[[Call, Sequence[str]], Awaitable[Sequence[str]]]


class ProtectedArguments(NamedTuple):
    """The protected paths that a call names, and the reason to ask a person about them."""

    reason: str
    paths: tuple[str, ...]


def names_changed_files(tool: Tool) -> bool:
    """Return whether arguments of the tool can name files that it changes."""
    if tool.path_arguments is None and tool.patch_argument is None:
        return tool.access is Access.WRITE
    return bool(tool.path_arguments or tool.patch_argument)


async def find_protected_arguments(call: Call, inside: ProtectedInside | None = None) -> ProtectedArguments | None:
    """Return the protected files that the call names; None if there are none. If the tool does not declare its path
    arguments, every text that could be a path counts. A destructive tool also touches the files in a directory."""
    tool = call.target
    try:
        paths = await _read_paths(call)
        if inside is not None and tool.path_arguments and tool.destructive:
            paths = [*paths, *await inside(call, paths)]
    except ArgumentsTooLarge:
        return ProtectedArguments(f"{tool.id} may touch protected files: its arguments are too large to check", ())
    except Unavailable as error:
        return ProtectedArguments(f"{tool.id} may touch protected files: {error.message}", ())
    protected = tuple(dict.fromkeys(path for path in paths if PROTECTED_NAMES.intersection(fold(path).split("/"))))
    if not protected:
        return None
    names = ", ".join(repr(path[:200]) for path in protected[:_PATHS_NAMED])
    more = f" and {len(protected) - _PATHS_NAMED} more" if len(protected) > _PATHS_NAMED else ""
    reason = f"{tool.id} touches {names}{more}, which other programs on this machine run or read as settings"
    return ProtectedArguments(reason, protected)


async def _read_paths(call: Call) -> Sequence[str]:
    tool = call.target
    if tool.path_arguments is None or tool.patch_argument is not None:
        # A patch that cannot be parsed changes nothing: its tool refuses it.
        return await CallArguments(call).paths() or []
    values = [call.arguments.get(name) for name in tool.path_arguments]
    return [str(path) for value in values for path in (value if isinstance(value, list) else [value])]
