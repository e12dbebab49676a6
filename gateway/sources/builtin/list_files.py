"""Looking around: what a directory holds, and where files of a name are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from gateway.sources.builtin.decorator import Context, Shape, builtin
from gateway.tools import Access, Permission
from gateway.workspace import Entry, Parts, parse, shown
from gateway.workspace.globs import Glob
from gateway.workspace.walk import ANY_DEPTH, modified

Type = Literal["file", "directory", "symlink", "other"]

# Directories nobody means when searching; hidden ones such as `.git` and `.venv` are passed over anyway.
IGNORED = frozenset({"node_modules", "__pycache__"})


class ListedEntry(Shape):
    name: str
    type: Type
    size: int
    modified: str
    escaped: bool | None = Field(
        default=None, description="The name is not plain text and shown escaped; no path reaches it"
    )


class Listing(Shape):
    entries: list[ListedEntry]
    truncated: bool


@builtin(
    title="List directory",
    category="filesystem",
    permission=Permission.READ_ONLY,
    access=Access.READ,
    idempotent=True,
)
def list_directory(
    context: Context,
    path: Annotated[str, Field(description="Directory, relative to the workspace root; '.' is the root")] = ".",
    recursive: Annotated[bool, Field(description="Also what is in its directories; names are then paths")] = False,
    include_hidden: Annotated[bool, Field(description="Also names beginning with a dot")] = False,
    limit: Annotated[int, Field(ge=1, le=10_000, description="At most so many entries")] = 1000,
) -> tuple[Listing, str]:
    """List a directory of the workspace, sorted by name: directories end in /, links in @, files show their bytes.

    Links are listed as links and never followed. To find files by name use find_files."""
    base = parse(path)

    def wanted(entry: Entry) -> bool:
        return include_hidden or not entry.hidden

    found, truncated = select(context, base, limit, wanted, wanted, depth=ANY_DEPTH if recursive else 1)
    listed = [_listed(entry, base) for entry in found]
    return Listing(entries=listed, truncated=truncated), _listing_text(listed, shown(base), truncated)


class FoundFile(Shape):
    path: str
    type: Type
    size: int
    modified: str


class Found(Shape):
    matches: list[FoundFile]
    truncated: bool


@builtin(
    title="Find files",
    category="filesystem",
    permission=Permission.READ_ONLY,
    access=Access.READ,
    idempotent=True,
)
def find_files(
    context: Context,
    pattern: Annotated[str, Field(description="Glob such as *.py, src/**/test_*.ts or *.{md,txt}")],
    path: Annotated[str, Field(description="Directory to search, relative to the workspace root")] = ".",
    type: Annotated[Literal["file", "directory", "any"], Field(description="What to find")] = "file",  # noqa: A002
    include_hidden: Annotated[bool, Field(description="Also hidden names, node_modules and __pycache__")] = False,
    limit: Annotated[int, Field(ge=1, le=10_000, description="At most so many matches")] = 200,
) -> tuple[Found, str]:
    """Find files in the workspace by name. A pattern without / matches the name in any directory; with / it
    matches the path from the searched directory, ** standing for any number of directories.

    Hidden names, node_modules and __pycache__ are passed over unless the pattern spells them out. To search what
    is in files use search_code."""
    base, glob = parse(path), Glob(pattern)
    visible = _visible(include_hidden, glob)

    def wanted(entry: Entry) -> bool:
        return visible(entry) and type in ("any", entry.kind) and glob.matches(entry.parts[len(base) :])

    found, truncated = select(context, base, limit, wanted, visible)
    matches = [_found(entry) for entry in found]
    return Found(matches=matches, truncated=truncated), _found_text([match.path for match in matches], truncated)


def select(
    context: Context,
    base: Parts,
    limit: int,
    wanted: Callable[[Entry], bool],
    enter: Callable[[Entry], bool],
    depth: int = ANY_DEPTH,
) -> tuple[list[Entry], bool]:
    """The first `limit` wanted entries under a directory, and whether there may be more."""
    found: list[Entry] = []
    with context.workspace.walk(base, depth, enter) as walk:
        for entry in walk:
            context.check_cancelled()
            if not wanted(entry):
                continue
            if len(found) == limit:
                return found, True
            found.append(entry)
    return found, walk.truncated


def _visible(include_hidden: bool, glob: Glob) -> Callable[[Entry], bool]:
    def visible(entry: Entry) -> bool:
        return include_hidden or not passed_over(entry) or glob.spells(entry.name)

    return visible


def passed_over(entry: Entry) -> bool:
    return entry.hidden or entry.name in IGNORED


def _listed(entry: Entry, base: Parts) -> ListedEntry:
    parts = entry.parts[len(base) :]
    name = shown(parts)
    escaped = True if name != "/".join(parts) else None
    return ListedEntry(
        name=name, type=entry.kind, size=entry.stat.st_size, modified=modified(entry.stat), escaped=escaped
    )


def _found(entry: Entry) -> FoundFile:
    return FoundFile(path=entry.path, type=entry.kind, size=entry.stat.st_size, modified=modified(entry.stat))


def _listing_text(entries: list[ListedEntry], where: str, truncated: bool) -> str:
    if not entries:
        return f"{where} is empty or has only hidden entries."
    ends = {"directory": "/", "symlink": "@", "other": " (not a file)"}
    lines = [f"{entry.name}{ends.get(entry.type) or f' {entry.size}'}" for entry in entries]
    if truncated:
        lines.append(f"[the first {len(entries)} only; list a directory further down or raise limit]")
    return "\n".join(lines)


def _found_text(paths: list[str], truncated: bool) -> str:
    if not paths:
        return "No file matches."
    more = [f"[the first {len(paths)} only; narrow pattern or path, or raise limit]"] if truncated else []
    return "\n".join([*paths, *more])
