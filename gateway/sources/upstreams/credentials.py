"""The endpoint of one upstream, with variables resolved and the stored login attached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from gateway.config import OAuthSettings, Settings
from gateway.errors import GatewayError, Unavailable
from gateway.mcp_client import Endpoint, StdioEndpoint
from gateway.oauth.bearer import Bearer
from gateway.oauth.store import Account, Logins
from gateway.sources.upstreams.spec import Spec


class Access:
    """All connections to a server get one login. What the settings say of `Authorization` counts before it. `settings`
    are those of the gateway, without which no server starts in the sandbox."""

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
        self._bearer: Bearer | None = None

    def account(self) -> Account | None:
        """Whom a login would be for; None where there can be none."""
        return self._account(self._spec.endpoint(self._environment))

    def lacks_login(self, error: str | None) -> bool:
        """Whether it is known that somebody must sign in first: `error` is what it was last refused with."""
        try:
            account = self.account()
            login = self._logins.find(account.server, account.principal) if account and self._logins else None
            kept = account is not None and login is not None and account.owns(login) and not login.ended
        except GatewayError:  # a variable is not set, or a file cannot be read: said where it matters
            return False
        if account is None or account.unattended or kept:
            return False
        return self._spec.settings.oauth is not None or account.command in (error or "")

    def endpoint(self) -> Endpoint:
        """Where the server is now, with the login that is kept now."""
        endpoint = self._spec.endpoint(self._environment)
        if isinstance(endpoint, StdioEndpoint) and self._spec.sandbox is not None:
            if self._settings is None:
                raise Unavailable("there are no settings for the sandbox it is to run in", code="SANDBOX_UNAVAILABLE")
            return replace(endpoint, sandbox=self._spec.confinement(self._environment, self._settings))
        account = self._account(endpoint)
        if account is None or self._logins is None:
            return endpoint
        if self._bearer is None or self._bearer.account != account:
            self._bearer = Bearer(account, self._logins)
        self._bearer.look()
        return replace(account.endpoint, login=self._bearer)

    def changed(self) -> bool:
        """Whether somebody has logged in or out since the server was last tried."""
        try:
            return self._bearer is not None and self._bearer.changed
        except GatewayError:  # whoever tries the server is told
            return False

    async def close(self) -> None:
        if self._bearer is not None:
            await self._bearer.close()

    def _account(self, endpoint: Endpoint) -> Account | None:
        if isinstance(endpoint, StdioEndpoint) or any(name.lower() == "authorization" for name in endpoint.headers):
            return None
        return Account(self._spec.name, endpoint, self._spec.settings.oauth or OAuthSettings(), self._environment)
