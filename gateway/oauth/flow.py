"""Login of a person in a browser, and logout."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any
from urllib.parse import urlencode

from mcp.client.auth.oauth2 import PKCEParameters
from mcp.client.auth.utils import union_scopes
from mcp.shared.auth import OAuthMetadata

from gateway.errors import Forbidden, GatewayError, Invalid, NotFound, Timeout, Unavailable
from gateway.oauth.callback_server import PATH, CallbackPage, serve_callback
from gateway.oauth.discovery import (
    WRONG_ISSUER,
    AuthorizationServer,
    Challenge,
    discover,
    identify_client,
    registers_client,
    request_challenge,
)
from gateway.oauth.http import OAuthClient, OAuthHttp, open_http
from gateway.oauth.store import Login, LoginAccount, Logins
from gateway.oauth.tokens import TokenGrant, TokenRefused, request_tokens, revoke
from gateway.text import visible
from gateway.value import Value

LOGIN_SECONDS = 300.0
FAILED = "LOGIN_FAILED"
_MESSAGE_LIMIT = 200

# Shows a URL to a person.
Show = Callable[[str], None]


async def sign_in(
    account: LoginAccount,
    logins: Logins,
    show: Show,
    *,
    scopes: Sequence[str] = (),
    port: int = 0,
    seconds: float | None = None,
) -> Login:
    """Log a person in, store the login and return it. `scopes` are requested in addition to those of the settings or
    the server, and of the stored login. Errors say what to do."""
    if account.unattended:
        raise Invalid(
            f"{account.server!r} needs no login: the gateway logs in with its client_credentials; "
            f"try it with: toolgate upstream test {account.server}",
            code="NOTHING_TO_SIGN_IN",
        )
    async with open_http(account.url) as http:
        server = await find_server(http, account)
        state = secrets.token_urlsafe(32)
        async with serve_callback(state, port, PATH + issuer_path(account, server)) as page:
            try:
                request = await make_request(http, account, server, logins, page.uri, state, scopes)
                show(request.url)
                params = await _wait_for_redirect(account, page, seconds or LOGIN_SECONDS)
                login = await finish_login(http, account, logins, request, params)
            except GatewayError as error:
                page.finish(error.message)
                raise
            page.finish()
            return login


async def find_server(http: OAuthHttp, account: LoginAccount) -> AuthorizationServer:
    """Return the authorization server of an account; refused when it does not protect logins as MCP requires."""
    challenge = await request_challenge(account.endpoint)
    server = await discover(http, account.url, challenge, account.oauth.issuer)
    _require_pkce(server)
    return server


async def make_request(
    http: OAuthHttp,
    account: LoginAccount,
    server: AuthorizationServer,
    logins: Logins,
    redirect: str,
    state: str,
    scopes: Sequence[str] = (),
) -> AuthorizationRequest:
    """Return the request to authorize us, as a registered client."""
    scope = _choose_scope(account, server, logins, scopes)
    client = await identify_client(http, account, server, redirect, scope)
    return AuthorizationRequest(server, client, redirect, scope, state)


def restore_request(claims: Mapping[str, Any]) -> AuthorizationRequest:
    """Return a request whose parts were kept by the browser, see `callback_server.WebLogins`."""
    metadata = OAuthMetadata.model_validate(claims["metadata"])
    return AuthorizationRequest(
        AuthorizationServer(claims["resource"], metadata, None, Challenge()),
        OAuthClient(**claims["client"]),
        claims["redirect"],
        claims["scope"],
        claims["state"],
        PKCEParameters(code_verifier=claims["verifier"], code_challenge=claims["challenge"]),
    )


async def finish_login(
    http: OAuthHttp,
    account: LoginAccount,
    logins: Logins,
    request: AuthorizationRequest,
    params: Mapping[str, str],
) -> Login:
    """Exchange the code in the redirect's parameters, store the login and return it."""
    code = _parse_code(request.server, params)
    login = _build_login(account, request, await request.exchange_code(http, code))
    async with logins.lock(account.server, account.principal):
        await asyncio.to_thread(logins.save, login)
    return login


async def sign_out(account: LoginAccount | None, server: str, logins: Logins) -> bool:
    """Delete a login; returns whether its authorization server has revoked the tokens."""
    if logins.version(server) is None:
        raise NotFound(f"you are not logged in to {server!r}", code="NOT_LOGGED_IN")
    async with logins.lock(server):
        revoked = await _revoke_login(account, server, logins)
        await asyncio.to_thread(logins.delete, server)
    return revoked


class AuthorizationRequest(Value):
    """A request for authorization: first by the browser, then by us with the code it returned."""

    server: AuthorizationServer
    client: OAuthClient
    redirect: str
    scope: str | None
    state: str = field(repr=False)
    pkce: PKCEParameters = field(default_factory=PKCEParameters.generate, repr=False)

    @property
    def url(self) -> str:
        params = {
            "response_type": "code",
            "client_id": self.client.id,
            "redirect_uri": self.redirect,
            "state": self.state,
            "code_challenge": self.pkce.code_challenge,
            "code_challenge_method": "S256",
            "resource": self.server.resource,
        }
        if self.scope:
            params["scope"] = self.scope
        if "offline_access" in (self.scope or "").split():
            params["prompt"] = "consent"  # OpenID Connect ignores offline_access without it
        endpoint = str(self.server.metadata.authorization_endpoint)
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(params)}"

    async def exchange_code(self, http: OAuthHttp, code: str) -> TokenGrant:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect,
            "code_verifier": self.pkce.code_verifier,
            "resource": self.server.resource,
        }
        try:
            return await request_tokens(http, str(self.server.metadata.token_endpoint), form, self.client)
        except TokenRefused as refused:
            raise Unavailable(f"no token was granted: {refused.message}", code=FAILED) from None


async def _wait_for_redirect(account: LoginAccount, page: CallbackPage, seconds: float) -> Mapping[str, str]:
    try:
        async with asyncio.timeout(seconds):
            return await page.wait_for_redirect()
    except TimeoutError:
        raise Timeout(
            f"the login to {account.server!r} was not completed within {seconds / 60:g} minutes; "
            f"run `{account.command}` to try again",
            code="LOGIN_TIMED_OUT",
        ) from None


def _build_login(account: LoginAccount, request: AuthorizationRequest, granted: TokenGrant) -> Login:
    server, client = request.server, request.client
    revocation = server.metadata.revocation_endpoint
    return Login(
        server=account.server,
        url=account.url,
        issuer=server.issuer,
        token_endpoint=str(server.metadata.token_endpoint),
        client_id=client.id,
        client_secret=None if account.oauth.client_secret else client.secret,
        auth_method=client.method,
        principal=account.principal,
        resource=server.resource,
        scope=granted.scope or request.scope,
        access_token=granted.access_token,
        refresh_token=granted.refresh_token,
        obtained_at=granted.obtained_at,
        expires_at=granted.expires_at,
        revocation_endpoint=str(revocation) if revocation else None,
    )


def _parse_code(server: AuthorizationServer, params: Mapping[str, str]) -> str:
    """Return the code in the redirect. It counts only with the issuer that was asked, so that no other server can pass
    its code to us (RFC 9207)."""
    issuer = params.get("iss")
    if issuer != server.issuer and (
        issuer is not None or server.metadata.authorization_response_iss_parameter_supported
    ):
        raise Forbidden("the answer comes from another authorization server than the one asked", code=WRONG_ISSUER)
    if "error" in params:
        message = " ".join(f"{params['error']} {params.get('error_description', '')}".split())
        raise Unavailable(f"{server.issuer} refused: {visible(message)[:_MESSAGE_LIMIT]}", code=FAILED)
    if not params.get("code"):
        raise Unavailable(f"{server.issuer} answered without a code", code=FAILED)
    return params["code"]


def _choose_scope(
    account: LoginAccount, server: AuthorizationServer, logins: Logins, more: Sequence[str]
) -> str | None:
    """Return the scopes to request: those of the settings, else those the server requires of everybody. Those of the
    stored login are kept, and those it lacked are added (SEP-2350), unless the settings name all scopes. `more` are
    requested in any case."""
    configured = account.oauth.scopes
    scope = (" ".join(configured) or None) if configured is not None else server.scope()
    stored = None
    with suppress(Invalid):  # the new login replaces one that cannot be read
        stored = logins.find(account.server, account.principal)
    if stored is not None and account.owns(stored) and (configured is None or more):
        missing = stored.missing_scope if configured is None else None
        scope = union_scopes(union_scopes(stored.scope, scope), missing)
    return union_scopes(scope, " ".join(more))


def issuer_path(account: LoginAccount, server: AuthorizationServer) -> str:
    """Return the end of the redirect URI's path. Each server that registers a client has its own (RFC 9700, section
    4.4.2): none gets a code that another granted to the client of the settings, whose path is known."""
    if not registers_client(account, server):
        return ""
    return f"/{hashlib.sha256(server.issuer.encode()).hexdigest()[:16]}"


def _require_pkce(server: AuthorizationServer) -> None:
    """Refuse a server that does not announce PKCE with S256 (MCP 2025-11-25)."""
    if "S256" not in (server.metadata.code_challenge_methods_supported or ()):
        raise Forbidden(
            f"{server.issuer} does not protect logins with PKCE (S256), which MCP requires: the login is refused",
            code="NO_PKCE",
        )


async def _revoke_login(account: LoginAccount | None, server: str, logins: Logins) -> bool:
    try:
        login = logins.find(server)
        if login is None or login.revocation_endpoint is None:
            return False
        secret = login.client_secret or (account.client_secret if account is not None else None)
        client = OAuthClient(login.client_id, secret, login.auth_method)
        async with open_http(login.url) as http:
            done = True
            for token, hint in ((login.refresh_token, "refresh_token"), (login.access_token, "access_token")):
                done = done and (not token or await revoke(http, login.revocation_endpoint, token, hint, client))
            return done
    except GatewayError:  # the login is deleted all the same, also one that cannot be read
        return False
