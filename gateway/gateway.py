"""`Gateway`, the library's face: open it, list its catalog, call its tools."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gateway import config
from gateway.app import GatewayParts, Storage, open_storage
from gateway.approval.question import Approver
from gateway.approval.rules import check_tool_patterns
from gateway.calls import LOCAL, Call, Caller, Outcome, Progress, check_chat, no_progress
from gateway.catalog import Catalog, CatalogEntry, CatalogPolicy, Draft
from gateway.config import Settings
from gateway.db import timestamp
from gateway.db.switches import Switches
from gateway.errors import Conflict, GatewayError, Unavailable
from gateway.executor import Executor
from gateway.extensions import Extension
from gateway.identity import Principal
from gateway.identity.roles import Roles
from gateway.names import wire_name
from gateway.sources import Source
from gateway.tools import ADMIN_CATEGORY, Category, Tool
from gateway.workspace.workspaces import default_chat

if TYPE_CHECKING:
    from gateway.admin.health_monitor import HealthCheck, HealthMonitor
    from gateway.admin.otlp_metrics import MetricSender
    from gateway.bundles.installed import InstalledToolset
    from gateway.search import Searches
    from gateway.sources.toolsets.assembly import ToolsetRuntime
    from gateway.sources.upstreams.passthrough import UpstreamPassthrough
    from gateway.sources.upstreams.registry import UpstreamRegistry
    from gateway.sources.upstreams.upstream import Upstream

log = logging.getLogger(__name__)

# Problems with tools that an operator should correct. Commands other than `serve` only count them.
PROBLEMS = logging.getLogger("gateway.problems")

# The sources whose tools may name categories of their own.
_OPEN_CATEGORIES = ("toolsets", "upstreams")

# How long opening waits for toolsets and upstreams with `follow`; what comes later is announced.
STARTUP_SECONDS = 5.0

# The same without `follow`: such a process lists once and ends.
DISCOVERY_SECONDS = 30.0

# Seconds that lists wait for an upstream: after the first start with it, when it may be installing itself, and after a
# start that follows one without its answer. Many clients list tools once and ignore later announcements.
FIRST_LIST_SECONDS = 25.0
NEXT_LIST_SECONDS = 4.0

# How often `follow` asks whether another process has changed something.
FOLLOW_SECONDS = 0.5

# How long an empty soft-deleted toolset is kept, and how often that is checked.
REAP_AFTER_SECONDS = 2 * 24 * 3600.0
REAP_SECONDS = 3600.0

# How often old records are removed, and how many days ended problems are kept.
RETENTION_SECONDS = 3600.0
EVENT_DAYS = 90
DAY = 86_400.0

# How long the end of a gateway waits for its last spans to be sent.
TRACES_SECONDS = 5.0

# How often a gateway that serves checks its parts.
HEALTH_SECONDS = 10.0


class _NoSource:
    """Runs nothing: stands for every source where calls are only decided about."""

    name = "rehearsal"

    async def list_tools(self) -> Sequence[Tool]:
        return ()

    async def call_tool(self, call: Call) -> Outcome:
        return Outcome()


_NO_SOURCE = _NoSource()


class Gateway:
    """The whole gateway in one process.

    async with Gateway.open("toolgate.yaml") as gateway:
        outcome = await gateway.call("read_file", {"path": "notes.txt"}, chat="demo")
    """

    def __init__(
        self, settings: Settings, storage: Storage, sources: Sequence[Source], extensions: Sequence[Extension]
    ) -> None:
        parts = GatewayParts(settings, storage, sources, extensions, self._schedule_refresh)
        self.settings = settings
        self.chat = default_chat(settings)
        self.records = parts.records
        self.usage = parts.usage
        self.telemetry = parts.telemetry
        self.approvals = parts.approvals
        self.approval_flow = parts.approval_flow
        self.workspaces = parts.workspaces
        self.versions = parts.versions
        self.chats = parts.chats
        self.sources = parts.sources
        self.builtins = parts.builtins
        self.executor = parts.executor
        self.find_tool = parts.find_tool
        self.installed_toolsets = parts.installed_toolsets
        self.roles = parts.roles
        self.api_keys = parts.api_keys
        self.grants = parts.grants
        self.sessions = parts.sessions
        self.make_identity = parts.make_identity
        self.make_authorization = parts.make_authorization
        self.make_web_logins = parts.make_web_logins
        self.make_sealer = parts.make_sealer
        self._parts = parts
        # Revisions of toolsets, upstreams, pins and switches that the catalog was made of.
        self._revisions: tuple[int, ...] = ()
        self._off_tools: frozenset[str] = frozenset()
        self._refresh_lock = asyncio.Lock()
        self._refresh_task: asyncio.Task[None] | None = None
        self._changed_lists: set[str] = set()
        self._has_admin_tools = False
        self._installing: asyncio.Task[Any] | None = None
        self._first_lists: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[Collection[str]], None]] = []
        self._health: HealthMonitor | None = None
        self._metric_sender: MetricSender | None = None
        self._serves = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: str | Path | Mapping[str, Any] | Settings | None = None,
        *,
        sources: Sequence[Source] = (),
        extensions: Sequence[Extension] = (),
        follow: bool = False,
        connect: Literal["all", "own", "none"] = "all",
    ) -> AsyncIterator[Gateway]:
        """Open a gateway from a settings file, from settings, or from the defaults.

        `sources` are tools of your own, offered beside the rest; `extensions` are your own code around every call, each
        at its `priority`. Several gateways, also in several processes, may
        share one data directory; with `follow`, the catalog follows what other processes install and edits in the
        folders of toolsets. `connect` chooses the upstream servers that opening may start: all, your own (not those
        that toolsets bring) or none. The others are offered as they last answered, and a call connects to them.
        """
        resolved = config.resolve(settings)
        config.refuse_unavailable(resolved)
        async with AsyncExitStack() as stack:
            gateway = cls(resolved, await stack.enter_async_context(open_storage(resolved)), sources, extensions)
            stack.callback(gateway._close_credentials)
            stack.push_async_callback(gateway._flush_traces)
            stack.push_async_callback(gateway.records.wait)
            await gateway.approvals.records.sweep()
            gateway._parts.chat_names.existing = await gateway.chats.list_derived()
            if gateway.chat is not None and resolved.workspace is not None:
                # The owner's folder: no other principal becomes the owner of its chat by being first.
                await gateway.versions.require_owner(gateway.chat, LOCAL)
            await gateway.versions.recover(gateway.chat)
            stack.push_async_callback(gateway.drain)
            if resolved.toolsets:
                gateway._installing = asyncio.create_task(gateway.toolsets.install_configured())
                stack.push_async_callback(_cancel, gateway._installing)
                # Downloads of packages may take minutes: with `follow`, a client is answered before.
                await asyncio.wait([gateway._installing], timeout=STARTUP_SECONDS if follow else None)
            if await gateway._has_upstreams():
                await gateway.upstreams.sync()
                if follow:
                    await gateway._start_upstreams(stack)
                else:
                    names = {"all": None, "own": gateway.upstreams.own, "none": ()}[connect]
                    await gateway.upstreams.discover(DISCOVERY_SECONDS, names)
            await gateway.refresh()
            if follow:
                gateway._serves = True
                if gateway._parts.sends_otlp("metrics"):
                    stack.push_async_callback(_cancel, gateway._start_metrics())
                stack.push_async_callback(_cancel, asyncio.create_task(gateway._watch_health()))
                stack.push_async_callback(_cancel, asyncio.create_task(gateway._apply_retention()))
                stack.push_async_callback(_cancel, asyncio.create_task(gateway._follow()))
                stack.push_async_callback(_cancel, asyncio.create_task(gateway._reap()))
            yield gateway

    @property
    def catalog(self) -> Catalog:
        return self.executor.catalog

    async def search(self, query: str, limit: int = 10, part: Catalog | None = None) -> list[CatalogEntry]:
        """The tools of the catalog, or of a part of it, that fit a few words or a sentence, best first."""
        return [entry for _, entry in await self.searches.catalog.find(self.catalog, query, limit, part)]

    @property
    def searches(self) -> Searches:
        """The searches over tools, which rank alike."""
        return self._parts.searches

    @property
    def queued_calls(self) -> int:
        """The number of calls that wait for a slot."""
        return self._parts.concurrency.queued

    @property
    def categories(self) -> Mapping[str, Category]:
        """Every category by its id, with what settings and people say about it."""
        return self._parts.categories

    @property
    def switches(self) -> Switches:
        """The switches of people: builtins and categories."""
        return self._parts.switches

    @property
    def toolsets(self) -> ToolsetRuntime:
        """The installed toolsets: their library, and what runs them."""
        return self._parts.toolsets.get()

    @property
    def upstreams(self) -> UpstreamRegistry:
        """The upstream servers."""
        return self._parts.upstreams.get()

    def passthrough(self) -> UpstreamPassthrough | None:
        """Return the prompts and resources of upstreams; None while there are no upstreams."""
        return None if self._parts.upstreams.peek() is None else self._parts.passthrough.get()

    def watch_upstreams(self, listener: Callable[[Collection[str]], None]) -> None:
        """Call `listener` with the lists, such as `prompts`, in which upstreams may offer something else."""
        self._listeners.append(listener)

    def first_lists(self) -> asyncio.Task[None] | None:
        """Return what a list waits for: servers that were never listed before; None once they are."""
        return self._first_lists

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
        """Call a tool by its name or id. With `confirmed` you agree to whatever it would ask first; else `approver` is
        asked, and may change the arguments. An empty `parent_message` is the beginning of the chat."""
        caller = caller or Caller()
        if chat is None:
            chat = self.chat or Principal(caller.principal, chats=self._parts.chat_names).default_chat
        call = Call(
            name=name,
            arguments=arguments or {},
            chat=check_chat(chat),
            message=message,
            parent_message=parent_message,
            caller=caller,
            confirmed=confirmed,
            progress=progress,
        )
        return await self.approval_flow.call_with_approver(call, approver)

    async def allow_servers(self, toolset_id: str, digests: Mapping[str, str], by: str) -> Mapping[str, Upstream]:
        """Record a person's consent to MCP servers of a toolset, by the digests that were shown (`{id: digest}`), and
        connect to each once, so that its tools are known. Returns the servers that are on, by id; refused with
        `Conflict` when one has changed since it was shown."""
        await self.toolsets.library.allow_servers(toolset_id, digests, by)
        await self.upstreams.sync()
        await self.upstreams.discover(DISCOVERY_SECONDS, digests)
        await self.refresh()
        return {name: upstream for name, upstream in self.upstreams.by_name.items() if name in digests}

    async def refresh(self) -> Catalog:
        """List the tools of all sources again and offer them. New problems for an operator to correct are logged."""
        async with self._refresh_lock:
            revisions, installed = await self._load_revisions(), await self.installed_toolsets()
            profile, access = self.settings.effective_profile(), self.roles.profile_access(self.settings.profile)
            self._parts.set_categories(await self.switches.load_categories())
            limit, first = self.settings.limits.tools, self.settings.tools.first
            self._add_admin_tools()
            lists = self.settings.tools.list_policy.override(access.lists if access is not None else None)
            policy = CatalogPolicy(self._parts.categories, profile.permission, limit, first, access, lists)
            if (discovery := self._parts.discovery) is not None:
                own = [CatalogEntry(tool.id, tool, discovery) for tool in await discovery.list_tools()]
                policy = replace(policy, discovery=own, about=self._describe_owners(installed))
            draft = Draft(policy)
            for source in self._parts.sources:
                await self._add_tools(draft, source)
            unlisted = await self._find_unlisted_servers(draft.known, installed)
            given, owners = await self._parts.tool_names.assign(draft.wishes)
            draft.problems += check_tool_patterns(self.settings, draft.known, unlisted, owners)
            draft.problems += self._find_overruled_categories()
            draft.problems += [toolset.problem for toolset in installed if toolset.problem is not None]
            if (registry := self._parts.upstreams.peek()) is not None:
                draft.problems += [problem for each in registry.by_name.values() for problem in each.problems]
            catalog = draft.finish(given, owners)
            logged = set(map(str, self.catalog.problems))
            for problem in dict.fromkeys(map(str, catalog.problems)):
                if problem not in logged:
                    PROBLEMS.warning("%s", problem)
            self.executor.swap(catalog)
            self._revisions = revisions
            return catalog

    async def make_policy_executor(self, settings: Settings) -> Executor:
        """Return an executor that decides about calls as this gateway would with other settings, and runs nothing."""
        names = {*settings.effective_categories(), *self._parts.categories}
        categories = {name: self._parts.make_category(name, settings) for name in names}
        access = Roles(settings.roles, settings.profiles).profile_access(settings.profile)
        draft = Draft(CatalogPolicy(categories, settings.effective_profile().permission, access=access))
        for source in self._parts.sources:
            for tool in await source.list_tools():
                draft.consider(source, self._switch(tool))
        given = {entry.tool.id: entry.name for entry in self.catalog}
        entries = [
            CatalogEntry(given.get(tool.id, wire_name(tool.id, tool.prefix)), tool, _NO_SOURCE)
            for _, tool in draft.offered.values()
        ]
        return self._parts.make_policy_executor(settings, Catalog(entries, draft.withheld), categories)

    def _find_overruled_categories(self) -> list[GatewayError]:
        """Return the categories that the settings or a flag turn on, and an earlier switch of a person keeps off."""
        wanted, categories = self.settings.tools.enabled_categories, self._parts.categories
        return [
            Conflict(
                f"category {name!r} stays off: it was turned off with `toolgate category disable`, which wins over "
                f"settings and flags; turn it on with: toolgate category enable {name}",
                code="CATEGORY_OFF",
            )
            for name in wanted
            if name in categories and not categories[name].enabled
        ]

    async def record_call(self, call_id: str) -> None:
        """Record a call that this process has just begun; otherwise only one that takes a moment is recorded early."""
        await self._parts.audit.record_now(call_id)

    def cancel_call(self, call_id: str, by: str) -> bool:
        """Cancel a call that this process runs; False if it runs no such call."""
        return self._parts.concurrency.cancel(call_id, by)

    async def reload(self) -> None:
        """Offer what was changed in the database: start to connect to new servers, and list all tools again."""
        if await self._has_upstreams():
            await self.upstreams.sync()
            await self.upstreams.discover(0)
        await self.refresh()

    async def ready(self) -> None:
        """Refuse while the database does not answer or the gateway is stopping."""
        if self._parts.concurrency.stopping:
            raise Unavailable("the gateway is stopping", code="SHUTTING_DOWN")
        await self._parts.db.fetch("SELECT 1")

    @property
    def storage_failure(self) -> str | None:
        """The reason why call records wait to be written; None while they are written."""
        return self._parts.db.failure

    @property
    def health(self) -> HealthMonitor:
        """The state of the gateway's parts."""
        if self._health is None:
            # Imported when needed: a process that runs one command checks nothing.
            from gateway.admin.health_monitor import HealthMonitor

            self._health = HealthMonitor(self, self._parts.health_events, self._parts.instance, self._serves)
        return self._health

    async def check_parts(self) -> list[HealthCheck]:
        """Return the state of each part: what is wrong, and since when."""
        return await self.health.check()

    async def _watch_health(self) -> None:
        """Note problems when they begin and end; runs until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(HEALTH_SECONDS)
                await self.health.check(thorough=False)
        finally:
            if self._health is not None:
                await self._health.close()

    @property
    def running_tools(self) -> Sequence[str]:
        """The ids of the tools whose calls run now, once for each call."""
        return self._parts.concurrency.running

    async def drain(self) -> None:
        """Let running calls finish within the grace period, and cancel the rest; all are recorded."""
        await self._parts.concurrency.drain(self.settings.server.shutdown_grace)
        await self.executor.idle()
        await self.versions.close()
        await self.builtins.close()
        if self._refresh_task is not None:
            await _cancel(self._refresh_task)
        self._parts.rate_limit.close()
        for part in (self._parts.discovery, self._parts.upstreams.peek(), self._parts.toolsets.peek()):
            if part is not None:
                await part.close()

    @property
    def otlp_failures(self) -> dict[str, str]:
        """The reasons why traces or metrics are not sent; empty while they are, or without a receiver."""
        senders = {"traces": self._parts.tracer, "metrics": self._metric_sender}
        return {signal: each.failure for signal, each in senders.items() if each is not None and each.failure}

    def _start_metrics(self) -> asyncio.Task[None]:
        # Imported only here: without an exporter nobody pays for it.
        from gateway.admin.otlp_metrics import MetricSender

        self._metric_sender = MetricSender(self, self._parts.otlp_endpoint, self._parts.instance)
        return asyncio.create_task(self._metric_sender.run())

    async def _flush_traces(self) -> None:
        if self._parts.tracer is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._parts.tracer.close(), TRACES_SECONDS)

    def _close_credentials(self) -> None:
        if (changes := self._parts.credential_changes.peek()) is not None:
            changes.close()

    async def _start_upstreams(self, stack: AsyncExitStack) -> None:
        first, again = await self.upstreams.start()
        if first:
            await asyncio.wait(first, timeout=STARTUP_SECONDS)
        if not all(task.done() for task in (*first, *again)):
            self._first_lists = asyncio.create_task(self._finish_first_lists(first, again))
            stack.push_async_callback(_cancel, self._first_lists)

    async def _finish_first_lists(self, first: list[asyncio.Task[None]], again: list[asyncio.Task[None]]) -> None:
        try:
            await asyncio.wait([*first, *again], timeout=NEXT_LIST_SECONDS)
            if first:
                await asyncio.wait(first, timeout=FIRST_LIST_SECONDS - STARTUP_SECONDS - NEXT_LIST_SECONDS)
            await self.refresh()
        finally:
            self._first_lists = None

    def _add_admin_tools(self) -> None:
        if self._has_admin_tools or not self.categories[ADMIN_CATEGORY].enabled:
            return
        # Imported once they are turned on: few processes offer them.
        from gateway.admin.admin_tools import AdminSource

        self._parts.sources.append(AdminSource(self))
        self._has_admin_tools = True

    async def _add_tools(self, draft: Draft, source: Source) -> None:
        tools = await source.list_tools()
        if source is self.builtins:  # the first source; a toolset's name for one of them is off with it
            self._off_tools = await self.switches.sync_builtins(tools)
        for tool in tools:
            if source.name in _OPEN_CATEGORIES:
                self._parts.add_category(tool.category)
            draft.consider(source, self._switch(tool))

    def _switch(self, tool: Tool) -> Tool:
        """Return the tool, withheld if a person turned it off."""
        for switched in self._off_tools.intersection(tool.ids):
            return replace(tool, withheld=f"it is turned off; turn it on with: toolgate tool enable {switched}")
        return tool

    def _describe_owners(self, installed: Sequence[InstalledToolset]) -> dict[str, str]:
        """Return the purpose of servers, toolsets and categories, by name."""
        registry = self._parts.upstreams.peek()
        servers = {} if registry is None else {name: each.instructions for name, each in registry.by_name.items()}
        toolsets = {toolset.id: toolset.spec.description for toolset in installed}
        categories = {name: category.description for name, category in self.categories.items()}
        return {name: text for name, text in {**categories, **toolsets, **servers}.items() if text}

    async def _find_unlisted_servers(
        self, known: Collection[str], installed: Sequence[InstalledToolset]
    ) -> Collection[str] | None:
        """The servers whose tools are not known yet; None while toolsets, of unknown names, are being installed."""
        if self._installing is not None and not self._installing.done():
            return None
        _, rows = await self._parts.upstream_rows.load()
        registry = self._parts.upstreams.peek()
        connected = registry.by_name if registry is not None else ()
        from_toolsets = [server.id for toolset in installed for server in toolset.servers]
        names = {*self.settings.upstreams, *connected, *from_toolsets, *(row.name for row in rows)}
        return names - {tool_id.partition(":")[0] for tool_id in known}

    async def _follow(self) -> None:
        """Offer what changes about toolsets and upstreams; runs until it is cancelled."""
        edited = asyncio.Event()
        followed = self._revisions  # a refresh alone does not connect to new servers
        cancelled = await self.records.cancel_revision()
        while True:
            with suppress(GatewayError):  # a database that does not answer now may answer next time
                if (revisions := await self._load_revisions()) != followed:
                    await self.reload()
                    followed = revisions
                if (requested := await self.records.cancel_revision()) != cancelled:
                    cancelled = requested
                    for call_id, by in await self.records.list_cancel_requests():
                        self.cancel_call(call_id, by)
                if self._revisions[0]:
                    await self.toolsets.watch(edited.set)
            with suppress(TimeoutError):
                await asyncio.wait_for(edited.wait(), FOLLOW_SECONDS)
            edited.clear()

    async def remove_old_records(self) -> int:
        """Remove call records, counts of usage and ended problems that are older than `retention` allows, and log how
        many records. Return that number."""
        retention, now = self.settings.retention, time.time()
        since = None if retention.days is None else now - retention.days * DAY
        removed = await self.records.remove_old(retention.calls, since)
        if removed:
            log.warning("%d call records were removed, as the settings say (retention); their counts are kept", removed)
        if retention.usage_days is not None:
            await self.usage.remove(timestamp(now - retention.usage_days * DAY)[:10])
        await self._parts.health_events.remove(timestamp(now - EVENT_DAYS * DAY))
        return removed

    async def _apply_retention(self) -> None:
        """Remove old records once an hour; runs until it is cancelled."""
        while True:
            await asyncio.sleep(RETENTION_SECONDS)
            with suppress(GatewayError):  # tried again later
                await self.remove_old_records()

    async def _reap(self) -> None:
        """Remove soft-deleted toolsets when their time is over; runs until it is cancelled."""
        while True:
            with suppress(GatewayError):  # tried again later
                if await self._parts.toolset_rows.revision():
                    await self.toolsets.library.reap(time.time() - REAP_AFTER_SECONDS)
            await asyncio.sleep(REAP_SECONDS)

    async def _load_revisions(self) -> tuple[int, ...]:
        """Numbers that grow with every change, by any process, of toolsets, upstreams, accepted definitions and
        switches."""
        parts = self._parts
        stores = (parts.toolset_rows, parts.upstream_rows, parts.pins, parts.switches)
        return tuple([await store.revision() for store in stores])

    async def _has_upstreams(self) -> bool:
        if (
            self.settings.upstreams
            or self._parts.upstreams.peek() is not None
            or await self._parts.upstream_rows.revision()
        ):
            return True
        return any(toolset.allowed_servers for toolset in await self.installed_toolsets())

    def _schedule_refresh(self, lists: Collection[str]) -> None:
        """Refresh because upstreams list something else; a change during a refresh causes another one."""
        self._changed_lists.update(lists)
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(self._refresh_until_current())

    async def _refresh_until_current(self) -> None:
        while self._changed_lists:
            lists, self._changed_lists = self._changed_lists, set()
            try:
                await self.refresh()
            except GatewayError as error:
                log.warning("the catalog could not be refreshed: %s", error)
            for listener in self._listeners:
                listener(lists)


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
