"""The gateway's own tools, run in threads on a chat's workspace."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import anyio
import anyio.from_thread
import anyio.to_thread

from ...calls import Call, Outcome
from ...tools import Tool
from ...workspace import Workspaces
from .define import Builtin, Context
from .editing import edit_file
from .engines import Engine
from .listing import find_files, list_directory
from .patching import apply_patch
from .reading import read_file
from .search import search_code
from .writing import delete_file, move_file, write_file

BUILTINS: Sequence[Builtin] = (
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

WORKERS = 8
"""Calls running at once; more wait their turn, and nothing else waits for them."""


class BuiltinSource:
    """Lists the builtins and runs each in a worker thread, with the workspace of the call's chat."""

    name = "builtin"

    def __init__(
        self, workspaces: Workspaces, *, engine: Engine | None = None, builtins: Sequence[Builtin] = BUILTINS
    ) -> None:
        self._workspaces = workspaces
        self._engine = engine or Engine.found()
        self._builtins: Mapping[str, Builtin] = {each.tool.id: each for each in builtins}
        self._workers = anyio.CapacityLimiter(WORKERS)

    async def list_tools(self) -> Sequence[Tool]:
        return [self._with_rule(each) for each in self._builtins.values()]

    async def call_tool(self, call: Call) -> Outcome:
        builtin = self._builtins[call.target.id]
        # Not abandoned when cancelled: the thread sees it at its next check, and no call outlives its answer.
        return await anyio.to_thread.run_sync(self._run, builtin, call, limiter=self._workers)

    def _with_rule(self, builtin: Builtin) -> Tool:
        if builtin.asks is None:
            return builtin.tool
        return replace(builtin.tool, requires_confirmation=functools.partial(self._ask, builtin))

    async def _ask(self, builtin: Builtin, call: Call) -> str | None:
        """Not among the workers: a question must not wait for slow calls."""
        return await anyio.to_thread.run_sync(self._reason, builtin, call)

    def _run(self, builtin: Builtin, call: Call) -> Outcome:
        with self._workspaces.root(call.chat) as root:
            context = Context(root, call.confirmed, self._engine, anyio.from_thread.check_cancelled)
            return builtin.run(context, call.arguments)

    def _reason(self, builtin: Builtin, call: Call) -> str | None:
        with self._workspaces.root(call.chat) as root:
            return builtin.ask(Context(root), call.arguments)
