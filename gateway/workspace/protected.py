"""Files in a person's own folder that other programs on the machine obey: who writes them makes those programs act."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

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
"""Names of files, or of directories with all that is in them."""

GIT_PATHS = (
    ".git/hooks",
    ".git/config",
    ".git/config.worktree",
    ".git/commondir",  # names another directory to take hooks and settings from
    ".git/worktrees",  # has a commondir for each
    ".git/modules",  # whole repositories
)
"""Files that name programs for git to run, or other places that do."""

PROTECTED_PATHS = (*GIT_PATHS, ".hg/hgrc", *sorted(PROTECTED_NAMES - {".git", ".hg"}))
"""Paths that a program may not change in such a folder. It may change the rest of a repository."""

Identities = tuple[tuple[str, int, int], ...]


def protected_identities(folder: Path) -> Identities:
    """The protected files and directories that exist now, with what identifies each if it is replaced later."""
    found = []
    for path in PROTECTED_PATHS:
        try:
            status = os.stat(folder / path, follow_symlinks=False)  # noqa: PTH116 - several for each call
        except OSError:
            continue
        found.append((path, status.st_dev, status.st_ino))
    return tuple(found)


def rename_added(folder: Path, before: Identities) -> list[tuple[str, str]]:
    """Give protected files that came to be since then names that nobody obeys; nothing is lost, whoever made them.
    Returns old and new names. A link on the way is not followed."""
    known = {path for path, *_ in before}
    renamed = []
    for path, *_ in protected_identities(folder):
        parent = folder / Path(path).parent
        if path in known or parent.is_symlink():
            continue
        for number in range(1, 1000):
            new = f"{path}.toolgate-removed-{number}"
            if not os.path.lexists(folder / new):
                with suppress(OSError):  # gone meanwhile
                    os.rename(folder / path, folder / new)  # noqa: PTH104 - what it leads to does not matter
                    renamed.append((path, new))
                break
    return renamed
