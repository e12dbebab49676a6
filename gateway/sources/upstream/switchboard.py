"""All upstream servers together: set up from wherever they were named, kept in line with it, asked what they have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ... import __version__
from ...config import Settings, UpstreamSettings
from ...db import Database
from ...db.pins import Pins
from ...db.upstreams import UpstreamRow, Upstreams
from .link import ClientFace
from .listing import Override
from .server import Upstream
from .source import UpstreamSource
from .spec import Spec

if TYPE_CHECKING:  # a process without toolsets imports none of it
    from ...bundles.installed import Installed
    from ...bundles.spec import Server

log = logging.getLogger(__name__)

FACE = ClientFace(
    "toolgate",
    __version__,
    # What our own clients can be asked differs; a question to one that cannot be asked is refused then.
    {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}},
)
ADDED = "added by hand"
_KEPT = ("command", "cwd", "url", "enabled", "requires_confirmation", "prefix", "permission", "timeout")


class Switchboard:
    """The upstreams of one gateway. `changed` is told whenever another catalog may be due."""

    def __init__(
        self,
        db: Database,
        settings: Settings,
        changed: Callable[[], None],
        toolsets: Callable[[], Awaitable[Sequence[Installed]]],
    ) -> None:
        self.source = UpstreamSource()
        self.memory = Upstreams(db)
        self.pins = Pins(db)
        self._settings = settings
        self._changed = changed
        self._toolsets = toolsets
        self._pinned = 0
        self._looking: set[asyncio.Task[None]] = set()

    @property
    def upstreams(self) -> dict[str, Upstream]:
        return dict(self.source.upstreams)

    async def sync(self) -> None:
        """Bring the upstreams in line with what is set up now: new ones are remembered, changed ones begin anew."""
        specs = {spec.name: spec for spec in await self.specs()}
        kept = {name: each for name, each in self.source.upstreams.items() if specs.get(name) == each.spec}
        left = [each for name, each in self.source.upstreams.items() if name not in kept]
        fresh = {name: self._upstream(spec) for name, spec in specs.items() if name not in kept}
        self.source.upstreams = {name: kept.get(name) or fresh[name] for name in specs}
        for each in fresh.values():
            await each.recall()
        await asyncio.gather(*(each.close() for each in left), return_exceptions=True)
        if await self.pins.revision() != self._pinned:
            await self.settle()

    async def settle(self) -> None:
        """Offer what was accepted meanwhile, and nothing that was rejected."""
        for each in self.source.upstreams.values():
            await each.settle()
        self._pinned = await self.pins.revision()

    async def revision(self) -> tuple[int, int]:
        """Grows with every server added or removed, and every definition accepted or rejected, by any process."""
        return await self.memory.revision(), await self.pins.revision()

    async def look(self, patience: float) -> None:
        """Ask those that are wanted at once, or were never seen; what takes longer is announced when it comes."""
        for each in self.source.upstreams.values():
            if not each.tools or not each.spec.settings.lazy:
                task = asyncio.get_running_loop().create_task(each.look())
                self._looking.add(task)
                task.add_done_callback(self._looking.discard)
        if self._looking:
            await asyncio.wait(self._looking, timeout=patience)

    async def close(self) -> None:
        for task in list(self._looking):
            task.cancel()
        await self.source.close()
        await asyncio.gather(*(each.close() for each in self.source.upstreams.values()), return_exceptions=True)

    async def specs(self) -> list[Spec]:
        """Every server that is on. Of two with one name, the settings' counts, then the one added by hand."""
        found: dict[str, Spec] = {}
        _, rows = await self.memory.load()
        for spec in [*self._of_settings(), *_of_rows(rows), *_of_toolsets(await self._toolsets())]:
            if spec.name in found:
                log.warning("the upstream %r of %s is passed over: there is one of that name", spec.name, spec.origin)
            elif spec.settings.enabled:
                found[spec.name] = spec
        return list(found.values())

    def _of_settings(self) -> Iterator[Spec]:
        for name, settings in self._settings.upstreams.items():
            yield Spec.of(name, settings, "the settings")

    def _upstream(self, spec: Spec) -> Upstream:
        def others() -> set[str]:
            strangers = [each for each in self.source.upstreams.values() if each.spec.name != spec.name]
            return {tool.id.partition(":")[2] for each in strangers for tool in each.tools}

        return Upstream(spec, self.memory, self.pins, FACE, self._changed, others)


def _of_rows(rows: Sequence[UpstreamRow]) -> Iterator[Spec]:
    for row in rows:
        try:
            settings = UpstreamSettings.model_validate({**row.settings, "enabled": row.enabled})
        except ValueError as error:
            log.warning("the upstream %r added by hand cannot be read: %s", row.name, error)
            continue
        yield Spec.of(row.name, settings, ADDED)


def _of_toolsets(toolsets: Sequence[Installed]) -> Iterator[Spec]:
    for toolset in toolsets:
        for server in toolset.servers if toolset.enabled else ():
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
    return UpstreamSettings.model_validate(said)
