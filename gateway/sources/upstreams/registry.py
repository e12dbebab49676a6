"""The registry of upstream servers, from the settings, the database and toolsets, and the source of their tools."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway import __version__
from gateway.calls import Call, Outcome
from gateway.config import Settings, UpstreamSettings
from gateway.db import Database
from gateway.db.pins import Pins
from gateway.db.upstreams import UpstreamRow, Upstreams
from gateway.errors import GatewayError, InputRequired, NotFound, ToolFailed
from gateway.mcp_client import ClientIdentity
from gateway.oauth.store import Logins
from gateway.protocol import UI_EXTENSION, UI_MIME_TYPE
from gateway.sources.stored_secrets import SecretStore
from gateway.sources.upstreams.definitions import BESIDE_TOOLS
from gateway.sources.upstreams.forward import RequestForwarder, UpstreamRequest
from gateway.sources.upstreams.spec import ADDED, SETTINGS, Spec
from gateway.sources.upstreams.tools import Override
from gateway.sources.upstreams.upstream import Upstream
from gateway.sources.upstreams.uris import prefix_of, public_blocks, public_meta
from gateway.tasks import TaskSet
from gateway.tools import Tool

if TYPE_CHECKING:
    from gateway.bundles.installed import InstalledToolset
    from gateway.bundles.spec import Server


_TEXT_LIMIT = 4096
_UNANSWERED = "it has not answered yet"


class UpstreamSource:
    """The tools of all upstreams; a tool's owner is its upstream."""

    name = "upstreams"

    def __init__(self, forwarder: RequestForwarder | None = None) -> None:
        self.upstreams: Mapping[str, Upstream] = {}
        self.forwarder = forwarder or RequestForwarder()

    async def list_tools(self) -> Sequence[Tool]:
        return [tool for upstream in self.upstreams.values() for tool in upstream.tools]

    async def call_tool(self, call: Call) -> Outcome:
        tool = call.target
        upstream = self.upstreams.get(tool.owner or "")
        if upstream is None:
            raise NotFound(f"the upstream of {tool.id} was removed", code="UNKNOWN_TOOL")
        params = {"name": tool.id.partition(":")[2], "arguments": dict(call.arguments)}
        spec = upstream.spec
        request = UpstreamRequest("tools/call", params, call, tool.id, spec.name, trusted=spec.terms.trusted)
        result: Mapping[str, Any] = await self.forwarder.answer(upstream, request)
        if tool.has_own_view:
            result = public_meta(prefix_of(spec), result)
        return _outcome(result, prefix_of(spec))

    async def close(self) -> None:
        """Cancel calls that wait for answers."""
        await self.forwarder.close()


def _outcome(result: Mapping[str, Any], prefix: str) -> Outcome:
    content = result.get("content")
    blocks = public_blocks(prefix, content) if isinstance(content, list) else []
    if result.get("resultType") == "input_required":
        asked = InputRequired("the server asks for input before it answers", reason="the server asks for input")
        return Outcome(error=asked, wire=result)
    if result.get("isError"):
        return Outcome(
            error=ToolFailed(_text(blocks) or "the tool failed without a message"), content=blocks, wire=result
        )
    value = result.get("structuredContent", blocks)
    return Outcome(value=value, content=blocks, wire=result)


def _text(blocks: Sequence[Any]) -> str:
    texts = [block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)]
    return "\n".join(texts)[:_TEXT_LIMIT]


log = logging.getLogger(__name__)

CLIENT_IDENTITY = ClientIdentity(
    "toolgate",
    __version__,
    # Our clients' capabilities differ; a question that one cannot answer is refused when it is asked.
    {
        "elicitation": {"form": {}, "url": {}},
        "sampling": {"tools": {}},
        "roots": {},
        "extensions": {UI_EXTENSION: {"mimeTypes": [UI_MIME_TYPE]}},
    },
)
_SAME_FIELDS = ("command", "cwd", "url", "enabled", "requires_confirmation", "prefix", "permission", "timeout")


class UpstreamRegistry:
    """The upstreams of one gateway. `changed` is called whenever the catalog may have to be rebuilt, with the lists
    whose change clients are notified of."""

    def __init__(
        self,
        db: Database,
        settings: Settings,
        changed: Callable[[Collection[str]], None],
        toolsets: Callable[[], Awaitable[Sequence[InstalledToolset]]],
    ) -> None:
        self.source = UpstreamSource()
        self.store = Upstreams(db)
        self.pins = Pins(db)
        self.secrets = SecretStore(settings.data_dir)
        self.logins = Logins(settings.data_dir, settings.approval.keys)
        self._settings = settings
        self._changed = changed
        self._toolsets = toolsets
        self._pinned = 0
        self._restarts: dict[str, int] | None = None
        self._syncing = asyncio.Lock()
        self._tasks = TaskSet()

    @property
    def by_name(self) -> dict[str, Upstream]:
        return dict(self.source.upstreams)

    async def sync(self) -> None:
        """Apply the current configuration: add new upstreams with their last listing, replace changed ones. One whose
        tools alone are offered differently stays connected."""
        async with self._syncing:
            specs = {spec.name: spec for spec in await self.specs()}
            restarted = await self._find_restarted()
            before = self.source.upstreams
            kept = {
                name: each
                for name, each in before.items()
                if name not in restarted and name in specs and each.spec.connects_like(specs[name])
            }
            fresh = {name: self._upstream(spec) for name, spec in specs.items() if name not in kept}
            # Listed before they replace others: no tool is missing meanwhile.
            for name, each in fresh.items():
                await self._guard(each, each.load_cached())
                if name in restarted:
                    each.expect_change()
            self.source.upstreams = {name: kept.get(name) or fresh[name] for name in specs}
            # Not awaited, since closing may take long, unless the same server is started next.
            closing = {name: self._tasks.start(each.close()) for name, each in before.items() if name not in kept}
            if closing or fresh:
                self._changed(BESIDE_TOOLS)
            for name, each in kept.items():
                if each.spec != specs[name]:
                    each.spec = specs[name]
                    await self._guard(each, each.apply_pins())
            for name in restarted:
                if name in closing:
                    log.info("upstream %s is being restarted", name)
                    await asyncio.wait([closing[name]])
            if await self.pins.revision() != self._pinned:
                await self.apply_pins()

    async def _find_restarted(self) -> Collection[str]:
        """The servers that somebody restarted since the last time."""
        known, self._restarts = self._restarts, await self.store.restarts()
        return [name for name, count in self._restarts.items() if known is not None and count != known.get(name)]

    async def apply_pins(self) -> None:
        """Apply the pins again: offer what was accepted, withhold what was rejected."""
        self._pinned = await self.pins.revision()
        for each in self.source.upstreams.values():
            await self._guard(each, each.apply_pins())

    @property
    def own(self) -> frozenset[str]:
        """The names of servers that are not from a toolset."""
        return frozenset(name for name, each in self.source.upstreams.items() if each.spec.terms.home is None)

    def owners_of(self, tool: str) -> list[str]:
        """The servers that a tool with this public name may belong to."""
        return [name for name, each in self.source.upstreams.items() if tool.startswith(prefix_of(each.spec))]

    async def discover(
        self,
        patience: float,
        names: Collection[str] | None = None,
        report: Callable[[Collection[str]], None] = lambda _: None,
    ) -> list[str]:
        """Connect to servers that are not lazy or have to be listed, optionally only those with these names. Waits at
        most `patience` seconds, and returns the servers that did not answer by then; `report` is told which are waited
        for. Later listings are announced by `changed`."""
        asked = [each for name, each in self.source.upstreams.items() if names is None or name in names]
        looking = self._discover(asked)
        end = time.monotonic() + patience
        while looking and (left := end - time.monotonic()) > 0:
            report(looking)
            done, _ = await asyncio.wait(looking.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            looking = {name: task for name, task in looking.items() if task not in done}
        return list(looking)

    async def start(self) -> tuple[list[asyncio.Task[None]], list[asyncio.Task[None]]]:
        """Connect to the same servers; return tasks to wait for, of servers that were never listed: those that no start
        has tried before, and those that had not answered when the last start ended. One that failed or hangs is not
        waited for at every start."""
        unlisted = {name: each for name, each in self.source.upstreams.items() if not each.known}
        first = [name for name, each in unlisted.items() if each.last_error is None]
        for name in first:
            await self.store.record_failure(name, _UNANSWERED)
        looking = self._discover(self.source.upstreams.values())
        again = [name for name, each in unlisted.items() if each.last_error == _UNANSWERED]
        return [looking[name] for name in first], [looking[name] for name in again]

    def _discover(self, upstreams: Iterable[Upstream]) -> dict[str, asyncio.Task[None]]:
        wanted = [each for each in upstreams if each.needs_listing or not each.spec.settings.lazy]
        return {each.spec.name: self._tasks.start(each.discover()) for each in wanted}

    async def close(self) -> None:
        await self.source.close()
        upstreams, self.source.upstreams = self.source.upstreams, {}
        await asyncio.gather(*(each.close() for each in upstreams.values()), *self._tasks, return_exceptions=True)

    async def specs(self) -> list[Spec]:
        """All enabled servers; those of toolsets only with a person's consent. Of servers with the same name the
        settings' is used, then the one added by hand, even if it is disabled."""
        found: dict[str, Spec] = {}
        _, rows = await self.store.load()
        added = _of_rows(rows, self._settings.data_dir)
        for spec in [*self._of_settings(), *added, *_of_toolsets(await self._toolsets())]:
            if spec.name in found:
                log.warning("the upstream %r of %s is ignored: another server has that name", spec.name, spec.origin)
            else:
                found[spec.name] = spec
        return [spec for spec in found.values() if spec.settings.enabled]

    async def _guard(self, upstream: Upstream, work: Awaitable[None]) -> None:
        """Log the error of one server, so that it does not affect the others."""
        try:
            await work
        except GatewayError as error:
            log.warning("upstream %s: %s", upstream.spec.name, error)

    def _of_settings(self) -> Iterator[Spec]:
        for name, settings in self._settings.upstreams.items():
            yield Spec.configured(name, settings, SETTINGS, self._settings.data_dir)

    def _upstream(self, spec: Spec) -> Upstream:
        def other_tools() -> set[str]:
            others = [each for each in self.source.upstreams.values() if each.spec.name != spec.name]
            return {tool.id.partition(":")[2] for each in others for tool in each.tools}

        # Secrets of a server added by hand are not for a toolset's server of the same name.
        environment = self.secrets.environment(spec.name) if spec.origin == ADDED else os.environ
        options = (other_tools, environment, self.logins, self._settings)
        return Upstream(spec, self.store, self.pins, CLIENT_IDENTITY, self._changed, *options)


def _of_rows(rows: Sequence[UpstreamRow], data_dir: Path) -> Iterator[Spec]:
    for row in rows:
        try:
            settings = UpstreamSettings.model_validate({**row.settings, "enabled": row.enabled})
        except ValueError as error:
            log.warning("the upstream %r added by hand cannot be read: %s", row.name, error)
            continue
        yield Spec.configured(row.name, settings, ADDED, data_dir)


def _of_toolsets(toolsets: Sequence[InstalledToolset]) -> Iterator[Spec]:
    for toolset in toolsets:
        for server in toolset.allowed_servers if toolset.enabled else ():
            overrides = {
                tool_id.partition(":")[2]: Override.of(override)
                for tool_id, override in toolset.overrides.items()
                if tool_id.partition(":")[0] == server.id
            }
            origin = f"the toolset {toolset.id!r}"
            yield Spec.of(server.id, _settings(server), origin, overrides, toolset.directory)


def _settings(server: Server) -> UpstreamSettings:
    settings = {key: getattr(server, key) for key in _SAME_FIELDS if getattr(server, key) is not None}
    settings |= {"args": list(server.args), "env": dict(server.env), "headers": dict(server.headers)}
    settings |= {"tools": {"allow": list(server.tools.allow), "deny": list(server.tools.deny)}}
    settings |= {"type": server.transport} if server.transport else {}
    settings |= {"category": server.category} if server.category else {}
    settings |= {"lazy": server.lazy} if server.lazy is not None else {}
    if server.sandbox is not None:
        rights = server.sandbox
        settings["sandbox"] = rights if isinstance(rights, bool) else rights.model_dump(mode="json")
    return UpstreamSettings.model_validate(settings)
