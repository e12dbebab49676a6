"""The source of toolset tools: listed from the library, run in sandboxed workers and programs, as HTTP requests, and as
steps."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from gateway.bundles import BuiltinTool, HttpTool, PythonTool, ShellTool, StepsTool
from gateway.bundles.installed import InstalledTool, InstalledToolset
from gateway.bundles.library import ToolsetLibrary
from gateway.calls import Call, Outcome
from gateway.errors import NotFound
from gateway.runtime import FunctionCall, WorkerRuntime
from gateway.sandbox import Mount
from gateway.secrets import KNOWN
from gateway.sources import Source
from gateway.sources.builtin.source import as_declared
from gateway.sources.stored_secrets import SecretStore
from gateway.sources.toolsets.listing import WORKSPACE, build_tools
from gateway.sources.toolsets.shell import ShellRunner
from gateway.tools import Access, Hides, HidesFor, Permission, Tool, hide_nothing
from gateway.value import Value
from gateway.workspace import Workspaces
from gateway.workspace.hidden import Hidden, find_hidden, hidden_paths
from gateway.workspace.protected import find_protected, paths_to_mount, relative
from gateway.workspace.protected_copies import protect_files

if TYPE_CHECKING:
    from gateway.sources.http import CompiledTool, HttpRunner
    from gateway.sources.steps import StepsRunner


class _WorkspaceRights(Value):
    """The chat's folder with the rights of one call. `protected` are paths that it cannot change. In an `attached`
    folder, which belongs to a person, no process of the call may outlive it."""

    folder: Path
    writable: bool
    attached: bool = False
    protected: tuple[str, ...] = ()


def secrets_owner(toolset_id: str) -> str:
    """Return the name under which the secrets of a toolset are stored."""
    return f"toolset:{toolset_id}"


class ToolsetSource:
    """Lists and runs the tools of installed toolsets; their declared secrets are those of `secrets`, else of
    the environment. `builtins` runs those that are builtins under another name, `http` and `steps` those of these
    kinds."""

    name = "toolsets"

    def __init__(
        self,
        library: ToolsetLibrary,
        runtime: WorkerRuntime,
        shell: ShellRunner,
        workspaces: Workspaces,
        hides: HidesFor,
        builtins: Source,
        http: Callable[[], HttpRunner],
        steps: Callable[[], StepsRunner],
        secrets: SecretStore,
    ) -> None:
        self._secrets = secrets
        self._http = http
        self._steps = steps
        self._compiled: Mapping[str, CompiledTool] = {}
        self._hides = hides
        self._builtins = builtins
        self._builtin_tools: Mapping[str, Tool] = {}
        self._hidden: Mapping[str, Hides] = {}
        self._library = library
        self._runtime = runtime
        self._shell = shell
        self._workspaces = workspaces
        self._installed: Mapping[str, tuple[InstalledToolset, InstalledTool]] = {}

    async def list_tools(self) -> Sequence[Tool]:
        installed = await self._library.list()
        await self._list_builtins()
        self._installed = {item.id: (toolset, item) for toolset in installed for item in toolset.tools}
        self._compiled = {}  # at the first call of each
        tools = [tool for toolset in installed for tool in build_tools(toolset, self._builtin_tools)]
        self._hidden = {tool.id: self._hides(tool) for tool in tools}
        return tools

    async def describe_tools(self, toolset: InstalledToolset) -> list[Tool]:
        """Return the tools of one toolset, as `list_tools` does; builtins that are off as they would be if on."""
        await self._list_builtins()
        named = {item.spec.tool for item in toolset.tools if isinstance(item.spec, BuiltinTool)}
        builtins = {name: as_declared(self._builtin_tools[name]) for name in named & self._builtin_tools.keys()}
        return list(build_tools(toolset, builtins))

    async def _list_builtins(self) -> None:
        self._builtin_tools = {tool.id: tool for tool in await self._builtins.list_tools()}

    async def call_tool(self, call: Call) -> Outcome:
        toolset, item = self._find(call.target.id)
        if isinstance(item.spec, BuiltinTool):
            return await self._builtins.call_tool(call.replace(tool=self._builtin_tools[item.spec.tool]))
        if isinstance(item.spec, StepsTool):
            return await self._steps().run(item.spec, call, toolset.spec.full_id)
        env = self._find_secrets(toolset) if toolset.spec.secrets else {}
        if isinstance(item.spec, HttpTool):
            compiled = self._compiled.get(item.id) or self._compile(toolset, item.id, item.spec)
            return await self._http().run(compiled, call, env, self._hidden[item.id])
        workspace = self._workspaces.path(call.chat)
        reads_only = call.target.permission is Permission.READ_ONLY
        files = _WorkspaceRights(workspace, call.target.access is Access.WRITE and not reads_only)
        if not files.writable or not self._workspaces.is_attached(call.chat):
            return Outcome(await self._run(toolset, item, call, files, env))
        before = await anyio.to_thread.run_sync(find_protected, workspace)
        approved = relative(workspace, call.approved_paths, WORKSPACE)
        mounts: tuple[str, ...] = ()
        if await self._shell.can_protect_paths():  # what a call does in a repository cannot be undone
            mounts = paths_to_mount(before, approved, repositories=not call.confirmed)
        store = self._workspaces.protection_store(call.chat) / call.id
        async with protect_files(call.target.id, workspace, store, before, mounts, approved):
            files = _WorkspaceRights(workspace, True, attached=True, protected=mounts)
            return Outcome(await self._run(toolset, item, call, files, env))

    def _find_secrets(self, toolset: InstalledToolset) -> dict[str, str]:
        values = {**os.environ, **self._secrets.values(secrets_owner(toolset.id))}
        known = {name: values[name] for name in toolset.spec.secrets if name in values}
        for value in known.values():
            KNOWN.add(value)
        return known

    def _compile(self, toolset: InstalledToolset, tool_id: str, tool: HttpTool) -> CompiledTool:
        # Imported at the first use: it loads the HTTP client.
        http = importlib.import_module("gateway.sources.http")
        compiled: CompiledTool = http.CompiledTool.of(tool, toolset.spec.http, frozenset(toolset.spec.secrets))
        self._compiled = {**self._compiled, tool_id: compiled}
        return compiled

    async def _run(
        self,
        toolset: InstalledToolset,
        item: InstalledTool,
        call: Call,
        files: _WorkspaceRights,
        env: Mapping[str, str],
    ) -> Any:
        """Run the tool with no more rights than it declares, and without access to hidden and protected files."""
        hidden = await self._find_hidden(call, files.folder)
        if isinstance(item.spec, ShellTool):
            paths = hidden_paths(hidden)
            mount = Mount(files.folder, WORKSPACE, writable=files.writable, protected=files.protected, hidden=paths)
            return await self._shell.run(item.spec, call, toolset.directory, mount, env)
        assert isinstance(item.spec, PythonTool)  # noqa: S101 - no other kind is offered
        function_call = FunctionCall(
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
            every_report=call.wants_progress,
            writable=files.writable,
            programs=call.target.permission is not Permission.READ_ONLY,
            protected=files.protected,
            hidden=hidden,
            single_use=files.attached,
        )
        return await self._runtime.call(function_call)

    async def _find_hidden(self, call: Call, workspace: Path) -> Hidden:
        """Return the files that approval rules hide from the tool."""
        hides = self._hidden[call.target.id]
        if hides is hide_nothing:
            return ()
        return await anyio.to_thread.run_sync(find_hidden, workspace, partial(hides, agreed=call.agreed))

    def _find(self, tool_id: str) -> tuple[InstalledToolset, InstalledTool]:
        try:
            return self._installed[tool_id]
        except KeyError:
            raise NotFound(f"{tool_id} has just been uninstalled", code="UNKNOWN_TOOL") from None
