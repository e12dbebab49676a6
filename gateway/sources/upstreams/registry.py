"""All upstream servers together: set up from wherever they were named, kept in line with it, asked what they have."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
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
from gateway.sources.upstreams.forward import RequestForwarder, UpstreamRequest
from gateway.sources.upstreams.secret_store import SecretStore
from gateway.sources.upstreams.spec import ADDED, SETTINGS, Spec
from gateway.sources.upstreams.tools import Override
from gateway.sources.upstreams.upstream import Upstream
from gateway.sources.upstreams.uris import prefix_of, public_blocks
from gateway.tasks import TaskSet
from gateway.tools import Tool

if TYPE_CHECKING:
    from gateway.bundles.installed import InstalledToolset
    from gateway.bundles.spec import Server


_TEXT_LIMIT = 4096


class UpstreamSource:
    """Every upstream in one source; each is known by the owner of its tools."""

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
            raise NotFound(f"the upstream of {tool.id} has just been removed", code="UNKNOWN_TOOL")
        params = {"name": tool.id.partition(":")[2], "arguments": dict(call.arguments)}
        spec = upstream.spec
        request = UpstreamRequest("tools/call", params, call, tool.id, spec.name, trusted=spec.terms.trusted)
        return _outcome(await self.forwarder.answer(upstream, request), prefix_of(upstream.spec))

    async def close(self) -> None:
        """End the calls that wait for answers."""
        await self.forwarder.close()


def _outcome(result: dict[str, Any], prefix: str) -> Outcome:
    content = result.get("content")
    blocks = public_blocks(prefix, content) if isinstance(content, list) else []
    if result.get("resultType") == "input_required":
        asked = InputRequired("the server asks for more before it answers", reason="the server asks for more")
        return Outcome(error=asked, wire=result)
    if result.get("isError"):
        return Outcome(error=ToolFailed(_text(blocks) or "the tool failed without a word"), content=blocks, wire=result)
    value = result.get("structuredContent", blocks)
    return Outcome(value=value, content=blocks, wire=result)


def _text(blocks: Sequence[Any]) -> str:
    texts = [block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)]
    return "\n".join(texts)[:_TEXT_LIMIT]


log = logging.getLogger(__name__)

FACE = ClientIdentity(
    "toolgate",
    __version__,
    # What our own clients can be asked differs; a question to one that cannot be asked is refused then.
    {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}},
)
_KEPT = ("command", "cwd", "url", "enabled", "requires_confirmation", "prefix", "permission", "timeout")


class UpstreamRegistry:
    """The upstreams of one gateway. `changed` is told whenever another catalog may be due."""

    def __init__(
        self,
        db: Database,
        settings: Settings,
        changed: Callable[[], None],
        toolsets: Callable[[], Awaitable[Sequence[InstalledToolset]]],
    ) -> None:
        self.source = UpstreamSource()
        self.store = Upstreams(db)
        self.pins = Pins(db)
        self.secrets = SecretStore(settings.data_dir)
        self.logins = Logins(settings.data_dir)
        self._settings = settings
        self._changed = changed
        self._toolsets = toolsets
        self._pinned = 0
        self._tasks = TaskSet()

    @property
    def by_name(self) -> dict[str, Upstream]:
        return dict(self.source.upstreams)

    async def sync(self) -> None:
        """Bring the upstreams in line with what is set up now: new ones are remembered, changed ones begin anew."""
        specs = {spec.name: spec for spec in await self.specs()}
        before = self.source.upstreams
        kept = {name: each for name, each in before.items() if specs.get(name) == each.spec}
        fresh = {name: self._upstream(spec) for name, spec in specs.items() if name not in kept}
        self.source.upstreams = {name: kept.get(name) or fresh[name] for name in specs}
        for name, each in before.items():
            if name not in kept:
                self._tasks.start(each.close())  # nobody waits for one that does not want to end
        if len(kept) < len(before):
            self._changed()
        for each in fresh.values():
            await self._each(each, each.load_cached())
        if await self.pins.revision() != self._pinned:
            await self.apply_pins()

    async def apply_pins(self) -> None:
        """Offer what was accepted meanwhile, and nothing that was rejected."""
        self._pinned = await self.pins.revision()
        for each in self.source.upstreams.values():
            await self._each(each, each.apply_pins())

    @property
    def own(self) -> frozenset[str]:
        """The names of the servers that come from no toolset."""
        return frozenset(name for name, each in self.source.upstreams.items() if each.spec.terms.home is None)

    async def discover(self, patience: float, names: Collection[str] | None = None) -> None:
        """Ask those that are wanted at once, or were never seen, of all servers or of those with these names; what
        takes longer is announced when it comes."""
        asked = [each for name, each in self.source.upstreams.items() if names is None or name in names]
        looking = [
            self._tasks.start(each.discover()) for each in asked if not each.known or not each.spec.settings.lazy
        ]
        if looking and patience:
            await asyncio.wait(looking, timeout=patience)

    async def close(self) -> None:
        await self.source.close()
        upstreams, self.source.upstreams = self.source.upstreams, {}
        await asyncio.gather(*(each.close() for each in upstreams.values()), *self._tasks, return_exceptions=True)

    async def specs(self) -> list[Spec]:
        """Every server that is on, and that a person agreed to where a toolset brings it. Of two with one name, the
        settings' counts, then the one added by hand, whether it is on or off."""
        found: dict[str, Spec] = {}
        _, rows = await self.store.load()
        for spec in [*self._of_settings(), *_of_rows(rows), *_of_toolsets(await self._toolsets())]:
            if spec.name in found:
                log.warning("the upstream %r of %s is passed over: there is one of that name", spec.name, spec.origin)
            else:
                found[spec.name] = spec
        return [spec for spec in found.values() if spec.settings.enabled]

    async def _each(self, upstream: Upstream, work: Awaitable[None]) -> None:
        """One server whose memory or pins cannot be read now keeps no other from being offered."""
        try:
            await work
        except GatewayError as error:
            log.warning("upstream %s: %s", upstream.spec.name, error)

    def _of_settings(self) -> Iterator[Spec]:
        for name, settings in self._settings.upstreams.items():
            yield Spec.of(name, settings, SETTINGS)

    def _upstream(self, spec: Spec) -> Upstream:
        def others() -> set[str]:
            strangers = [each for each in self.source.upstreams.values() if each.spec.name != spec.name]
            return {tool.id.partition(":")[2] for each in strangers for tool in each.tools}

        # What is kept for a server added by hand is for none that a toolset brings under the same name.
        environment = self.secrets.environment(spec.name) if spec.origin == ADDED else os.environ
        options = (others, environment, self.logins, self._settings)
        return Upstream(spec, self.store, self.pins, FACE, self._changed, *options)


def _of_rows(rows: Sequence[UpstreamRow]) -> Iterator[Spec]:
    for row in rows:
        try:
            settings = UpstreamSettings.model_validate({**row.settings, "enabled": row.enabled})
        except ValueError as error:
            log.warning("the upstream %r added by hand cannot be read: %s", row.name, error)
            continue
        yield Spec.of(row.name, settings, ADDED)


def _of_toolsets(toolsets: Sequence[InstalledToolset]) -> Iterator[Spec]:
    for toolset in toolsets:
        for server in toolset.allowed_servers if toolset.enabled else ():
            overrides = {
                tool_id.partition(":")[2]: Override.of(said)
                for tool_id, said in toolset.overrides.items()
                if tool_id.partition(":")[0] == server.id
            }
            origin = f"the toolset {toolset.id!r}"
            yield Spec.of(server.id, _settings(server), origin, overrides, toolset.directory)


def _settings(server: Server) -> UpstreamSettings:
    said = {key: getattr(server, key) for key in _KEPT if getattr(server, key) is not None}
    said |= {"args": list(server.args), "env": dict(server.env), "headers": dict(server.headers)}
    said |= {"tools": {"allow": list(server.tools.allow), "deny": list(server.tools.deny)}}
    said |= {"type": server.transport} if server.transport else {}
    said |= {"category": server.category} if server.category else {}
    said |= {"lazy": server.lazy} if server.lazy is not None else {}
    if server.sandbox is not None:
        rights = server.sandbox
        said["sandbox"] = rights if isinstance(rights, bool) else rights.model_dump(mode="json")
    return UpstreamSettings.model_validate(said)
