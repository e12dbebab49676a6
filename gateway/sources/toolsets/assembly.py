"""Everything installed toolsets need, put together; a process without toolsets never imports it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from gateway.bundles.library import Library, Rules
from gateway.calls import Call
from gateway.config import Settings
from gateway.db import Database
from gateway.errors import GatewayError
from gateway.render import declare
from gateway.runtime import Runtime
from gateway.sandbox import Limits, Mount, Sandbox
from gateway.sandbox.detect import choose
from gateway.sources.toolsets import ToolsetSource
from gateway.sources.toolsets.fetch import sourced
from gateway.sources.toolsets.listing import HOME, WORKSPACE
from gateway.sources.toolsets.shell import Programs
from gateway.sources.toolsets.watch import Follower
from gateway.tools import HidesFor
from gateway.workspace import Workspaces

log = logging.getLogger(__name__)

_MEBIBYTE = 1024 * 1024


class Workshop:
    """The library of toolsets, the runtime of their code, and the source of their tools."""

    def __init__(
        self,
        db: Database,
        settings: Settings,
        workspaces: Workspaces,
        hides: HidesFor,
    ) -> None:
        sandbox = self._choose
        limits = Limits(memory=settings.sandbox.memory_mb * _MEBIBYTE, cpu_seconds=settings.sandbox.cpu_seconds)
        self.runtime = Runtime(sandbox, settings.data_dir / "runtime", settings.sandbox)
        self.library = Library(db, settings.data_dir, self.runtime, Rules(declare))
        programs = Programs(sandbox, limits, settings.sandbox.timeout)
        self.source = ToolsetSource(self.library, self.runtime, programs, workspaces, hides=hides)
        self._follower = Follower(self.library)
        self._settings = settings
        self._workspaces = workspaces
        self._sandbox: Sandbox | None = None

    async def keep_installed(self) -> list[GatewayError]:
        """Install what the settings name, as it is now; what is refused is told, and stops nothing else."""
        problems = []
        for kept in self._settings.toolsets:
            try:
                async with sourced(kept, self._settings.http) as found:
                    await self.library.install(
                        found.path, source_type=found.type, source_ref=found.ref, live=found.is_folder
                    )
            except GatewayError as refusal:
                log.warning("toolset %s: %s", kept, refusal)
                problems.append(refusal)
        return problems

    async def follow(self, edited: Callable[[], None]) -> None:
        """Install every edit of the folders that are followed, from now until `close`."""
        self._follower.follow([folder async for folder in self._live()], edited)

    async def _live(self) -> AsyncIterator[Path]:
        for toolset in await self.library.list():
            folder = Path(toolset.source_ref or "").resolve()
            if not toolset.live or not folder.is_dir():
                continue
            attached = self._settings.workspace
            if attached is not None and folder.is_relative_to(attached.resolve()):
                # A tool that writes files could otherwise make itself another tool.
                log.warning("toolset %s is not followed: its folder lies in the attached workspace", toolset.id)
                continue
            yield folder

    def seen(self, call: Call) -> tuple[str, str]:
        """Under which paths the call's tool sees the chat's workspace and its own toolset."""
        files, own = Mount(self._workspaces.path(call.chat), WORKSPACE), Mount(call.target.home or Path(), HOME)
        if self._sandbox is None:
            return files.target, own.target
        return self._sandbox.inside(files), self._sandbox.inside(own)

    async def _choose(self) -> Sandbox:
        self._sandbox = await choose(self._settings.sandbox)
        return self._sandbox

    async def close(self) -> None:
        await self._follower.close()
        await self.runtime.close()
