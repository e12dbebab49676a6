"""Tools for working on a program, all of them in the sandbox: code, commands, git, tests, formatting, packages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from gateway.calls import Call, Outcome
from gateway.config import Settings
from gateway.errors import GatewayError
from gateway.tools import HidesFor, Permission, Tool, hide_nothing_for
from gateway.workspace import Workspaces

if TYPE_CHECKING:
    from gateway.sandbox import Sandbox
    from gateway.sources.builtin.code.source import Workbench

    Choice = Callable[[], Awaitable[Sandbox]]

CATEGORY = "development"

NAMES = (
    "run_code",
    "run_command",
    "git_status",
    "git_diff",
    "git_log",
    "git_show",
    "git_add",
    "git_commit",
    "git_branch",
    "git_checkout",
    "git_stash",
    "git_push",
    "run_tests",
    "format_code",
    "install_package",
)


class DevelopmentSource:
    """Lists what this machine can run, and runs it in the chat's workspace.

    While the category is off, nothing is looked for and nothing but names is known: whoever calls one
    of them is told that it is off. `sandbox` finds the sandbox to use, or refuses; by default the best there is.
    `hides` says of each tool which files it must not show.
    """

    name = "development"

    def __init__(
        self,
        workspaces: Workspaces,
        settings: Settings,
        sandbox: Choice | None = None,
        hides: HidesFor = hide_nothing_for,
    ) -> None:
        self._hides = hides
        self._workspaces = workspaces
        self._settings = settings
        self._choice = sandbox
        self._setting_up = asyncio.Lock()
        self._made: Workbench | None = None

    async def list_tools(self) -> Sequence[Tool]:
        """Every tool; one that cannot run here is withheld, and says what it lacks."""
        if not self._settings.category(CATEGORY).enabled:
            return [Tool(name, "", category=CATEGORY, permission=Permission.READ_ONLY) for name in NAMES]
        return (await self._workbench()).list_tools()

    async def call_tool(self, call: Call) -> Outcome:
        return await (await self._workbench()).call_tool(call)

    async def problems(self) -> Sequence[GatewayError]:
        """What an operator can mend so that more of the tools work; none while the category is off."""
        if not self._settings.category(CATEGORY).enabled:
            return ()
        return (await self._workbench()).problems

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()

    async def _workbench(self) -> Workbench:
        async with self._setting_up:
            if self._made is None:
                # Imported by the first who needs it: most processes never do, and all of them start.
                from gateway.sources.builtin.code.source import Workbench

                self._made = await Workbench.set_up(self._workspaces, self._settings, self._choice, self._hides)
            return self._made
