"""Discovery of a server's authorization server: its challenge, then RFC 9728, then RFC 8414 or OpenID."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    get_client_metadata_scopes,
    issuers_match,
)
from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed
from pydantic import BaseModel, ValidationError

from gateway import protocol
from gateway.calls import to_json
from gateway.errors import Forbidden, GatewayError, Unavailable
from gateway.mcp_client import HttpEndpoint
from gateway.mcp_client.http_pool import Pool
from gateway.mcp_client.streamable_http import HEARD, POSTED
from gateway.net.transport import parse_url, url_origin
from gateway.oauth.bearer import parameter, scopes
from gateway.oauth.http import Reach, Reply

NO_LOGIN = "NO_LOGIN_OFFERED"
WRONG_ISSUER = "WRONG_ISSUER"
ASK_SECONDS = 20.0
_GRANTS = ["authorization_code", "refresh_token"]
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": protocol.LATEST_HANDSHAKE_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "toolgate", "version": "1"},
    },
}

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Challenge:
    """What a server says to whom it does not know."""

    status: int = 0
    resource_metadata: str | None = None
    scope: str | None = None


@dataclass(frozen=True)
class Site:
    """Where one signs in to a server. `resource` is what the tokens are for."""

    resource: str
    server: OAuthMetadata
    protected: ProtectedResourceMetadata | None
    challenge: Challenge

    @property
    def issuer(self) -> str:
        return str(self.server.issuer)

    def scope(self) -> str | None:
        """The scopes to ask for, by MCP's rule (2025-11-25): those of the challenge, else those of the metadata."""
        return scopes(get_client_metadata_scopes(self.challenge.scope, self.protected, self.server, _GRANTS))


async def challenge(endpoint: HttpEndpoint) -> Challenge:
    """What the server answers to a request without a token."""
    pool = Pool(endpoint)
    try:
        async with asyncio.timeout(ASK_SECONDS):
            body = to_json(_INITIALIZE)
            reply = await pool.send("POST", POSTED, body, sink=lambda _: True)
            if reply.status in (400, 404, 405):  # one that knows only the old HTTP+SSE
                reply = await pool.send("GET", HEARD, sink=lambda _: True)
    except TimeoutError:
        raise Unavailable(f"{endpoint.label} did not answer within {ASK_SECONDS:g} seconds") from None
    finally:
        pool.close()
    header = reply.header(b"www-authenticate") if reply.status in (401, 403) else ""
    return Challenge(reply.status, parameter(header, "resource_metadata"), scopes(parameter(header, "scope")))


async def discover(reach: Reach, url: str, said: Challenge, wanted: str | None = None) -> Site:
    """Where to sign in; refused when the server does not say it, or says what is not so. `wanted` is the only issuer
    that will do, where there is one."""
    # As it is compared; and without a query, which may be a key of its owner's, and is no part of what it names.
    url = str(parse_url(url).copy_with(query=None))
    protected = await _protected(reach, url, said)
    if protected is None:
        # Servers of 2025-03-26 are their own authorization servers, and say nothing of themselves.
        resource, named = url, [_origin(url)]
    else:
        resource, named = str(protected.resource), [str(each) for each in protected.authorization_servers]
    expected = next((each for each in named if wanted is None or issuers_match(each, wanted)), None)
    if expected is None:
        raise Forbidden(
            f"the server wants a login at {_origin(named[0])}, and its oauth.issuer is another: nobody signs in there",
            code=WRONG_ISSUER,
        )
    issuer = None if protected is None else expected
    server = await _server(reach, build_oauth_authorization_server_metadata_discovery_urls(issuer, url), expected)
    if server is None and issuer is None:
        raise Unavailable(
            f"the server at {expected} offers no login: it names no authorization server"
            + ("" if said.status in (401, 403) else ", and does not ask for one either"),
            code=NO_LOGIN,
        )
    if server is None:
        raise Unavailable(f"the authorization server {expected} does not describe itself", code=NO_LOGIN)
    for endpoint in (server.authorization_endpoint, server.token_endpoint):
        reach.check(str(endpoint))
    return Site(resource, server, protected, said)


async def _protected(reach: Reach, url: str, said: Challenge) -> ProtectedResourceMetadata | None:
    failed: Reply | None = None
    for place in build_protected_resource_metadata_discovery_urls(said.resource_metadata, url):
        reply = await reach.get(place)
        found = _read(ProtectedResourceMetadata, reply)
        if found is not None:
            _require_same(str(found.resource), url)
            return found
        if reply.status >= 500 or reply.status == 429:
            failed = reply
    if failed is not None:  # that says nothing about whether there is any
        raise Unavailable(f"what to sign in to cannot be asked now: {failed.refusal()}", code="LOGIN_UNAVAILABLE")
    return None


async def _server(reach: Reach, urls: list[str], expected: str) -> OAuthMetadata | None:
    for place in urls:
        reply = await reach.get(place)
        found = _read(OAuthMetadata, reply)
        if found is not None:
            if not issuers_match(str(found.issuer), expected):
                raise Forbidden(
                    f"{expected} describes itself as another authorization server, {_origin(str(found.issuer))}: "
                    "nobody signs in there",
                    code=WRONG_ISSUER,
                )
            return found
        if reply.status >= 500:
            raise Unavailable(f"the authorization server cannot be asked: {reply.refusal()}", code="LOGIN_UNAVAILABLE")
    return None


def _read(model: type[Model], reply: Reply) -> Model | None:
    if reply.status != 200:
        return None
    try:
        return model.model_validate(reply.said)
    except ValidationError:
        return None


def _require_same(resource: str, url: str) -> None:
    """RFC 9728, section 3.3: what a server says of another resource is not believed. It may name the whole of which
    our URL is a part, as many do."""
    if not check_resource_allowed(url, resource):
        raise Forbidden(
            f"the server describes another resource, {_origin(resource)}, as itself: nobody signs in there",
            code="WRONG_RESOURCE",
        )


def _origin(url: str) -> str:
    try:
        return url_origin(parse_url(url))
    except GatewayError:
        return "no URL"
