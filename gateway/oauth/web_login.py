"""Logins of people who reach the gateway over HTTP: a page that starts the login in their browser, and the address to
which it returns. The state of a login travels sealed in the browser, so that any process can finish it."""

from __future__ import annotations

import importlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from gateway.errors import Forbidden, Invalid, Unavailable
from gateway.oauth.store import FileVersion, Login, LoginAccount, Logins
from gateway.sealing import Sealer

CONNECT_PATH = "/connect"
CALLBACK_PATH = "/connect/callback"
TICKET_SECONDS = 900.0
# Browsers keep no larger cookie.
COOKIE_LIMIT = 3800


@dataclass(frozen=True)
class PendingLogin:
    """A login that somebody is asked for: the page to open, and how to tell that it is done."""

    url: str
    message: str
    account: LoginAccount
    logins: Logins
    before: FileVersion | None

    def is_done(self) -> bool:
        """Return whether somebody has logged in since it was asked for."""
        return self.logins.version(self.account.server, self.account.principal) not in (None, self.before)


@dataclass(frozen=True)
class LoginTicket:
    """The server that a principal is asked to log in to."""

    server: str
    principal: str


@dataclass(frozen=True)
class StartedLogin:
    """The address to send the browser to, and the cookie it must bring back."""

    url: str
    cookie_name: str
    cookie: str


class WebLogins:
    """Logins at one base URL. `find_account` returns the account of a principal at a server."""

    def __init__(
        self,
        base_url: str,
        find_account: Callable[[str, str], LoginAccount],
        logins: Logins,
        sealer: Sealer,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._base_url = base_url
        self._find_account = find_account
        self._logins = logins
        self._sealer = sealer
        self._clock = clock

    def ask(self, account: LoginAccount) -> PendingLogin:
        """Return a login to ask the principal of an account for."""
        claims = {"kind": "ticket", "server": account.server, "principal": account.principal}
        ticket = self._sealer.seal_claims({**claims, "exp": self._clock() + TICKET_SECONDS})
        host = urlsplit(account.url).netloc
        return PendingLogin(
            f"{self._base_url}{CONNECT_PATH}/{ticket}",
            f"Log in to the server {account.server!r} ({host}) with your own account. Toolgate keeps the login for you "
            "alone.",
            account,
            self._logins,
            self._logins.version(account.server, account.principal),
        )

    def open_ticket(self, text: str) -> LoginTicket:
        claims = self._sealer.unseal_claims(text, self._clock())
        if claims is None or claims["kind"] != "ticket":
            raise Invalid("this link is not valid any more; call the tool again to get a new one", code="LINK_EXPIRED")
        return LoginTicket(claims["server"], claims["principal"])

    def describe(self, ticket: LoginTicket) -> str:
        """Return the host that a ticket leads to."""
        return urlsplit(self._find_account(ticket.server, ticket.principal).url).netloc

    async def start(self, ticket: LoginTicket) -> StartedLogin:
        """Find the authorization server, register with it, and return its login page."""
        account, flow, state = self._find_account(ticket.server, ticket.principal), _flow(), secrets.token_urlsafe(24)
        async with flow.open_http(account.url) as http:
            server = await flow.find_server(http, account)
            redirect = f"{self._base_url}{CALLBACK_PATH}{flow.issuer_path(account, server)}"
            request = await flow.make_request(http, account, server, self._logins, redirect, state)
        metadata = server.metadata.model_dump(mode="json", include=_KEPT_METADATA, exclude_none=True)
        claims = {
            "kind": "login",
            "exp": self._clock() + TICKET_SECONDS,
            **asdict(ticket),
            "url": account.url,
            "state": state,
            "redirect": redirect,
            "scope": request.scope,
            "verifier": request.pkce.code_verifier,
            "challenge": request.pkce.code_challenge,
            "client": asdict(request.client),
            "resource": server.resource,
            "metadata": metadata,
        }
        cookie = self._sealer.seal_claims(claims)
        if len(cookie) > COOKIE_LIMIT:
            raise Unavailable(f"the metadata of {server.issuer} is too large for a login in the browser")
        return StartedLogin(request.url, cookie_name(state), cookie)

    async def finish(self, url: str, params: Mapping[str, str], cookies: Mapping[str, str]) -> Login:
        """Exchange the code of a redirect to `url`. Only the browser that started the login can finish it."""
        state = params.get("state", "")
        claims = self._sealer.unseal_claims(cookies.get(cookie_name(state)), self._clock())
        if claims is None or claims["kind"] != "login" or not secrets.compare_digest(claims["state"], state):
            raise Forbidden(
                "this login was not started in this browser, or too long ago; call the tool again", code="WRONG_STATE"
            )
        account = self._find_account(claims["server"], claims["principal"])
        if account.url != claims["url"] or urlsplit(url).path != urlsplit(claims["redirect"]).path:
            raise Forbidden(
                "this is not the address that the login returns to; call the tool again", code="WRONG_STATE"
            )
        flow = _flow()
        request = flow.restore_request(claims)
        async with flow.open_http(account.url) as http:
            login: Login = await flow.finish_login(http, account, self._logins, request, params)
            return login


_KEPT_METADATA = {
    "issuer",
    "authorization_endpoint",
    "token_endpoint",
    "revocation_endpoint",
    "authorization_response_iss_parameter_supported",
}


def cookie_name(state: str) -> str:
    """Return the name of a login's cookie: several may run at once in one browser."""
    return f"toolgate_login_{''.join(character for character in state[:12] if character.isalnum())}"


def _flow() -> Any:
    """Import the flow for the first login only: it imports the SDK."""
    return importlib.import_module("gateway.oauth.flow")
