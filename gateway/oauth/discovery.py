"""Discovery of a server's authorization server: its challenge, then RFC 9728, then RFC 8414 or OpenID."""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    get_client_metadata_scopes,
    issuers_match,
    should_use_client_metadata_url,
)
from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed
from pydantic import BaseModel, ValidationError

from gateway import protocol
from gateway.calls import to_json
from gateway.errors import Forbidden, GatewayError, Invalid, Unavailable
from gateway.mcp_client import HttpEndpoint
from gateway.mcp_client.http_headers import header_lines
from gateway.mcp_client.http_pool import HttpPool
from gateway.mcp_client.streamable_http import GET_HEADERS, POST_HEADERS
from gateway.net.transport import parse_url, url_origin
from gateway.oauth.bearer import challenge_parameter, valid_scopes
from gateway.oauth.callback_server import HOST, PATH
from gateway.oauth.http import OAuthClient, OAuthHttp, OAuthResponse
from gateway.oauth.store import LoginAccount
from gateway.value import Value

NO_LOGIN = "NO_LOGIN_OFFERED"
WRONG_ISSUER = "WRONG_ISSUER"
CHALLENGE_SECONDS = 20.0
_GRANTS = ["authorization_code", "refresh_token"]
REFUSED = (401, 403)
_CLIENT = {"name": "toolgate", "version": "1"}
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": protocol.LATEST_HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": _CLIENT},
}
_MODERN_META = {
    protocol.PROTOCOL_VERSION_META_KEY: protocol.LATEST_MODERN_VERSION,
    protocol.CLIENT_INFO_META_KEY: _CLIENT,
    protocol.CLIENT_CAPABILITIES_META_KEY: {},
}
_LIST_TOOLS = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"_meta": _MODERN_META}}
_MODERN_HEADERS = [
    (protocol.MCP_PROTOCOL_VERSION_HEADER, protocol.LATEST_MODERN_VERSION),
    (protocol.MCP_METHOD_HEADER, "tools/list"),
]

Model = TypeVar("Model", bound=BaseModel)


class Challenge(Value):
    """A server's answer to a request without a token."""

    status: int = 0
    resource_metadata: str | None = None
    scope: str | None = None


class AuthorizationServer(Value):
    """The authorization server of an MCP server. `resource` is what tokens are for."""

    resource: str
    metadata: OAuthMetadata
    protected: ProtectedResourceMetadata | None
    challenge: Challenge

    @property
    def issuer(self) -> str:
        return str(self.metadata.issuer)

    def scope(self) -> str | None:
        """Return the scopes to request, by the rule of 2025-11-25: those of the challenge, else of the metadata."""
        return valid_scopes(get_client_metadata_scopes(self.challenge.scope, self.protected, self.metadata, _GRANTS))


async def request_challenge(endpoint: HttpEndpoint) -> Challenge:
    """Send requests without a token until the server refuses one, and return how it does. Some servers let anybody
    shake hands; one of 2026-07-28 only has no handshake, and one of the old HTTP+SSE takes no POST."""
    pool = HttpPool(endpoint)
    try:
        async with asyncio.timeout(CHALLENGE_SECONDS):
            response = await pool.send("POST", POST_HEADERS, to_json(_INITIALIZE), sink=lambda _: True)
            if response.status not in REFUSED:
                session = response.header(b"mcp-session-id")
                headers = header_lines([("mcp-session-id", session)] if session else _MODERN_HEADERS)
                response = await pool.send("POST", POST_HEADERS + headers, to_json(_LIST_TOOLS), sink=lambda _: True)
            if response.status in (400, 404, 405):
                response = await pool.send("GET", GET_HEADERS, sink=lambda _: True)
    except TimeoutError:
        raise Unavailable(f"{endpoint.label} did not answer within {CHALLENGE_SECONDS:g} seconds") from None
    finally:
        pool.close()
    header = response.header(b"www-authenticate") if response.status in REFUSED else ""
    scope = valid_scopes(challenge_parameter(header, "scope"))
    return Challenge(response.status, challenge_parameter(header, "resource_metadata"), scope)


async def discover(
    http: OAuthHttp, url: str, challenge: Challenge, required_issuer: str | None = None
) -> AuthorizationServer:
    """Return the authorization server of the MCP server at a URL; raises when it names none or one that is not valid.
    `required_issuer` is the only one that is accepted."""
    # Normalized for comparison, and without a query, which may be a secret and does not identify the resource.
    url = str(parse_url(url).copy_with(query=None))
    protected = await _load_resource(http, url, challenge)
    if protected is None:
        # Servers of 2025-03-26 are their own authorization servers, and have no resource metadata.
        resource, issuers = url, [_origin(url)]
    else:
        resource, issuers = str(protected.resource), [str(issuer) for issuer in protected.authorization_servers]
    accepted = (issuer for issuer in issuers if required_issuer is None or issuers_match(issuer, required_issuer))
    expected = next(accepted, None)
    if expected is None:
        raise Forbidden(
            f"the server requires a login at {_origin(issuers[0])}, but oauth.issuer names another one; "
            "the login is refused",
            code=WRONG_ISSUER,
        )
    issuer = None if protected is None else expected
    urls = build_oauth_authorization_server_metadata_discovery_urls(issuer, url)
    metadata = await _load_metadata(http, urls, expected)
    if metadata is None and issuer is None:
        raise Unavailable(
            f"the server at {expected} offers no login: it names no authorization server"
            + ("" if challenge.status in REFUSED else ", and does not require one either"),
            code=NO_LOGIN,
        )
    if metadata is None:
        raise Unavailable(f"the authorization server {expected} has no metadata", code=NO_LOGIN)
    for endpoint in (metadata.authorization_endpoint, metadata.token_endpoint):
        http.check(str(endpoint))
    return AuthorizationServer(resource, metadata, protected, challenge)


async def _load_resource(http: OAuthHttp, url: str, challenge: Challenge) -> ProtectedResourceMetadata | None:
    failed: OAuthResponse | None = None
    for metadata_url in build_protected_resource_metadata_discovery_urls(challenge.resource_metadata, url):
        response = await http.get(metadata_url)
        metadata = _parse(ProtectedResourceMetadata, response)
        if metadata is not None:
            _require_same(str(metadata.resource), url)
            return metadata
        if response.status >= 500 or response.status == 429:
            failed = response
    if failed is not None:  # the server may have metadata all the same
        reason = f"the metadata of the server cannot be loaded now: {failed.describe()}"
        raise Unavailable(reason, code="LOGIN_UNAVAILABLE")
    return None


async def _load_metadata(http: OAuthHttp, urls: list[str], expected: str) -> OAuthMetadata | None:
    for url in urls:
        response = await http.get(url)
        metadata = _parse(OAuthMetadata, response)
        if metadata is not None:
            if not issuers_match(str(metadata.issuer), expected):
                raise Forbidden(
                    f"{expected} describes itself as another authorization server, {_origin(str(metadata.issuer))}: "
                    "the login is refused",
                    code=WRONG_ISSUER,
                )
            return metadata
        if response.status >= 500:
            reason = f"the metadata of the authorization server cannot be loaded now: {response.describe()}"
            raise Unavailable(reason, code="LOGIN_UNAVAILABLE")
    return None


def _parse(model: type[Model], response: OAuthResponse) -> Model | None:
    if response.status != 200:
        return None
    try:
        return model.model_validate(response.content)
    except ValidationError:
        return None


def _require_same(resource: str, url: str) -> None:
    """Refuse metadata of another resource (RFC 9728, section 3.3). It may name a prefix of our URL, as many do."""
    if not check_resource_allowed(url, resource):
        raise Forbidden(
            f"the server describes another resource, {_origin(resource)}, as itself: the login is refused",
            code="WRONG_RESOURCE",
        )


def _origin(url: str) -> str:
    try:
        return url_origin(parse_url(url))
    except GatewayError:
        return "no URL"


# Authentication methods, best first. Servers made with the MCP SDK revoke nothing for a secret in a header.
_METHODS = ("none", "client_secret_post", "client_secret_basic")


# Suggested where a redirect URI must be registered by hand.
_PORT = 8421

_PLAIN = re.compile(r"[ -~]{1,4096}")


async def identify_client(
    http: OAuthHttp, account: LoginAccount, server: AuthorizationServer, redirect: str, scope: str | None
) -> OAuthClient:
    """Return the client to log in as; raises when there is none and none can be registered."""
    configured = find_configured_client(account, server)
    if configured is not None:
        return configured
    document = account.oauth.client_metadata_url
    if document is not None and not registers_client(account, server):
        return OAuthClient(document)
    if server.metadata.registration_endpoint is None:
        raise Invalid(
            f"{server.issuer} offers no registration: register Toolgate there, with the redirect URI "
            f"http://{HOST}:{_PORT}{PATH}, set oauth.client_id of {account.server!r} to the client id you get, and run "
            f"`{account.command} --port {_PORT}`",
            code="CLIENT_ID_NEEDED",
        )
    return await _register(http, server, redirect, scope)


def registers_client(account: LoginAccount, server: AuthorizationServer) -> bool:
    """Return whether each login registers a new client."""
    document = account.oauth.client_metadata_url
    return account.oauth.client_id is None and not should_use_client_metadata_url(server.metadata, document)


def find_configured_client(account: LoginAccount, server: AuthorizationServer) -> OAuthClient | None:
    """Return the client of the settings, with the authentication method that the server prefers."""
    client_id, secret = account.client_id, account.client_secret
    if client_id is None:
        return None
    if secret is None:
        return OAuthClient(client_id)
    # The default of RFC 8414.
    offered = server.metadata.token_endpoint_auth_methods_supported or ["client_secret_basic"]
    is_posted = "client_secret_basic" not in offered and "client_secret_post" in offered
    return OAuthClient(client_id, secret, "client_secret_post" if is_posted else "client_secret_basic")


async def _register(http: OAuthHttp, server: AuthorizationServer, redirect: str, scope: str | None) -> OAuthClient:
    """Register a client (RFC 7591). Each login does, since the port of its redirect URI differs."""
    offered = server.metadata.token_endpoint_auth_methods_supported or list(_METHODS)
    request: dict[str, Any] = {
        "client_name": "Toolgate",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": next((method for method in _METHODS if method in offered), "none"),
        "application_type": "native" if redirect.startswith("http:") else "web",
    }
    if scope:
        request["scope"] = scope
    response = await http.post_json(str(server.metadata.registration_endpoint), request)
    if response.status not in (200, 201):
        raise Unavailable(f"registration failed: {response.describe()}", code="REGISTRATION_FAILED")
    client_id, secret = response.content.get("client_id"), response.content.get("client_secret")
    method = response.content.get("token_endpoint_auth_method") or request["token_endpoint_auth_method"]
    if not _is_plain(client_id):
        raise Unavailable(f"{response.origin} registered no client id", code="REGISTRATION_FAILED")
    secret = secret if _is_plain(secret) else None
    if method not in _METHODS or (method != "none" and secret is None):
        reason = f"{response.origin} registered an authentication method that is not supported"
        raise Unavailable(reason, code="REGISTRATION_FAILED")
    return OAuthClient(str(client_id), secret, method)


def _is_plain(value: Any) -> bool:
    """Return whether a value has only characters of ids and secrets (RFC 6749, appendix A)."""
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None
