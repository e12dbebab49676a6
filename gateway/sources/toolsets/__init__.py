"""Tools of installed toolsets: listed from the library, run in workers and programs apart from us."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from gateway.bundles import PythonTool, ShellTool
from gateway.bundles.installed import InstalledTool, InstalledToolset
from gateway.bundles.library import ToolsetLibrary
from gateway.calls import Call, Outcome
from gateway.errors import NotFound
from gateway.runtime import FunctionCall, WorkerRuntime
from gateway.sandbox import Mount
from gateway.secrets import KNOWN
from gateway.sources.toolsets.listing import WORKSPACE, build_tools
from gateway.sources.toolsets.shell import ShellRunner
from gateway.tools import Access, Hides, HidesFor, Permission, Tool, hide_nothing, hide_nothing_for
from gateway.workspace import Workspaces
from gateway.workspace.hidden import Hidden, find_hidden, hidden_paths
from gateway.workspace.protected import find_protected, paths_to_mount, relative
from gateway.workspace.protected_copies import protect_files


@dataclass(frozen=True)
class _Files:
    """The chat's files as a call may use them. `protected` are paths that it cannot change; in a folder `of_a_person`
    nothing of it may go on once it has ended."""

    folder: Path
    writable: bool
    of_a_person: bool = False
    protected: tuple[str, ...] = ()


class ToolsetSource:
    """Lists what is installed and runs it; `environment` is where the secrets are that toolsets declare."""

    name = "toolsets"

    def __init__(
        self,
        library: ToolsetLibrary,
        runtime: WorkerRuntime,
        programs: ShellRunner,
        workspaces: Workspaces,
        environment: Mapping[str, str] = os.environ,
        hides: HidesFor = hide_nothing_for,
    ) -> None:
        self._hides = hides
        self._hidden: Mapping[str, Hides] = {}
        self._library = library
        self._runtime = runtime
        self._programs = programs
        self._workspaces = workspaces
        self._environment = environment
        self._installed: Mapping[str, tuple[InstalledToolset, InstalledTool]] = {}

    async def list_tools(self) -> Sequence[Tool]:
        installed = await self._library.list()
        self._installed = {item.id: (toolset, item) for toolset in installed for item in toolset.tools}
        tools = [tool for toolset in installed for tool in build_tools(toolset)]
        self._hidden = {tool.id: self._hides(tool) for tool in tools}
        return tools

    async def call_tool(self, call: Call) -> Outcome:
        toolset, item = self._find(call.target.id)
        workspace = self._workspaces.path(call.chat)
        env = {name: self._environment[name] for name in toolset.spec.secrets if name in self._environment}
        for value in env.values():
            KNOWN.add(value)
        reads_only = call.target.permission is Permission.READ_ONLY
        files = _Files(workspace, call.target.access is Access.WRITE and not reads_only)
        if not files.writable or not self._workspaces.is_attached(call.chat):
            return Outcome(await self._run(toolset, item, call, files, env))
        before = await anyio.to_thread.run_sync(find_protected, workspace)
        approved = relative(workspace, call.approved_paths, WORKSPACE)
        mounts = paths_to_mount(before, approved) if await self._programs.can_keep_paths() else ()
        store = self._workspaces.protection_store(call.chat) / call.id
        async with protect_files(call.target.id, workspace, store, before, mounts, approved):
            files = _Files(workspace, True, of_a_person=True, protected=mounts)
            return Outcome(await self._run(toolset, item, call, files, env))

    async def _run(
        self, toolset: InstalledToolset, item: InstalledTool, call: Call, files: _Files, env: Mapping[str, str]
    ) -> Any:
        """Run the tool with no more rights than it declares, and without a way to change protected files."""
        hidden = await self._find_hidden(call, files.folder)
        if isinstance(item.spec, ShellTool):
            paths = hidden_paths(hidden)
            mount = Mount(files.folder, WORKSPACE, writable=files.writable, protected=files.protected, hidden=paths)
            return await self._programs.run(item.spec, call, toolset.directory, mount, env)
        assert isinstance(item.spec, PythonTool)  # noqa: S101 - no other kind is offered
        job = FunctionCall(
            toolset=toolset.id,
            directory=toolset.directory,
            entrypoint=item.spec.entrypoint,
            arguments=call.arguments,
            workspace=files.folder,
            chat=call.chat,
            id=call.id,
            requirements=toolset.spec.dependencies,
            env=env,
            progress=call.progress,
            writable=files.writable,
            programs=call.target.permission is not Permission.READ_ONLY,
            protected=files.protected,
            hidden=hidden,
            single_use=files.of_a_person,
        )
        return await self._runtime.call(job)

    async def _find_hidden(self, call: Call, workspace: Path) -> Hidden:
        """The files that rules keep from the tool."""
        hides = self._hidden[call.target.id]
        if hides is hide_nothing:
            return ()
        return await anyio.to_thread.run_sync(find_hidden, workspace, partial(hides, agreed=call.agreed))

    def _find(self, tool_id: str) -> tuple[InstalledToolset, InstalledTool]:
        found = self._installed.get(tool_id)
        if found is None:
            raise NotFound(f"{tool_id} has just been uninstalled", code="UNKNOWN_TOOL")
        return found
