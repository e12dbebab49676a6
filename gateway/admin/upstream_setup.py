"""Every upstream server that is set up: in the settings, by hand or by a toolset, on or off."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from gateway.bundles.field_types import RESERVED
from gateway.bundles.installed import InstalledToolset
from gateway.config import UpstreamSettings
from gateway.errors import Conflict, GatewayError, Invalid, NotFound
from gateway.names import did_you_mean
from gateway.oauth.store import LoginAccount
from gateway.sources.upstreams.client_configs import NAME
from gateway.sources.upstreams.credentials import UpstreamCredentials
from gateway.sources.upstreams.spec import ADDED, SETTINGS, Spec

if TYPE_CHECKING:
    from gateway.gateway import Gateway


@dataclass(frozen=True)
class UpstreamSetup:
    """Every server that is set up, on or off. `held` has the servers of toolsets that wait for a person's consent."""

    gateway: Gateway
    specs: Mapping[str, Spec]
    toolsets: frozenset[str]
    held: Mapping[str, InstalledToolset]

    def get(self, name: str) -> Spec:
        if name not in self.specs:
            if name in self.held and (problem := self.held[name].problem):
                raise problem
            hint = did_you_mean(name, self.specs) or "; see: toolgate upstream list"
            raise NotFound(f"there is no upstream {name!r}{hint}", code="UNKNOWN_UPSTREAM")
        return self.specs[name]

    def get_added(self, name: str) -> Spec:
        """Return a server that can be changed here; refused when it is set up elsewhere."""
        spec = self.get(name)
        if spec.origin != ADDED:
            raise Conflict(f"{name!r} is set up in {spec.origin}; change it there", code="SET_UP_ELSEWHERE")
        return spec

    def environment(self, spec: Spec) -> Mapping[str, str]:
        """The values of `${VARIABLE}` for a server."""
        return self.gateway.upstreams.secrets.environment(spec.name) if spec.origin == ADDED else os.environ

    def access(self, spec: Spec) -> UpstreamCredentials:
        """The endpoint of a server and the login for it."""
        return UpstreamCredentials(spec, self.environment(spec), self.gateway.upstreams.logins, self.gateway.settings)

    def account(self, name: str) -> LoginAccount | None:
        """The account of a login; None where it cannot be determined, which must not prevent a logout."""
        try:
            return self.access(self.specs[name]).account() if name in self.specs else None
        except GatewayError:
            return None

    def require_free(self, name: str) -> None:
        """Refuse a name that a new server cannot have."""
        if not NAME.fullmatch(name):
            raise Invalid(
                f"{name[:80]!r} cannot be the name of an upstream: use at most 64 letters, digits, - and _, and begin "
                "with a letter or digit",
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
                f"{name!r} is the id of a toolset, and their tools would share names; choose another name",
                code="NAME_TAKEN",
            )


async def load_setup(gateway: Gateway) -> UpstreamSetup:
    """Load every server that is set up, also those that are off."""
    registry = gateway.upstreams
    toolsets = await gateway.installed_toolsets()
    specs = {spec.name: spec for spec in await registry.specs()}
    for name, settings in gateway.settings.upstreams.items():
        specs.setdefault(name, Spec.of(name, settings, SETTINGS))
    _, rows = await registry.store.load()
    for row in rows:
        if row.name not in specs:
            specs[row.name] = Spec.of(row.name, _read_settings(row.settings, row.enabled), ADDED)
    held = {server.id: toolset for toolset in toolsets if toolset.enabled for server in toolset.pending_servers}
    return UpstreamSetup(
        gateway,
        dict(sorted(specs.items())),
        frozenset(toolset.id for toolset in toolsets),
        {name: toolset for name, toolset in held.items() if name not in specs},
    )


def _read_settings(settings: Mapping[str, object], enabled: bool) -> UpstreamSettings:
    try:
        return UpstreamSettings.model_validate({**settings, "enabled": enabled})
    except ValidationError:  # written by another version; it can still be shown and removed
        return UpstreamSettings(command="unreadable", enabled=False)
