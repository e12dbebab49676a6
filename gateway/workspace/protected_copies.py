"""Restoring protected files of an attached folder after a program that could write there.

Protected files that the sandbox does not mount read-only are copied before the program runs. A note in the chat's own
directory records them: if the gateway is killed meanwhile, the next one restores them.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import orjson

from gateway.errors import GatewayError, ToolFailed, Unavailable
from gateway.workspace.openat import DIRECTORY, READING, choose_opener, exchange, restore_access_below
from gateway.workspace.protected import (
    DEPTH_LIMIT,
    SKIPPED_ERRORS,
    Protected,
    ProtectedFile,
    find_below,
    is_approved,
    open_directory,
    open_folder,
    stat_if_exists,
    touches_approved,
)
from gateway.workspace.tree import decode, encode
from gateway.workspace.walk import temporary_name

log = logging.getLogger(__name__)

COPY_BYTES = 64 * 1024 * 1024
COPY_FILES = 5000
_NOTE = "note"
_TICK = 1_000_000_000
_ASIDE = ".toolgate-removed-"
_FOLDER = "."  # of which only the permissions are protected
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Directories of a repository with committed data: they are not copied.
_CONTENTS = frozenset({"objects", "refs", "logs", "lfs"})


class RestoredFiles(NamedTuple):
    """The changed paths, each with the new name of what was there (None if it was gone); and those that failed."""

    renamed: dict[str, str | None]
    failed: list[str]


@asynccontextmanager
async def protect_files(
    tool: str,
    folder: Path,
    store: Path,
    before: Protected,
    mounts: Collection[str],
    approved: Sequence[str] = (),
    *,
    repositories: bool = False,
) -> AsyncIterator[None]:
    """Protect the files of a folder while a program runs in the body, whether it ends, fails or is cancelled.

    Those in `mounts` the sandbox holds; the others are copied to `store` and put back. What the program left under a
    protected name it keeps under a name that nobody obeys, and the call fails with PROTECTED_FILE. Only `approved`
    paths may change; with `repositories` new ones may be made. The permissions of the folder itself are put back, too.
    `store` is for this call alone."""
    await anyio.to_thread.run_sync(_begin, folder, store, before, mounts, approved, repositories)
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        with anyio.CancelScope(shield=True):
            taken = await anyio.to_thread.run_sync(restore_protected, folder, store)
        if any(taken) and (failure is None or isinstance(failure, GatewayError)):
            raise _protected_file_error(tool, taken) from failure


def restore_protected(folder: Path, store: Path) -> RestoredFiles:
    """Restore protected files from the note in `store`, if there is one. Repeating it completes an interrupted run.
    Blocks."""
    try:
        note = orjson.loads((store / _NOTE).read_bytes())
    except FileNotFoundError:
        return RestoredFiles({}, [])
    mode = note.get("mode", stat.S_IMODE(folder.stat().st_mode))
    changed = stat.S_IMODE(folder.stat().st_mode) != mode
    if changed:  # first: it may lock us out
        folder.chmod(mode)
    with open_folder(folder) as top:
        taken = _Restoration(top, store, note).run()
    shutil.rmtree(store)
    return RestoredFiles({_FOLDER: None, **taken.renamed}, taken.failed) if changed else taken


def rename_aside(directory: int, name: str, shown: str) -> str | None:
    """Rename a file or directory to an inert name derived from `shown`; return the new name, None if it is gone."""
    stem = os.fsdecode(os.fsencode(shown)[:200])
    for suffix in (*range(1, 100), secrets.token_hex(8)):
        new = f"{stem}{_ASIDE}{suffix}"
        move = partial(choose_opener().rename_new, directory, name, directory, new)
        try:
            try:
                move()
            except PermissionError:  # the directory's mode locks out its owner
                restore_access_below(directory, ".")
                move()
        except FileExistsError:
            continue
        except FileNotFoundError:
            return None
        return new
    return None


def recover(folder: Path, store: Path) -> None:
    """Restore protected files after calls of a killed gateway; each call has a folder in `store`. Blocks."""
    with suppress(FileNotFoundError):
        for each in store.iterdir():
            taken = restore_protected(folder, each)
            if any(taken):
                log.warning("protected files of %s were restored after a kill: %s", folder, taken)
            shutil.rmtree(each, ignore_errors=True)


def _protected_file_error(tool: str, taken: RestoredFiles) -> ToolFailed:
    path = taken.failed[0] if taken.failed else next(iter(taken.renamed))
    if taken.failed:
        state = "it could not be restored, see the log"
    elif (now := taken.renamed[path]) is None:
        state = "it was restored"
    else:
        state = f"the new content was moved to {now!r}; to keep it, use write_file or move_file, which ask"
    if path == _FOLDER:
        message = f"{tool} changed the permissions of your folder; they were restored"
    else:
        message = f"{tool} created, changed or deleted {path!r}, a protected file; {state}"
    return ToolFailed(message, code="PROTECTED_FILE", renamed=taken.renamed, failed=taken.failed)


def _begin(
    folder: Path,
    store: Path,
    before: Protected,
    mounts: Collection[str],
    approved: Sequence[str],
    repositories: bool,
) -> None:
    copied = [each.path for each in before if each.whole and not is_approved(tuple(mounts), each.path)]
    files: dict[str, Any] = {}
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir(0o700, parents=True)
    room = COPY_BYTES
    with open_folder(folder) as top:
        kinds = {each.path: each.kind for each in before}
        for path in filter(kinds.get, copied):
            for each, parent, name in _files(top, path):
                try:
                    files[encode(each)], size = _copy(parent, name, store / str(len(files)), room)
                except OSError as error:
                    raise Unavailable(f"the protected file {each!r} cannot be copied: {error}") from error
                room -= size
                if room < 0 or len(files) > COPY_FILES:
                    raise Unavailable(
                        f"the protected files are larger than {COPY_BYTES >> 20} MiB together (or more "
                        f"than {COPY_FILES}; one is {each!r}), too much to protect in this sandbox",
                        code="PROTECTED_FILES_TOO_LARGE",
                    )
    note = {
        "before": {encode(each.path): each.kind for each in before},
        "copied": [encode(path) for path in copied],
        "approved": [encode(path) for path in approved],
        "files": files,
        "repositories": repositories,
        "mode": stat.S_IMODE(folder.stat().st_mode),
    }
    (store / "new").write_bytes(orjson.dumps(note))
    (store / "new").rename(store / _NOTE)


def _files(top: int, path: str) -> Iterator[tuple[str, int, str]]:
    """Yield each file and link at or below a path, with its open parent directory."""
    with _parent(top, path) as (parent, name):
        yield from _below(parent, path, name, within=name in ("modules", "worktrees"))


@contextmanager
def _parent(top: int, path: str) -> Iterator[tuple[int, str]]:
    """Open the parent directory of a path; yield it and the name. Follows no link; may cross file systems."""
    *above, name = path.split("/")
    here = os.dup(top)
    try:
        for each in above:
            inner = os.open(each, DIRECTORY, dir_fd=here)
            os.close(here)
            here = inner
        yield here, name
    finally:
        os.close(here)


def _below(parent: int, path: str, name: str, within: bool, depth: int = 0) -> Iterator[tuple[str, int, str]]:
    found = stat_if_exists(parent, name)
    if found is None:
        return
    if not stat.S_ISDIR(found.st_mode) or depth > DEPTH_LIMIT:
        yield path, parent, name
        return
    with suppress(*SKIPPED_ERRORS), open_directory(parent, name) as directory:
        for each in sorted(os.listdir(directory)):  # noqa: PTH208 - by a descriptor
            if not (within and each in _CONTENTS):
                yield from _below(directory, f"{path}/{each}", each, within, depth + 1)


def _copy(parent: int, name: str, target: Path, room: int) -> tuple[list[Any], int]:
    """Copy a file to `target`; return its metadata and size."""
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    # A file that has only just changed may change again within the same tick of the clock.
    changed = found.st_ctime_ns if time.time_ns() - found.st_ctime_ns > _TICK else 0
    known = [found.st_mode, found.st_uid, found.st_gid, changed, found.st_ino, target.name]
    if stat.S_ISLNK(found.st_mode):
        target.write_bytes(os.fsencode(os.readlink(name, dir_fd=parent)))
    elif stat.S_ISREG(found.st_mode) and found.st_size <= room:
        with os.fdopen(os.open(name, READING, dir_fd=parent), "rb") as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    return known, found.st_size


class _Restoration:
    """Restores protected files through descriptors, without following links."""

    def __init__(self, top: int, store: Path, note: Any) -> None:
        self._top = top
        self._store = store
        self._before = {decode(path): kind for path, kind in note["before"].items()}
        self._copied = [decode(path) for path in note["copied"]]
        self._approved = [decode(path) for path in note["approved"]]
        self._files = {decode(path): known for path, known in note["files"].items()}
        self._repositories = note["repositories"]
        self._taken = RestoredFiles({}, [])

    def run(self) -> RestoredFiles:
        settled: tuple[str, ...] = ()
        found: list[ProtectedFile] = []
        too_deep: list[str] = []
        find_below(self._top, found, too_deep)
        for each in sorted(found):
            if self._before.get(each.path) == each.kind or each.path.startswith(settled):
                continue
            if self._repositories and not each.whole and each.path not in self._before:
                settled += (f"{each.path}/",)
            elif not touches_approved(self._approved, each.path):
                self._attempt(each.path, self._set_aside)
                settled += (f"{each.path}/",)
            elif each.whole:
                self._clear(each.path)
        for path in self._copied:
            self._clear(path)
        for path in self._files:
            if not is_approved(self._approved, path):
                self._attempt(path, self._restore)
        for path in too_deep:
            self._fail(path, "it is nested too deeply to search it for protected files")
        return self._taken

    def _attempt(self, path: str, work: Callable[[str], None]) -> None:
        """Run `work`; record a failure instead of stopping."""
        try:
            work(path)
        except OSError as error:
            self._fail(path, str(error))

    def _fail(self, path: str, why: str) -> None:
        log.error("the protected file %r could not be restored: %s", path, why)
        self._taken.failed.append(path)

    def _clear(self, root: str) -> None:
        """Rename new files in a protected directory."""
        try:
            listed = [path for path, *_ in _files(self._top, root)]
        except OSError:  # a directory above it is gone or is a link now
            listed = self._find_links(root)
        for path in listed:
            if path not in self._files and not is_approved(self._approved, path):
                self._attempt(path, self._set_aside)

    def _find_links(self, path: str) -> list[str]:
        """Return the first link among the directories above a path."""
        parts = path.split("/")
        for above in ("/".join(parts[:depth]) for depth in range(1, len(parts))):
            with suppress(OSError), _parent(self._top, above) as (parent, name):
                if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    return [above]
        return []

    def _is_same(self, path: str) -> bool:
        mode, uid, gid, changed, inode, name = self._files[path]
        try:
            with _parent(self._top, path) as (parent, last):
                found = stat_if_exists(parent, last)
                if found is None or (found.st_mode, found.st_uid, found.st_gid) != (mode, uid, gid):
                    return False
                if (found.st_ctime_ns, found.st_ino) == (changed, inode):
                    return True
                return bool(_content(parent, last, found) == (self._store / name).read_bytes())
        except OSError:
            return False

    def _restore(self, path: str) -> None:
        mode, uid, gid, _, _, name = self._files[path]
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) or self._is_same(path):
            return  # a pipe or socket has no content
        *above, last = path.split("/")
        parent = self._directory(above)
        try:
            temporary = temporary_name()
            content = (self._store / name).read_bytes()
            if stat.S_ISLNK(mode):
                os.symlink(content, temporary, dir_fd=parent)
            else:
                with os.fdopen(os.open(temporary, _NEW, 0o600, dir_fd=parent), "wb") as file:
                    file.write(content)
                    with suppress(PermissionError):
                        os.fchown(file.fileno(), uid, gid)
                    os.fchmod(file.fileno(), stat.S_IMODE(mode))
            if stat_if_exists(parent, last) is None:
                os.rename(temporary, last, src_dir_fd=parent, dst_dir_fd=parent)
                self._taken.renamed.setdefault(path, None)
            elif exchange(parent, temporary, last):
                self._move(parent, temporary, last, path)
            else:
                self._move(parent, last, last, path)
                os.rename(temporary, last, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            os.close(parent)

    def _set_aside(self, path: str) -> None:
        with _parent(self._top, path) as (parent, name):
            self._move(parent, name, name, path)

    def _move(self, parent: int, name: str, shown: str, path: str) -> None:
        if (new := rename_aside(parent, name, shown)) is not None:
            above = path.rpartition("/")[0]
            self._taken.renamed[path] = f"{above}/{new}" if above else new

    def _directory(self, parts: list[str]) -> int:
        """Open a directory, creating it again if it is gone; anything else in its place is renamed."""
        here = os.dup(self._top)
        for depth, name in enumerate(parts, 1):
            above = here
            try:
                found = stat_if_exists(above, name)
                if found is not None and not stat.S_ISDIR(found.st_mode):
                    self._move(above, name, name, "/".join(parts[:depth]))
                    found = None
                if found is None:
                    os.mkdir(name, dir_fd=above)
                here = os.open(name, DIRECTORY, dir_fd=above)
                if found is None and os.geteuid() == 0:
                    owner = os.fstat(above)
                    os.chown(name, owner.st_uid, owner.st_gid, dir_fd=above, follow_symlinks=False)
            finally:
                os.close(above)
        return here


def _content(parent: int, name: str, found: os.stat_result) -> bytes | None:
    if stat.S_ISLNK(found.st_mode):
        return os.fsencode(os.readlink(name, dir_fd=parent))
    if not stat.S_ISREG(found.st_mode) or found.st_size > COPY_BYTES:
        return None
    with os.fdopen(os.open(name, READING, dir_fd=parent), "rb") as file:
        return file.read(COPY_BYTES + 1)
