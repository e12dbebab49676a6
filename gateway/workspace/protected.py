"""Protected files of an attached folder: files that other programs execute or obey, found at any depth."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gateway.errors import Unavailable
from gateway.workspace.openat import LISTING, restore_access_below

# Names of files, and of directories with all their content, at any depth.
PROTECTED_NAMES = frozenset(
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
        # Read by shells as they start, where the folder is somebody's home.
        *(".bash_login", ".bash_logout", ".bash_profile", ".bashrc", ".profile"),
        *(".zlogin", ".zlogout", ".zprofile", ".zshenv", ".zshrc"),
    }
)

# The parts of a repository that name programs to run, or other places that do. The rest may change.
_REPOSITORY = {
    ".git": (
        "hooks",
        "config",
        "config.worktree",
        "commondir",  # names another directory to take hooks and settings from
        "worktrees",  # has a commondir for each
        "modules",  # whole repositories
    ),
    ".hg": ("hgrc",),
}

# Many packages contain editor folders, which editors only obey in a folder that is opened as a project.
_IN_PACKAGES = PROTECTED_NAMES - {".vscode", ".idea"}

_PACKAGES = ("node_modules", "site-packages")

# Protected files and directories of a folder; a call is refused if there are more.
FILES_LIMIT = 1000

# Protected paths that are mounted; the others are copied. Bubblewrap's time grows with the square of their number:
# 0.1 s for 10, 1 s for 40, 5 s for 130.
MOUNTS_LIMIT = 16

DEPTH_LIMIT = 100
# Raised for a path that is gone meanwhile, or that belongs to another user.
SKIPPED_ERRORS = (FileNotFoundError, NotADirectoryError, PermissionError)


class ProtectedFile(NamedTuple):
    """A protected file or directory. If it is not `whole`, it is a repository of which only parts are protected."""

    path: str
    whole: bool
    kind: int

    @property
    def mountable(self) -> bool:
        return self.whole and (stat.S_ISREG(self.kind) or stat.S_ISDIR(self.kind))


Protected = tuple[ProtectedFile, ...]


def find_protected(folder: Path) -> Protected:
    """Find every protected file of a folder, including files that git ignores and other file systems. Follows no link.
    Blocks."""
    found: list[ProtectedFile] = []
    too_deep: list[str] = []
    with open_folder(folder) as top:
        find_below(top, found, too_deep)
    if len(found) > FILES_LIMIT:
        raise Unavailable(
            f"the folder {str(folder)!r} has {len(found)} protected files (such as .git/hooks and .vscode, "
            f"nested ones too), and more than {FILES_LIMIT} cannot be protected; attach a folder deeper down",
            code="TOO_MANY_PROTECTED_FILES",
        )
    if too_deep:
        raise Unavailable(
            f"{too_deep[0][:200]!r}… is nested more than {DEPTH_LIMIT} folders deep, where protected files are not "
            "searched; remove it, or attach a folder deeper down",
            code="TOO_DEEP",
        )
    return tuple(sorted(found))


def paths_to_mount(before: Protected, approved: Sequence[str]) -> tuple[str, ...]:
    """Return the paths to mount read-only: the topmost ones, except those in which a change is approved."""
    fitting = [each.path for each in before if each.mountable and not touches_approved(approved, each.path)]
    return tuple(sorted(fitting, key=lambda path: path.count("/"))[:MOUNTS_LIMIT])


def relative(folder: Path, paths: Sequence[str], inside: str) -> tuple[str, ...]:
    """Return paths relative to the folder, which a program sees as `inside`; paths elsewhere are left out."""
    named = []
    for path in paths:
        for top in (inside, str(folder), str(folder.resolve())):
            if path.startswith(f"{top}/"):
                path = path[len(top) + 1 :]
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not path.startswith("/") and ".." not in parts:
            named.append("/".join(parts).encode(errors="surrogateescape").decode(errors="surrogateescape"))
    return tuple(named)


@contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    top = os.open(folder, LISTING & ~os.O_NOFOLLOW)
    try:
        yield top
    finally:
        os.close(top)


def find_below(
    directory: int,
    found: list[ProtectedFile],
    too_deep: list[str],
    base: str = "",
    depth: int = 0,
    names: Collection[str] = PROTECTED_NAMES,
) -> None:
    """Add the protected files below a directory. Every call walks the whole folder twice, so this is kept fast."""
    if depth > DEPTH_LIMIT:
        too_deep.append(base)
        return
    folders = []
    with os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if name.lower() in names:
                found += _look(directory, base, name)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(name)
    for name in folders:
        inside = _IN_PACKAGES if name in _PACKAGES else names
        try:
            inner = os.open(name, LISTING, dir_fd=directory)
        except PermissionError:
            with suppress(*SKIPPED_ERRORS), open_directory(directory, name) as closed:
                find_below(closed, found, too_deep, f"{base}{name}/", depth + 1, inside)
            continue
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            find_below(inner, found, too_deep, f"{base}{name}/", depth + 1, inside)
        finally:
            os.close(inner)


def _look(directory: int, base: str, name: str) -> Iterator[ProtectedFile]:
    found = stat_if_exists(directory, name)
    if found is None:
        return
    if name.lower() in _REPOSITORY and stat.S_ISREG(found.st_mode) and not found.st_size:
        return  # an empty marker file, as package managers write into caches
    inner = _REPOSITORY.get(name.lower()) if stat.S_ISDIR(found.st_mode) else None
    yield ProtectedFile(base + name, inner is None, stat.S_IFMT(found.st_mode))
    for each in inner or ():
        if (part := stat_if_exists(directory, f"{name}/{each}")) is not None:
            yield ProtectedFile(f"{base}{name}/{each}", True, stat.S_IFMT(part.st_mode))


@contextmanager
def open_directory(directory: int, name: str) -> Iterator[int]:
    """Open a directory, making it listable for the moment if its owner has no permission."""
    try:
        inner = os.open(name, LISTING, dir_fd=directory)
    except PermissionError:
        mode = stat.S_IMODE(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
        restore_access_below(directory, name)
        inner = os.open(name, LISTING, dir_fd=directory)
        try:
            yield inner
        finally:
            with suppress(OSError):
                os.fchmod(inner, mode)
            os.close(inner)
        return
    try:
        yield inner
    finally:
        os.close(inner)


def is_approved(approved: Sequence[str], path: str) -> bool:
    """Return whether a path, or a directory it lies in, is approved to change."""
    folded = f"{path}/".lower()
    return any(folded.startswith(f"{each}/".lower()) for each in approved)


def touches_approved(approved: Sequence[str], path: str) -> bool:
    """Return whether a path, a directory above it, or something in it is approved to change."""
    return is_approved(approved, path) or any(f"{each}/".lower().startswith(f"{path}/".lower()) for each in approved)


def stat_if_exists(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
