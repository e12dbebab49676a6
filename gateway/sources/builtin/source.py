"""The list of builtin tools, and the source that lists, withholds, asks about and runs them."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import anyio
import anyio.from_thread
import anyio.to_thread

from gateway.calls import Call, Outcome
from gateway.config import Settings
from gateway.errors import GatewayError, NotFound, Unavailable
from gateway.sources.builtin.decorator import Builtin, FileContext, VersionContext
from gateway.sources.builtin.preview import find_unversioned_files
from gateway.sources.builtin.ripgrep import SearchEngine
from gateway.sources.builtin.word_index import WordIndex
from gateway.tools import Category, Hides, HidesFor, Permission, Tool, hide_nothing, hide_nothing_for
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions

Kind = Literal["files", "versions", "web", "code"]

# Every builtin tool by kind, with the module that defines it. `load` imports the modules of a kind when it is used, so
# that a process starts without those of the kinds that are off.
BUILTINS: Mapping[Kind, Mapping[str, str]] = {
    "files": {
        "list_directory": "read_files",
        "read_file": "read_files",
        "find_files": "read_files",
        "search_code": "search",
        "write_file": "write_files",
        "edit_file": "write_files",
        "apply_patch": "apply_patch",
        "move_file": "write_files",
        "delete_file": "write_files",
    },
    "versions": {
        "workspace_history": "history",
        "workspace_diff": "history",
        "workspace_restore": "history",
        "workspace_branch": "history",
    },
    "web": {
        "web_fetch": "web.web_fetch",
        "web_search": "web.web_search",
        "web_download": "web.web_download",
    },
    "code": {
        "run_code": "code.run_code",
        "run_command": "code.run_code",
        "start_process": "code.processes",
        "list_processes": "code.processes",
        "process_output": "code.processes",
        "stop_process": "code.processes",
        "git_status": "code.git_read",
        "git_diff": "code.git_read",
        "git_log": "code.git_read",
        "git_show": "code.git_read",
        "git_add": "code.git_write",
        "git_commit": "code.git_write",
        "git_branch": "code.git_write",
        "git_checkout": "code.git_write",
        "git_stash": "code.git_write",
        "git_push": "code.git_write",
        "run_tests": "code.run_tests",
        "format_code": "code.format_code",
        "install_package": "code.install_package",
    },
}

# Calls of file tools that run at once; more wait for a thread.
FILE_THREADS = 8

CODE_CATEGORY = "development"

NO_HOSTS = "no host of the web can be reached until web.allowed_hosts names hosts ('*' for every public one)"
NO_SEARCH = "the web cannot be searched until web.search names a provider (searxng, brave, tavily, duckduckgo)"
WEB_OFF = {"web_fetch": ("web", NO_HOSTS), "web_download": ("editing", NO_HOSTS), "web_search": ("web", NO_SEARCH)}


def load(kind: Kind) -> list[Builtin]:
    """Import the tools of a kind."""
    modules = {name: importlib.import_module(f"{__package__}.{module}") for name, module in BUILTINS[kind].items()}
    return [getattr(module, name) for name, module in modules.items()]


def derive_schemas() -> str:
    """Return the content of the file `SCHEMAS`: JSON, with a line for each builtin."""
    builtins = [builtin for kind in BUILTINS for builtin in load(kind)]
    lines = [f'"{each.function.__name__}":{json.dumps(each.derive_schemas())}' for each in builtins]
    return "{{\n{}\n}}\n".format(",\n".join(lines))


def as_declared(tool: Tool) -> Tool:
    """Return a builtin that is off, and so known by its name only, as its module declares it."""
    kind = next((kind for kind, modules in BUILTINS.items() if tool.id in modules), None)
    if kind is None or tool.description:
        return tool
    builtin = next(builtin for builtin in load(kind) if builtin.tool.id == tool.id)
    asks = builtin.tool.requires_confirmation or builtin.asks is not None
    return replace(builtin.tool, requires_confirmation=asks, withheld=tool.withheld)


class ToolKind:
    """Tools that share one kind of context. A tool that requires something the kind is `missing` is withheld."""

    kind: Kind
    # True if an operator should be told what is missing.
    reports_missing = False

    async def missing(self) -> Mapping[str, str]:
        """Return the requirements that are not met, each with the reason and the fix."""
        return {}

    def adapt(self, tool: Tool) -> Tool:
        """Return the tool as this gateway offers it."""
        return tool

    def context(self, call: Call, hides: Hides) -> object:
        raise NotImplementedError

    async def run(self, builtin: Builtin, call: Call, hides: Hides) -> Outcome:
        return await builtin.run_async(self.context(call, hides), call.arguments)

    async def ask(self, builtin: Builtin, call: Call, hides: Hides) -> str | None:
        """Return the reason to ask a person before the call, or None."""
        reason: str | None = await builtin.ask(self.context(call, hides), call.arguments)
        return reason

    def end_chat(self, chat: str) -> None:
        """Stop what runs on behalf of a chat that has ended."""

    async def close(self) -> None:
        """Stop every process of the kind."""


class FileTools(ToolKind):
    """Tools on a chat's workspace. They block, so each call runs in a thread."""

    kind = "files"

    def __init__(self, workspaces: Workspaces, engine: SearchEngine | None = None) -> None:
        self._workspaces = workspaces
        self._engine = engine or SearchEngine.detect()
        self._threads = anyio.CapacityLimiter(FILE_THREADS)

    async def run(self, builtin: Builtin, call: Call, hides: Hides) -> Outcome:
        # Not abandoned on cancellation: the thread stops at its next check, and no call outlives its result.
        return await anyio.to_thread.run_sync(self._run, builtin, call, hides, limiter=self._threads)

    async def ask(self, builtin: Builtin, call: Call, hides: Hides) -> str | None:
        # Without the limiter: a question must not wait for slow calls.
        return await anyio.to_thread.run_sync(self._ask, builtin, call, hides)

    def _run(self, builtin: Builtin, call: Call, hides: Hides) -> Outcome:
        with self._workspaces.root(call.chat) as root:
            words = WordIndex(self._workspaces.directory(call.chat) / "words.db")
            check_cancelled = anyio.from_thread.check_cancelled
            if call.agreed:
                hides = functools.partial(hides, agreed=call.agreed)
            context = FileContext(root, call.confirmed, self._engine, check_cancelled, hides, words)
            return builtin.run(context, call.arguments)

    def _ask(self, builtin: Builtin, call: Call, hides: Hides) -> str | None:
        with self._workspaces.root(call.chat) as root:
            reason: str | None = builtin.ask(FileContext(root, hides=hides), call.arguments)
            if reason is None:
                return None
            attached = self._workspaces.is_attached(call.chat)
            unversioned = find_unversioned_files(root, attached, builtin.tool, call.arguments)
            return f"{reason}; {unversioned}" if unversioned.files else reason


class VersionTools(ToolKind):
    """Tools on the versions of a chat's files."""

    kind = "versions"

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def context(self, call: Call, hides: Hides) -> VersionContext:
        return VersionContext(self._versions, call, hides)


class BuiltinSource:
    """Lists the tools of the given kinds and runs them, and lists those that settings turn `off`. `hides` gives the
    files to leave out of a tool's results. `make_code` makes the kind of the tools that run code once their category is
    on, and returns None until then."""

    name = "builtin"

    def __init__(
        self,
        kinds: Sequence[ToolKind],
        hides: HidesFor = hide_nothing_for,
        off: Sequence[Tool] = (),
        make_code: Callable[[], ToolKind | None] = lambda: None,
    ) -> None:
        self._kinds = list(kinds)
        self._off = off
        self._make_code = make_code
        self._hides_for = hides
        self._hides: dict[str, Hides] = {}
        self._builtins: dict[str, tuple[ToolKind, Builtin]] = {}
        self._tools: dict[ToolKind, list[Tool]] = {}
        self._listing = anyio.Lock()

    async def list_tools(self) -> Sequence[Tool]:
        """Return every tool. One that cannot run here is withheld, with the reason."""
        async with self._listing:
            if all(kind.kind != "code" for kind in self._kinds) and (code := self._make_code()) is not None:
                self._kinds.append(code)
                self._off = [tool for tool in self._off if tool.category != CODE_CATEGORY]
            for kind in self._kinds:
                if kind not in self._tools:
                    self._tools[kind] = await self._list(kind)
        self._hides = {name: self._hides_for(builtin.tool) for name, (_, builtin) in self._builtins.items()}
        return [*(tool for tools in self._tools.values() for tool in tools), *self._off]

    async def call_tool(self, call: Call) -> Outcome:
        if (known := self._builtins.get(call.target.id)) is None:
            raise NotFound(f"{call.name} is not offered", code="UNKNOWN_TOOL")
        kind, builtin = known
        return await kind.run(builtin, call, self._hides[call.target.id])

    async def problems(self) -> Sequence[GatewayError]:
        """Return what an operator can correct so that more tools are offered, each reason once."""
        await self.list_tools()
        tools = [tool for kind, tools in self._tools.items() if kind.reports_missing for tool in tools]
        reasons = dict.fromkeys(tool.withheld for tool in tools if tool.withheld)
        return [Unavailable(reason, code="TOOL_WITHHELD") for reason in reasons]

    def end_chat(self, chat: str) -> None:
        """Stop what runs on behalf of a chat that has ended."""
        for kind in self._kinds:
            kind.end_chat(chat)

    async def close(self) -> None:
        for kind in self._kinds:
            await kind.close()

    async def _list(self, kind: ToolKind) -> list[Tool]:
        missing = await kind.missing()
        builtins = load(kind.kind)
        self._builtins |= {builtin.tool.id: (kind, builtin) for builtin in builtins}
        return [self._offer(kind, builtin, missing) for builtin in builtins]

    def _offer(self, kind: ToolKind, builtin: Builtin, missing: Mapping[str, str]) -> Tool:
        withheld = next((missing[name] for name in builtin.requires if name in missing), None)
        tool = replace(kind.adapt(builtin.tool), withheld=withheld)
        if builtin.asks is None:
            return tool
        return replace(tool, requires_confirmation=functools.partial(self._ask, kind, builtin))

    async def _ask(self, kind: ToolKind, builtin: Builtin, call: Call) -> str | None:
        return await kind.ask(builtin, call, self._hides.get(call.target.id, hide_nothing))


def builtin_source(
    settings: Settings,
    workspaces: Workspaces,
    versions: Versions,
    hides: HidesFor = hide_nothing_for,
    find_category: Callable[[str], Category] | None = None,
) -> BuiltinSource:
    """Make the source of the builtins that the settings allow; refuse settings that name an invalid host.
    `find_category` returns a category as it is now, which may change while the gateway runs."""
    kinds: list[ToolKind] = [FileTools(workspaces), VersionTools(versions)]
    off: list[Tool] = []
    # Modules of the other kinds are imported only where settings turn them on: most processes start without them.
    if settings.web.allowed_hosts or settings.web.search is not None:
        from gateway.sources.builtin.web.context import WebTools

        kinds.append(WebTools(settings.web, workspaces, versions, settings.effective_profile().permission))
    else:
        off += [_name_only(name, category, reason) for name, (category, reason) in WEB_OFF.items()]
    off += [_name_only(name, CODE_CATEGORY) for name in BUILTINS["code"]]
    make_code = functools.partial(_make_code_tools, settings, workspaces, find_category or settings.category)
    return BuiltinSource(kinds, hides, off, make_code)


def _make_code_tools(
    settings: Settings, workspaces: Workspaces, find_category: Callable[[str], Category]
) -> ToolKind | None:
    """Make the tools that run code, if their category is on."""
    if not find_category(CODE_CATEGORY).enabled:
        return None
    from gateway.sources.builtin.code.tools import CodeTools

    return CodeTools(workspaces, settings)


def _name_only(name: str, category: str, withheld: str | None = None) -> Tool:
    """Make a tool that is never offered: its name is known, so that a call is refused with the reason."""
    return Tool(name, "", category=category, permission=Permission.READ_ONLY, withheld=withheld)
