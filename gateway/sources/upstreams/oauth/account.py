"""Whom a login is for: one principal, at one server, at the URL it has now."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.calls import LOCAL
from gateway.config import OAuthSettings, resolve_variables
from gateway.mcp_client import HttpEndpoint
from gateway.sources.upstreams.oauth.store import Login


@dataclass(frozen=True)
class Account:
    """`endpoint` carries no login itself. Secrets are resolved when they are needed, never before."""

    server: str
    endpoint: HttpEndpoint
    oauth: OAuthSettings = field(default_factory=OAuthSettings)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    principal: str = LOCAL

    @property
    def url(self) -> str:
        return self.endpoint.url

    @property
    def unattended(self) -> bool:
        """Whether the gateway signs in by itself."""
        return self.oauth.grant == "client_credentials"

    @property
    def command(self) -> str:
        """What a person types to sign in."""
        return f"toolgate upstream login {shlex.quote(self.server)}"

    @property
    def remedy(self) -> str:
        """What a person does about a login that does not work."""
        if not self.unattended:
            return f"run `{self.command}`"
        return f"check its oauth settings; `toolgate upstream logout {shlex.quote(self.server)}` has it looked up anew"

    @property
    def client_id(self) -> str | None:
        """Who we are to the authorization server, where the settings say so."""
        return self._resolved(self.oauth.client_id)

    @property
    def client_secret(self) -> str | None:
        return self._resolved(self.oauth.client_secret, "client_secret")

    def owns(self, login: Login) -> bool:
        """Whether a login is this account's: what is for one URL, or one client, is never used for another."""
        client = self.client_id
        return (
            (login.server, login.principal, login.url) == (self.server, self.principal, self.url)
            and login.grant == self.oauth.grant
            and client in (None, login.client_id)
        )

    def _resolved(self, said: str | None, field: str = "") -> str | None:
        return None if said is None else resolve_variables(said, self.environment, field)
