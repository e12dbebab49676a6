"""Clients of the authorization server: their metadata documents, registrations and settings."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from mcp.server.auth.provider import RegistrationError
from mcp.shared.auth import JWT_BEARER_GRANT_TYPE, InvalidRedirectUriError, OAuthClientInformationFull
from pydantic import AnyUrl, ValidationError

from gateway.config import AuthClientSettings, resolve_variables
from gateway.errors import GatewayError
from gateway.net.client import GuardedClient
from gateway.net.policy import NetworkPolicy, RequestLimits
from gateway.net.transport import INTERNET, Network
from gateway.sealing import Sealer
from gateway.text import visible

# The draft of client metadata documents recommends at most 5 KiB.
DOCUMENT_LIMITS = RequestLimits(bytes=16 * 1024, seconds=8.0, connect_seconds=4.0, redirects=0)
DOCUMENT_SECONDS = 3600.0
FAILURE_SECONDS = 30.0
DOCUMENTS = 256
FETCHES = 4

URL_LIMIT = 512
REDIRECTS_LIMIT = 16
NAME_LIMIT = 80
CLIENT_ID_LIMIT = 8192
REGISTERED = "tgd_"

_GRANTS = ["authorization_code", "refresh_token"]
# A client id must not make the gateway connect to other services than web servers.
DOCUMENT_PORTS = (443,)
_DOCUMENT_URL = re.compile(r"https://[a-z0-9.-]+(?::\d{1,5})?/[!-~]+", re.I)
_AUTHORITY = re.compile(r"([a-z0-9.-]+|\[[0-9a-f:.]+\])(:\d{1,5})?", re.I)
_URI = re.compile(r"([a-z][a-z0-9+.-]{0,63}):[!-~]+", re.I)
# Schemes of a browser or a file manager. No client receives a code through them.
_FOREIGN_SCHEMES = re.compile(
    "about|blob|chrome|data|file(system)?|ftps?|gopher|jar|javascript|mailto|resource|sms|tel|vbscript|view-source|wss?"
)


class AuthorizedClient(OAuthClientInformationFull):
    """A client. `host` is the host of its metadata document, which vouches for its name; None for one that registered
    itself under any name it liked."""

    host: str | None = None

    @property
    def label(self) -> str:
        """Its name, safe to show."""
        name = visible(" ".join((self.client_name or "").split()))[:NAME_LIMIT]
        return name or self.host or "a client without a name"

    def validate_redirect_uri(self, redirect_uri: AnyUrl | None) -> AnyUrl:
        """Return the redirect URI of a request if it is registered. The port of a loopback address may differ: a
        program on a person's machine takes any free one (RFC 8252, section 7.3)."""
        if redirect_uri is not None and any(
            _is_same_loopback(redirect_uri, known) for known in self.redirect_uris or ()
        ):
            return redirect_uri
        try:
            return super().validate_redirect_uri(redirect_uri)
        except InvalidRedirectUriError:
            raise InvalidRedirectUriError("this redirect_uri is not registered for the client") from None

    def validate_scope(self, requested_scope: str | None) -> list[str] | None:
        """Return the requested scopes. Unknown ones are ignored (RFC 6749, section 3.3): clients request what other
        servers know."""
        return requested_scope.split() if requested_scope else None


class Clients:
    """Finds a client by its id: an https URL is that of its metadata document, `tgd_…` a registration that the id
    itself holds, sealed, and any other id one of the settings. Nothing that a stranger sends is stored."""

    def __init__(
        self,
        sealer: Sealer,
        settings: Mapping[str, AuthClientSettings],
        network: Network = INTERNET,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sealer = sealer
        self._settings = settings
        self._network = network
        self._clock = clock
        self._documents: OrderedDict[str, tuple[float, AuthorizedClient | None]] = OrderedDict()
        self._fetching = asyncio.Semaphore(FETCHES)

    async def find(self, client_id: str) -> AuthorizedClient | None:
        if len(client_id) > CLIENT_ID_LIMIT:
            return None
        if client_id.startswith(REGISTERED):
            return self._unseal(client_id)
        if client_id in self._settings:
            return _configured_client(client_id, self._settings[client_id])
        return await self._find_document(client_id) if _is_document_url(client_id) else None

    def register(self, client: OAuthClientInformationFull) -> None:
        """Make the registration of a client, changing the object: its id holds what it registered."""
        uris = [str(uri) for uri in client.redirect_uris or ()]
        if not 1 <= len(uris) <= REDIRECTS_LIMIT or not all(map(is_redirect_uri, uris)):
            raise RegistrationError(
                "invalid_redirect_uri",
                f"register 1 to {REDIRECTS_LIMIT} redirect URIs: https, http of this machine, or a scheme of your own",
            )
        unsupported = set(client.grant_types) - set(_GRANTS)
        client.grant_types = [grant for grant in client.grant_types if grant not in unsupported]
        client.client_name = (client.client_name or "")[:NAME_LIMIT] or None
        method = client.token_endpoint_auth_method or "none"
        client.client_id = REGISTERED + self._sealer.seal_claims(
            {
                "uris": uris,
                "name": client.client_name,
                "grants": client.grant_types,
                "method": method,
                "secret": client.client_secret,
            }
        )
        if len(client.client_id) > CLIENT_ID_LIMIT:
            raise RegistrationError("invalid_client_metadata", "the redirect URIs are too long")

    def _unseal(self, client_id: str) -> AuthorizedClient | None:
        claims = self._sealer.unseal_claims(client_id.removeprefix(REGISTERED))
        if claims is None:
            return None
        return AuthorizedClient(
            client_id=client_id,
            client_secret=claims["secret"],
            client_name=claims["name"],
            redirect_uris=claims["uris"],
            grant_types=claims["grants"],
            token_endpoint_auth_method=claims["method"],
        )

    async def _find_document(self, url: str) -> AuthorizedClient | None:
        until, client = self._documents.get(url, (0.0, None))
        if self._clock() < until:
            return client
        async with self._fetching:
            client = await self._fetch(url)
        self._documents[url] = self._clock() + (DOCUMENT_SECONDS if client else FAILURE_SECONDS), client
        self._documents.move_to_end(url)
        while len(self._documents) > DOCUMENTS:
            self._documents.popitem(last=False)
        return client

    async def _fetch(self, url: str) -> AuthorizedClient | None:
        policy = NetworkPolicy(any_host=True, https_only=True, ports=DOCUMENT_PORTS)
        try:
            async with (
                GuardedClient(policy, self._network) as http,
                http.request("GET", url, headers={"accept": "application/json"}, limits=DOCUMENT_LIMITS) as response,
            ):
                return _parse_document(url, await response.read()) if response.status == 200 else None
        except GatewayError:
            return None


def _parse_document(url: str, content: bytes) -> AuthorizedClient | None:
    """Return the client that a document describes; None for one that describes another, or one with a secret."""
    try:
        document: Any = json.loads(content)
        if not isinstance(document, dict) or document.get("client_id") != url or "client_secret" in document:
            return None
        if document.get("token_endpoint_auth_method", "none") != "none":
            return None
        uris = document.get("redirect_uris")
        if not isinstance(uris, list) or not 1 <= len(uris) <= 4 * REDIRECTS_LIMIT:
            return None
        return AuthorizedClient(
            client_id=url,
            client_name=str(document.get("client_name") or "")[:NAME_LIMIT] or None,
            redirect_uris=[uri for uri in uris if is_redirect_uri(uri)],
            grant_types=list(_GRANTS),
            token_endpoint_auth_method="none",  # noqa: S106 - no password
            host=urlsplit(url).hostname,
        )
    except (ValueError, RecursionError, ValidationError):
        return None


def _configured_client(client_id: str, settings: AuthClientSettings) -> AuthorizedClient:
    return AuthorizedClient(
        client_id=client_id,
        client_secret=resolve_variables(settings.secret, field="client_secret"),
        client_name=settings.name or client_id,
        redirect_uris=[AnyUrl(uri) for uri in settings.redirect_uris] or None,
        grant_types=[*_GRANTS, JWT_BEARER_GRANT_TYPE],
        token_endpoint_auth_method=settings.auth_method,
        host="the settings of this gateway",
    )


def is_redirect_uri(uri: Any) -> bool:
    """Return whether a browser may be sent there with a code: https, http of this machine, or the private scheme of an
    application (RFC 8252)."""
    if not isinstance(uri, str) or len(uri) > URL_LIMIT or (match := _URI.fullmatch(uri)) is None:
        return False
    scheme = match[1].lower()
    try:
        parts = urlsplit(uri)
        host, user = parts.hostname, parts.username
        _ = parts.port
    except ValueError:
        return False
    if parts.fragment or "#" in uri or "\\" in uri or user is not None:
        return False
    if scheme in ("http", "https"):
        return _AUTHORITY.fullmatch(parts.netloc) is not None and (scheme == "https" or _is_this_machine(host))
    return _FOREIGN_SCHEMES.fullmatch(scheme) is None


def _is_document_url(client_id: str) -> bool:
    """Return whether an id is a URL with a path and without dot segments, as the draft requires."""
    if len(client_id) > URL_LIMIT or _DOCUMENT_URL.fullmatch(client_id) is None:
        return False
    parts = urlsplit(client_id)
    return not parts.fragment and parts.path != "/" and not {".", ".."} & set(parts.path.split("/"))


def _is_same_loopback(one: AnyUrl, other: AnyUrl) -> bool:
    """Return whether two redirect URIs differ at most in the port of this machine."""
    if one.scheme != "http" or one.username is not None or not _is_this_machine(one.host):
        return False
    first, second = urlsplit(str(one)), urlsplit(str(other))
    return first._replace(netloc=first.hostname or "") == second._replace(netloc=second.hostname or "")


def _is_this_machine(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address((host or "").strip("[]")).is_loopback
    except ValueError:
        return False
