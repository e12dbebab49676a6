"""Protected files of an attached folder: files that other programs execute or obey, found at any depth."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gateway.errors import Unavailable
from gateway.tools import Hides
from gateway.workspace.openat import LISTING, READING, restore_access_below

# Names that editors, git and its hook managers obey only in a folder that a person opens or commits in.
_PROJECT_SETTINGS = frozenset(
    {
        *(".vscode", ".idea", ".vs", ".zed"),  # tasks, and paths of interpreters and linters
        *(".devcontainer", ".devcontainer.json"),
        *(".husky", ".githooks", ".pre-commit-config.yaml"),  # run by git, where core.hooksPath or its own hooks say so
        *("lefthook.yml", "lefthook.yaml", ".lefthook.yml", ".lefthook.yaml"),
    }
)

# Names of files, and of directories with all their content, at any depth.
PROTECTED_NAMES = frozenset(
    {
        ".git",  # hooks, and settings that name programs
        ".hg",
        *(".envrc", "mise.toml", ".mise.toml", ".mise"),  # run by direnv and mise on entering the folder
        # Servers and hooks that clients start.
        *(".mcp.json", ".cursor", ".claude", ".codex", ".gemini", ".windsurf", ".kiro", ".roo", ".amazonq", ".junie"),
        *(".opencode", "opencode.json", "opencode.jsonc"),
        *("toolgate.yaml", "toolgate.yml"),  # our own rules
        # Read by programs as they start, where the folder is somebody's home.
        *(".bash_login", ".bash_logout", ".bash_profile", ".bashrc", ".profile", ".kshrc"),
        *(".zlogin", ".zlogout", ".zprofile", ".zshenv", ".zshrc", ".cshrc", ".tcshrc", ".login", ".logout"),
        *(".xinitrc", ".xprofile", ".xsession", ".gitconfig", ".ssh"),
    }
    | _PROJECT_SETTINGS
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

# Many packages contain such files, and nobody opens a package as a project.
_IN_PACKAGES = PROTECTED_NAMES - _PROJECT_SETTINGS

_PACKAGES = ("node_modules", "site-packages")

# Protected files and directories of a folder; a call is refused if there are more.
FILES_LIMIT = 1000

# Protected paths that are mounted; the others are copied. Bubblewrap's time grows with the square of their number:
# 0.1 s for 10, 1 s for 40, 5 s for 130.
MOUNTS_LIMIT = 16

DEPTH_LIMIT = 100

_PATHS_NAMED = 3

_HOOKS_PATH = re.compile(r'^[ \t]*(?:\[core\][ \t]*)?hookspath[ \t]*=[ \t]*"?([^"#;\n]*)', re.IGNORECASE | re.MULTILINE)
_SETTINGS_BYTES = 64 * 1024

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
    whole = [each.path for each in found if each.whole]
    repositories = {each.path.rpartition("/")[0] for each in found if each.path.lower().endswith(".git")}
    for directory in sorted({"", *repositories}):
        for path in _list_named_hooks(folder, directory):
            if not is_approved(whole, path) and (kind := _find_kind(folder, path)) is not None:
                found.append(ProtectedFile(path, True, kind))
                whole.append(path)
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


def find_named_hooks(folder: Path, paths: Sequence[str]) -> list[str]:
    """Return the paths that lie in, or contain, a directory which `core.hooksPath` names in a repository above them.
    Blocks."""
    names_hooks = _make_hooks_check(folder)
    return [path for path in paths for plain in relative(folder, (path,), str(folder)) if names_hooks(plain)]


def make_protected_check(folder: Path) -> Callable[[str], bool]:
    """Return a predicate for the protected paths of a folder, which also knows hooks by `core.hooksPath`. It reads the
    settings of each repository once. Blocks."""
    names_hooks = _make_hooks_check(folder)
    return lambda path: is_protected(path) or names_hooks(path)


def _make_hooks_check(folder: Path) -> Callable[[str], bool]:
    hooks = cache(lambda directory: [*_list_named_hooks(folder, directory)])

    def names_hooks(path: str) -> bool:
        parts = path.split("/")
        return any(touches_approved(hooks("/".join(parts[:depth])), path) for depth in range(len(parts)))

    return names_hooks


def _list_named_hooks(folder: Path, directory: str) -> Iterator[str]:
    """Yield the directories in the folder that the repository of a directory uses for its hooks, other than its own
    `.git/hooks`. Settings elsewhere that its settings include are not read."""
    if not os.path.lexists(folder / directory / ".git") and directory:
        return
    top = folder.resolve() / directory
    if not directory:  # git also finds a repository above
        top = next((each for each in (top, *top.parents) if os.path.lexists(each / ".git")), top)
    git = _find_repository(top)
    for home in dict.fromkeys((git, git / (_read_start(git / "commondir").strip() or "."))):
        paths = [home / "hooks"] if (home / "hooks").is_symlink() else []
        for name in ("config", "config.worktree"):
            values = filter(None, map(str.strip, _HOOKS_PATH.findall(_read_start(home / name))))
            paths += [top / os.path.expanduser(value) for value in values]  # noqa: PTH111 - raises no error
        for path in paths:
            named = (os.path.normpath(path), os.path.realpath(path))
            yield from filter(None, relative(folder, named, str(folder)))


def _find_repository(top: Path) -> Path:
    """Return the directory with the settings of a repository; that of a worktree or submodule is elsewhere."""
    kind, _, path = _read_start(top / ".git").partition("gitdir:")
    return top / path.strip() if path and not kind else top / ".git"


def _read_start(file: Path) -> str:
    """Return the start of a regular file; empty if it cannot be read."""
    try:
        fd = os.open(file, READING)
    except (OSError, ValueError):
        return ""
    try:
        return os.fsdecode(os.read(fd, _SETTINGS_BYTES)) if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    finally:
        os.close(fd)


def _find_kind(folder: Path, path: str) -> int | None:
    """Return the kind of a file, 0 if there is none; None if it is below a file or behind a link."""
    parts = path.split("/")
    *above, kind = [_lstat_kind(folder.joinpath(*parts[:depth])) for depth in range(1, len(parts) + 1)]
    return kind if {*above} <= {stat.S_IFDIR, 0} else None


def _lstat_kind(path: Path) -> int:
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except OSError:
        return 0


class ProtectedReason(str):
    """A reason to ask that names protected files: an answer counts for one call."""


def is_protected(path: str) -> bool:
    """Return whether a path is that of a protected file, or of something in one, by its names alone."""
    return not PROTECTED_NAMES.isdisjoint(path.casefold().split("/"))


def spare_protected(folder: Path, hides: Hides) -> Hides:
    """Return a predicate for protected files of a folder, and those that `hides` names. Blocks."""
    protects = make_protected_check(folder)
    return lambda path, agreed=frozenset(): "it is protected" if protects(path) else hides(path, agreed)


def reason_to_ask(tool: str, paths: Sequence[str]) -> ProtectedReason:
    """Return why a person is asked before a tool touches these protected paths."""
    names = ", ".join(repr(path[:200]) for path in paths[:_PATHS_NAMED])
    more = f" and {len(paths) - _PATHS_NAMED} more" if len(paths) > _PATHS_NAMED else ""
    return ProtectedReason(
        f"{tool} touches {names}{more}, which other programs on this machine run or read as settings"
    )


def paths_to_mount(before: Protected, approved: Sequence[str], *, repositories: bool = False) -> tuple[str, ...]:
    """Return the paths to mount read-only: the topmost ones, except those in which a change is approved. With
    `repositories` the whole of them is mounted, else the parts that are protected."""
    fitting = [each.path for each in before if each.mountable or (repositories and stat.S_ISDIR(each.kind))]
    mounts: list[str] = []
    for path in sorted(fitting, key=lambda path: path.count("/")):
        if len(mounts) < MOUNTS_LIMIT and not is_approved(mounts, path) and not touches_approved(approved, path):
            mounts.append(path)
    return tuple(mounts)


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
