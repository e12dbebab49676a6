"""The composition root: the only module that names concrete classes together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gateway import config
from gateway.approval.flow import ApprovalFlow
from gateway.approval.preview import WorkspacePreview
from gateway.approval.question import Approver
from gateway.approval.request_state import RequestStateCodec
from gateway.approval.rules import check_tool_patterns
from gateway.approval.store import ApprovalStore
from gateway.calls import DEFAULT_CHAT, Call, Caller, Outcome, Progress, check_chat, no_progress
from gateway.catalog import Catalog, Draft, Policy
from gateway.config import Settings
from gateway.db import Database
from gateway.db.approvals import Approvals
from gateway.db.call_records import CallRecords
from gateway.db.chats import Chats
from gateway.db.instances import Instance, settle_interrupted
from gateway.db.manifests import Manifests
from gateway.db.pins import Pins
from gateway.db.sqlite import SqliteDatabase
from gateway.db.tool_names import ToolNames
from gateway.db.toolsets import Toolsets
from gateway.db.upstreams import Upstreams
from gateway.errors import GatewayError, Unavailable
from gateway.executor import Executor
from gateway.extensions import Extension, load_extension
from gateway.extensions.approval import Approval
from gateway.extensions.audit import Audit
from gateway.extensions.concurrency import Concurrency
from gateway.extensions.large_results import LargeResults
from gateway.extensions.permissions import Ownership, Permissions
from gateway.extensions.rate_limit import RateLimit
from gateway.extensions.rendering import RELATIVE, Directories, Rendering
from gateway.extensions.telemetry import Telemetry
from gateway.extensions.validation import Validation
from gateway.extensions.versioning import Versioning
from gateway.serve.mcp.uris import file_uri
from gateway.sources import Source
from gateway.sources.builtin.source import builtin_source
from gateway.tools import HidesFor, Permission, Tool
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions
from gateway.workspace.workspaces import attached_folders, default_chat

if TYPE_CHECKING:
    from gateway.bundles.installed import InstalledToolset
    from gateway.sources.toolsets.assembly import ToolsetRuntime
    from gateway.sources.upstreams.passthrough import UpstreamPassthrough
    from gateway.sources.upstreams.registry import UpstreamRegistry
    from gateway.sources.upstreams.upstream import Upstream

log = logging.getLogger(__name__)

# What an operator should correct about the tools; commands other than `serve` count them instead.
PROBLEMS = logging.getLogger("gateway.problems")

# The sources of strangers' tools.
TOOLSETS, UPSTREAMS = "toolsets", "upstreams"

# Seconds a process that follows waits for toolsets and upstreams before it serves; what comes later is announced.
START_PATIENCE = 5.0

# The same for a process that lists once and is done.
LOOK_PATIENCE = 30.0

# How often a process that follows asks whether another has changed the toolsets.
FOLLOW_SECONDS = 0.5


class Gateway:
    """The whole gateway in one process. Open it, list its catalog, call its tools.

    async with Gateway.open("toolgate.yaml") as gateway:
        outcome = await gateway.call("read_file", {"path": "notes.txt"}, chat="demo")
    """

    def __init__(self, settings: Settings, db: Database, instance: Instance, sources: Sequence[Source]) -> None:
        self.settings = settings
        self.chat = default_chat(settings)
        self.records = CallRecords(db, instance.id)
        self.telemetry = Telemetry()
        self.approvals = ApprovalStore(Approvals(db), settings.approval)
        self._db = db
        self._names = ToolNames(db)
        self._concurrency = Concurrency(settings.limits.concurrency, settings.limits.timeout)
        self._workspaces = Workspaces(settings.data_dir, attached_folders(settings))
        self._chats = Chats(db)
        self._toolsets = Toolsets(db)
        self._upstream_rows = Upstreams(db)
        self._pins = Pins(db)
        self._listed: tuple[int, ...] = ()
        self._refreshing = asyncio.Lock()
        self._soon: asyncio.Task[None] | None = None
        self._installing: asyncio.Task[Any] | None = None
        self._stale = False
        self._listeners: list[Callable[[], None]] = []
        self._categories = settings.effective_categories()
        self.versions = Versions(Manifests(db), self._chats, self._workspaces)
        hides: HidesFor = lambda tool: self.executor.hides(tool)  # noqa: E731 - it is made last
        self.builtins = builtin_source(settings, self._workspaces, self.versions, hides)
        self._sources = [self.builtins, *sources]
        self.executor = Executor(self._extensions())
        self.approval_flow = ApprovalFlow(
            self.executor.call_tool,
            self._find_tool,
            self.approvals,
            self.records.record_finished,
            RequestStateCodec(settings.approval.keys, settings.data_dir),
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: str | Path | Mapping[str, Any] | Settings | None = None,
        *,
        sources: Sequence[Source] = (),
        follow: bool = False,
        connect: Literal["all", "own", "none"] = "all",
    ) -> AsyncIterator[Gateway]:
        """A running gateway from a settings file, from settings, or from the defaults.

        `sources` are tools of your own, offered beside the rest. Several gateways, also of several
        processes, may share one data directory; with `follow`, what another process installs, and edits
        in the folders of toolsets, are offered as soon as they are seen. `connect` chooses the upstream servers
        that opening may start: all, your own (not those that toolsets bring) or none. Of the others, what they
        last listed is offered, and a call connects to them.
        """
        chosen = config.resolve(settings)
        config.refuse_unavailable(chosen)
        async with AsyncExitStack() as stack:
            chosen.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            db = await SqliteDatabase.open(chosen.data_dir / "toolgate.db")
            stack.push_async_callback(db.close)
            instance = stack.enter_context(closing(Instance(chosen.data_dir / "run")))
            await settle_interrupted(db, chosen.data_dir / "run")
            gateway = cls(chosen, db, instance, sources)
            stack.push_async_callback(gateway.records.settled)
            await gateway.approvals.records.sweep()
            await gateway.versions.recover(gateway.chat)
            stack.push_async_callback(gateway.drain)
            if chosen.toolsets:
                installing = asyncio.get_running_loop().create_task(gateway.toolsets.install_configured())
                gateway._installing = installing
                stack.push_async_callback(_cancelled, installing)
                # Packages to be fetched first may take minutes: a client that waits for us is answered before.
                await asyncio.wait([installing], timeout=START_PATIENCE if follow else None)
            if await gateway._has_upstreams():
                await gateway.upstreams.sync()
                names = {"all": None, "own": gateway.upstreams.own, "none": ()}[connect]
                await gateway.upstreams.discover(START_PATIENCE if follow else LOOK_PATIENCE, names)
            await gateway.refresh()
            if follow:
                stack.push_async_callback(_cancelled, asyncio.get_running_loop().create_task(gateway._follow()))
            yield gateway

    @property
    def catalog(self) -> Catalog:
        return self.executor.catalog

    def _find_tool(self, name: str) -> Tool | None:
        entry = self.catalog.get(name)
        return entry.tool if entry is not None else None

    @cached_property
    def toolsets(self) -> ToolsetRuntime:
        """The installed toolsets: their library, and what runs them."""
        # Imported by the first who needs it: a process without toolsets starts in half the time.
        from gateway.sources.toolsets.assembly import ToolsetRuntime

        made = ToolsetRuntime(self._db, self.settings, self._workspaces, self.executor.hides)
        self._sources.append(made.source)
        return made

    @cached_property
    def upstreams(self) -> UpstreamRegistry:
        """The upstream servers."""
        # Imported by the first who needs it, for the same reason.
        from gateway.sources.upstreams.registry import UpstreamRegistry

        made = UpstreamRegistry(self._db, self.settings, self._refresh_soon, self.installed_toolsets)
        self._sources.append(made.source)
        return made

    def relay(self) -> UpstreamPassthrough | None:
        """Return what upstreams offer besides tools; None while there are no upstreams."""
        return self._relay if "upstreams" in self.__dict__ else None

    @cached_property
    def _relay(self) -> UpstreamPassthrough:
        # Imported by whoever serves it: a command that only lists tools has no use for it.
        from gateway.sources.upstreams.passthrough import UpstreamPassthrough

        return UpstreamPassthrough(lambda: self.upstreams.source, self._request, self.executor.refuses)

    def watch_upstreams(self, listener: Callable[[], None]) -> None:
        """Tell `listener` whenever upstreams may offer other prompts or resources."""
        self._listeners.append(listener)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        chat: str | None = None,
        message: str | None = None,
        parent_message: str | None = None,
        caller: Caller | None = None,
        confirmed: bool = False,
        approver: Approver | None = None,
        progress: Progress = no_progress,
    ) -> Outcome:
        """Call a tool by its name or id. `confirmed` says that you agree to whatever it would ask first; `approver` is
        asked instead, and may change the arguments."""
        call = Call(
            name=name,
            arguments=arguments or {},
            chat=check_chat(chat) if chat is not None else self.chat or DEFAULT_CHAT,
            message=message,
            parent_message=parent_message,
            caller=caller or Caller(),
            confirmed=confirmed,
            progress=progress,
        )
        return await self.approval_flow.call_with_approver(call, approver)

    async def allow_servers(self, toolset_id: str, digests: Mapping[str, str], by: str) -> Mapping[str, Upstream]:
        """Record a person's consent to MCP servers of a toolset, by the digests that were shown (`{id: digest}`), and
        connect to each once, so that its tools are known. The servers that are on, by id; refused with `Conflict` when
        one has changed since it was shown."""
        await self.toolsets.library.allow_servers(toolset_id, digests, by)
        await self.upstreams.sync()
        await self.upstreams.discover(LOOK_PATIENCE, digests)
        await self.refresh()
        return {name: each for name, each in self.upstreams.by_name.items() if name in digests}

    async def _request(self, call: Call, tool: Tool, work: Callable[[], Awaitable[Any]]) -> Any:
        self._categories.setdefault(tool.category, self.settings.category(tool.category))
        return await self.executor.request(call, tool, work)

    async def refresh(self) -> Catalog:
        """Ask the sources again and offer what they list now. What an operator should correct is logged."""
        async with self._refreshing:
            listed, installed = await self._revisions(), await self.installed_toolsets()
            profile = self.settings.effective_profile()
            draft = Draft(Policy(self._categories, profile.permission, self.settings.limits.tools))
            for source in self._sources:
                await self._consider(draft, source)
            unlisted = await self._unlisted(draft.known, installed)
            draft.problems += check_tool_patterns(self.settings.approval, draft.known, unlisted)
            draft.problems += [toolset.problem for toolset in installed if toolset.problem is not None]
            catalog = draft.finish(await self._names.assign(draft.wishes))
            for problem in catalog.problems:
                PROBLEMS.warning("%s", problem)
            self.executor.swap(catalog)
            self._listed = listed
            return catalog

    async def _consider(self, draft: Draft, source: Source) -> None:
        for tool in await source.list_tools():
            if source.name in (TOOLSETS, UPSTREAMS):
                self._categories.setdefault(tool.category, self.settings.category(tool.category))
            draft.consider(source, tool)

    async def _unlisted(self, known: Collection[str], installed: Sequence[InstalledToolset]) -> Collection[str] | None:
        """Servers whose tools are not known yet; None while toolsets, of unknown names, are being installed."""
        if self._installing is not None and not self._installing.done():
            return None
        _, added = await self._upstream_rows.load()
        connected = self.upstreams.by_name if "upstreams" in self.__dict__ else ()
        brought = [server.id for toolset in installed for server in toolset.servers]
        named = {*self.settings.upstreams, *connected, *brought, *(row.name for row in added)}
        return named - {tool_id.partition(":")[0] for tool_id in known}

    async def ready(self) -> None:
        """Refuses while the store does not answer or the gateway is stopping."""
        if self._concurrency.stopping:
            raise Unavailable("the gateway is stopping", code="SHUTTING_DOWN")
        await self._db.fetch("SELECT 1")

    async def drain(self) -> None:
        """Let calls under way finish within the grace period, and cancel the rest; all are recorded."""
        await self._concurrency.drain(self.settings.server.shutdown_grace)
        await self.executor.idle()
        await self.versions.close()
        await self.builtins.close()
        if self._soon is not None:
            await _cancelled(self._soon)
        if "upstreams" in self.__dict__:
            await self.upstreams.close()
        if "toolsets" in self.__dict__:
            await self.toolsets.close()

    async def _follow(self) -> None:
        """Offer what changes about toolsets and upstreams; runs until it is cancelled."""
        edited = asyncio.Event()
        followed = self._listed  # not that of later refreshes: they take in nothing about servers
        while True:
            with suppress(GatewayError):  # a store that does not answer now may answer next time
                if (revisions := await self._revisions()) != followed:
                    if await self._has_upstreams():
                        await self.upstreams.sync()
                        await self.upstreams.discover(0)
                    await self.refresh()
                    followed = revisions
                if self._listed[0]:
                    await self.toolsets.follow(edited.set)
            with suppress(TimeoutError):
                await asyncio.wait_for(edited.wait(), FOLLOW_SECONDS)
            edited.clear()

    async def _revisions(self) -> tuple[int, ...]:
        """Numbers that grow with every change, by any process, of what is installed, connected and accepted."""
        return await self._toolsets.revision(), await self._upstream_rows.revision(), await self._pins.revision()

    async def _has_upstreams(self) -> bool:
        if self.settings.upstreams or "upstreams" in self.__dict__ or await self._upstream_rows.revision():
            return True
        return any(toolset.allowed_servers for toolset in await self.installed_toolsets())

    async def installed_toolsets(self) -> Sequence[InstalledToolset]:
        return await self.toolsets.library.list() if await self._toolsets.revision() else ()

    def _refresh_soon(self) -> None:
        """An upstream lists something else now; what changes during a refresh is taken in by another."""
        self._stale = True
        if self._soon is None or self._soon.done():
            self._soon = asyncio.get_running_loop().create_task(self._refreshed())

    async def _refreshed(self) -> None:
        while self._stale:
            self._stale = False
            try:
                await self.refresh()
            except GatewayError as error:
                log.warning("what changed is not offered yet: %s", error)
            for listener in self._listeners:
                listener()

    def _seen_by(self, call: Call) -> Directories:
        """Where the tool of a call sees the chat's workspace and its own toolset."""
        return RELATIVE if call.target.home is None else Directories(*self.toolsets.seen(call))

    def _keeps_over(self, profile: Permission, call: Call) -> int | None:
        """From how many bytes on a result is kept in the workspace; never on behalf of those who may only read."""
        tool = call.target
        if tool.kind != "mcp" or Permission.READ_ONLY in (profile, call.caller.permission):
            return None
        upstream = self.upstreams.source.upstreams.get(tool.owner or "")
        return upstream.spec.settings.large_results.over if upstream is not None else None

    def _approval(self) -> Approval:
        settings = self.settings.approval
        return Approval(
            settings.mode,
            settings.rules,
            out_of_band=settings.out_of_band,
            is_remembered=self.approvals.is_remembered,
            preview=WorkspacePreview(self._workspaces),
            is_attached=self._workspaces.is_attached if attached_folders(self.settings) else None,
        )

    def _extensions(self) -> list[Extension]:
        """Outermost first. The order is the policy; read it top to bottom."""
        settings, limits, categories = self.settings, self.settings.limits, self._categories
        keeps_over = partial(self._keeps_over, settings.effective_profile().permission)
        approval = self._approval()
        versioning = Versioning(self.versions, approval.require_consent, limits.timeout)
        ours: list[tuple[int, Extension]] = [
            (0, self.telemetry),  # timed, refusals included
            (10, Audit(self.records)),  # written down, refusals included
            (20, Validation(limits.request_bytes, limits.response_bytes)),  # is it a call the tool understands?
            (25, Ownership(self._chats.claim)),  # is it this caller's chat?
            (30, Permissions(categories, settings.effective_profile().permission)),  # may it do that?
            (40, RateLimit(categories, limits.calls_per_minute)),  # may it now?
            (60, approval),  # does a person agree?
            (63, LargeResults(self.versions, keeps_over, limits.response_bytes, file_uri)),  # is it too much to answer?
            (65, Rendering(self._seen_by)),  # what will it look like, a timeout included?
            (70, self._concurrency),  # a slot and a deadline; a person who thinks holds neither
            (100, versioning),  # innermost: the files before and after, and consent to what was done to them
        ]
        yours = [(custom.priority, load_extension(custom)) for custom in settings.extensions]
        return [extension for _, extension in sorted([*ours, *yours], key=lambda placed: placed[0])]


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
