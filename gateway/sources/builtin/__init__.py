"""The gateway's own tools, on a chat's files and their versions."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import anyio
import anyio.from_thread
import anyio.to_thread

from gateway.calls import Call, Outcome
from gateway.sources.builtin.apply_patch import apply_patch
from gateway.sources.builtin.decorator import Builtin, Context, VersionContext
from gateway.sources.builtin.history import workspace_branch, workspace_diff, workspace_history, workspace_restore
from gateway.sources.builtin.read_files import find_files, list_directory, read_file
from gateway.sources.builtin.ripgrep import Engine
from gateway.sources.builtin.search import search_code
from gateway.sources.builtin.write_files import delete_file, edit_file, move_file, write_file
from gateway.tools import Hides, HidesFor, Tool, hide_nothing, hide_nothing_for
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions

ON_FILES: Sequence[Builtin] = (
    list_directory,
    read_file,
    find_files,
    search_code,
    write_file,
    edit_file,
    apply_patch,
    move_file,
    delete_file,
)
ON_VERSIONS: Sequence[Builtin] = (
    workspace_history,
    workspace_diff,
    workspace_restore,
    workspace_branch,
)
BUILTINS: Sequence[Builtin] = (*ON_FILES, *ON_VERSIONS)

# Calls running at once; more wait their turn, and nothing else waits for them.
WORKERS = 8


class BuiltinSource:
    """Lists the builtins and runs each with what belongs to the call's chat: its workspace, in a worker
    thread, or its versions. Without versions the tools on them are not offered. `hides` says of each tool which
    files are to be left out of its results."""

    name = "builtin"

    def __init__(
        self,
        workspaces: Workspaces,
        versions: Versions | None = None,
        *,
        engine: Engine | None = None,
        builtins: Sequence[Builtin] | None = None,
        hides: HidesFor = hide_nothing_for,
    ) -> None:
        self._workspaces = workspaces
        self._versions = versions
        self._engine = engine or Engine.found()
        offered = builtins if builtins is not None else BUILTINS if versions else ON_FILES
        self._builtins: Mapping[str, Builtin] = {each.tool.id: each for each in offered}
        self._hides = hides
        self._hidden: dict[str, Hides] = {}
        self._workers = anyio.CapacityLimiter(WORKERS)

    async def list_tools(self) -> Sequence[Tool]:
        self._hidden = {tool_id: self._hides(each.tool) for tool_id, each in self._builtins.items()}
        return [self._with_rule(each) for each in self._builtins.values()]

    async def call_tool(self, call: Call) -> Outcome:
        builtin = self._builtins[call.target.id]
        if builtin.is_async:
            return await builtin.run_async(self._version_context(call), call.arguments)
        # Not abandoned when cancelled: the thread sees it at its next check, and no call outlives its answer.
        return await anyio.to_thread.run_sync(self._run, builtin, call, limiter=self._workers)

    def _with_rule(self, builtin: Builtin) -> Tool:
        if builtin.asks is None:
            return builtin.tool
        return replace(builtin.tool, requires_confirmation=functools.partial(self._ask, builtin))

    async def _ask(self, builtin: Builtin, call: Call) -> str | None:
        """Not among the workers: a question must not wait for slow calls."""
        if builtin.is_async:
            reason: str | None = await builtin.ask(self._version_context(call), call.arguments)
            return reason
        return await anyio.to_thread.run_sync(self._reason, builtin, call)

    def _run(self, builtin: Builtin, call: Call) -> Outcome:
        with self._workspaces.root(call.chat) as root:
            hides = self._hidden.get(call.target.id, hide_nothing)
            context = Context(root, call.confirmed, self._engine, anyio.from_thread.check_cancelled, hides)
            return builtin.run(context, call.arguments)

    def _reason(self, builtin: Builtin, call: Call) -> str | None:
        with self._workspaces.root(call.chat) as root:
            reason: str | None = builtin.ask(Context(root), call.arguments)
            return reason

    def _version_context(self, call: Call) -> VersionContext:
        assert self._versions is not None  # noqa: S101 - else the tool was not offered
        return VersionContext(self._versions, call, self._hidden.get(call.target.id, hide_nothing))
