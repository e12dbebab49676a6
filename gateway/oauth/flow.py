"""Login of a person in a browser, and logout."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

from mcp.client.auth.oauth2 import PKCEParameters
from mcp.client.auth.utils import union_scopes

from gateway.errors import Forbidden, GatewayError, Invalid, NotFound, Timeout, Unavailable
from gateway.oauth.callback_server import PATH, Callback, callback
from gateway.oauth.discovery import WRONG_ISSUER, Site, challenge, discover
from gateway.oauth.http import Client, Reach, reach
from gateway.oauth.registration import identify, registers
from gateway.oauth.store import Account, Login, Logins
from gateway.oauth.tokens import Granted, Refused, obtain, revoke
from gateway.text import visible

LOGIN_SECONDS = 300.0
FAILED = "LOGIN_FAILED"
_SAID_LIMIT = 200

# Brings a URL before a person.
Show = Callable[[str], None]


async def sign_in(
    account: Account,
    logins: Logins,
    show: Show,
    *,
    scopes: Sequence[str] = (),
    port: int = 0,
    seconds: float | None = None,
) -> Login:
    """The login, kept; refused with what to do about it. `scopes` are asked for besides those of the login before."""
    if account.unattended:
        raise Invalid(
            f"nobody signs in to {account.server!r}: the gateway does, with its client_credentials; "
            f"try it with: toolgate upstream test {account.server}",
            code="NOTHING_TO_SIGN_IN",
        )
    async with reach(account.url) as way:
        site = await discover(way, account.url, await challenge(account.endpoint), account.oauth.issuer)
        _require_pkce(site)
        state, scope = secrets.token_urlsafe(32), _scope(account, site, logins, scopes)
        async with callback(state, port, _mailbox(account, site)) as page:
            try:
                client = await identify(way, account, site, page.uri, scope)
                request = _Request(site, client, page.uri, scope, state)
                show(request.url)
                code = _code(site, await _answered(account, page, seconds or LOGIN_SECONDS))
                login = _login(account, request, await request.exchange(way, code))
                async with logins.turn(account.server, account.principal):
                    await asyncio.to_thread(logins.keep, login)
            except GatewayError as error:
                page.conclude(error.message)
                raise
            page.conclude()
            return login


async def sign_out(account: Account | None, server: str, logins: Logins) -> bool:
    """Forget a login. Whether its authorization server has taken the tokens back, too."""
    if logins.mark(server) is None:
        raise NotFound(f"nobody is logged in to {server!r}", code="NOT_LOGGED_IN")
    async with logins.turn(server):
        revoked = await _revoked(account, server, logins)
        await asyncio.to_thread(logins.forget, server)
    return revoked


@dataclass(frozen=True)
class _Request:
    """What the authorization server is asked for, first by the browser, then by us."""

    site: Site
    client: Client
    redirect: str
    scope: str | None
    state: str = field(repr=False)
    pkce: PKCEParameters = field(default_factory=PKCEParameters.generate, repr=False)

    @property
    def url(self) -> str:
        asked = {
            "response_type": "code",
            "client_id": self.client.id,
            "redirect_uri": self.redirect,
            "state": self.state,
            "code_challenge": self.pkce.code_challenge,
            "code_challenge_method": "S256",
            "resource": self.site.resource,
        }
        if self.scope:
            asked["scope"] = self.scope
        if "offline_access" in (self.scope or "").split():
            asked["prompt"] = "consent"  # OpenID Connect: it counts only where a person is asked about it
        endpoint = str(self.site.server.authorization_endpoint)
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    async def exchange(self, way: Reach, code: str) -> Granted:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect,
            "code_verifier": self.pkce.code_verifier,
            "resource": self.site.resource,
        }
        try:
            return await obtain(way, str(self.site.server.token_endpoint), form, self.client)
        except Refused as refused:
            raise Unavailable(f"no token was given: {refused.told}", code=FAILED) from None


async def _answered(account: Account, page: Callback, seconds: float) -> Mapping[str, str]:
    try:
        async with asyncio.timeout(seconds):
            return await page.answer()
    except TimeoutError:
        raise Timeout(
            f"nobody has signed in to {account.server!r} within {seconds / 60:g} minutes; run `{account.command}` "
            "to try again",
            code="LOGIN_TIMED_OUT",
        ) from None


def _login(account: Account, request: _Request, granted: Granted) -> Login:
    site, client = request.site, request.client
    revocation = site.server.revocation_endpoint
    return Login(
        server=account.server,
        url=account.url,
        issuer=site.issuer,
        token_endpoint=str(site.server.token_endpoint),
        client_id=client.id,
        client_secret=None if account.oauth.client_secret else client.secret,
        auth_method=client.method,
        principal=account.principal,
        resource=site.resource,
        scope=granted.scope or request.scope,
        access_token=granted.access_token,
        refresh_token=granted.refresh_token,
        obtained_at=granted.obtained_at,
        expires_at=granted.expires_at,
        revocation_endpoint=str(revocation) if revocation else None,
    )


def _code(site: Site, answer: Mapping[str, str]) -> str:
    """The code the browser brought. RFC 9207: it counts only from the server we asked, so that none can pass us
    another's."""
    given = answer.get("iss")
    if given != site.issuer and (given is not None or site.server.authorization_response_iss_parameter_supported):
        raise Forbidden("the answer comes from another authorization server than the one asked", code=WRONG_ISSUER)
    if "error" in answer:
        told = " ".join(f"{answer['error']} {answer.get('error_description', '')}".split())
        raise Unavailable(f"{site.issuer} refused: {visible(told)[:_SAID_LIMIT]}", code=FAILED)
    if not answer.get("code"):
        raise Unavailable(f"{site.issuer} answered without a code", code=FAILED)
    return answer["code"]


def _scope(account: Account, site: Site, logins: Logins, more: Sequence[str]) -> str | None:
    """Which scopes to ask for: those of the settings, else those the server wants. Asked for more, those of the
    login before stay."""
    if not more:
        configured = account.oauth.scopes
        return (" ".join(configured) or None) if configured is not None else site.scope()
    before = logins.find(account.server, account.principal)
    had = before.scope if before is not None and account.owns(before) else " ".join(account.oauth.scopes or ()) or None
    return union_scopes(had, " ".join(more))


def _mailbox(account: Account, site: Site) -> str:
    """The path a browser comes back to. One of its own for each server that registers us (RFC 9700, 4.4.2): so none of
    them gets the code that another gave to the client of the settings, whose path is known."""
    return f"{PATH}/{hashlib.sha256(site.issuer.encode()).hexdigest()[:16]}" if registers(account, site) else PATH


def _require_pkce(site: Site) -> None:
    """MCP (2025-11-25): whoever does not say that it checks PKCE with S256 is not signed in to."""
    if "S256" not in (site.server.code_challenge_methods_supported or ()):
        raise Forbidden(
            f"{site.issuer} does not protect logins with PKCE (S256), which MCP requires: nobody signs in there",
            code="NO_PKCE",
        )


async def _revoked(account: Account | None, server: str, logins: Logins) -> bool:
    try:
        login = logins.find(server)
        if login is None or login.revocation_endpoint is None:
            return False
        secret = login.client_secret or (account.client_secret if account is not None else None)
        client = Client(login.client_id, secret, login.auth_method)
        async with reach(login.url) as way:
            done = True
            for token, hint in ((login.refresh_token, "refresh_token"), (login.access_token, "access_token")):
                done = done and (not token or await revoke(way, login.revocation_endpoint, token, hint, client))
            return done
    except GatewayError:  # it is forgotten here whatever they say, and one that cannot be read, too
        return False
