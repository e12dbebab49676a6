"""Toolsets in folders that are still being written: every edit is installed, and a bad one changes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from watchfiles import awatch

from gateway.bundles.library import Library
from gateway.bundles.paths import is_skipped
from gateway.errors import GatewayError

log = logging.getLogger(__name__)

_TIMES: Any = {"step": 50, "debounce": 300, "rust_timeout": 1000}  # milliseconds
_AWAY_SECONDS = 2.0


class Follower:
    """Watches folders; `edited` is told whenever an edit has been installed."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._watching: dict[Path, asyncio.Task[None]] = {}

    def follow(self, folders: Collection[Path], edited: Callable[[], None]) -> None:
        """From now on watch these folders and no others."""
        for folder in [folder for folder in self._watching if folder not in folders]:
            self._watching.pop(folder).cancel()
        for folder in folders:
            if folder not in self._watching:
                task = asyncio.get_running_loop().create_task(self._watch(folder, edited))
                self._watching[folder] = task

    async def close(self) -> None:
        tasks = list(self._watching.values())
        self._watching.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, folder: Path, edited: Callable[[], None]) -> None:
        while True:
            try:
                async for edits in awatch(folder, watch_filter=None, **_TIMES):
                    if any(_matters(Path(path), folder) for _, path in edits):
                        await self._install(folder, edited)
            except (FileNotFoundError, RuntimeError) as error:  # the folder itself is gone for now
                log.warning("%s cannot be watched: %s", folder, error)
            await asyncio.sleep(_AWAY_SECONDS)
            if folder.is_dir():
                await self._install(folder, edited)

    async def _install(self, folder: Path, edited: Callable[[], None]) -> None:
        try:
            installed = await self._library.install(folder, source_type="local", source_ref=str(folder), live=True)
        except GatewayError as refusal:
            log.warning("the toolset in %s stays as it was: %s", folder, refusal)
            return
        except Exception:
            log.exception("the toolset in %s stays as it was", folder)
            return
        if installed.changed:
            edited()


def _matters(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder) and not is_skipped(path.relative_to(folder).as_posix())
