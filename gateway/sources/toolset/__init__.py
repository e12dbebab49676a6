"""Tools of installed toolsets: listed from the library, run in workers and programs apart from us."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from ...bundles import PythonTool, ShellTool
from ...bundles.installed import Installed, InstalledTool
from ...bundles.library import Library
from ...calls import Call, Outcome
from ...errors import NotFound, ToolFailed
from ...runtime import Job, Runtime
from ...sandbox import Mount
from ...secrets import KNOWN
from ...tools import Access, Hides, Permission, Tool, hide_nothing
from ...workspace import Workspaces
from ...workspace.hidden import Hidden, find_hidden, hidden_paths
from ...workspace.protected import Identities, protected_identities, rename_added
from .listing import WORKSPACE, tools_of
from .shell import Programs


class ToolsetSource:
    """Lists what is installed and runs it; `environment` is where the secrets are that toolsets declare."""

    name = "toolsets"

    def __init__(
        self,
        library: Library,
        runtime: Runtime,
        programs: Programs,
        workspaces: Workspaces,
        environment: Mapping[str, str] = os.environ,
        hides: Callable[[Tool], Hides] = lambda _: hide_nothing,
    ) -> None:
        self._hides = hides
        self._hidden: Mapping[str, Hides] = {}
        self._library = library
        self._runtime = runtime
        self._programs = programs
        self._workspaces = workspaces
        self._environment = environment
        self._installed: Mapping[str, tuple[Installed, InstalledTool]] = {}

    async def list_tools(self) -> Sequence[Tool]:
        installed = await self._library.list()
        self._installed = {item.id: (toolset, item) for toolset in installed for item in toolset.tools}
        tools = [tool for toolset in installed for tool in tools_of(toolset)]
        self._hidden = {tool.id: self._hides(tool) for tool in tools}
        return tools

    async def call_tool(self, call: Call) -> Outcome:
        toolset, item = self._find(call.target.id)
        workspace = self._workspaces.path(call.chat)
        env = {name: self._environment[name] for name in toolset.spec.secrets if name in self._environment}
        for value in env.values():
            KNOWN.add(value)
        if not self._workspaces.is_attached(call.chat):
            return Outcome(await self._run(toolset, item, call, workspace, env, ()))
        protected = protected_identities(workspace)
        try:
            value = await self._run(toolset, item, call, workspace, env, protected)
        finally:
            added = rename_added(workspace, protected)
        if added:
            raise ToolFailed(
                f"{call.target.id} made {added[0][0]!r}, which other programs on this machine obey; it is now "
                f"{added[0][1]!r}. To have it, use write_file or move_file, which ask",
                code="PROTECTED_FILE",
                renamed=dict(added),
            )
        return Outcome(value)

    async def _run(
        self,
        toolset: Installed,
        item: InstalledTool,
        call: Call,
        workspace: Path,
        env: Mapping[str, str],
        protected: Identities,
    ) -> Any:
        """Run the tool with no more rights than it declares, and without a way to change protected files."""
        reads_only = call.target.permission is Permission.READ_ONLY
        writable = call.target.access is Access.WRITE and not reads_only
        hidden = await self._find_hidden(call, workspace)
        if isinstance(item.spec, ShellTool):
            kept = tuple(path for path, *_ in protected)
            files = Mount(workspace, WORKSPACE, writable=writable, kept=kept, hidden=hidden_paths(hidden))
            return await self._programs.run(item.spec, call, toolset.directory, files, env)
        assert isinstance(item.spec, PythonTool)  # noqa: S101 - no other kind is offered
        job = Job(
            toolset=toolset.id,
            directory=toolset.directory,
            entrypoint=item.spec.entrypoint,
            arguments=call.arguments,
            workspace=workspace,
            chat=call.chat,
            id=call.id,
            requirements=toolset.spec.dependencies,
            env=env,
            progress=call.progress,
            writable=writable,
            programs=not reads_only,
            protected=protected,
            hidden=hidden,
        )
        return await self._runtime.call(job)

    async def _find_hidden(self, call: Call, workspace: Path) -> Hidden:
        """The files that rules keep from the tool."""
        hides = self._hidden[call.target.id]
        if hides is hide_nothing:
            return ()
        return await anyio.to_thread.run_sync(find_hidden, workspace, partial(hides, agreed=call.agreed))

    def _find(self, tool_id: str) -> tuple[Installed, InstalledTool]:
        found = self._installed.get(tool_id)
        if found is None:
            raise NotFound(f"{tool_id} has just been uninstalled", code="UNKNOWN_TOOL")
        return found
