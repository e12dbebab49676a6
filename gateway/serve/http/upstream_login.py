"""Pages on which a person logs in to an upstream server as themselves."""

from __future__ import annotations

from typing import Protocol

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.config import Settings
from gateway.errors import Forbidden, GatewayError
from gateway.identity.authentication import Identity
from gateway.oauth.web_login import CALLBACK_PATH, CONNECT_PATH, TICKET_SECONDS, LoginTicket, WebLogins
from gateway.sealing import Sealer
from gateway.serve.http.authentication import Origin
from gateway.serve.http.authorization import PUBLIC as AUTHORIZATION
from gateway.serve.http.authorization import AuthorizationRoutes, MakeProvider
from gateway.serve.http.pages import button, facts, form, key_field, page, paragraph, protect
from gateway.serve.http.person import People, Person

PUBLIC = frozenset({f"{CONNECT_PATH}/"})


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
            if person is None:
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
            if person is None:
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
        return logins.routes, PUBLIC
    clients = AuthorizationRoutes(lambda: gateway.make_authorization(identity), people, origin)
    return [*clients.routes, *logins.routes], PUBLIC | AUTHORIZATION
