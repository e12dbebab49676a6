"""Everything the development tools need, put together once the category is on."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

from gateway.calls import Call, Outcome
from gateway.config import Settings
from gateway.errors import Conflict, GatewayError, NotFound, Unavailable
from gateway.sandbox import Limits, Sandbox
from gateway.sandbox.detect import choose
from gateway.sandbox.network import network_of
from gateway.sources.builtin.code import CATEGORY
from gateway.sources.builtin.code.call_context import Bench, Machine, in_thread, look, tried
from gateway.sources.builtin.code.format_code import format_code
from gateway.sources.builtin.code.git_read import git_diff, git_log, git_show, git_status
from gateway.sources.builtin.code.git_write import git_add, git_branch, git_checkout, git_commit, git_push, git_stash
from gateway.sources.builtin.code.install_package import install_package
from gateway.sources.builtin.code.python_runner import SUBSET, NoPrograms, Python, Sandboxed, Subset
from gateway.sources.builtin.code.run_code import LANGUAGES, run_code, run_command
from gateway.sources.builtin.code.run_tests import run_tests
from gateway.sources.builtin.decorator import Builtin
from gateway.tools import Access, HidesFor, Tool, hide_nothing
from gateway.workspace import Workspaces
from gateway.workspace.hidden import find_hidden
from gateway.workspace.protected import Protected, find_protected

TOOLS: Sequence[Builtin] = (
    run_code,
    run_command,
    git_status,
    git_diff,
    git_log,
    git_show,
    git_add,
    git_commit,
    git_branch,
    git_checkout,
    git_stash,
    git_push,
    run_tests,
    format_code,
    install_package,
)

# Calls that run programs at once, over all chats; more wait their turn.
PLACES = 16

# Seconds a call may take beyond its program: for the versions before and after.
GRACE = 30.0

# Consents remembered between the question and the run; each took a person to give.
CONSENTS = 10_000

Choice = Callable[[], Awaitable[Sandbox]]

_MEBIBYTE = 1024 * 1024
_ONLINE = ("git_push", "install_package")


class Workbench:
    """The development tools of one gateway: what of them can run here, and a bench for each call."""

    def __init__(self, workspaces: Workspaces, settings: Settings, machine: Machine, hides: HidesFor) -> None:
        self._hides = {each.tool.id: hides(each.tool) for each in TOOLS}
        self._workspaces = workspaces
        self._settings = settings
        self._machine = machine
        self._tools: Mapping[str, Builtin] = {each.tool.id: each for each in TOOLS}
        sandbox = settings.sandbox
        self._limits = Limits(memory=sandbox.memory_mb * _MEBIBYTE, cpu_seconds=sandbox.cpu_seconds)
        self._network = network_of(sandbox)
        self._sandbox, self._pythons = _apart(machine)
        self._places = asyncio.Semaphore(PLACES)
        self._listed: list[Tool] | None = None
        self._agreed: set[str] = set()

    @classmethod
    async def set_up(
        cls, workspaces: Workspaces, settings: Settings, choice: Choice | None, hides: HidesFor
    ) -> Workbench:
        """Look at the machine, off the event loop."""
        sandbox, lack = await tried(choice or functools.partial(choose, settings.sandbox))
        machine = await asyncio.get_running_loop().run_in_executor(None, look, sandbox, lack)
        return cls(workspaces, settings, machine, hides)

    @property
    def problems(self) -> Sequence[GatewayError]:
        """Why tools are withheld, each reason once."""
        reasons = dict.fromkeys(reason for tool in self.list_tools() if (reason := tool.withheld))
        return [Unavailable(reason, code="TOOL_WITHHELD") for reason in reasons]

    def list_tools(self) -> Sequence[Tool]:
        if self._listed is None:
            self._listed = [self._offered(each) for each in self._tools.values()]
        return self._listed

    async def call_tool(self, call: Call) -> Outcome:
        builtin = self._tools[call.target.id]
        async with self._places:
            attached = self._workspaces.is_attached(call.chat) and call.target.access is Access.WRITE
            protected = await in_thread(find_protected, self._workspaces.path(call.chat)) if attached else ()
            with self._bench(call, protected) as bench:
                await self._require_as_asked(builtin, bench)
                return await builtin.run_async(await _with_hidden(bench), call.arguments)

    async def close(self) -> None:
        """Leave nothing running."""
        if self._pythons is not None:
            await self._pythons.close()

    def _offered(self, builtin: Builtin) -> Tool:
        seconds = self._settings.sandbox.timeout
        tool = replace(
            builtin.tool,
            withheld=self._lack(builtin.tool.id),
            open_world=builtin.tool.id in _ONLINE,
            timeout=max(self._settings.limits.timeout, seconds + GRACE),
            input_schema=self._narrowed(builtin.tool.input_schema),
        )
        if tool.id == "run_code" and self._machine.monty:
            tool = replace(tool, description=SUBSET)
        if builtin.asks is None:
            return tool
        return replace(tool, requires_confirmation=functools.partial(self._ask, builtin))

    async def _ask(self, builtin: Builtin, call: Call) -> str | None:
        with self._bench(call) as bench:
            reason: str | None = await builtin.ask(bench, call.arguments)
            is_python = builtin is run_code and call.arguments.get("language") == "python"
            if reason is None and is_python and bench.hides is hide_nothing:  # else files to hide are looked for first
                bench.pythons.expect(bench)  # it starts while a version of the files is kept
        if call.consent is not None and call.consent.reason == reason:  # else it is for what a rule says
            if len(self._agreed) >= CONSENTS:
                self._agreed.clear()
            self._agreed.add(call.consent.approval)
        return reason

    async def _require_as_asked(self, builtin: Builtin, bench: Bench) -> None:
        """What runs is what was asked about: until the chat's files were ours alone, another call may have changed
        what it means."""
        call, agreed = bench.call, None
        if call.consent is not None and call.consent.approval in self._agreed:
            self._agreed.discard(call.consent.approval)
            agreed = call.consent.reason
        if builtin.asks is None or (call.confirmed and agreed is None):
            return
        reason = await builtin.ask(bench, call.arguments)
        if reason not in (None, agreed):
            message = f"files changed since it was asked, and now {reason}; it did not run, call again to ask again"
            raise Conflict(message, code="CHANGED_SINCE_ASKED")

    def _lack(self, tool: str) -> str | None:
        """What the tool would need that is not here."""
        machine = self._machine
        if machine.lack is not None:
            return None if tool == "run_code" and machine.monty else machine.lack.message
        if tool in _ONLINE and self._network is None:
            return "it needs the network, which is off in the sandbox; turn it on with sandbox.network: true"
        if tool.startswith("git_") and "git" not in machine.programs:
            return "git is not installed on this machine; install the package 'git'"
        if tool == "run_code" and not self._languages():
            return "neither python3 nor bash is installed on this machine"
        if tool == "run_command" and not machine.programs.keys() & {"bash", "sh"}:
            return "there is no shell on this machine"
        return None

    def _languages(self) -> list[str]:
        machine = self._machine
        if machine.monty:
            return ["python"]
        there = {"python": machine.python is not None, "bash": "bash" in machine.programs}
        return [language for language in LANGUAGES if there[language]]

    def _narrowed(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema with the languages that are here, and the time the operator allows; Monty takes no arguments."""
        narrowed: dict[str, Any] = copy.deepcopy(dict(schema))
        properties = narrowed["properties"]
        if "language" in properties:
            properties["language"]["enum"] = self._languages()
            if self._machine.monty:
                del properties["args"]
        if "timeout" in properties:
            properties["timeout"]["maximum"] = self._settings.sandbox.timeout
        return narrowed

    @contextmanager
    def _bench(self, call: Call, protected: Protected = ()) -> Iterator[Bench]:
        if self._sandbox is None or self._pythons is None:
            raise self._machine.lack or NotFound(f"{call.name} is not offered here", code="UNKNOWN_TOOL")
        with self._workspaces.root(call.chat) as root:
            yield Bench(
                call=call,
                folder=self._workspaces.path(call.chat),
                root=root,
                sandbox=self._sandbox,
                pythons=self._pythons,
                machine=self._machine,
                limits=self._limits,
                timeout=self._settings.sandbox.timeout,
                network=self._network,
                attached=self._workspaces.is_attached(call.chat),
                installs=self._installs and call.caller.permission.allows(install_package.tool.permission),
                hides=self._hides[call.target.id],
                protected=protected,
                store=self._workspaces.protection_store(call.chat),
            )

    @cached_property
    def _installs(self) -> bool:
        """Whether install_package is offered: it can run, and neither the category nor the profile keeps it back."""
        levels = (self._settings.category(CATEGORY).permission, self._settings.effective_profile().permission)
        wanted = install_package.tool
        return self._lack(wanted.id) is None and all(level.allows(wanted.permission) for level in levels)


async def _with_hidden(bench: Bench) -> Bench:
    """The bench with the files that rules keep from its programs. The tools of git leave them out themselves."""
    if bench.hides is hide_nothing:
        return bench
    hides = functools.partial(bench.hides, agreed=bench.call.agreed)
    if bench.call.target.id.startswith("git_"):
        return replace(bench, hides=hides)
    return replace(bench, hides=hides, hidden=await in_thread(find_hidden, bench.folder, hides))


def _apart(machine: Machine) -> tuple[Sandbox | None, Python | None]:
    """What keeps programs apart from the machine, and what runs Python there; nothing where neither works."""
    if machine.sandbox is not None:
        return machine.sandbox, Sandboxed(machine.sandbox)
    if machine.lack is not None and machine.monty:
        return NoPrograms(machine.lack), Subset()
    return None, None
