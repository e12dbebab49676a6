"""What the commands about upstreams work on: every server that is set up, none of them asked."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass

from pydantic import ValidationError

from gateway.app import Gateway
from gateway.bundles.field_types import RESERVED
from gateway.bundles.installed import InstalledToolset
from gateway.config import Settings, UpstreamSettings, refuse_unavailable
from gateway.db.instances import Instance
from gateway.db.sqlite import SqliteDatabase
from gateway.db.toolsets import Toolsets
from gateway.errors import Conflict, GatewayError, Invalid, NotFound
from gateway.names import did_you_mean
from gateway.oauth.store import Account
from gateway.sources.upstreams.client_configs import NAME
from gateway.sources.upstreams.credentials import Access
from gateway.sources.upstreams.registry import FACE, UpstreamRegistry
from gateway.sources.upstreams.secret_store import SecretStore
from gateway.sources.upstreams.spec import ADDED, SETTINGS, Spec
from gateway.sources.upstreams.upstream import Upstream


@dataclass(frozen=True)
class Desk:
    """The stores, and `specs`: every server by name, those that are off among them. `held` has the servers that wait
    for a person's consent, each with its toolset."""

    settings: Settings
    board: UpstreamRegistry
    specs: Mapping[str, Spec]
    toolsets: frozenset[str]
    held: Mapping[str, InstalledToolset]

    @property
    def vault(self) -> SecretStore:
        return self.board.secrets

    def spec(self, name: str) -> Spec:
        if name not in self.specs:
            if name in self.held and (problem := self.held[name].problem):
                raise problem
            hint = did_you_mean(name, self.specs) or "; see: toolgate upstream list"
            raise NotFound(f"there is no upstream {name!r}{hint}", code="UNKNOWN_UPSTREAM")
        return self.specs[name]

    def environment(self, spec: Spec) -> Mapping[str, str]:
        """What `${VAR}` means to a server."""
        return self.vault.environment(spec.name) if spec.origin == ADDED else os.environ

    def access(self, spec: Spec) -> Access:
        """How a server is reached, and the login for it."""
        return Access(spec, self.environment(spec), self.board.logins, self.settings)

    def account(self, name: str) -> Account | None:
        """Whom a login to a server is for, where that can be said: one can log out of a server whatever it lacks."""
        try:
            return self.access(self.specs[name]).account() if name in self.specs else None
        except GatewayError:
            return None

    def upstream(self, spec: Spec) -> Upstream:
        """A server to be asked apart from all others; whoever asks for it closes it."""

        def others() -> set[str]:
            return {
                tool.id.partition(":")[2]
                for name, each in self.board.by_name.items()
                if name != spec.name
                for tool in each.tools
            }

        board = self.board
        options = (others, self.environment(spec), board.logins, self.settings)
        return Upstream(spec, board.store, board.pins, FACE, _unheard, *options)

    def require_free(self, name: str) -> None:
        """Refuse a name no new server can have."""
        if not NAME.fullmatch(name):
            raise Invalid(
                f"{name[:80]!r} cannot be the name of an upstream: letters, digits, - and _, at most 64, first a "
                "letter or digit",
                code="INVALID_NAME",
            )
        if name.lower() in RESERVED:
            raise Invalid(f"{name!r} is reserved; choose another name", code="INVALID_NAME")
        if name in self.specs:
            origin = self.specs[name].origin
            fix = f"remove it first: toolgate upstream remove {name}" if origin == ADDED else "choose another name"
            raise Conflict(f"there is an upstream {name!r} already, from {origin}; {fix}", code="UPSTREAM_EXISTS")
        if name in self.held:
            fix = f"choose another name, or: toolgate toolset uninstall {self.held[name].id}"
            raise Conflict(f"a toolset brings an upstream {name!r}; {fix}", code="UPSTREAM_EXISTS")
        if name in self.toolsets:
            raise Conflict(
                f"{name!r} is the id of a toolset, whose tools it would meet; choose another name", code="NAME_TAKEN"
            )

    def require_added(self, name: str) -> Spec:
        """A server one can change here; refused when it was set up elsewhere."""
        spec = self.spec(name)
        if spec.origin != ADDED:
            raise Conflict(f"{name!r} is set up in {spec.origin}; change it there", code="SET_UP_ELSEWHERE")
        return spec


@asynccontextmanager
async def desk(settings: Settings) -> AsyncIterator[Desk]:
    """Everything at hand and nothing started: a server that hangs must keep nobody from removing it."""
    refuse_unavailable(settings)
    async with AsyncExitStack() as stack:
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        db = await SqliteDatabase.open(settings.data_dir / "toolgate.db")
        stack.push_async_callback(db.close)
        instance = stack.enter_context(closing(Instance(settings.data_dir / "run")))
        gateway = Gateway(settings, db, instance, ())
        stack.push_async_callback(gateway.drain)

        async def installed() -> Sequence[InstalledToolset]:
            return await gateway.toolsets.library.list() if await Toolsets(db).revision() else ()

        board = UpstreamRegistry(db, settings, _unheard, installed)
        stack.push_async_callback(board.close)
        await board.sync()
        toolsets, specs = await installed(), await _specs(settings, board)
        held = {server.id: each for each in toolsets if each.enabled for server in each.pending_servers}
        brought = {name: each for name, each in held.items() if name not in specs}
        yield Desk(settings, board, specs, frozenset(toolset.id for toolset in toolsets), brought)


async def _specs(settings: Settings, board: UpstreamRegistry) -> dict[str, Spec]:
    found = {spec.name: spec for spec in await board.specs()}
    for name, said in settings.upstreams.items():
        found.setdefault(name, Spec.of(name, said, SETTINGS))
    _, rows = await board.store.load()
    for row in rows:
        if row.name not in found:
            found[row.name] = Spec.of(row.name, _read(row.settings, row.enabled), ADDED)
    return dict(sorted(found.items()))


def _read(settings: Mapping[str, object], enabled: bool) -> UpstreamSettings:
    try:
        return UpstreamSettings.model_validate({**settings, "enabled": enabled})
    except ValidationError:  # written by another version; it can still be looked at and removed
        return UpstreamSettings(command="unreadable", enabled=False)


def _unheard() -> None:
    """Nobody is offered anything here: there is no catalog to make anew."""
