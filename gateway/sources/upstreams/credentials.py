"""The endpoint of one upstream, with variables resolved and the stored login attached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from gateway.config import OAuthSettings, Settings
from gateway.errors import GatewayError, Unavailable
from gateway.mcp_client import Endpoint, StdioEndpoint
from gateway.oauth.bearer import BearerToken
from gateway.oauth.store import LoginAccount, Logins
from gateway.sources.upstreams.spec import Spec


class UpstreamCredentials:
    """The endpoint and the login of one upstream, shared by all connections to it. A configured `Authorization` header
    is used instead of a login. `settings` are needed for servers in the sandbox."""

    def __init__(
        self,
        spec: Spec,
        environment: Mapping[str, str] = os.environ,
        logins: Logins | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._environment = environment
        self._logins = logins
        self._bearer: BearerToken | None = None

    def account(self) -> LoginAccount | None:
        """Return the account of a login; None for a server that has none."""
        return self._account(self._spec.endpoint(self._environment))

    def lacks_login(self, error: str | None) -> bool:
        """Return whether somebody must log in first, as far as is known. `error` is the last one of the server."""
        try:
            account = self.account()
            login = self._logins.find(account.server, account.principal) if account and self._logins else None
            is_valid = account is not None and login is not None and account.owns(login) and not login.ended
        except GatewayError:  # a missing variable or an unreadable file is reported when the server is used
            return False
        if account is None or account.unattended or is_valid:
            return False
        return self._spec.settings.oauth is not None or account.command in (error or "")

    def endpoint(self) -> Endpoint:
        """Return the endpoint with resolved variables and the stored login."""
        endpoint = self._spec.endpoint(self._environment)
        if isinstance(endpoint, StdioEndpoint) and self._spec.sandbox is not None:
            if self._settings is None:
                raise Unavailable("there are no settings for the sandbox of the server", code="SANDBOX_UNAVAILABLE")
            return replace(endpoint, sandbox=self._spec.confinement(self._environment, self._settings))
        account = self._account(endpoint)
        if account is None or self._logins is None:
            return endpoint
        if self._bearer is None or self._bearer.account != account:
            self._bearer = BearerToken(account, self._logins)
        self._bearer.reload()
        return replace(account.endpoint, authorizer=self._bearer)

    def has_changed(self) -> bool:
        """Return whether somebody has logged in or out since the server was last tried."""
        try:
            return self._bearer is not None and self._bearer.changed
        except GatewayError:  # reported by the next connection
            return False

    async def close(self) -> None:
        if self._bearer is not None:
            await self._bearer.close()

    def _account(self, endpoint: Endpoint) -> LoginAccount | None:
        if isinstance(endpoint, StdioEndpoint) or any(name.lower() == "authorization" for name in endpoint.headers):
            return None
        return LoginAccount(self._spec.name, endpoint, self._spec.settings.oauth or OAuthSettings(), self._environment)
