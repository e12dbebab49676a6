"""The code tools of one gateway: which of them can run on this machine, and the context of each call."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

from gateway.calls import Call, Outcome
from gateway.config import Settings
from gateway.errors import Conflict, NotFound
from gateway.sandbox import Limits, Sandbox
from gateway.sandbox.detect import choose
from gateway.sandbox.network import network_of
from gateway.sources.builtin.code.background import ProcessTable
from gateway.sources.builtin.code.call_context import (
    FORMATTERS,
    NO_FORMATTER,
    CodeContext,
    Host,
    detect_host,
    has_formatter,
    in_thread,
)
from gateway.sources.builtin.code.python_runner import (
    MONTY_DESCRIPTION,
    MontyRunner,
    PythonRunner,
    SandboxedRunner,
    UnavailableSandbox,
)
from gateway.sources.builtin.code.run_code import LANGUAGES, run_code
from gateway.sources.builtin.decorator import Builtin
from gateway.sources.builtin.source import CODE_CATEGORY, ToolKind
from gateway.tools import Access, Hides, Permission, Tool, hide_nothing
from gateway.workspace import Workspaces
from gateway.workspace.hidden import find_hidden
from gateway.workspace.protected import Protected, find_protected

# Calls that run programs at once, over all chats; more wait.
CONCURRENT_CALLS = 16

# Seconds a call may take in addition to its program: for the versions before and after.
GRACE = 30.0

# Approvals remembered between the question and the run.
APPROVALS = 10_000


class CodeTools(ToolKind):
    """Tools that run programs in the sandbox. `choose_sandbox` finds the sandbox, or raises; by default the best of
    this machine. The machine is examined once, before the first listing."""

    kind = "code"
    reports_missing = True

    def __init__(
        self,
        workspaces: Workspaces,
        settings: Settings,
        choose_sandbox: Callable[[], Awaitable[Sandbox]] | None = None,
    ) -> None:
        self._workspaces = workspaces
        self._settings = settings
        self._choose_sandbox = choose_sandbox or functools.partial(choose, settings.sandbox)
        self._limits = Limits.from_settings(settings.sandbox, settings.sandbox.cpu_seconds)
        self._network = network_of(settings.sandbox)
        self._slots = asyncio.Semaphore(CONCURRENT_CALLS)
        self._processes = ProcessTable(settings.sandbox.processes, settings.sandbox.process_seconds)
        self._approved: set[str] = set()
        self._host = Host()
        self._sandbox: Sandbox | None = None
        self.python: PythonRunner | None = None

    async def missing(self) -> Mapping[str, str]:
        self._host = host = await detect_host(self._choose_sandbox)
        self._sandbox, self.python = _runners(host)
        missing = {}
        if host.sandbox_error is not None:
            missing["sandbox"] = host.sandbox_error.message
            if not host.monty:
                missing["interpreter"] = host.sandbox_error.message
        elif not self._languages():
            missing["interpreter"] = "neither python3 nor bash is installed on this machine"
        if self._network is None:
            missing["network"] = "the network is off in the sandbox; turn it on with sandbox.network: true"
        if "git" not in host.programs:
            missing["git"] = "git is not installed on this machine; install the package 'git'"
        if not await self._may_format():
            missing["formatter"] = NO_FORMATTER
        if not host.programs.keys() & {"bash", "sh"}:
            missing["shell"] = "there is no shell on this machine"
        return missing

    def adapt(self, tool: Tool) -> Tool:
        """Return the tool with the languages of this machine and the time that the operator allows."""
        schema: dict[str, Any] = copy.deepcopy(dict(tool.input_schema))
        properties, seconds = schema["properties"], self._settings.sandbox.timeout
        if "language" in properties:
            properties["language"]["enum"] = self._languages()
            if self._host.monty:  # it takes no arguments
                del properties["args"]
                tool = replace(tool, description=MONTY_DESCRIPTION)
        if "timeout" in properties:
            properties["timeout"]["maximum"] = seconds
        return replace(tool, input_schema=schema, timeout=max(self._settings.limits.timeout, seconds + GRACE))

    async def run(self, builtin: Builtin, call: Call, hides: Hides) -> Outcome:
        if call.target.access is Access.NONE:  # it starts no program, and may wait for one
            with self._context(call, hides) as context:
                return await builtin.run_async(context, call.arguments)
        async with self._slots:
            attached = self._workspaces.is_attached(call.chat) and call.target.access is Access.WRITE
            protected = await in_thread(find_protected, self._workspaces.path(call.chat)) if attached else ()
            with self._context(call, hides, protected) as context:
                await self._require_unchanged(builtin, context)
                return await builtin.run_async(await _with_hidden_files(context), call.arguments)

    async def ask(self, builtin: Builtin, call: Call, hides: Hides) -> str | None:
        with self._context(call, hides) as context:
            reason: str | None = await builtin.ask(context, call.arguments)
            is_python = builtin is run_code and call.arguments.get("language") == "python"
            if reason is None and is_python and hides is hide_nothing:  # else hidden files are searched first
                context.python_runner.prepare(context)  # it starts while a version of the files is stored
        if call.consent is not None and call.consent.reason == reason:  # else a rule asked
            if len(self._approved) >= APPROVALS:
                self._approved.clear()
            self._approved.add(call.consent.approval)
        return reason

    def end_chat(self, chat: str) -> None:
        self._processes.end_chat(chat)

    async def close(self) -> None:
        await self._processes.close()
        if self.python is not None:
            await self.python.close()

    async def _require_unchanged(self, builtin: Builtin, context: CodeContext) -> None:
        """Refuse a call that now does something else than the person was asked about: before the chat was locked,
        another call may have changed the files."""
        call, approved = context.call, None
        if call.consent is not None and call.consent.approval in self._approved:
            self._approved.discard(call.consent.approval)
            approved = call.consent.reason
        if builtin.asks is None or (call.confirmed and approved is None):
            return
        reason = await builtin.ask(context, call.arguments)
        if reason not in (None, approved):
            message = f"files changed after the approval, and now {reason}; nothing ran. Call again to be asked again"
            raise Conflict(message, code="CHANGED_SINCE_ASKED")

    async def _may_format(self) -> bool:
        """Return whether there is a formatter, on the machine or in the attached folder, or one can be installed."""
        if self._offers_install or self._host.programs.keys() & set(FORMATTERS):
            return True
        folder = self._settings.workspace
        return folder is not None and await in_thread(has_formatter, folder)

    def _languages(self) -> list[str]:
        if self._host.monty:
            return ["python"]
        installed = {"python": self._host.python is not None, "bash": "bash" in self._host.programs}
        return [language for language in LANGUAGES if installed[language]]

    @contextmanager
    def _context(self, call: Call, hides: Hides, protected: Protected = ()) -> Iterator[CodeContext]:
        if self._sandbox is None or self.python is None:
            raise self._host.sandbox_error or NotFound(f"{call.name} is not offered here", code="UNKNOWN_TOOL")
        executes = call.caller.permission.allows(Permission.EXECUTE)
        with self._workspaces.root(call.chat) as root:
            yield CodeContext(
                call=call,
                folder=self._workspaces.path(call.chat),
                root=root,
                sandbox=self._sandbox,
                python_runner=self.python,
                processes=self._processes,
                host=self._host,
                limits=self._limits,
                timeout=self._settings.sandbox.timeout,
                network=self._network,
                attached=self._workspaces.is_attached(call.chat),
                can_execute=self._permits_execution and executes,
                can_install=self._offers_install and executes,
                indexes={"pip": self._settings.sandbox.package_index, "npm": self._settings.sandbox.npm_registry},
                hides=hides,
                protected=protected,
                store=self._workspaces.protection_store(call.chat),
            )

    @cached_property
    def _offers_install(self) -> bool:
        """True if install_package is offered: it can run, and the category and the profile permit it."""
        return self._network is not None and self._host.sandbox_error is None and self._permits_execution

    @cached_property
    def _permits_execution(self) -> bool:
        levels = (self._settings.category(CODE_CATEGORY).permission, self._settings.effective_profile().permission)
        return all(level.allows(Permission.EXECUTE) for level in levels)


async def _with_hidden_files(context: CodeContext) -> CodeContext:
    """Return the context with the files that rules hide from its programs. The git tools leave them out themselves."""
    if context.hides is hide_nothing:
        return context
    hides = functools.partial(context.hides, agreed=context.call.agreed)
    if context.call.target.id.startswith("git_"):
        return replace(context, hides=hides)
    return replace(context, hides=hides, hidden=await in_thread(find_hidden, context.folder, hides))


def _runners(host: Host) -> tuple[Sandbox | None, PythonRunner | None]:
    """Return the sandbox for programs and the runner for Python code; None where nothing isolates them."""
    if host.sandbox is not None:
        return host.sandbox, SandboxedRunner(host.sandbox)
    if host.sandbox_error is not None and host.monty:
        return UnavailableSandbox(host.sandbox_error), MontyRunner()
    return None, None
