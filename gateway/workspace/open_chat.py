"""One chat in use: its lock, stat cache, the tree of its head, and the time of its last sweep."""

from __future__ import annotations

import importlib
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson

from gateway.files import FileLock
from gateway.workspace import gc as sweeping
from gateway.workspace.blobs import FileBlobs
from gateway.workspace.checkout import Checkout
from gateway.workspace.folder_access import ensure_accessible
from gateway.workspace.package_dirs import PackageDirectories
from gateway.workspace.tree import EMPTY, Patch, Tree, diff

INDEX_SECONDS = 30.0
# Age of a temporary file whose writer is certainly gone.
LEFTOVER_SECONDS = 3600.0


class ChatLock:
    """`async with lock.held():` is alone with the chat's files, among the tasks of this process and among processes. A
    killed holder releases it by dying."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tasks = anyio.Lock(fast_acquire=True)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        async with self._tasks:
            with closing(FileLock(self._path)) as lock:
                await lock.acquire()
                yield


class OpenChat:
    """The part of a chat that stays in memory. Its methods block."""

    def __init__(self, chat: str, directory: Path, folder: Path, attached: bool) -> None:
        directory.mkdir(0o700, parents=True, exist_ok=True)
        self.chat = chat
        self.lock = ChatLock(directory / "lock")
        self.blobs = FileBlobs(directory / "blobs")
        self.running = directory / "running"
        self.folder = folder
        self.protected = directory / "protected" if attached else None
        self._swept = directory / "swept"
        if not self._swept.exists():
            self._swept.touch(0o600)
        self.swept_at = self._swept.stat().st_mtime
        self._attached = attached
        ignore = _ignore() if attached else PackageDirectories()
        self.checkout = Checkout(folder, self.blobs, directory / "index", ignore, ours=not attached)
        self.manifest: str | None = None
        self.tree = EMPTY
        self._index_saved = time.monotonic()

    def diff_since(self, old: Tree) -> tuple[Tree, Patch]:
        """Take a snapshot of the folder; return it and its difference from `old`."""
        new = self.checkout.snapshot()
        if time.monotonic() - self._index_saved > INDEX_SECONDS:
            self._index_saved = time.monotonic()
            self.checkout.save()
        return new, diff(old, new)

    def sweep(self, patches: Sequence[str], older_than: float) -> sweeping.SweepResult:
        """Sweep; `patches` are those of all manifests of the chat."""
        ensure_accessible(self.folder, ours=not self._attached)
        self._swept.touch()
        now = time.time()
        leftovers = sweeping.remove_leftovers(self.folder, now - LEFTOVER_SECONDS)
        swept = sweeping.sweep(self.blobs, _digests(patches), older_than, now)
        return replace(swept, temporary=swept.temporary + leftovers)


def _ignore() -> Any:
    # pathspec is slow to import, and only attached folders need .gitignore rules
    return importlib.import_module(".ignore", __package__).GitIgnore()


def _digests(patches: Iterable[str]) -> set[str]:
    """Return every digest that a patch adds: together, all blobs that any manifest needs."""
    return {digest for patch in patches for digest in orjson.loads(patch).values() if digest is not None}
