"""Packages that toolsets depend on: resolved and locked once, installed atomically, shared by equal requirements."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import shutil
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from gateway.calls import Progress, no_progress
from gateway.files import FileLock, sync_file_system, try_lock
from gateway.runtime import uv, worker_packages

_LOCK, _PACKAGES, _ASIDE = "lock.txt", "packages", ".aside"
_UV_STEP = re.compile(r"(Download|Build|Built|Prepared|Installed|\+ )")
_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)


class PackageEnvironments:
    """Folders of packages in `directory`, one per set of requirements, interpreter and platform.

    uv resolves and installs them outside the sandbox: only wheels, which are unpacked and not run. With
    `allow_source`, source packages are built too, which runs their code with all rights of the gateway.
    uv reads its own variables for indexes and proxies (`UV_…`, `HTTPS_PROXY`), but no configuration files.
    """

    def __init__(self, directory: Path, allow_source: bool = False) -> None:
        self._directory = directory
        self._allow_source = allow_source
        self._ready: dict[tuple[str, ...], Path] = {}
        self._building: dict[str, asyncio.Task[None]] = {}

    async def ensure(self, requirements: tuple[str, ...], progress: Progress = no_progress) -> Path | None:
        """Return the folder to put on the path, after installing it if needed; None for no requirements.

        Fails with `DEPENDENCY_FAILED` and the reason. Cancellation stops only the wait: the installation goes on.
        """
        if not requirements:
            return None
        if (ready := self._ready.get(requirements)) is not None:
            return ready
        digest = digest_of(requirements)
        folder = self._directory / digest / _PACKAGES
        if not folder.is_dir():
            await asyncio.shield(self._build(digest, requirements, progress))
        self._ready[requirements] = folder
        return folder

    def sweep(self, keep: set[str]) -> list[str]:
        """Remove packages whose digest is not in `keep`, and leftovers of killed builds; return what was removed.

        Blocking, for a thread. Builds in progress are left alone.
        """
        self._ready.clear()
        removed = []
        for lock in sorted(self._directory.glob("*.lock")):
            digest = lock.name.removesuffix(".lock")
            with _locked_now(lock) as is_locked:
                if is_locked:
                    self._remove_leftovers(digest)
                    if digest not in keep and (self._directory / digest).is_dir():
                        _remove(self._directory / digest)
                        removed.append(digest)
        return removed

    async def close(self) -> None:
        """Stop running installations."""
        tasks = list(self._building.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _build(self, digest: str, requirements: tuple[str, ...], progress: Progress) -> asyncio.Task[None]:
        task = self._building.get(digest)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._install(digest, requirements, progress))
            self._building[digest] = task
            task.add_done_callback(lambda done: self._end_build(digest, done))
        return task

    def _end_build(self, digest: str, task: asyncio.Task[None]) -> None:
        del self._building[digest]
        if not task.cancelled():
            task.exception()  # waiters raise it; there may be none

    async def _install(self, digest: str, requirements: tuple[str, ...], progress: Progress) -> None:
        self._directory.mkdir(0o700, parents=True, exist_ok=True)
        async with _locked(self._directory / f"{digest}.lock") as lock:
            if (self._directory / digest).is_dir():  # another process was first
                return
            await asyncio.to_thread(self._remove_leftovers, digest)
            aside = self._directory / f"{digest}.{secrets.token_hex(4)}{_ASIDE}"
            aside.mkdir(0o700)
            try:
                await self._fill(aside, requirements, progress, lock)
                await asyncio.to_thread(sync_file_system, aside)
                aside.rename(self._directory / digest)
            except BaseException:
                await asyncio.shield(asyncio.to_thread(_remove, aside))
                raise

    async def _fill(self, aside: Path, requirements: tuple[str, ...], progress: Progress, lock: int) -> None:
        """Resolve the requirements, lock them by hash, and install the lock file."""
        wanted, limits, locked = aside / "requirements.in", aside / "constraints.txt", aside / _LOCK
        wanted.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
        limits.write_text("".join(f"{line}\n" for line in worker_packages.minimum_versions()), encoding="utf-8")
        run = uv.Uv(aside, self._directory / "cache", lock, [] if self._allow_source else ["--only-binary", ":all:"])
        await progress(0, 2, "resolving packages…")
        await run("compile", "--generate-hashes", "--no-header", "-c", limits.name, "-o", _LOCK, wanted.name)
        count = len(_PINNED.findall(locked.read_text(encoding="utf-8")))
        await progress(1, 2, f"installing {count} package{'' if count == 1 else 's'}…")

        async def report(line: str) -> None:
            if _UV_STEP.match(line):
                await progress(1, 2, f"packages: {line}{'; compiling them' if line.startswith('Installed ') else ''}")

        how = ("--require-hashes", "--no-deps", "--compile-bytecode", "--link-mode", "copy")
        await run("install", *how, "--target", _PACKAGES, "-r", _LOCK, on_line=report)
        await progress(2, 2, "packages installed")

    def _remove_leftovers(self, digest: str) -> None:
        for aside in self._directory.glob(f"{digest}.*{_ASIDE}"):
            _remove(aside)


def digest_of(requirements: tuple[str, ...]) -> str:
    """Return the key of a set of packages: the requirements, and everything else that decides their resolution."""
    python = (sys.implementation.cache_tag, sysconfig.get_platform(), *sys.version_info[:3])
    parts = (*sorted(requirements), "", *python, "", *worker_packages.minimum_versions())
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[int]:
    """Hold the lock of one set of packages among all processes."""
    with contextlib.closing(FileLock(path)) as lock:
        await lock.acquire()
        yield lock.descriptor


@contextlib.contextmanager
def _locked_now(path: Path) -> Iterator[bool]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield try_lock(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Rename the folder, then remove it, so that an interrupted removal leaves nothing that looks complete."""
    gone = folder if folder.name.endswith(_ASIDE) else folder.with_name(f"{folder.name}.{secrets.token_hex(4)}{_ASIDE}")
    with contextlib.suppress(FileNotFoundError):
        if gone != folder:
            folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
