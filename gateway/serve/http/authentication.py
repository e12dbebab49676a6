"""Authentication of HTTP requests: who sends one, before anything else looks at it, and the profile of its URL."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import quote

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route, request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Forbidden, GatewayError, Invalid, NotFound, RateLimited, Unauthenticated, Unavailable
from gateway.identity import CURRENT, Principal
from gateway.identity.authentication import Identity
from gateway.identity.sessions import session_digest
from gateway.tasks import CallScope

# Answered without a key.
PUBLIC = frozenset({"/healthz"})
PUBLIC_FOLDER = "/.well-known/"

# RFC 9728: the path of the metadata, to which the path of the resource is added.
RESOURCE_METADATA = "/.well-known/oauth-protected-resource"

SIGN_IN_PATH = "/sign-in"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SESSION_COOKIE = "toolgate_session"
# A browser leaves a strict cookie out of a request that a page of another site began, and sends it with the next one.
_AGAIN = '<!doctype html><html lang="en"><meta http-equiv="refresh" content="0"><title>Toolgate</title></html>'

_ENDED = "the key or session that this request was sent with is not valid any more"

log = logging.getLogger(__name__)


class Origin:
    """The gateway's address as clients and browsers know it: `public_url`, without it the one that a request was sent
    to, whose host has been checked."""

    def __init__(self, public_url: str | None = None) -> None:
        self.public_url = public_url.rstrip("/").lower() if public_url is not None else None

    def of(self, request: Request) -> str:
        return self.public_url or f"{request.url.scheme}://{request.url.netloc.lower()}"

    def is_https(self, request: Request) -> bool:
        return self.of(request).startswith("https:")

    def cookie_name(self, request: Request, name: str = _SESSION_COOKIE) -> str:
        """Return the name of a cookie, by default that of the session. Browsers keep cookies by host, whatever the
        port, and refuse those with the prefix from subdomains and plain http."""
        return f"__Host-{name}" if self.is_https(request) else f"{name}_{request.url.port or 80}"


class _Credentials(NamedTuple):
    """The credentials of a request: its headers, and the digest of its session if it has one."""

    headers: Mapping[bytes, bytes]
    profile: str | None
    session: bytes | None


class Authentication:
    """Authenticates every request except for `public` paths, and those below one that ends in a slash. MCP is served at
    `path` and, under a profile, at `path/PROFILE`; the application sees only the first. `issues_tokens` says whether
    this gateway is its own authorization server; `end_session` ends a session of MCP if it is a principal's."""

    def __init__(
        self,
        identity: Identity,
        path: str,
        public: Collection[str] = (),
        origin: Origin | None = None,
        issues_tokens: bool = False,
        end_session: Callable[[str, Principal], Awaitable[None]] | None = None,
    ) -> None:
        self._end_session = end_session
        self._identity = identity
        self._path = path
        self._public = PUBLIC.union(public)
        self._folders = (PUBLIC_FOLDER, *(path for path in public if path.endswith("/")))
        self._origin = origin or Origin()
        self._issues_tokens = issues_tokens
        self._running: dict[CallScope, _Credentials] = {}

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Return the application for authenticated requests; each has `scope["state"]["principal"]`."""

        async def authenticate(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or self._is_public(scope["path"]):
                await app(scope, receive, send)
                return
            profile, headers = self._find_profile(scope["path"]), dict(scope["headers"])
            credentials = _Credentials(headers, profile, self._find_session(scope, headers))
            try:
                principal = await self._authenticate(credentials)
                self._check_resource(principal, scope["path"])
                if credentials.session is not None:
                    self._check_own_page(Request(scope))
            except GatewayError as refusal:
                await self._refuse(refusal, Request(scope))(scope, receive, send)
                return
            scope.setdefault("state", {}).update(principal=principal, session=credentials.session)
            CURRENT.set(principal)
            if profile is not None:
                scope = {**scope, "path": self._path, "raw_path": self._path.encode()}
            started = False

            async def send_started(message: Message) -> None:
                nonlocal started
                started = True
                await send(message)

            with CallScope() as running:
                self._running[running] = credentials
                try:
                    await app(scope, receive, send_started)
                finally:
                    del self._running[running]
            if not running.cancelled_caught:
                return
            if started:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                await self._refuse(Unauthenticated(_ENDED), Request(scope))(scope, receive, send)
            session_id = headers.get(b"mcp-session-id")
            if session_id is not None and self._end_session is not None and not principal.has_expired:
                await self._end_session(session_id.decode("latin-1"), principal)

        return authenticate

    async def _authenticate(self, credentials: _Credentials) -> Principal:
        if credentials.session is not None:
            principal = await self._identity.recognize(credentials.session)
            if principal is not None:
                return principal
        return await self._identity.authenticate(credentials.headers, credentials.profile)

    def _find_session(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bytes | None:
        """Return the digest of the session cookie, unless the request has a key. MCP takes no cookie."""
        if b"cookie" not in headers or b"authorization" in headers or self._is_mcp(scope["path"]):
            return None
        request = Request(scope)
        cookie = request.cookies.get(self._origin.cookie_name(request))
        return None if cookie is None else session_digest(cookie)

    def _check_own_page(self, request: Request) -> None:
        """Refuse a change that a page of another origin makes with somebody's cookie. Browsers say who sends it."""
        if request.method in _SAFE_METHODS:
            return
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "").lower()
        if site not in (None, "same-origin") or origin != self._origin.of(request):
            raise Forbidden("only a page of this gateway may change something here", code="ORIGIN_FORBIDDEN")

    async def end_unauthenticated(self) -> None:
        """End the requests in progress, such as streams, whose credential is not valid any more."""
        for running, credentials in list(self._running.items()):
            if await is_refused(self._authenticate(credentials)):
                running.cancel()

    def routes(self) -> list[Route]:
        """Return the routes of the metadata that tells clients where to log in (RFC 9728)."""
        # Also for clients in a browser, whose pages `RequestGuard` has checked.
        endpoint = CORSMiddleware(
            request_response(self._describe_resource), allow_origins=["*"], allow_headers=["mcp-protocol-version"]
        )
        paths = ("", self._path, f"{self._path}/{{profile}}")
        return [Route(RESOURCE_METADATA + path, endpoint) for path in paths]

    def authorization_servers(self, request: Request) -> list[str]:
        """Return the issuers of tokens that are accepted."""
        own = [self._origin.of(request)] if self._issues_tokens else []
        return [self._identity.issuer, *own] if self._identity.issuer is not None else own

    async def _describe_resource(self, request: Request) -> Response:
        servers = self.authorization_servers(request)
        if not servers:
            return error_response(NotFound("this gateway takes API keys only; no server issues tokens for it"))
        profile = request.path_params.get("profile")
        resource = self._origin.of(request) + self._path + (f"/{profile}" if profile else "")
        return JSONResponse(
            {
                "resource": resource,
                "authorization_servers": servers,
                "bearer_methods_supported": ["header"],
                "resource_name": "Toolgate",
            }
        )

    def _find_profile(self, path: str) -> str | None:
        parent, _, profile = path.rpartition("/")
        return profile if parent == self._path and profile else None

    def _is_mcp(self, path: str) -> bool:
        return path == self._path or path.startswith(f"{self._path}/")

    def _is_public(self, path: str) -> bool:
        return path in self._public or path.startswith(self._folders)

    def _check_resource(self, principal: Principal, path: str) -> None:
        """Refuse a token outside of MCP (RFC 8707). The profile of its resource applies wherever it is used."""
        if principal.resource is not None and not self._is_mcp(path):
            raise Unauthenticated(f"this token is for {principal.resource} only; use a key", code="WRONG_RESOURCE")

    def _refuse(self, refusal: GatewayError, request: Request) -> Response:
        if isinstance(refusal, Unauthenticated) and self._is_page_view(request):
            return _send_to_sign_in(request)
        response = error_response(refusal)
        if isinstance(refusal, Unauthenticated):
            parts = ['Bearer realm="toolgate"']
            if "authorization" in request.headers:
                parts.append('error="invalid_token"')
            if self.authorization_servers(request):
                path = request.url.path if request.url.path.startswith(self._path) else self._path
                parts.append(f'resource_metadata="{self._origin.of(request)}{RESOURCE_METADATA}{path}"')
            response.headers["www-authenticate"] = ", ".join(parts)
        return response

    def _is_page_view(self, request: Request) -> bool:
        """Return whether a person opens an address in a browser."""
        accepts = "text/html" in request.headers.get("accept", "")
        shows = accepts and request.method == "GET" and "authorization" not in request.headers
        return shows and SIGN_IN_PATH in self._public and not self._is_mcp(request.url.path)


async def is_refused(authentication: Awaitable[Principal]) -> bool:
    """Return whether a credential that was valid before is not any more."""
    try:
        await authentication
    except (Unauthenticated, Forbidden):
        return True
    except GatewayError as error:
        log.debug("a request in progress cannot be authenticated again now: %s", error)
    return False


def _send_to_sign_in(request: Request) -> Response:
    if request.headers.get("sec-fetch-site") == "cross-site":
        return HTMLResponse(_AGAIN, headers={"cache-control": "no-store"})
    query = f"?{request.url.query}" if request.url.query else ""
    target = f"{SIGN_IN_PATH}?next={quote(request.url.path + query, safe='')}"
    return RedirectResponse(target, 303, {"cache-control": "no-store"})


class ForwardedHeaders:
    """Takes the client's address and scheme from the headers of a proxy, if the request comes from one of `trusted`:
    addresses, or networks like `10.0.0.0/8`."""

    def __init__(self, trusted: Sequence[str]) -> None:
        try:
            self._trusted = [ip_network(each, strict=False) for each in trusted]
        except ValueError as error:
            raise Invalid(f"server.trusted_proxies: {error}", code="INVALID_CONFIG") from None

    def apply(self, scope: Scope) -> None:
        """Change the scope of a request that a trusted proxy forwarded."""
        client = scope.get("client")
        if not self._trusted or client is None or not self._is_trusted(client[0]):
            return
        headers = dict(scope["headers"])
        address = self._find_client(headers)
        if address is not None:
            scope["client"] = address, 0
        scheme = headers.get(b"x-forwarded-proto", b"").decode("latin-1").strip().lower()
        if scheme in ("http", "https"):
            scope["scheme"] = scheme

    def _find_client(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return the last address that no trusted proxy has; those before it could be made up by the client."""
        listed = [each.strip() for each in headers.get(b"x-forwarded-for", b"").decode("latin-1").split(",")]
        for address in reversed(listed):
            if not _is_address(address):
                return None
            if not self._is_trusted(address):
                return address
        return None

    def _is_trusted(self, address: str) -> bool:
        return _is_address(address) and any(_contains(network, address) for network in self._trusted)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _contains(network: IPv4Network | IPv6Network, address: str) -> bool:
    parsed = ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed) in network


def error_response(refusal: GatewayError) -> JSONResponse:
    """Return a refusal as a response, in the form of the REST API."""
    response = JSONResponse({"ok": False, "error": refusal.to_dict()}, refusal.status)
    if isinstance(refusal, Unavailable | RateLimited):
        response.headers["retry-after"] = str(refusal.details.get("retry_after", 1))
    return response
