"""Requests to a token endpoint: obtain, renew and revoke tokens."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.mcp_client import Unauthorized
from gateway.oauth.bearer import valid_scopes
from gateway.oauth.discovery import discover, find_configured_client, request_challenge
from gateway.oauth.http import OAuthClient, OAuthHttp, OAuthResponse, open_http
from gateway.oauth.store import Login, LoginAccount
from gateway.value import Value

_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")
_LONGEST = 10 * 365 * 24 * 3600.0


class TokenRefused(Exception):
    """The authorization server refused. `error` is the OAuth error code, `message` is for people."""

    def __init__(self, error: str | None, message: str) -> None:
        super().__init__(error, message)
        self.error = error
        self.message = message


class TokenGrant(Value):
    """Tokens as they were granted. Times are those of this machine's clock."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    scope: str | None
    obtained_at: float
    expires_at: float | None


async def request_tokens(
    http: OAuthHttp, endpoint: str, form: Mapping[str, str | None], client: OAuthClient
) -> TokenGrant:
    """Request tokens from a token endpoint; `TokenRefused` when the server grants none."""
    requested_at = time.time()
    response = await http.post_form(endpoint, form, client)
    secrets = (client.secret, *(form.get(name) for name in ("refresh_token", "code", "code_verifier")))
    if response.status >= 500 or response.status == 429:
        raise Unavailable(response.describe(*secrets), code="LOGIN_UNAVAILABLE")
    if response.status not in (200, 201) or response.error is not None:  # some servers refuse with a 200
        raise TokenRefused(response.error, response.describe(*secrets))
    return _parse_grant(response, requested_at)


async def revoke(http: OAuthHttp, endpoint: str, token: str, hint: str, client: OAuthClient) -> bool:
    """Revoke a token (RFC 7009); returns whether the server did."""
    response = await http.post_form(endpoint, {"token": token, "token_type_hint": hint}, client)
    return response.status == 200


def _parse_grant(response: OAuthResponse, requested_at: float) -> TokenGrant:
    content = response.content
    token, kind = content.get("access_token"), content.get("token_type", "Bearer")
    if not _is_token(token) or str(kind).lower() != "bearer":
        raise Unavailable(f"{response.origin} granted no bearer token", code="LOGIN_UNAVAILABLE")
    lifetime = _parse_seconds(content.get("expires_in"))
    refresh = content.get("refresh_token")
    return TokenGrant(
        access_token=str(token),
        refresh_token=refresh if _is_token(refresh) else None,
        scope=valid_scopes(content.get("scope")),
        obtained_at=requested_at,
        expires_at=None if lifetime is None else requested_at + lifetime,
    )


def _is_token(value: Any) -> bool:
    """Return whether a value is a token that fits on a header line."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def _parse_seconds(value: Any) -> float | None:
    """Return the lifetime of a token; some servers send the number as text."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < _LONGEST else None


# Error codes for a refresh token that is no longer valid: of OAuth, and of GitHub.
_INVALID_REFRESH_TOKEN = ("invalid_grant", "bad_refresh_token")


class LoginEnded(Exception):
    """The authorization server does not renew the login any more. `login` is the login, marked as ended."""

    def __init__(self, login: Login) -> None:
        super().__init__(login.server)
        self.login = login


async def renew_login(account: LoginAccount, login: Login | None) -> Login:
    """Return the login with new tokens, or a new login where the gateway logs in by itself. `LoginEnded` when only a
    person can help; `Unavailable` for failures that may pass."""
    try:
        async with open_http(account.url) as http:
            if account.unattended:
                return await _use_client_credentials(http, account, login)
            if login is None or login.refresh_token is None:
                raise Unauthorized(f"the login to {account.server!r} has ended: {account.remedy}")
            return await _refresh(http, account, login, login.refresh_token)
    except (Unauthorized, Invalid):
        raise
    except GatewayError as error:
        raise _unavailable(account, error) from None


async def _refresh(http: OAuthHttp, account: LoginAccount, login: Login, token: str) -> Login:
    client = OAuthClient(login.client_id, login.client_secret or account.client_secret, login.auth_method)
    form = {"grant_type": "refresh_token", "refresh_token": token, "resource": login.resource}
    try:
        granted = await request_tokens(http, login.token_endpoint, form, client)
    except TokenRefused as refused:
        if refused.error in _INVALID_REFRESH_TOKEN:
            raise LoginEnded(replace(login, refresh_token=None, ended=True)) from None
        raise _not_renewed(account, refused) from None
    renewed = _with_tokens(login, granted)
    # A server that does not rotate refresh tokens sends no new one, and the old one stays valid.
    return renewed if granted.refresh_token else replace(renewed, refresh_token=token)


async def _use_client_credentials(http: OAuthHttp, account: LoginAccount, login: Login | None) -> Login:
    """Log in with the grant `client_credentials`. A stored login saves the discovery."""
    if login is None:
        challenge = await request_challenge(account.endpoint)
        server = await discover(http, account.url, challenge, account.oauth.issuer)
        client = find_configured_client(account, server)
        assert client is not None  # noqa: S101 - the settings require one for this grant
        login = Login(
            server=account.server,
            url=account.url,
            issuer=server.issuer,
            token_endpoint=str(server.metadata.token_endpoint),
            client_id=client.id,
            access_token="",
            principal=account.principal,
            grant=account.oauth.grant,
            auth_method=client.method,
            resource=server.resource,
            scope=" ".join(account.oauth.scopes) if account.oauth.scopes is not None else server.challenge.scope,
        )
    scope = " ".join(account.oauth.scopes) if account.oauth.scopes is not None else login.scope
    client = OAuthClient(login.client_id, account.client_secret, login.auth_method)
    form = {"grant_type": "client_credentials", "resource": login.resource, "scope": scope}
    try:
        granted = await request_tokens(http, login.token_endpoint, form, client)
    except TokenRefused as refused:
        raise _not_renewed(account, refused) from None
    return replace(_with_tokens(login, granted), refresh_token=None)


def _with_tokens(login: Login, granted: TokenGrant) -> Login:
    return replace(
        login,
        access_token=granted.access_token,
        refresh_token=granted.refresh_token,
        scope=granted.scope or login.scope,
        obtained_at=granted.obtained_at,
        expires_at=granted.expires_at,
        ended=False,
    )


def _not_renewed(account: LoginAccount, refused: TokenRefused) -> Unauthorized:
    reason = f"the login to {account.server!r} is not renewed: {refused.message}; {account.remedy}"
    return Unauthorized(reason, login=account.server)


def _unavailable(account: LoginAccount, error: GatewayError) -> Unavailable:
    return Unavailable(
        f"the login to {account.server!r} could not be renewed: {error.message}",
        code="LOGIN_UNAVAILABLE",
        login=account.server,
    )
