"""The client id for an authorization server: configured, a metadata document, or registered dynamically."""

from __future__ import annotations

import re
from typing import Any

from mcp.client.auth.utils import should_use_client_metadata_url

from gateway.errors import Invalid, Unavailable
from gateway.oauth.callback_server import HOST, PATH
from gateway.oauth.discovery import AuthorizationServer
from gateway.oauth.http import OAuthClient, OAuthHttp
from gateway.oauth.store import LoginAccount

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
        "application_type": "native",
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
