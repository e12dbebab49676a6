"""Routes of logins: of clients at the built-in authorization server, and of people at upstream servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.authorization import CONSENT_PATH, METADATA_PATH
from gateway.config import Settings
from gateway.errors import Forbidden, GatewayError
from gateway.identity.authentication import Identity
from gateway.oauth.callback_server import CALLBACK_PATH, CONNECT_PATH, TICKET_SECONDS, LoginTicket, WebLogins
from gateway.protocol import HTTP_PATH
from gateway.sealing import Sealer
from gateway.serve.http.authentication import Origin
from gateway.serve.http.pages import (
    Choice,
    People,
    Person,
    button,
    choices,
    facts,
    form,
    host_of,
    key_field,
    page,
    paragraph,
    protect,
)
from gateway.tools import Permission

if TYPE_CHECKING:
    from gateway.authorization.provider import AuthorizationProvider

ENDPOINTS = ("/authorize", "/token", "/register", "/revoke")
PUBLIC = frozenset({*ENDPOINTS, CONSENT_PATH})
# Issuers by which this gateway is known at once, such as 127.0.0.1 and localhost.
ISSUERS = 16

_LEVELS = {
    Permission.READ_ONLY: Choice("read-only", "Read only", "It looks things up and changes nothing."),
    Permission.READ_WRITE: Choice("read-write", "Read and write", "It also changes files and data."),
    Permission.EXECUTE: Choice("execute", "Everything you may do", "It also runs programs and uses other servers."),
}
_NO_KEY = "Whoever runs this gateway makes one with: toolgate key create NAME --role ROLE"


# Makes the provider of an issuer, and the SDK's routes for it.
MakeProvider = Callable[[str], "tuple[AuthorizationProvider, Sequence[Route]]"]


class AuthorizationRoutes:
    """Everything between a client without a token and its first token. The SDK's parts are loaded with the first
    request."""

    def __init__(self, load: Callable[[], MakeProvider], people: People, origin: Origin) -> None:
        self._load = load
        self._make_provider: MakeProvider | None = None
        self._people = people
        self._origin = origin
        self._providers: dict[str, tuple[AuthorizationProvider, dict[str, ASGIApp]]] = {}
        self.routes: list[Route] = [
            *(Route(path, AsgiEndpoint(self._serve)) for path in (METADATA_PATH, *ENDPOINTS)),
            Route(CONSENT_PATH, self._show_consent, methods=["GET"]),
            Route(CONSENT_PATH, self._decide, methods=["POST"]),
        ]

    def _provider(self, issuer: str) -> tuple[AuthorizationProvider, dict[str, ASGIApp]]:
        found = self._providers.get(issuer)
        if found is None:
            if self._make_provider is None:
                self._make_provider = self._load()
            provider, routes = self._make_provider(issuer)
            if len(self._providers) >= ISSUERS:
                self._providers.clear()
            found = self._providers[issuer] = provider, {route.path: route.app for route in routes}
        return found

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the SDK's endpoint."""
        issuer = self._origin.of(Request(scope))
        try:
            _, apps = self._provider(issuer)
        except GatewayError as refusal:
            body = {"error": "invalid_request", "error_description": refusal.message}
            await JSONResponse(body, 400)(scope, receive, send)
            return
        if scope["path"] == "/authorize":
            send = _name_issuer(send, issuer)
        elif scope["path"] == "/revoke":
            receive = await _complete_form(Request(scope, receive))
        await apps[scope["path"]](scope, receive, send)

    # Consent.

    async def _show_consent(self, request: Request) -> Response:
        sealed = request.query_params.get("request", "")
        provider, _ = self._provider(self._origin.of(request))
        asked = provider.open_request(sealed)
        if asked is None:
            return _expired_page()
        person = await self._people.find(request)
        if person is None or not person.digest:
            return _key_page(asked, sealed)
        return _decision_page(asked, sealed, person)

    async def _decide(self, request: Request) -> Response:
        origin = self._origin.of(request)
        fields = await request.form(max_files=0, max_fields=10)
        sealed = str(fields.get("request", ""))
        try:
            self._people.require_own_page(request)
            provider, _ = self._provider(origin)
            asked = provider.open_request(sealed)
            if asked is None:
                return _expired_page()
            return await self._apply(request, fields, provider, asked, sealed)
        except GatewayError as refusal:
            return page("This did not work", [paragraph(refusal.message, "problem")], refusal.status)

    async def _apply(
        self, request: Request, fields: FormData, provider: AuthorizationProvider, asked: dict[str, Any], sealed: str
    ) -> Response:
        response: Response = RedirectResponse(f"{CONSENT_PATH}?{urlencode({'request': sealed})}", 303)
        match fields.get("action"):
            case "deny":
                response = RedirectResponse(provider.deny(asked), 303)
            case "change":
                self._people.sign_out(request, response)
            case "key":
                if await self._people.sign_in(request, fields.get("key"), response) is None:
                    return _key_page(asked, sealed, "This key is not valid here. It begins with tg_ and is active.")
            case "allow":
                person = await self._people.find(request)
                if person is not None and person.digest:
                    person.check_form(fields.get("token"), sealed)
                    level = _find_level(person, str(fields.get("permission")))
                    url = await provider.allow(asked, person.principal, person.digest, level)
                    response = RedirectResponse(url, 303)
        protect(response)
        return response


class AsgiEndpoint:
    """An ASGI application as the endpoint of a route, which would call a function with a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _name_issuer(send: Send, issuer: str) -> Send:
    """Return `send` that adds the issuer to the error that a client is sent (RFC 9207)."""

    async def name_issuer(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                (name, _with_issuer(value, issuer) if name == b"location" else value)
                for name, value in message["headers"]
            ]
            message = {**message, "headers": headers}
        await send(message)

    return name_issuer


def _with_issuer(location: bytes, issuer: str) -> bytes:
    if location.startswith(f"{CONSENT_PATH}?".encode()):
        return location
    return location + (b"&" if b"?" in location else b"?") + urlencode({"iss": issuer}).encode()


async def _complete_form(request: Request) -> Receive:
    """Return the body of a revocation with the secret that a public client does not have: the SDK requires one."""
    body = await request.body()
    if b"client_secret=" not in body:
        body += b"&client_secret="

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _find_level(person: Person, wanted: str) -> Permission:
    allowed = [level for level in Permission if person.principal.permission.allows(level)]
    return next((level for level in allowed if level.value == wanted), allowed[0])


def _targets(asked: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the places that the page's forms lead to: this gateway, and from there back to the client."""
    scheme, _, rest = asked["redirect_uri"].partition(":")
    host = rest.lstrip("/").partition("/")[0].partition("?")[0]
    is_named = scheme in ("http", "https") and "[" not in host  # a policy cannot name an IPv6 address
    return "'self'", f"{scheme}://{host}" if is_named else f"{scheme}:"


def _client_facts(asked: Mapping[str, Any]) -> list[tuple[str, str]]:
    uri = asked["redirect_uri"]
    host, local = host_of(uri), uri.startswith("http:")  # plain http is registered for this machine alone
    known = f"{asked['name']}, as {asked['host']} describes it"
    return [
        ("Who asks", known if asked["host"] else f"“{asked['name']}”, a name it chose itself"),
        ("You are sent back to", f"a program on this computer ({host})" if local else host),
    ]


def _key_page(asked: Mapping[str, Any], sealed: str, problem: str | None = None) -> Response:
    parts = [
        *([paragraph(problem, "problem")] if problem else []),
        paragraph("It wants to use tools through this gateway. Show who you are; then you see what it gets."),
        facts(_client_facts(asked)),
        form(
            CONSENT_PATH,
            [key_field(_NO_KEY), button("Continue", "action", "key", "primary"), button("Cancel", "action", "deny")],
            request=sealed,
        ),
    ]
    return page(f"Connect {asked['name']}", parts, 401 if problem else 200, _targets(asked))


def _decision_page(asked: Mapping[str, Any], sealed: str, person: Person) -> Response:
    principal = person.principal
    levels = [_LEVELS[level] for level in Permission if principal.permission.allows(level)]
    wanted = [level.value for level in levels if level.value in asked["scopes"]]
    path, folder = urlsplit(asked["resource"]).path, f"{HTTP_PATH}/"
    profile = path.removeprefix(folder) if path.startswith(folder) else None
    profiles = ", ".join(f"profile {name}" for name in (principal.profile, profile) if name)
    until = "your key is revoked"
    if principal.expires_at is not None:
        until += f", at the latest on {time.strftime('%Y-%m-%d', time.gmtime(principal.expires_at))}"
    rows = [
        *_client_facts(asked),
        ("It acts as", f"{principal.id}, role {principal.role}" + (f", {profiles}" if profiles else "")),
        ("It keeps access until", until),
    ]
    warning = "" if asked["host"] else "Anybody can choose this name. Allow it only if you just started it yourself."
    body = [
        choices("permission", "It may", levels, (wanted or [levels[-1].value])[-1]),
        button(f"Allow {asked['name']}", "action", "allow", "primary"),
        button("Do not allow", "action", "deny"),
        button("Use another key", "action", "change", "quiet"),
    ]
    parts = [
        facts(rows),
        paragraph(warning, "note") if warning else "",
        form(CONSENT_PATH, body, request=sealed, token=person.form_token(sealed)),
    ]
    return page(f"Allow {asked['name']} to use your tools?", parts, 200, _targets(asked))


def _expired_page() -> Response:
    text = "Go back to the client and connect again."
    return page("This request is not valid any more", [paragraph(text)], 400)


PUBLIC_LOGIN = frozenset({f"{CONNECT_PATH}/"})


class LoginRoutes:
    """The page that a question with a link leads to, and the address to which the login returns.

    Whoever opens the link must be the person it was made for: otherwise somebody could send theirs to a victim, whose
    account they would then use (MCP 2025-11-25, phishing by URL elicitation).
    """

    def __init__(self, logins: WebLogins, people: People, origin: Origin) -> None:
        self._logins = logins
        self._people = people
        self._origin = origin
        self.routes = [
            Route(CALLBACK_PATH, self._finish),
            Route(f"{CALLBACK_PATH}/{{issuer}}", self._finish),
            Route(f"{CONNECT_PATH}/{{ticket}}", self._show, methods=["GET"]),
            Route(f"{CONNECT_PATH}/{{ticket}}", self._start, methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        try:
            ticket = self._logins.open_ticket(request.path_params["ticket"])
            person = await self._people.find(request)
            if person is None or (not person.digest and person.principal.id != ticket.principal):
                return self._key_page(request, ticket)
            _require_same(person, ticket)
            return self._start_page(request, ticket, person)
        except GatewayError as refusal:
            return _refuse(refusal)

    async def _start(self, request: Request) -> Response:
        try:
            self._people.require_own_page(request)
            ticket = self._logins.open_ticket(request.path_params["ticket"])
            fields = await request.form(max_files=0, max_fields=10)
            if fields.get("action") == "key":
                response = RedirectResponse(request.url.path, 303)
                if await self._people.sign_in(request, fields.get("key"), response) is None:
                    return self._key_page(request, ticket, "This key is not valid here.")
                protect(response)
                return response
            person = await self._people.find(request)
            if person is None or (not person.digest and person.principal.id != ticket.principal):
                return self._key_page(request, ticket)
            _require_same(person, ticket)
            person.check_form(fields.get("token"), request.url.path)
            started = await self._logins.start(ticket)
        except GatewayError as refusal:
            return _refuse(refusal)
        response = RedirectResponse(started.url, 303)
        response.set_cookie(
            started.cookie_name,
            started.cookie,
            max_age=int(TICKET_SECONDS),
            path=CALLBACK_PATH,
            secure=self._origin.is_https(request),
            httponly=True,
            samesite="lax",  # not strict: the browser comes back from the authorization server
        )
        protect(response)
        return response

    async def _finish(self, request: Request) -> Response:
        try:
            login = await self._logins.finish(request.url.path, dict(request.query_params), request.cookies)
        except GatewayError as refusal:
            return _refuse(refusal)
        text = (
            f"{login.principal} is logged in to {login.server}. You may close this window and go back to your client."
        )
        return page("You are logged in", [paragraph(text)])

    def _key_page(self, request: Request, ticket: LoginTicket, problem: str | None = None) -> Response:
        parts = [
            *([paragraph(problem, "problem")] if problem else []),
            paragraph("Show first that you are the person this link was made for."),
            facts([("Server", f"{ticket.server} ({self._logins.describe(ticket)})"), ("For", ticket.principal)]),
            form(
                request.url.path,
                [
                    key_field("The key your client uses, or another one of yours."),
                    button("Continue", "action", "key", "primary"),
                ],
            ),
        ]
        return page(f"Log in to {ticket.server}", parts, 401 if problem else 200)

    def _start_page(self, request: Request, ticket: LoginTicket, person: Person) -> Response:
        host = self._logins.describe(ticket)
        parts = [
            facts([("Server", f"{ticket.server} ({host})"), ("You are", ticket.principal)]),
            paragraph(
                "You log in there with your own account. Toolgate stores the login encrypted, uses it for your calls "
                "alone, and never shows it to your client."
            ),
            form(
                request.url.path,
                [button("Continue to log in", "action", "start", "primary")],
                token=person.form_token(request.url.path),
            ),
        ]
        # The authorization server is found only when the form is sent, so that its host is not known here.
        return page(
            f"Log in to {ticket.server}", parts, 200, ("'self'", "https:", "http://127.0.0.1:*", "http://localhost:*")
        )


def _require_same(person: Person, ticket: LoginTicket) -> None:
    if person.principal.id != ticket.principal:
        raise Forbidden(
            f"this link was made for {ticket.principal}, and you are {person.principal.id}; somebody may have sent you "
            "theirs to use your account",
            code="WRONG_PERSON",
        )


def _refuse(refusal: GatewayError) -> Response:
    return page("This login did not work", [paragraph(refusal.message, "problem")], refusal.status)


class PersonGateway(Protocol):
    """The parts of the gateway that the pages need."""

    settings: Settings

    def make_sealer(self, purpose: str) -> Sealer: ...
    def make_authorization(self, identity: Identity) -> MakeProvider: ...
    def make_web_logins(self, base_url: str) -> WebLogins: ...


def make_person_routes(gateway: PersonGateway, identity: Identity, url: str) -> tuple[list[Route], frozenset[str]]:
    """Return the routes for people in a browser and for clients that log in, and which of them are public. `url` is
    where the gateway listens."""
    origin = Origin(gateway.settings.server.public_url)
    people = People(identity, gateway.make_sealer("person"), origin)
    logins = LoginRoutes(gateway.make_web_logins(origin.public_url or url), people, origin)
    if not gateway.settings.auth.authorization_server:
        return logins.routes, PUBLIC_LOGIN
    clients = AuthorizationRoutes(lambda: gateway.make_authorization(identity), people, origin)
    return [*clients.routes, *logins.routes], PUBLIC_LOGIN | PUBLIC
