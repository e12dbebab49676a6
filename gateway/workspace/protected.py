"""Files in a person's own folder that other programs on the machine obey, found at any depth."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gateway.errors import Unavailable
from gateway.workspace.folder_access import restore_access_below
from gateway.workspace.openat import LISTING

# Names of files, or of directories with all that is in them, wherever they are in a folder.
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

# Of a repository only what names programs to run, or other places that do. A program may change the rest of it.
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

# Many packages bring folders of editors, which obey them only in a folder that somebody opens as a project.
_IN_PACKAGES = PROTECTED_NAMES - {".vscode", ".idea"}

_PACKAGES = ("node_modules", "site-packages")

# Protected files and directories of a folder; with more of them a call is refused.
FILES_LIMIT = 1000

# Protected paths that are mounted; the others are copied. Bubblewrap takes longer by the square of them: 0.1 s for
# 10, 1 s for 40, 5 s for 130.
MOUNTS_LIMIT = 16

DEPTH_LIMIT = 100
# What is gone meanwhile, or another user's own.
PASSED_OVER = (FileNotFoundError, NotADirectoryError, PermissionError)


class ProtectedFile(NamedTuple):
    """A protected file or directory. One that is not `whole` is a repository, of which only parts are protected."""

    path: str
    whole: bool
    kind: int

    @property
    def mountable(self) -> bool:
        return self.whole and (stat.S_ISREG(self.kind) or stat.S_ISDIR(self.kind))


Protected = tuple[ProtectedFile, ...]


def find_protected(folder: Path) -> Protected:
    """Every protected file of a folder as it is now. Nothing is left out: neither what git ignores nor what lies on
    another file system. No link is followed. Blocks."""
    found: list[ProtectedFile] = []
    too_deep: list[str] = []
    with opened_top(folder) as top:
        find_below(top, found, too_deep)
    if len(found) > FILES_LIMIT:
        raise Unavailable(
            f"the folder {str(folder)!r} has {len(found)} files that other programs obey (such as .git/hooks and "
            f".vscode, nested ones too), and more than {FILES_LIMIT} cannot be protected; attach a folder deeper down",
            code="TOO_MANY_PROTECTED_FILES",
        )
    if too_deep:
        raise Unavailable(
            f"{too_deep[0][:200]!r}… lies more than {DEPTH_LIMIT} folders deep, where protected files are not looked "
            "for; remove it, or attach a folder deeper down",
            code="TOO_DEEP",
        )
    return tuple(sorted(found))


def mounted(before: Protected, approved: Sequence[str]) -> tuple[str, ...]:
    """The paths to be mounted read-only: the first of them from the top down, but those in which something is approved
    to change."""
    fitting = [each.path for each in before if each.mountable and not opens(approved, each.path)]
    return tuple(sorted(fitting, key=lambda path: path.count("/"))[:MOUNTS_LIMIT])


def relative(folder: Path, paths: Sequence[str], inside: str) -> tuple[str, ...]:
    """Paths as they are in the folder, which a program finds under `inside`; those that lie elsewhere are left out."""
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
def opened_top(folder: Path) -> Iterator[int]:
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
    """Add what is found below a directory; every call walks all of a folder twice, so it does no more than it must."""
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
            with suppress(*PASSED_OVER), opened(directory, name) as closed:
                find_below(closed, found, too_deep, f"{base}{name}/", depth + 1, inside)
            continue
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            find_below(inner, found, too_deep, f"{base}{name}/", depth + 1, inside)
        finally:
            os.close(inner)


def _look(directory: int, base: str, name: str) -> Iterator[ProtectedFile]:
    found = stat_of(directory, name)
    if found is None:
        return
    if name.lower() in _REPOSITORY and stat.S_ISREG(found.st_mode) and not found.st_size:
        return  # leads nowhere; package managers mark caches so
    inner = _REPOSITORY.get(name.lower()) if stat.S_ISDIR(found.st_mode) else None
    yield ProtectedFile(base + name, inner is None, stat.S_IFMT(found.st_mode))
    for each in inner or ():
        if (part := stat_of(directory, f"{name}/{each}")) is not None:
            yield ProtectedFile(f"{base}{name}/{each}", True, stat.S_IFMT(part.st_mode))


@contextmanager
def opened(directory: int, name: str) -> Iterator[int]:
    """A directory, also one that its owner may not list: what is in it can be obeyed all the same."""
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


def covers(approved: Sequence[str], path: str) -> bool:
    """Return whether a path, or a directory it lies in, is approved to change."""
    folded = f"{path}/".lower()
    return any(folded.startswith(f"{each}/".lower()) for each in approved)


def opens(approved: Sequence[str], path: str) -> bool:
    """The same, or something in it is."""
    return covers(approved, path) or any(f"{each}/".lower().startswith(f"{path}/".lower()) for each in approved)


def stat_of(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
