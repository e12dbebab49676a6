"""The pages to which a browser returns after a login: a local one for the terminal, and those of the gateway over HTTP.

The state of the latter travels sealed in the browser, so that any process can finish a login."""

from __future__ import annotations

import asyncio
import html
import importlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gateway.errors import Forbidden, Invalid, Unavailable
from gateway.oauth.store import FileVersion, Login, LoginAccount, Logins
from gateway.sealing import Sealer
from gateway.tasks import TaskSet
from gateway.value import Value

HOST = "127.0.0.1"
PATH = "/callback"
REQUEST_LIMIT = 32 * 1024
REQUEST_SECONDS = 10.0
FINISH_SECONDS = 60.0
CLOSE_SECONDS = 3.0
# Connections at once; more are closed unread.
CONNECTIONS = 32

_DONE = "You are signed in", "You may close this window and go back to the terminal."
_FAILED = "The login did not work", "You may close this window; the terminal says what to do. "
_WRONG_STATE = "This page does not belong to the current login", "You may close this window. "
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Toolgate: {title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 36em; margin: 4em auto; padding: 0 1em }}</style>
</head><body><h1>{title}</h1><p>{text}</p></body></html>
"""
_HEADERS = (
    "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
    "Connection: close\r\n"
)


class CallbackPage:
    """Accepts the redirect that has our `state`, and no other: any program on this machine can connect. The browser
    waits until the login has finished, and shows the outcome."""

    def __init__(self, state: str, path: str) -> None:
        self.uri = ""
        self._state = state
        self._path = path
        self._redirect: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self._outcome: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._connections = TaskSet()
        self._unused: set[asyncio.Task[None]] = set()

    async def wait_for_redirect(self) -> Mapping[str, str]:
        """Wait for the browser, and return the parameters of the redirect."""
        return await asyncio.shield(self._redirect)

    def finish(self, problem: str | None = None) -> None:
        """Show the outcome of the login in the browser."""
        if not self._outcome.done():
            self._outcome.set_result(problem)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS:
            writer.close()
            return
        task = self._connections.start(self._serve(reader, writer))
        self._unused.add(task)
        task.add_done_callback(self._unused.discard)

    async def close(self) -> None:
        """Wait until the last page is sent. Connections that a browser opens in advance and does not use are not waited
        for."""
        self.finish("it was cancelled")
        for task in self._unused:
            task.cancel()
        if self._connections:
            _, late = await asyncio.wait(self._connections, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            self._unused -= {asyncio.current_task()}
            writer.write(await self._respond(head.split(b"\r\n", 1)[0].decode("latin-1")))
            async with asyncio.timeout(REQUEST_SECONDS):
                await writer.drain()

    async def _respond(self, request: str) -> bytes:
        method, _, rest = request.partition(" ")
        url = urlsplit(rest.partition(" ")[0])
        if method != "GET" or url.path != self._path:
            return _page(404, "There is nothing here", "")
        params = dict(parse_qsl(url.query, keep_blank_values=True, max_num_fields=50))
        if not secrets.compare_digest(params.get("state", "").encode(), self._state.encode()):
            return _page(400, *_WRONG_STATE)
        if not self._redirect.done():
            self._redirect.set_result(params)
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                problem = await asyncio.shield(self._outcome)
        except TimeoutError:
            problem = "it took too long"
        title, text = _DONE if problem is None else (_FAILED[0], _FAILED[1] + f"({problem})")
        return _page(200 if problem is None else 400, title, text)


@asynccontextmanager
async def serve_callback(state: str, port: int = 0, path: str = PATH) -> AsyncIterator[CallbackPage]:
    """Serve the page for the login with that state on the loopback address, at this port or any free one."""
    page = CallbackPage(state, path)
    try:
        server = await asyncio.start_server(page.accept, HOST, port, limit=REQUEST_LIMIT)
    except OSError as error:
        raise Unavailable(f"port {port} of {HOST} cannot be used: {error.strerror}", code="PORT_TAKEN") from None
    try:
        page.uri = f"http://{HOST}:{server.sockets[0].getsockname()[1]}{path}"
        yield page
    finally:
        server.close()
        await page.close()


def _page(status: int, title: str, text: str) -> bytes:
    body = _PAGE.format(title=html.escape(title), text=html.escape(text)).encode()
    reason = {200: "OK", 400: "Bad Request", 404: "Not Found"}[status]
    return f"HTTP/1.1 {status} {reason}\r\n{_HEADERS}Content-Length: {len(body)}\r\n\r\n".encode() + body


CONNECT_PATH = "/connect"
CALLBACK_PATH = "/connect/callback"
TICKET_SECONDS = 900.0
# Browsers keep no larger cookie.
COOKIE_LIMIT = 3800


class PendingLogin(Value):
    """A login that somebody is asked for: the page to open, and how to tell that it is done."""

    url: str
    message: str
    account: LoginAccount
    logins: Logins
    before: FileVersion | None

    def is_done(self) -> bool:
        """Return whether somebody has logged in since it was asked for."""
        return self.logins.version(self.account.server, self.account.principal) not in (None, self.before)


class LoginTicket(Value):
    """The server that a principal is asked to log in to."""

    server: str
    principal: str


class StartedLogin(Value):
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
