"""Secrets in the settings of servers: replaced by variables, and the values of these at a connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.calls import LOCAL
from gateway.config import OAuthSettings, Settings
from gateway.errors import GatewayError, Unavailable
from gateway.literal_secrets import LiteralSecrets
from gateway.mcp_client import Endpoint, StdioEndpoint
from gateway.oauth.bearer import BearerToken
from gateway.oauth.store import LoginAccount, Logins
from gateway.secrets import VARIABLE, VariableNames, hides_secret, is_scheme, split_scheme, variable_name
from gateway.sources.upstreams.spec import Spec


def mask(server: str, settings: Mapping[str, Any], names: VariableNames) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of a server with a `${NAME}` for each secret in them, and the value of each name."""
    masking = _ServerMasking(variable_name(server), names, frozenset(variables(settings)))
    literals = LiteralSecrets(masking.replace, suspects=True)
    masked = {**settings}
    if "env" in settings:
        masked["env"] = {name: masking.mask_variable(name, value) for name, value in settings["env"].items()}
    if "headers" in settings:
        masked["headers"] = {name: literals.mask_header(name, value) for name, value in settings["headers"].items()}
    if "args" in settings:
        masked["args"] = list(literals.mask_arguments(settings["args"]))
    if "url" in settings:
        masked["url"] = literals.mask_url(settings["url"])
    return masked, masking.values


def variables(settings: Mapping[str, Any]) -> list[str]:
    """Every variable that must be set for a server to be reached, in order."""
    values = [settings.get(key) for key in ("command", "cwd", "url")] + list(settings.get("args") or ())
    values += [value for key in ("env", "headers", "oauth") for value in (settings.get(key) or {}).values()]
    texts = [text for text in values if isinstance(text, str)]
    return list(dict.fromkeys(name for text in texts for name in VARIABLE.findall(text)))


def missing(settings: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    return [name for name in variables(settings) if name not in environment]


class _ServerMasking:
    """The secrets of one server as they are found."""

    def __init__(self, owner: str, names: VariableNames, taken: frozenset[str]) -> None:
        self.values: dict[str, str] = {}
        self._owner = owner
        self._names = names
        self._taken = taken

    def mask_variable(self, name: str, value: str) -> str:
        if not hides_secret(name, value):
            return value
        return self._mask_text(value, name, f"{self._owner}_{variable_name(name)}")

    def replace(self, value: str, name: str) -> str:
        """`Bearer abc` as `Bearer ${NAME}`: what one sets is then the token alone."""
        scheme, rest = split_scheme(value)
        return scheme + self._mask_text(rest, f"{self._owner}_{variable_name(name)}")

    def _mask_text(self, text: str, *candidates: str) -> str:
        """Each part that is no reference as one; those that are stay, since what is kept is not read again."""
        pieces = VARIABLE.split(text)
        return "".join(
            f"${{{piece}}}" if index % 2 else self._reference(piece, candidates, len(pieces) > 1)
            for index, piece in enumerate(pieces)
        )

    def _reference(self, text: str, candidates: Sequence[str], partial: bool) -> str:
        if not text or (partial and is_scheme(text)):
            return text
        name = self._names.choose(text, self._taken, *candidates)
        self.values[name] = text
        return f"${{{name}}}"


# Principals whose tokens of one server are kept in memory.
BEARERS_LIMIT = 1000


class UpstreamCredentials:
    """The endpoint of one upstream and the logins to it, one per principal, shared by all their connections. A
    configured `Authorization` header is used instead of a login. `settings` are needed for servers in the sandbox."""

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
        self._bearers: dict[str, BearerToken] = {}

    def account(self, principal: str = LOCAL) -> LoginAccount | None:
        """Return the account of a principal's login; None for a server that has none."""
        return self._account(self._spec.endpoint(self._environment), principal)

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

    def endpoint(self, principal: str = LOCAL) -> Endpoint:
        """Return the endpoint with resolved variables and the stored login of a principal."""
        endpoint = self._spec.endpoint(self._environment)
        if isinstance(endpoint, StdioEndpoint) and self._settings is not None:
            endpoint = replace(endpoint, log=self._spec.log(self._settings.data_dir))
        if isinstance(endpoint, StdioEndpoint) and self._spec.sandbox is not None:
            if self._settings is None:
                raise Unavailable("there are no settings for the sandbox of the server", code="SANDBOX_UNAVAILABLE")
            return replace(endpoint, sandbox=self._spec.confinement(self._environment, self._settings))
        account = self._account(endpoint, principal)
        if account is None or self._logins is None:
            return endpoint
        bearer = self._bearers.get(account.principal)
        if bearer is None or bearer.account != account:
            bearer = self._bearers[account.principal] = BearerToken(account, self._logins)
            while len(self._bearers) > BEARERS_LIMIT:  # a connection keeps its own
                del self._bearers[next(iter(self._bearers))]
        bearer.reload()
        return replace(account.endpoint, authorizer=bearer)

    def has_changed(self, principal: str = LOCAL) -> bool:
        """Return whether a principal has logged in or out since the server was last tried."""
        try:
            bearer = self._bearers.get(LOCAL if self._is_unattended else principal)
            return bearer is not None and bearer.changed
        except GatewayError:  # reported by the next connection
            return False

    async def close(self) -> None:
        await asyncio.gather(*(bearer.close() for bearer in self._bearers.values()))

    @property
    def _is_unattended(self) -> bool:
        return self._spec.settings.oauth is not None and self._spec.settings.oauth.grant == "client_credentials"

    def _account(self, endpoint: Endpoint, principal: str) -> LoginAccount | None:
        if isinstance(endpoint, StdioEndpoint) or any(name.lower() == "authorization" for name in endpoint.headers):
            return None
        oauth = self._spec.settings.oauth or OAuthSettings()
        owner = LOCAL if self._is_unattended else principal  # the gateway logs in as itself, for everybody
        return LoginAccount(self._spec.name, endpoint, oauth, self._environment, owner)
