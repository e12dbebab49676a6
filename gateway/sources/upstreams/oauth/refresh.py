"""A login renewed without anybody's help."""

from __future__ import annotations

from dataclasses import replace

from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.mcp_client import Unauthorized
from gateway.sources.upstreams.oauth.account import Account
from gateway.sources.upstreams.oauth.discovery import challenge, discover
from gateway.sources.upstreams.oauth.http import Client, Reach, reach
from gateway.sources.upstreams.oauth.registration import configured_client
from gateway.sources.upstreams.oauth.store import Login
from gateway.sources.upstreams.oauth.tokens import Granted, Refused, obtain

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
