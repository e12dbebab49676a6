"""Requests to a token endpoint: obtain, renew and revoke tokens."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.mcp_client import Unauthorized
from gateway.oauth.bearer import scopes
from gateway.oauth.discovery import challenge, discover
from gateway.oauth.http import Client, Reach, Reply, reach
from gateway.oauth.registration import configured_client
from gateway.oauth.store import Account, Login

_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")
_LONGEST = 10 * 365 * 24 * 3600.0


class Refused(Exception):
    """The authorization server said no. `error` is OAuth's own word for it, `told` the same for people."""

    def __init__(self, error: str | None, told: str) -> None:
        super().__init__(error, told)
        self.error = error
        self.told = told


@dataclass(frozen=True)
class Granted:
    """What it gave. Times are this machine's."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    scope: str | None
    obtained_at: float
    expires_at: float | None


async def obtain(reach: Reach, endpoint: str, form: Mapping[str, str | None], client: Client) -> Granted:
    """Tokens for what the form says; `Refused` when the server does not give any."""
    asked_at = time.time()
    reply = await reach.post_form(endpoint, form, client)
    secrets = (client.secret, *(form.get(name) for name in ("refresh_token", "code", "code_verifier")))
    if reply.status >= 500 or reply.status == 429:
        raise Unavailable(reply.refusal(*secrets), code="LOGIN_UNAVAILABLE")
    if reply.status not in (200, 201) or reply.error is not None:  # some say no with a 200
        raise Refused(reply.error, reply.refusal(*secrets))
    return _granted(reply, asked_at)


async def revoke(reach: Reach, endpoint: str, token: str, hint: str, client: Client) -> bool:
    """Whether it took a token back (RFC 7009)."""
    reply = await reach.post_form(endpoint, {"token": token, "token_type_hint": hint}, client)
    return reply.status == 200


def _granted(reply: Reply, asked_at: float) -> Granted:
    said = reply.said
    token, kind = said.get("access_token"), said.get("token_type", "Bearer")
    if not _is_token(token) or str(kind).lower() != "bearer":
        raise Unavailable(f"{reply.origin} gave no bearer token", code="LOGIN_UNAVAILABLE")
    lifetime = _seconds(said.get("expires_in"))
    refresh = said.get("refresh_token")
    return Granted(
        access_token=str(token),
        refresh_token=refresh if _is_token(refresh) else None,
        scope=scopes(said.get("scope")),
        obtained_at=asked_at,
        expires_at=None if lifetime is None else asked_at + lifetime,
    )


def _is_token(value: Any) -> bool:
    """Whether it is one that stays in its header's line."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def _seconds(said: Any) -> float | None:
    """How long a token lasts; some servers write the number as a text."""
    try:
        seconds = float(said)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < _LONGEST else None


# How OAuth says that a refresh token is worth nothing any more, and how GitHub does.
_OVER = ("invalid_grant", "bad_refresh_token")


class Ended(Exception):
    """The authorization server does not renew it any more. `login` is what is left of it."""

    def __init__(self, login: Login) -> None:
        super().__init__(login.server)
        self.login = login


async def renew(account: Account, login: Login | None) -> Login:
    """The login with new tokens, or the first one where the gateway signs in by itself. `Ended` when only a person
    can help; when nobody answers, it may well work later."""
    try:
        async with reach(account.url) as way:
            if account.unattended:
                return await _sign_in(way, account, login)
            if login is None or login.refresh_token is None:
                raise Unauthorized(f"the login to {account.server!r} has ended: {account.remedy}")
            return await _refresh(way, account, login, login.refresh_token)
    except (Unauthorized, Invalid):
        raise
    except GatewayError as error:
        raise _failed(account, error) from None


async def _refresh(way: Reach, account: Account, login: Login, token: str) -> Login:
    client = Client(login.client_id, login.client_secret or account.client_secret, login.auth_method)
    form = {"grant_type": "refresh_token", "refresh_token": token, "resource": login.resource}
    try:
        granted = await obtain(way, login.token_endpoint, form, client)
    except Refused as refused:
        if refused.error in _OVER:
            raise Ended(replace(login, refresh_token=None, ended=True)) from None
        raise _refused(account, refused) from None
    renewed = _with(login, granted)
    # A server that does not rotate them gives no new one, and the old stays good.
    return renewed if granted.refresh_token else replace(renewed, refresh_token=token)


async def _sign_in(way: Reach, account: Account, login: Login | None) -> Login:
    """The grant `client_credentials`: what is known from the last time is not asked for again."""
    if login is None:
        site = await discover(way, account.url, await challenge(account.endpoint), account.oauth.issuer)
        client = configured_client(account, site)
        assert client is not None  # noqa: S101 - the settings require one for this grant
        login = Login(
            server=account.server,
            url=account.url,
            issuer=site.issuer,
            token_endpoint=str(site.server.token_endpoint),
            client_id=client.id,
            access_token="",
            principal=account.principal,
            grant=account.oauth.grant,
            auth_method=client.method,
            resource=site.resource,
            scope=" ".join(account.oauth.scopes) if account.oauth.scopes is not None else site.challenge.scope,
        )
    wanted = " ".join(account.oauth.scopes) if account.oauth.scopes is not None else login.scope
    client = Client(login.client_id, account.client_secret, login.auth_method)
    form = {"grant_type": "client_credentials", "resource": login.resource, "scope": wanted}
    try:
        granted = await obtain(way, login.token_endpoint, form, client)
    except Refused as refused:
        raise _refused(account, refused) from None
    return replace(_with(login, granted), refresh_token=None)


def _with(login: Login, granted: Granted) -> Login:
    return replace(
        login,
        access_token=granted.access_token,
        refresh_token=granted.refresh_token,
        scope=granted.scope or login.scope,
        obtained_at=granted.obtained_at,
        expires_at=granted.expires_at,
        ended=False,
    )


def _refused(account: Account, refused: Refused) -> Unauthorized:
    reason = f"the login to {account.server!r} is not renewed: {refused.told}; {account.remedy}"
    return Unauthorized(reason, login=account.server)


def _failed(account: Account, error: GatewayError) -> Unavailable:
    return Unavailable(
        f"the login to {account.server!r} could not be renewed just now: {error.message}",
        code="LOGIN_UNAVAILABLE",
        login=account.server,
    )
